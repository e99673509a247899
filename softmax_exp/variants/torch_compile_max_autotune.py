"""`torch.compile` with Inductor's autotuning of every kernel.

Without its CUDA graphs: those copy the input and reuse one output, which times another operation than the others do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from softmax_exp.cases import Case
from softmax_exp.variants import eager

NAME = "torch.compile-max-autotune"
SOURCES = ("variants/eager.py",)


def build(case: Case) -> Callable[..., torch.Tensor]:
    """The compiled and autotuned softmax of a case."""
    return torch.compile(eager.build(case), fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
