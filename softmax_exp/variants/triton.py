"""Our own softmax, `softmax_exp.softmax`, with the fields of its plan as arguments: variant_args.triton.num_warps=8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softmax_exp import kernels
from softmax_exp.cases import Case
from softmax_exp.kernels.plan_overrides import OVERRIDES

NAME = "triton"
NEEDS_CUDA = True
SOURCES = ("kernels",)


def build(
    case: Case,
    *,
    kernel: str | None = None,
    rows: int | None = None,
    cols: int | None = None,
    rest: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    packed: bool | None = None,
    max_registers: int | None = None,
    rotated: bool | None = None,
    queries: int | None = None,
    reads: str | None = None,
    programs: int | None = None,
    clusters: int | None = None,
) -> Callable[..., torch.Tensor]:
    """Our softmax for a case. The arguments, which `kernels/plan.py` explains, replace fields of its plan.

    ValueError for a plan that cannot be.
    """
    given = locals()  # named one by one above, so that a wrong name is an error before anything starts
    plan = {name: given[name] for name in OVERRIDES if given[name] is not None}
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
