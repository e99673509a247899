"""The first version's Triton kernel: one row a program in one block. Forward only, no mask or scale."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softmax_exp.cases import Case
from softmax_exp.kernels import simple_softmax
from softmax_exp.variants import Unsupported

NAME = "triton-simple"
NEEDS_CUDA = True
SOURCES = ("kernels/simple.py",)


def build(case: Case) -> Callable[..., torch.Tensor]:
    """The simple kernel for a case. Unsupported outside forward, with a mask or scale, and beyond 2^20 columns."""
    if case.mode != "forward":
        raise Unsupported("triton-simple has no backward")
    if case.mask != "none" or case.scale is not None:
        raise Unsupported("triton-simple does no mask or scale")
    if case.n_cols > 2**20:
        raise Unsupported(f"triton-simple holds a row in one block of at most 1,048,576 columns, not {case.n_cols:,}")
    if case.dtype == "float64":
        raise Unsupported("triton-simple computes in float32, so it takes no float64")
    return simple_softmax
