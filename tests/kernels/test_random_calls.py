"""Random calls of the softmax against float64: shapes, layouts, scales, masks and values nobody thought of together.

A failure names its seed, which makes the call again. `python -m tests.kernels.test_random_calls 0 5000` tries many.
"""

import math
import random
import sys

import pytest
import torch

from softmax_exp.kernels import softmax
from tests.kernels.oracle import oracle

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
COLUMNS = (1, 2, 3, 7, 8, 16, 17, 21, 32, 33, 63, 64, 100, 127, 128, 129, 200, 255, 300, 513, 1000, 1023, 1025, 1185)
# Longer rows, spread over several programs: too many for the interpreter.
LONG_COLUMNS = (2056, 4100, 8192, 10_000, 12_289, 32_000, 50_257, 65_536, 131_072)
SCALES = (None, None, None, 0.125, 1.7, 50.0, -1.0, -3.5, 0.0, 1e-3, 2.0**-95, 1e-40)
# What rounding of the result costs (bfloat16: cut off, as the interpreter does it), and the spacing of small results.
EPS = {torch.float16: 2**-10.9, torch.bfloat16: 2**-6.9, torch.float32: 2**-20}
TINY = {torch.float16: 2**-24, torch.bfloat16: 2**-126, torch.float32: 2**-148}


def random_call(seed, device):
    """x and the options of a call; the same for the same seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    n_dims = draw.randint(1, 4)
    shape = [draw.choice((1, 1, 2, 3, 5)) for _ in range(n_dims - 1)] + [
        draw.choice(COLUMNS if torch.device(device).type == "cpu" else COLUMNS + LONG_COLUMNS)
    ]
    x = (torch.randn(shape) * draw.choice((0.1, 1, 10, 100))).to(draw.choice(DTYPES))
    for value, share in ((-math.inf, 0.2), (math.nan, 0.01), (math.inf, 0.01)):
        if draw.random() < 0.15:
            x[torch.rand(shape) < share] = value
    x = lay_out(x, draw)
    causal = n_dims >= 2 and draw.random() < 0.25
    dim = draw.randrange(n_dims) if not causal and draw.random() < 0.2 else -1
    mask = random_mask(shape, x.dtype, draw) if draw.random() < 0.4 else None
    options = {"scale": draw.choice(SCALES), "causal": causal, "safe": draw.random() < 0.3}
    return x.to(device), {"dim": dim, "mask": None if mask is None else mask.to(device), **options}


def lay_out(x, draw):
    """The same values elsewhere: behind an odd start, in wider rows, transposed, or one row for all."""
    how = draw.choice(("contiguous", "offset", "padded", "transposed", "expanded"))
    if how == "offset":
        lead = draw.randint(1, 7)
        flat = torch.empty(x.numel() + lead, dtype=x.dtype)
        flat[lead:] = x.reshape(-1)
        return flat[lead:].view(x.shape)
    if how == "padded":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + draw.randint(1, 9)), 7.0, dtype=x.dtype)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if how == "transposed" and x.dim() >= 2:
        i, j = draw.sample(range(x.dim()), 2)
        return x.transpose(i, j).contiguous().transpose(i, j)
    if how == "expanded" and x.dim() >= 2:
        return x.narrow(draw.randrange(x.dim() - 1), 0, 1).expand(x.shape)
    return x


def random_mask(shape, dtype, draw):
    """A boolean or additive mask that broadcasts to the shape, perhaps a part of a wider one."""
    sizes = [size if draw.random() < 0.6 else 1 for size in shape]
    sizes = sizes[draw.randrange(len(sizes)) if draw.random() < 0.3 else 0 :]
    if draw.random() < 0.5:
        mask = torch.rand(sizes) < 0.7
    else:
        mask = torch.randn(sizes).to(draw.choice((dtype, torch.float32)))
        mask[torch.rand(sizes) < 0.1] = -math.inf
    wide = torch.zeros((*sizes[:-1], sizes[-1] + draw.randint(0, 5)), dtype=mask.dtype)
    wide[..., wide.shape[-1] - sizes[-1] :] = mask
    return wide[..., wide.shape[-1] - sizes[-1] :]


def reference(x, dim, mask, scale, causal, safe):
    """The call in float64, of x in float64, and the largest finite logit."""
    scale = None if scale is None else float(torch.tensor(scale, dtype=torch.float32))
    y = oracle(x, dim, scale, mask, causal)
    logits = x.detach() * (1.0 if scale is None else scale)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask.double()
    if causal:
        kept = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
        logits = logits.masked_fill(~kept, -math.inf)
    if safe:
        y = torch.where((logits == -math.inf).all(dim, keepdim=True), 0.0, y)
    parts = [x.detach() * (1.0 if scale is None else scale), *([] if mask is None else [mask.double()])]
    return y, sum(map(_largest, parts))


def _largest(values):
    finite = values[values.abs() < math.inf].abs()
    return float(finite.max()) if finite.numel() else 0.0


def check(seed, device):
    """AssertionError, with the seed, where y or a gradient is further off than rounding explains."""
    x, options = random_call(seed, device)
    leaf, exact = x.detach().clone(memory_format=torch.preserve_format), x.detach().double().requires_grad_()
    y = softmax(x, **options)
    expected, largest = reference(exact, **options)
    slack = EPS[x.dtype] + 2**-21.5 * largest
    assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous(), seed
    off = (y.double() - expected.detach()).abs() > expected.detach().abs() * slack + TINY[x.dtype]
    assert not bool((off | (y.isnan() != expected.isnan())).any()), f"seed {seed}: {options}"
    if expected.isnan().any() or x.isinf().any():
        return
    dy = torch.randn(x.shape).to(x.dtype).to(device)
    (dx,) = torch.autograd.grad(softmax(leaf.requires_grad_(), **options), leaf, dy)
    (dx_exact,) = torch.autograd.grad(expected, exact, dy.double())
    size = float(dy.abs().max()) * abs(1.0 if options["scale"] is None else options["scale"])
    off = (dx.double() - dx_exact).abs() > size * (8 * slack * expected.detach() + TINY[x.dtype]) + 4 * TINY[x.dtype]
    assert not bool((off | dx.isnan()).any()), f"seed {seed}: dx"  # dx_exact is NaN in rows that `safe` makes 0


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_random_calls_are_right(first, device):
    for seed in range(first, first + 10):
        check(seed, device)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        check(number, "cuda" if torch.cuda.is_available() else "cpu")
