"""The device that the kernels' tests run on."""

import pytest
import torch


@pytest.fixture
def device() -> str:
    """The device that the kernels run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
