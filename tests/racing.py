"""A Triton softmax with a real race: the programs of a row add to its sum without an atomic operation."""

import torch
import triton
import triton.language as tl


@triton.jit
def _sums(x_ptr, sums_ptr, n_cols, row_stride, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    offsets = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + offsets, mask=offsets < n_cols, other=float("-inf"))
    before = tl.load(sums_ptr + row)
    tl.store(sums_ptr + row, before + tl.sum(tl.exp(x.to(tl.float32)), 0))


def softmax(x):
    n_cols, block = x.shape[-1], 256
    sums = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device)
    _sums[(x.shape[0], triton.cdiv(n_cols, block))](x, sums, n_cols, x.stride(0), BLOCK=block)
    return (x.float().exp() / sums[:, None]).to(x.dtype)
