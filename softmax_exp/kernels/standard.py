"""The form of tensors that the kernels take: softmax over the last dimension, of stride 1, rows that strides reach.

In: tensors of any strides. Out: the same tensors or views where that is possible, copies where it is not.
"""

from __future__ import annotations

import torch

from softmax_exp.kernels.rows import Rows, lay_out


def standardise(
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
    if rows_of(causal, x, None) is None:
        x = x.contiguous()
    if rows_of(causal, x, mask) is None:
        x, mask = x.contiguous(), None if mask is None else mask.contiguous()
    return x, mask


def rows_of(causal: bool, x: torch.Tensor, mask: torch.Tensor | None) -> Rows | None:
    """Where the rows of x and the mask lie; None if no three leading dimensions reach them. causal keeps the last."""
    tensors = (x,) if mask is None else (x, mask)
    return lay_out(x.shape[:-1], [tensor.stride()[:-1] for tensor in tensors], keep_last=causal)


def move_back(out: torch.Tensor, shape: torch.Size, dim: int) -> torch.Tensor:
    """The result of a standardised call in the shape, and with the dimensions in the order, of the call itself."""
    return out.view(()) if not shape else out.movedim(-1, dim).contiguous()


def lead(x: torch.Tensor) -> int:
    """Elements between the 16-byte boundary at or before x's first element and that element."""
    return x.data_ptr() % 16 // x.element_size()
