"""Our own softmax, `softmax_exp.softmax`, with the fields of its plan as arguments: variant_args.triton.num_warps=8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softmax_exp import kernels
from softmax_exp.cases import Case

NAME = "triton"
NEEDS_CUDA = True
SOURCES = ("kernels",)


def build(case: Case, **plan: int | str) -> Callable[..., torch.Tensor]:
    """Our softmax for a case. ValueError for a plan that cannot be."""
    return _Softmax(case, plan)


class _Softmax:
    def __init__(self, case: Case, plan: dict[str, Any]) -> None:
        self._mode, self._plan = case.mode, plan
        self._softmax = kernels.with_plan(**plan) if plan else kernels.softmax
        self._options: dict[str, Any] = {"causal": True} if case.mask == "causal" else {}
        if case.scale is not None:
            self._options["scale"] = case.scale

    def __call__(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None and not self._options:
            return self._softmax(x)
        return self._softmax(x, mask=mask, **self._options)

    def describe(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
        """The plan that ran for x, with registers, spills and shared memory."""
        return kernels.describe(x, mask=mask, mode=self._mode, **self._options, **self._plan)
