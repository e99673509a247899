"""Prepare a call: check it, choose its plan, compile its kernel; what is then left is to allocate and to launch.

In: example tensors and the options of a call. Out: a callable `(x, mask) -> y` or `(dy, y) -> dx` for tensors of the
same shapes, strides, dtypes, device and alignment, whose `describe()` says what it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import torch

from softmax_exp.kernels import backward, forward
from softmax_exp.kernels.checks import check_options
from softmax_exp.kernels.launch import Launch, gpu_of
from softmax_exp.kernels.plan import Plan, plan
from softmax_exp.kernels.rows import Rows, access_of, lay_out

_LOG2_E = math.log2(math.e)
_FORWARD = {"tile": forward.tile_forward, "two_pass": forward.two_pass_forward}
_BACKWARD = {"tile": backward.tile_backward, "two_pass": backward.two_pass_backward}


class Prepared:
    """A call that is ready to run: `standardise` its tensors if they need it, allocate, launch."""

    def __init__(self, chosen: Plan, launch: Launch, standardise: Any, move_back: Any) -> None:
        self.plan, self.launch, self._standardise, self._move_back = chosen, launch, standardise, move_back

    def __call__(self, first: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
        """(x, mask) -> y, or (dy, y) -> dx."""
        if self._standardise is None:
            out = torch.empty_like(first, memory_format=torch.contiguous_format)
            self.launch(first, out, second)
            return out
        first, second = self._standardise(first, second)
        out = torch.empty_like(first, memory_format=torch.contiguous_format)
        self.launch(first, out, second)
        return self._move_back(out)

    def describe(self) -> dict[str, Any]:
        """Kernel, tile, warps, stages, access, and what the compiler made of them; see `Launch.describe`."""
        fields = dataclasses.asdict(self.plan)
        return {"kernel": fields.pop("kernel"), "tile": [fields.pop("rows"), fields.pop("cols")], **fields} | (
            self.launch.describe()
        )


class Eager:
    """A call that PyTorch's own operations compute: float64, and tensors without elements."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, first: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
        """As `Prepared`."""
        return self.run(first, second)

    def describe(self) -> dict[str, Any]:
        """Only that no kernel of ours runs."""
        return {"kernel": "eager", "tile": None}


