"""The tensors of a case.

In: a `Case` and a device.  Out: `Inputs`, several sets of x (and of the output's gradient) with different contents,
and the mask; the same contents for the same seed on the same kind of device, which a checksum proves.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass

import torch

from softmax_exp.cases import Case

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


@dataclass
class Inputs:
    """`xs` and, unless the mode is forward, `grads` (dL/dy): one tensor of the case's shape a buffer set.

    `mask` broadcasts over x: the case's dtype where it is additive, bool (True = takes part) where it is boolean.
    """

    xs: list[torch.Tensor]
    grads: list[torch.Tensor]
    mask: torch.Tensor | None


def resolve_device(wish: str) -> torch.device:
    """The device meant by `auto`, `cpu`, `cuda` or `cuda:1`. RuntimeError if it is not there."""
    if wish == "auto":
        wish = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wish)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("requires a CUDA GPU")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise RuntimeError(f"device {wish} is not there: {torch.cuda.device_count()} visible")
    return device


def make_inputs(case: Case, device: torch.device, n_sets: int = 1) -> Inputs:
    """`n_sets` buffer sets for the case; set i is drawn with seed `case.seed + i`."""
    xs = [make_x(case, device, case.seed + i) for i in range(n_sets)]
    grads = []
    if case.mode != "forward":
        for x in xs:
            _seed(device, case.seed + 7919 + len(grads))
            grads.append(torch.randn(x.shape, dtype=x.dtype, device=device))
            x.requires_grad_(True)
    return Inputs(xs, grads, make_mask(case, device))


def make_x(case: Case, device: torch.device, seed: int) -> torch.Tensor:
    """One x of the case's shape, dtype, layout and distribution. The global generator is seeded, as users do it."""
    _seed(device, seed)
    x = _storage(case, device)
    _fill(x, case.distribution)
    return x


def _seed(device: torch.device, seed: int) -> None:
    """Seed the host's and the device's global generator: `torch.manual_seed` without its stack traces.

    It formats one for every kind of device that is not in use, 1 ms a tensor.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


def _storage(case: Case, device: torch.device) -> torch.Tensor:
    shape, dtype, layout = case.shape, DTYPES[case.dtype], case.layout
    if layout == "transposed" and len(shape) >= 2:
        return torch.empty(*shape[:-2], shape[-1], shape[-2], dtype=dtype, device=device).transpose(-1, -2)
    if layout == "expanded" and len(shape) >= 2:
        return torch.empty(1, *shape[1:], dtype=dtype, device=device).expand(shape)
    if layout == "offset":
        return _nan((case.numel + 1,), dtype, device)[1:].view(shape)
    if layout == "padded" and shape:
        return _nan((*shape[:-1], shape[-1] + 8), dtype, device)[..., : shape[-1]]
    if layout == "far" and case.n_rows > 1:
        return _far_apart(shape, dtype, device)
    return torch.empty(shape, dtype=dtype, device=device)


def _nan(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory that shows in the result of whoever reads what is not part of x."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def _far_apart(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows spread evenly over more than 2^31 elements. What lies between them is never touched."""
    n_rows, n_cols = math.prod(shape[:-1]), shape[-1]
    row_stride = max(n_cols, -(-(2**31) // (n_rows - 1)))
    strides = [row_stride * math.prod(shape[dim + 1 : -1]) for dim in range(len(shape) - 1)]
    return torch.empty((n_rows - 1) * row_stride + n_cols, dtype=dtype, device=device).as_strided(shape, (*strides, 1))


def refill(x: torch.Tensor, case: Case, seed: int) -> None:
    """Write new contents into x where it stands: same addresses, other values."""
    _seed(x.device, seed)
    with torch.no_grad():
        _fill(x, case.distribution)


def _fill(x: torch.Tensor, distribution: str) -> None:
    """Draw x's contents in place, through its own strides; an expanded x is drawn once and repeated."""
    for dim in range(x.dim()):
        if x.stride(dim) == 0 and x.size(dim) > 1:
            x = x.narrow(dim, 0, 1)
    if x.numel() == 0:
        return
    x = x.view(1) if x.dim() == 0 else x
    x.normal_()
    n_cols = x.shape[-1]
    if distribution == "large":
        x.mul_(1e4)
        if x.dtype == torch.float16:
            x.clamp_(-6e4, 6e4)
    elif distribution == "constant":
        x.fill_(1)
    elif distribution == "one_hot":
        x.fill_(0).select(-1, n_cols // 2).fill_(50)
    elif distribution == "shifted":
        offset = 1e4 if x.dtype == torch.float16 else 1e7
        x.add_(offset)
        _rows(x)[..., 1::2, :].sub_(2 * offset)
    elif distribution == "ties":
        x.round_()
    elif distribution == "tiny":
        x.mul_(1e-3)
    elif distribution == "denormal":
        x.mul_(6 if x.dtype == torch.float16 else 25)
    elif distribution == "causal":
        rows = _rows(x)
        ahead = torch.ones(rows.shape[-2:], dtype=torch.bool, device=x.device).triu(n_cols - rows.shape[-2] + 1)
        rows.masked_fill_(ahead, float("-inf"))
    elif distribution == "padded":
        rows = _rows(x)
        rows[..., n_cols - n_cols // 4 :] = float("-inf")
        rows[..., ::8, :] = float("-inf")
    elif distribution in ("nan", "inf"):
        rows = _rows(x)
        rows[..., ::8, 0] = float("-inf" if distribution == "nan" else "inf")
        rows[..., ::4, n_cols // 2] = float(distribution)
    else:
        assert distribution == "normal", distribution


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The same memory, seen as at least one matrix of rows."""
    return x.unsqueeze(0) if x.dim() == 1 else x


def make_mask(case: Case, device: torch.device) -> torch.Tensor | None:
    """The mask tensor of shape `case.mask_shape`: additive values normal with a tenth of -inf, boolean nine in ten."""
    if case.mask_shape is None:
        return None
    _seed(device, case.seed + 104729)
    keep = torch.rand(case.mask_shape, device=device) < 0.9
    keep[..., :1] = True  # no row is wholly masked: that is a distribution of its own
    if case.mask == "boolean":
        return keep
    return torch.randn(case.mask_shape, dtype=DTYPES[case.dtype], device=device).masked_fill_(~keep, float("-inf"))


@functools.cache
def _odd_numbers_on_cpu() -> torch.Tensor:
    return torch.arange(1, 2 << 20, 2, dtype=torch.int64)


def _odd_numbers(device: torch.device) -> torch.Tensor:
    """Weights of a checksum. Kept on a CPU only: a kept block would hold a whole segment of the GPU's memory."""
    if device.type == "cpu":
        return _odd_numbers_on_cpu()
    return torch.arange(1, 2 << 20, 2, device=device, dtype=torch.int64)


def checksum(x: torch.Tensor) -> str:
    """16 hexadecimal digits from all bytes of x in logical order, their positions included."""
    words = x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    padding = -words.numel() % 8
    if padding:
        words = torch.cat([words, words.new_zeros(padding)])
    weights = _odd_numbers(x.device)
    total = 0
    for part in words.view(torch.int64).split(len(weights)):  # int64 products wrap around, the same everywhere
        total = (total * 31 + int((part * weights[: len(part)]).sum())) & (1 << 64) - 1
    return hashlib.sha256(f"{tuple(x.shape)}{x.dtype}{total}".encode()).hexdigest()[:16]
