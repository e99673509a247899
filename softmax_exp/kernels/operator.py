"""The softmax as a function of PyTorch: any device of CUDA, strides and leading dimensions, masks, and gradients.

In: tensors. Out: tensors. A call is prepared once for its shapes, strides, alignment and options, then launched
directly; under `torch.compile` and other tracing it is the registered operator of `registration.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from softmax_exp.kernels.launch import check_device
from softmax_exp.kernels.prepare import prepare_backward, prepare_forward

_MOST_PREPARED = 4096
_prepared: dict[tuple[Any, ...], Callable[..., torch.Tensor]] = {}
Overrides = tuple[tuple[str, int | str], ...]
Options = tuple[int, float | None, bool, bool, Overrides]
_PLAIN: Options = (-1, None, False, False, ())
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def softmax(
    x: torch.Tensor,
    dim: int = -1,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    safe: bool = False,
) -> torch.Tensor:
    """Softmax of x * scale + mask over dimension `dim`, as `torch.softmax` gives it, in a new contiguous tensor.

    x: float16, bfloat16 or float32 on CUDA, any shape and strides; computed in float32, which x * scale does not
    leave either. float64 is computed by `torch.softmax`.
    mask: added if it is floating point; if it is boolean, elements where it is False take no part. It broadcasts
    to x. causal: element j of row i (of the second-last dimension, n rows) takes part if j <= i + x.shape[-1] - n;
    the rest is not read. Rows of nothing but -inf, and rows with a NaN or +inf, are NaN, as eager's; with safe=True
    rows in which nothing takes part are 0. Masked elements are never looked at: a NaN there does no harm.
    Gradients of first order reach x and a floating-point mask; only the output is saved for them.
    ValueError for what is not supported, RuntimeError for a tensor that is not on CUDA.
    """
    return _call(x, mask, (dim, scale, causal, safe, ()))


def triton_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of x, of any leading dimensions: `softmax(x)`.

    RuntimeError for a tensor not on CUDA, unless Triton's interpreter runs (TRITON_INTERPRET=1).
    """
    return _call(x, None, _PLAIN)


def with_plan(**overrides: int | str) -> Callable[..., torch.Tensor]:
    """`softmax` with fields of its plan replaced, e.g. `with_plan(num_warps=8)(x)`. Not for use under torch.compile.

    Keys and values as in `plan.plan`; ValueError at the call for one that cannot be.
    """
    return functools.partial(_softmax_planned, tuple(sorted(overrides.items())))


def describe(
    x: torch.Tensor,
    dim: int = -1,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    safe: bool = False,
    mode: str = "forward",
    **overrides: int | str,
) -> dict[str, Any]:
    """What `softmax` runs for such a call, without running it (it is compiled if it has not been).

    mode: `forward`, `backward`, or `full`, which gives the forward's with the backward's under `backward_…` keys.
    Keys: kernel, tile [rows, columns], lanes, num_warps, num_stages, access, n_regs, n_spills (32-bit words a
    thread), shared_bytes (a program's), launcher; kernel alone (`eager`) where PyTorch computes it.
    """
    if mode not in ("forward", "backward", "full"):
        raise ValueError(f"mode must be forward, backward or full, not {mode!r}")
    check_device(x)
    told: dict[str, Any] = {}
    if mode != "backward":
        told = prepare_forward(x, dim, scale, mask, causal, safe, overrides).describe()
    if mode != "forward":
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        backward = prepare_backward(y, y, dim, scale, causal, overrides).describe()
        told |= backward if mode == "backward" else {f"backward_{key}": value for key, value in backward.items()}
    return told


def _softmax_planned(overrides: Overrides, x, dim=-1, *, scale=None, mask=None, causal=False, safe=False):
    return _call(x, mask, (dim, scale, causal, safe, overrides))


def _call(x: torch.Tensor, mask: torch.Tensor | None, options: Options) -> torch.Tensor:
    if torch.compiler.is_compiling() or _is_traced(x):
        dim, scale, causal, safe, _ = options
        return torch.ops.softmax_exp.forward(x, mask, dim, scale, causal, safe)
    if (x.requires_grad or (mask is not None and mask.requires_grad)) and torch.is_grad_enabled():
        return _apply(x, mask, options)
    return run_forward(x, mask, options)


def _is_traced(x: torch.Tensor) -> bool:
    """Whether x has no memory of its own, or a mode or transform (fake tensors, make_fx) wants to see the call."""
    return (
        type(x) not in _PLAIN_TYPES
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
    )


def run_forward(x: torch.Tensor, mask: torch.Tensor | None, options: Options) -> torch.Tensor:
    """The forward without autograd: prepare if this is the first call of its kind, and launch."""
    key = (x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() & 15, options)
    if mask is not None:
        key += (mask.shape, mask.stride(), mask.dtype, mask.get_device(), mask.data_ptr() & 15)
    run = _prepared.get(key)
    if run is None:
        check_device(x)
        dim, scale, causal, safe, overrides = options
        run = _remember(key, prepare_forward(x, dim, scale, mask, causal, safe, dict(overrides)).run)
    return run(x, mask)


def run_backward(dy, y, dim, scale, causal, overrides: Overrides = ()) -> torch.Tensor:
    """The gradient of x from that of the output and the output itself."""
    key = (
        "backward", dy.shape, dy.stride(), dy.dtype, dy.get_device(), dy.data_ptr() % 16, y.stride(), dim, scale,
        causal, overrides,
    )  # fmt: skip
    run = _prepared.get(key)
    if run is None:
        run = _remember(key, prepare_backward(dy, y, dim, scale, causal, dict(overrides)).run)
    return run(dy, y)


def _remember(key: tuple[Any, ...], run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    if len(_prepared) >= _MOST_PREPARED:
        _prepared.clear()
    _prepared[key] = run
    return run


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, options):  # type: ignore[override]
        y = run_forward(x, mask, options)
        ctx.save_for_backward(y)
        ctx.options = options
        if mask is not None:
            ctx.mask_like = (mask.shape, mask.dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):  # type: ignore[override]
        (y,) = ctx.saved_tensors
        dim, scale, causal, _, overrides = ctx.options
        dx, dmask = gradients(
            dy, y, dim, scale, causal, ctx.needs_input_grad[0], ctx.mask_like if ctx.needs_input_grad[1] else None,
            functools.partial(run_backward, overrides=overrides),
        )  # fmt: skip
        return dx, dmask, None


# What `_Softmax.apply` calls after it has looked for transforms, which `_is_traced` has done.
_apply = super(torch.autograd.Function, _Softmax).apply  # pyright: ignore[reportAttributeAccessIssue]


def gradients(dy, y, dim, scale, causal, needs_x, mask_like, backward):
    """Gradients of x and of the mask (of shape and dtype `mask_like`, None if it needs none)."""
    if mask_like is None:
        return backward(dy, y, dim, scale, causal), None
    dlogits = backward(dy, y, dim, None, causal)
    shape, dtype = mask_like
    dmask = dlogits.sum_to_size(shape).to(dtype)
    if not needs_x:
        return None, dmask
    return (dlogits if scale is None else dlogits * scale), dmask
