"""The simple softmax that everything is compared with: one row a program, the whole row in one block.

In: a floating-point tensor of any leading dimensions on CUDA. Out: its softmax over the last dimension, forward only.
The block is the next power of two; 4 warps, 8 from a block of 2048, 16 from 4096.
"""

import torch
import triton
import triton.language as tl

from softmax_exp.kernels.launch import check_device


@triton.jit
def simple_kernel(x_ptr, out_ptr, row_stride, n_cols, BLOCK: tl.constexpr):
    """One program: one row."""
    start = tl.program_id(0).to(tl.int64) * row_stride
    column = tl.arange(0, BLOCK)
    in_row = column < n_cols
    x = tl.load(x_ptr + start + column, mask=in_row, other=float("-inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    y = powers / tl.sum(powers, axis=0)
    tl.store(out_ptr + start + column, y.to(out_ptr.dtype.element_ty), mask=in_row)


def simple_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of x over its last dimension; float16, bfloat16 or float32, any shape; a new contiguous tensor.

    ValueError for another dtype, for a tensor that needs a gradient (there is no backward), and for rows of more
    than 1,048,576 elements, the most that a Triton block can hold; RuntimeError for a tensor not on CUDA.
    """
    check_device(x)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"simple_softmax takes float16, bfloat16 or float32, not {x.dtype}")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("simple_softmax has no backward; use softmax_exp.softmax for gradients")
    if x.dim() == 0:
        raise ValueError("simple_softmax needs at least one dimension")
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    n_cols = x.shape[-1]
    block = triton.next_power_of_2(n_cols)
    if block > 2**20:
        raise ValueError(f"simple_softmax holds a row in one block of at most 1,048,576 elements, not {n_cols:,}")
    num_warps = 16 if block >= 4096 else 8 if block >= 2048 else 4
    with torch.cuda.device_of(x):
        simple_kernel[(x.numel() // n_cols,)](x, out, n_cols, n_cols, BLOCK=block, num_warps=num_warps)  # pyright: ignore[reportCallIssue]
    return out
