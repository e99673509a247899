"""Every kernel on small and awkward shapes, to be run under compute-sanitizer, which finds what touches foreign memory.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python scripts/memcheck.py

Each tensor is an allocation of its own then, so that a byte beyond its end is an error. `--planted` reads one on
purpose: exit status 9. Prints the kernels that ran, and whether all outputs were right. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import sys

import torch
import triton
import triton.language as tl

from softmax_exp.kernels import long_rows, softmax
from softmax_exp.kernels.eager import eager_forward
from softmax_exp.kernels.launch import gpu_of
from softmax_exp.kernels.long_rows_plan import choose
from softmax_exp.kernels.prepare import prepare_forward

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = [(5, 1), (7, 33), (3, 5, 64), (9, 1000), (3, 1185), (2, 4097), (3, 12289), (2, 16384), (2, 32768),
          (5, 2049), (3, 8193),
          (3, 10000), (1, 40000), (3, 70001)]  # fmt: skip
MASKED = [(2, 3, 5, 40), (1, 2, 3, 1185), (1, 1, 2, 40000)]
LONG = [(100, 131072), (40, 262144), (24, 1048576), (24, 1000008), (8, 4194304), (300, 50257)]


@triton.jit
def _one_too_far(x_ptr, n):
    tl.store(x_ptr, tl.load(x_ptr + n))


def main() -> int:
    """Run all, compare with eager, print what ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true", help="read one element beyond a tensor")
    if parser.parse_args().planted:
        x = torch.ones(1000, device="cuda")
        _one_too_far[(1,)](x, x.numel())
        torch.cuda.synchronize()
        return 0
    ran: set[str] = set()
    worst = 0.0
    for dtype in DTYPES:
        for shape in SHAPES if dtype != torch.bfloat16 else SHAPES[1:2]:
            worst = max(worst, check(torch.randn(shape, device="cuda").to(dtype), ran))
            # One element into an allocation, and rows with a padded stride.
            flat = torch.randn(shape[-1] * shape[0] + 1, device="cuda").to(dtype)
            worst = max(worst, check(flat[1:].view(shape[0], shape[-1]), ran))
            worst = max(worst, check(torch.randn(shape[0], shape[-1] + 3, device="cuda").to(dtype)[:, :-3], ran))
        for shape in MASKED:
            x = torch.randn(shape, device="cuda").to(dtype)
            bias = torch.randn(shape[-2:], device="cuda").to(dtype)
            for options in ({"causal": True}, {"mask": bias}, {"mask": bias > -1, "safe": True}, {"scale": -0.5}):
                worst = max(worst, check(x, ran, **options))
    for n_rows, n_cols in LONG:
        dtype = DTYPES[2] if n_cols == 262144 else DTYPES[0]
        worst = max(worst, check_long(torch.randn(n_rows, n_cols, device="cuda").to(dtype), ran))
    print(f"{len(ran)} kinds of call: {', '.join(sorted(ran))}")
    print(f"largest difference from eager: {worst:.1e}")
    return int(worst > 1e-2)


def check(
    x: torch.Tensor,
    ran: set[str],
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    safe: bool = False,
) -> float:
    """Forward and gradient of one tensor: the largest difference from eager's."""
    plan = prepare_forward(x, -1, scale, mask, causal, safe, {}).describe()
    kind = [str(plan[key]) for key in ("kernel", "design", "access") if key in plan]
    ran.add(" ".join(kind + ["several a row"] * (plan.get("clusters", 1) > 1)))
    leaf, other = x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
    y = softmax(leaf, scale=scale, mask=mask, causal=causal, safe=safe)
    expected = eager_forward(other, -1, scale, mask, causal, safe)
    dy = torch.randn_like(y)
    y.backward(dy)
    expected.backward(dy)
    worst = max(difference(softmax(x, scale=scale, mask=mask, causal=causal, safe=safe), expected),
                difference(y, expected), difference(leaf.grad, other.grad))  # fmt: skip
    torch.cuda.synchronize()
    return worst


def check_long(x: torch.Tensor, ran: set[str]) -> float:
    """Forward and gradient of long rows by the plan, without autograd, which would double their memory."""
    y, dx, dy = torch.empty_like(x), torch.empty_like(x), torch.randn_like(x)
    itemsize, gpu = x.element_size(), gpu_of(x.get_device())
    worst = 0.0
    for mode in ("forward", "backward"):
        access = "aligned" if x.shape[1] * itemsize % 16 == 0 else "shifted"
        plan = choose(*x.shape, itemsize, mode, access, gpu)
        assert plan is not None
        ran.add(f"{plan.design} {mode} {plan.access}")
        if mode == "forward":
            long_rows.forward(x, y, plan=plan)
            worst = max(worst, difference(y, torch.softmax(x, -1)))
        else:
            long_rows.backward(dy, y, dx, plan=plan)
            worst = max(worst, difference(dx, torch._softmax_backward_data(dy, y, -1, x.dtype)))
    torch.cuda.synchronize()
    return worst


def difference(a: torch.Tensor | None, b: torch.Tensor | None) -> float:
    """Largest absolute difference."""
    assert a is not None and b is not None
    return float((a.detach() - b.detach()).abs().max())


if __name__ == "__main__":
    sys.exit(main())