def prepare_forward(
    x: torch.Tensor,
    dim: int,
    scale: float | None,
    mask: torch.Tensor | None,
    causal: bool,
    safe: bool,
    overrides: Mapping[str, Any],
) -> Prepared | Eager:
    """What to run for calls like this one. ValueError as `check_options` and `plan`."""
    check_options(x, dim, scale, mask, causal)
    if x.numel() == 0:
        return Eager(lambda x, mask: torch.empty_like(x, memory_format=torch.contiguous_format))
    if x.dtype == torch.float64:
        return Eager(lambda x, mask: _eager_forward(x, dim, scale, mask, causal, safe))
    standardise = functools.partial(_standardise, dim=dim, causal=causal)
    x_std, mask_std = standardise(x, mask)
    kind = "none" if mask_std is None else "boolean" if mask_std.dtype == torch.bool else "additive"
    rows = _rows_of(causal, x_std, mask_std)
    assert rows is not None
    vector = 16 // x.element_size()
    x_rows = Rows(rows.sizes, rows.strides[:1])
    access = access_of(x_rows, x_std.shape[-1], [_lead(x_std)], vector)
    mask_strides, mask_access, shared = (0, 0, 0), "scalar", False
    if mask_std is not None:
        mask_strides = rows.strides[1]
        shared = mask_strides[:2] == (0, 0) and rows.sizes[0] * rows.sizes[1] > 1
        aligned = not any(stride % vector for stride in mask_strides) and mask_std.data_ptr() % 16 == 0
        mask_access = "aligned" if aligned and access == "aligned" else "scalar"
    n_rows, n_cols = rows.n_rows, x_std.shape[-1]
    mask_kind = kind if not causal else "causal" if kind == "none" else f"causal+{kind}"
    chosen = plan(n_rows, n_cols, x.element_size(), "forward", mask_kind, access, gpu_of(x.get_device()), **overrides)
    # A scale <= 0 must be applied before the maximum is taken, not in the exponent (and -inf * 0 is NaN there).
    scaled = scale is not None and (scale <= 0 or kind == "additive")
    numbers = {
        **_row_numbers(rows, n_cols),
        **_strides("x", x_std, rows.strides[0]),
        "mask_stride_b": mask_strides[0], "mask_stride_h": mask_strides[1], "mask_stride_q": mask_strides[2],
        "scale": 1.0 if scale is None else float(scale),
        "exponent_scale": _LOG2_E if scale is None or scaled else _LOG2_E * scale,
    }  # fmt: skip
    groups = rows.sizes[0] * rows.sizes[1]
    grid = rows.sizes[2] * -(-groups // chosen.rows) if shared else -(-n_rows // chosen.rows)
    constants = {
        **_tile_constants(chosen, n_rows if not shared else groups, n_cols, vector),
        "SPLIT": not rows.flat or causal,
        "CAUSAL": causal,
        "MASK": kind,
        "MASK_ACCESS": mask_access,
        "MASK_SHARED": shared,
        "SCALED": scaled,
        "SAFE": safe,
    }
    launch = Launch(_FORWARD[chosen.kernel], grid, (x_std, x_std, mask_std), numbers, constants, chosen, x.get_device())
    if x_std is x and (mask is None or mask_std.data_ptr() == mask.data_ptr()):  # type: ignore[union-attr]
        return Prepared(chosen, launch, None, None)
    return Prepared(chosen, launch, standardise, functools.partial(_move_back, shape=x.shape, dim=dim))


def prepare_backward(
    dy: torch.Tensor, y: torch.Tensor, dim: int, scale: float | None, causal: bool, overrides: Mapping[str, Any]
) -> Prepared | Eager:
    """What to run for gradients like this one; dy and y have one shape and dtype, y is contiguous."""
    if dy.numel() == 0:
        return Eager(lambda dy, y: torch.empty_like(y))
    if dy.dtype == torch.float64:
        return Eager(lambda dy, y: _eager_backward(dy, y, dim, scale))

    def standardise(dy: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dy_std, _ = _standardise(dy, None, dim=dim, causal=causal)
        y_std, _ = _standardise(y, None, dim=dim, causal=causal)
        return dy_std, y_std.contiguous()

    dy_std, y_std = standardise(dy, y)
    rows = _rows_of(causal, dy_std, None)
    assert rows is not None
    vector = 16 // dy.element_size()
    n_rows, n_cols = rows.n_rows, dy_std.shape[-1]
    access = access_of(rows, n_cols, [_lead(dy_std)], vector)
    chosen = plan(
        n_rows, n_cols, dy.element_size(), "backward", "causal" if causal else "none", access,
        gpu_of(dy.get_device()), **overrides,
    )  # fmt: skip
    numbers = {
        **_row_numbers(rows, n_cols),
        **_strides("dy", dy_std, rows.strides[0]),
        "scale": 1.0 if scale is None else float(scale),
    }
    constants = {
        **_tile_constants(chosen, n_rows, n_cols, vector),
        "SPLIT": not rows.flat or causal,
        "CAUSAL": causal,
    }
    grid = -(-n_rows // chosen.rows)
    launch = Launch(
        _BACKWARD[chosen.kernel], grid, (dy_std, dy_std, y_std), numbers, constants, chosen, dy.get_device()
    )
    if dy_std is dy and y_std is y:
        return Prepared(chosen, launch, None, None)
    return Prepared(chosen, launch, standardise, functools.partial(_move_back, shape=y.shape, dim=dim))


def _standardise(
    x: torch.Tensor, mask: torch.Tensor | None, dim: int, causal: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Bring the softmax to x's last dimension, of stride 1, and broadcast the mask to it; copy only if there is no way.

    x itself comes back, and a view of the mask's own memory, where the kernels can walk their strides.
    """
    if mask is not None:
        mask = mask.expand(x.shape)
    if x.dim() == 0:
        x, mask = x.view(1), None if mask is None else mask.view(1)
    last = x.dim() - 1
    if dim % x.dim() != last:
        x, mask = x.movedim(dim, -1), None if mask is None else mask.movedim(dim, -1)
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous().resolve_neg()
    if mask is not None and mask.stride(-1) != 1 and x.shape[-1] > 1:
        mask = mask.contiguous()
    if _rows_of(causal, x, None) is None:
        x = x.contiguous()
    if _rows_of(causal, x, mask) is None:
        x, mask = x.contiguous(), None if mask is None else mask.contiguous()
    return x, mask


def _rows_of(causal: bool, x: torch.Tensor, mask: torch.Tensor | None) -> Rows | None:
    tensors = (x,) if mask is None else (x, mask)
    return lay_out(x.shape[:-1], [tensor.stride()[:-1] for tensor in tensors], keep_last=causal)


def _move_back(out: torch.Tensor, shape: torch.Size, dim: int) -> torch.Tensor:
    return out.view(()) if not shape else out.movedim(-1, dim).contiguous()


def _lead(x: torch.Tensor) -> int:
    """Elements between the 16-byte boundary at or before x's first element and that element."""
    return x.data_ptr() % 16 // x.element_size()


def _row_numbers(rows: Rows, n_cols: int) -> dict[str, int | float]:
    return {"n_rows": rows.n_rows, "n_cols": n_cols, "n_heads": rows.sizes[1], "n_queries": rows.sizes[2]}


def _strides(name: str, x: torch.Tensor, strides: tuple[int, int, int]) -> dict[str, int]:
    return {f"{name}_lead": _lead(x)} | {f"{name}_stride_{axis}": n for axis, n in zip("bhq", strides, strict=True)}


def _tile_constants(chosen: Plan, n_rows: int, n_cols: int, vector: int) -> dict[str, Any]:
    """EXACT: the tiles cover the rows without remainder, so that nothing needs a mask."""
    exact = chosen.access == "aligned" and n_rows % chosen.rows == 0 and n_cols % chosen.cols == 0
    return {
        "ROWS": chosen.rows,
        "COLS": chosen.cols,
        "REST": chosen.rest,
        "LANES": chosen.lanes,
        "VECTOR": 1 if chosen.access == "scalar" else vector,
        "ACCESS": chosen.access,
        "EXACT": exact,
    }


def _eager_forward(x, dim, scale, mask, causal, safe) -> torch.Tensor:
    logits = x if scale is None else x * scale
    if causal:
        kept = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
        logits = logits.masked_fill(~kept, -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask.to(x.dtype)
    y = torch.softmax(logits, dim)
    if safe:
        y = torch.where((logits == -math.inf).all(dim, keepdim=True), 0.0, y)
    return y.contiguous()


def _eager_backward(dy, y, dim, scale) -> torch.Tensor:
    dx = y * (dy - (dy * y).sum(dim, keepdim=True))
    return dx if scale is None else dx * scale
