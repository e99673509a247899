"""The softmax of FlagGems (Triton), by its functions for the two directions: no mask or scale.

Its usual way, putting its kernels into torch in place of torch's own, would change what `eager` measures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softmax_exp.cases import Case
from softmax_exp.variants.contract import Unsupported
from softmax_exp.variants.peers import imported

NAME = "flag_gems"
NEEDS_CUDA = True
PACKAGE = "flag-gems"
# Without its dependencies: it pins a numpy older than this package needs, and runs with a newer one.
COMMAND = f"pip install --no-deps {PACKAGE} && pip install packaging PyYAML sqlalchemy"


def build(case: Case) -> Callable[..., torch.Tensor]:
    """FlagGems' softmax for a case. Unsupported with a mask or scale."""
    if case.mask != "none" or case.scale is not None:
        raise Unsupported("FlagGems' softmax does no mask or scale")
    gems = imported(PACKAGE, "flag_gems", COMMAND)
    if case.mode == "forward":
        return lambda x: gems.softmax(x, -1)

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            y = gems.softmax(x, -1)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            (y,) = ctx.saved_tensors
            return gems.softmax_backward(grads[0], y, -1, y.dtype)

    return Softmax.apply
