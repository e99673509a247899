"""The softmax and its gradient by PyTorch's own operations: for float64, which the kernels do not compute.

In and out: tensors of any device; the options mean what they mean for `softmax`.
"""

from __future__ import annotations

import math

import torch


def eager_forward(
    x: torch.Tensor, dim: int, scale: float | None, mask: torch.Tensor | None, causal: bool, safe: bool
) -> torch.Tensor:
    """Softmax of x * scale + mask, contiguous."""
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


def eager_backward(dy: torch.Tensor, y: torch.Tensor, dim: int, scale: float | None) -> torch.Tensor:
    """The gradient of x from that of the output and the output."""
    dx = y * (dy - (dy * y).sum(dim, keepdim=True))
    return dx if scale is None else dx * scale
