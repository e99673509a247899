"""The softmax as a registered PyTorch operator, for `torch.compile` and other tracing; importing it registers it.

In: tensors or their fakes. Out: `torch.ops.softmax_exp.forward` and `.backward`, with shapes and gradients known.
"""

from __future__ import annotations

import torch
from torch import library

from softmax_exp.kernels.operator import gradients, run_backward, run_forward

_LIBRARY = library.Library("softmax_exp", "DEF")
_LIBRARY.define("forward(Tensor x, Tensor? mask, int dim, float? scale, bool causal, bool safe) -> Tensor")
_LIBRARY.define("backward(Tensor dy, Tensor y, int dim, float? scale, bool causal) -> Tensor")


def _forward(x, mask, dim, scale, causal, safe):
    return run_forward(x, mask, (dim, scale, causal, safe, ()))


def _backward(dy, y, dim, scale, causal):
    return run_backward(dy, y, dim, scale, causal)


def _fake_forward(x, mask, dim, scale, causal, safe):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_backward(dy, y, dim, scale, causal):
    return torch.empty_like(y, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    _, mask, dim, scale, causal, _ = inputs
    ctx.save_for_backward(output)
    ctx.options = (dim, scale, causal)
    ctx.mask_like = None if mask is None else (mask.shape, mask.dtype)


def _gradients(ctx, dy):
    (y,) = ctx.saved_tensors
    mask_like = ctx.mask_like if ctx.needs_input_grad[1] else None
    dim, scale, causal = ctx.options
    dx, dmask = gradients(
        dy, y, dim, scale, causal, ctx.needs_input_grad[0], mask_like, torch.ops.softmax_exp.backward.default
    )
    return dx, dmask, None, None, None, None


def _no_second_order(ctx, *_):
    raise RuntimeError("softmax_exp.softmax has gradients of first order only")


# One implementation for all devices: it refuses those that it cannot run on.
_LIBRARY.impl("forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("backward", _backward, "CompositeExplicitAutograd")
library.register_fake("softmax_exp::forward", _fake_forward, lib=_LIBRARY)
library.register_fake("softmax_exp::backward", _fake_backward, lib=_LIBRARY)
library.register_autograd("softmax_exp::forward", _gradients, setup_context=_save, lib=_LIBRARY)
library.register_autograd("softmax_exp::backward", _no_second_order, lib=_LIBRARY)
