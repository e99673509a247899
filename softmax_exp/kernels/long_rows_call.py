"""Calls of the softmax whose rows are spread over many programs: from any call's tensors to those of long_rows.py.

In: tensors in standard form whose rows one stride reaches. Out: a `LongRowsCall`, used as a `Launch` is; None if there
is no plan for such rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from softmax_exp.kernels import long_rows
from softmax_exp.kernels.gpu import Gpu
from softmax_exp.kernels.long_rows_plan import LongRowsPlan, choose


class LongRowsCall:
    """A launch `enqueue(first, out, third)`: (x, y, None), or (dy, dx, y); the rows of `first` are `stride` apart."""

    def __init__(self, launch: long_rows.LongRowsLaunch, chosen: LongRowsPlan, n_cols: int, stride: int) -> None:
        self._launch, self._plan, self._n_cols, self._stride = launch, chosen, n_cols, stride

    def enqueue(self, first: torch.Tensor, out: torch.Tensor, third: torch.Tensor | None) -> None:
        """Enqueue on the device's current stream."""
        first_MN, out_MN = two_dimensional(first, self._n_cols, self._stride), out.view(-1, self._n_cols)
        if third is None:
            self._launch(first_MN, out_MN)
        else:
            self._launch(first_MN, third.view(-1, self._n_cols), out_MN)

    def describe(self) -> dict[str, Any]:
        """As `Launch.describe`, with the plan of the spread rows."""
        fields = {key: value for key, value in dataclasses.asdict(self._plan).items() if key != "access"}
        tile = [1, fields.pop("chunk")]
        return {"tile": tile, "columns_side_by_side": fields.pop("tile"), **fields, **self._launch.describe()}


def two_dimensional(x: torch.Tensor, n_cols: int, stride: int) -> torch.Tensor:
    """The rows of x, `stride` elements apart, as a 2-D view."""
    return x.as_strided((x.numel() // n_cols, n_cols), (stride, 1))


def long_rows_forward(
    x: torch.Tensor, stride: int, access: str, gpu: Gpu, scale: float, safe: bool
) -> LongRowsCall | None:
    """What computes the softmax of such rows."""
    n_cols = x.shape[-1]
    chosen = choose(x.numel() // n_cols, n_cols, x.element_size(), "forward", access, gpu)
    if chosen is None:
        return None
    y_MN = torch.empty_like(x, memory_format=torch.contiguous_format).view(-1, n_cols)
    x_MN = two_dimensional(x, n_cols, stride)
    launch = long_rows.prepare_forward(x_MN, y_MN, scale=scale, safe=safe, plan=chosen)
    return LongRowsCall(launch, chosen, n_cols, stride)


def long_rows_backward(
    dy: torch.Tensor, y: torch.Tensor, stride: int, access: str, gpu: Gpu, scale: float
) -> LongRowsCall | None:
    """What computes the gradient of such rows; y is contiguous."""
    n_cols = dy.shape[-1]
    chosen = choose(dy.numel() // n_cols, n_cols, dy.element_size(), "backward", access, gpu)
    if chosen is None:
        return None
    dy_MN, y_MN = two_dimensional(dy, n_cols, stride), y.view(-1, n_cols)
    launch = long_rows.prepare_backward(dy_MN, y_MN, torch.empty_like(y_MN), scale=scale, plan=chosen)
    return LongRowsCall(launch, chosen, n_cols, stride)
