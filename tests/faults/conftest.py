"""The fault-injection suite in two lengths: a short one in every run of the tests, the whole one by scripts/faults."""

from __future__ import annotations

import os
import shutil

import pytest

WHOLE = os.environ.get("SOFTMAX_EXP_FAULTS") == "whole"
whole = pytest.mark.skipif(not WHOLE, reason="a part of scripts/faults alone, since it takes long")


@pytest.fixture
def many():
    """Chooses how often a fault is tried: `many(short, whole)`."""
    return lambda short, whole: whole if WHOLE else short


@pytest.fixture
def figures(capsys):
    """Prints a line of figures past pytest's capture, in the whole suite."""

    def show(**values: object) -> None:
        if WHOLE:
            with capsys.disabled():
                print("\n  " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items()))

    return show


@pytest.fixture
def outputs(tmp_path, empty_database):
    """An outputs folder with an empty store."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path
