"""Where the kernels' tests run: on the GPU if there is one, else on the CPU under Triton's interpreter."""

import pytest
import torch


@pytest.fixture
def device() -> str:
    """The device that the kernels run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
