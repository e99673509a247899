"""The softmax of Liger Kernel (`LigerSoftmaxFunction`, Triton): forward and backward, no mask or scale."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softmax_exp.cases import Case
from softmax_exp.variants.contract import Unsupported
from softmax_exp.variants.peers import imported

NAME = "liger"
NEEDS_CUDA = True
PACKAGE = "liger-kernel"


def build(case: Case) -> Callable[..., torch.Tensor]:
    """Liger's softmax for a case. Unsupported with a mask or scale, and for rows that Liger refuses."""
    if case.mask != "none" or case.scale is not None:
        raise Unsupported("Liger's softmax does no mask or scale")
    command = f"pip install {PACKAGE}"
    softmax = imported(PACKAGE, "liger_kernel.ops.softmax", command)
    settings = imported(PACKAGE, "liger_kernel.ops.utils", command)
    try:
        settings.calculate_settings(case.n_cols)
    except RuntimeError as error:  # its limit on the length of a row, in its own words
        raise Unsupported(str(error)) from error
    return softmax.LigerSoftmaxFunction.apply
