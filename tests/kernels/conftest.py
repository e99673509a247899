"""Where the kernels' tests run: on the GPU if there is one, else on the CPU under Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when a kernel is decorated, so it must be set before any test imports the kernels.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def device() -> str:
    """The device that the kernels run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
