"""The simple kernel: right, forward only, and honest about what it does not do."""

import pytest
import torch

from softmax_exp.kernels import simple_softmax
from softmax_exp.kernels.launch import INTERPRETED, check_device
from tests.kernels.oracle import assert_close, oracle


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 4, 128), (2, 2048), (1, 5000), (0, 4)], ids=str)
def test_simple(shape, device):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).half().to(device)
    assert_close(simple_softmax(x), oracle(x), torch.float16)
    assert_close(simple_softmax(x.transpose(0, -1)), oracle(x.transpose(0, -1)), torch.float16)


def test_simple_refuses(device):
    with pytest.raises(ValueError, match="no backward"):
        simple_softmax(torch.zeros(3, 4, device=device, requires_grad=True))
    with pytest.raises(ValueError, match="float64"):
        simple_softmax(torch.zeros(3, 4, device=device, dtype=torch.float64))
    with pytest.raises(ValueError, match="1,048,576"):
        simple_softmax(torch.zeros(1, 2**20 + 1, device=device))


def test_tensors_of_other_devices_are_refused():
    with pytest.raises(RuntimeError, match="CUDA tensor, not one on meta"):
        check_device(torch.zeros(3, device="meta"))
    if not INTERPRETED:
        with pytest.raises(RuntimeError, match="not one on cpu"):
            check_device(torch.zeros(3))
