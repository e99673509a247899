"""The float64 softmax that the kernels are compared with, and how near they must come."""

import math

import torch

# Triton's interpreter truncates to bfloat16 where the GPU rounds: twice the error.
EPS = {
    torch.float16: 2**-11,
    torch.bfloat16: 2**-8 if torch.cuda.is_available() else 2**-7,
    torch.float32: 2**-24,
}
TINY = {torch.float16: 2**-25, torch.bfloat16: 2**-134, torch.float32: 2**-126}


def oracle(x, dim=-1, scale=None, mask=None, causal=False):
    """softmax(x * scale + mask) in float64, by PyTorch."""
    logits = x.double() if scale is None else x.double() * scale
    if causal:
        kept = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
        logits = logits.masked_fill(~kept, -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask.double()
    return torch.softmax(logits, dim)


def assert_gradient_close(dx, dy, y, scale=1.0):
    """dx within rounding of y * (dy - sum(dy * y)) * scale, whose sum carries a float32 rounding of its size."""
    y64, dy64 = y.double(), dy.double()
    expected = y64 * (dy64 - (dy64 * y64).sum(-1, keepdim=True)) * scale
    slack = y64.abs() * (dy64 * y64).abs().sum(-1, keepdim=True) * 2**-20
    eps = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 2**-22}[dx.dtype]
    allowed = expected.abs() * eps + slack + 2**-24 * (dx.dtype == torch.float16)
    assert ((dx.double() - expected).abs() <= allowed).all()


def assert_close(y, expected, dtype):
    """y within rounding to dtype plus a few float32 roundings of `expected` (float64), NaN exactly where it has NaN."""
    assert y.dtype == dtype and y.shape == expected.shape and y.is_contiguous()
    y = y.double()
    assert torch.equal(y.isnan(), expected.isnan())
    # Logits of size L carry errors of L * 2**-24 into the exponent; those of the tests stay below 16.
    allowed = expected.abs() * (1.01 * EPS[dtype] + 32 * 2**-24) + TINY[dtype]
    excess = ((y - expected).abs() - allowed).nan_to_num(nan=-1.0)
    assert (excess <= 0).all(), f"off by {excess.max().item():.3g} more than allowed"
