"""Where tests run: those marked gpu only with CUDA; without it, kernels on the CPU under Triton's interpreter.

Also what tests of several folders share: stores.
"""

import os

import pytest
import torch

from softmax_exp.tracking.store import quieten

HAS_CUDA = torch.cuda.is_available()
if not HAS_CUDA:
    # Triton reads this when a kernel is decorated, so it must be set before any test imports the kernels.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_CUDA:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database with tables and nothing in them: making one takes seconds, copying it none."""
    quieten()
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path
