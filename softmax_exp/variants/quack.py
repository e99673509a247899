"""The softmax of QuACK (CuTe DSL; Hopper and Blackwell): forward and backward of matrices, no mask or scale."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softmax_exp.cases import Case
from softmax_exp.variants.contract import Unsupported
from softmax_exp.variants.peers import imported

NAME = "quack"
NEEDS_CUDA = True
PACKAGE = "quack-kernels"


def build(case: Case) -> Callable[..., torch.Tensor]:
    """QuACK's softmax for a case. Unsupported with a mask or scale, and in float64."""
    if case.mask != "none" or case.scale is not None:
        raise Unsupported("QuACK's softmax does no mask or scale")
    if case.dtype == "float64":
        raise Unsupported("QuACK's softmax takes no float64")
    softmax = imported(PACKAGE, "quack.softmax", f"pip install {PACKAGE}").softmax
    if len(case.shape) == 2:
        return softmax
    return lambda x: softmax(x.reshape(-1, x.shape[-1])).view(x.shape)
