"""Rows of 32,769 columns and more, spread over many programs: the launches of a plan.

In: 2-D tensors of unit column stride, float16, bfloat16 or float32. Out: y or dx, written in place. The exchange
words come from the allocator at each call and are set in it, so that calls may be captured in CUDA graphs and run on
any streams at once.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from softmax_exp.kernels import long_rows_held, long_rows_shared
from softmax_exp.kernels.checks import LARGEST_SCALE, LEAST_SCALE
from softmax_exp.kernels.gpu import next_power_of_2
from softmax_exp.kernels.launch import INTERPRETED, gpu_of
from softmax_exp.kernels.long_rows_plan import MAX_CHUNKS, LongRowsPlan

_CLEARED = 1024


class Kernel:
    """One kernel compiled for its tensors' dtypes, run-time numbers and constants, to be launched directly.

    Called with the tensors alone, in the kernel's order: they must be on `device`, alive, of the dtypes compiled for.
    """

    def __init__(
        self,
        kernel: Any,
        grid: int,
        tensors: tuple[torch.Tensor, ...],
        numbers: Mapping[str, int | float],
        constants: Mapping[str, Any],
        device: int,
        **options: Any,
    ) -> None:
        assert [*numbers, *constants] == kernel.arg_names[len(tensors) :]
        self._kernel, self._grid, self._device = kernel, grid, device
        self._tail = (*numbers.values(), *constants.values())
        if INTERPRETED:
            return
        with torch.cuda.device(device):
            self.compiled = kernel.warmup(*(t.dtype for t in tensors), *self._tail, grid=(grid,), **options)
            self._run, self._function = self.compiled.run, self.compiled.function
        self._packed = self.compiled.packed_metadata

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Enqueue on the device's current stream."""
        if INTERPRETED:
            # Rows of NaN are no news, but NumPy warns of them.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                self._kernel[(self._grid,)](*tensors, *self._tail)
            return
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        pointers = [tensor.data_ptr() for tensor in tensors]
        self._run(self._grid, 1, 1, stream, self._function, self._packed, None, None, None, *pointers, *self._tail)


class LongRowsLaunch:
    """A call made ready: two kernels compiled for the shapes, strides and alignment of example tensors.

    Called with the tensors (those of `forward` or `backward`, in their order); allocates the words and launches.
    """

    def __init__(
        self, first: Kernel, second: Kernel, n_words: int, device: int, n_first: int, reserved_bytes: int
    ) -> None:
        self._first, self._second, self._n_words, self._reserved_bytes = first, second, n_words, reserved_bytes
        self._device, self._n_first = device, n_first

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Enqueue on the current stream of the tensors' device."""
        if self._device >= 0 and torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        words = torch.empty(self._n_words, dtype=torch.int64, device=tensors[0].device)
        self._first(*tensors[: self._n_first], words)
        self._second(*tensors, words)

    def describe(self) -> dict[str, Any]:
        """Of the kernel that writes results: registers and spills a thread, shared bytes a program; else None."""
        if INTERPRETED:
            return {"n_regs": None, "n_spills": None, "shared_bytes": None, "launcher": "interpreter"}
        compiled = self._second.compiled
        return {
            "n_regs": compiled.n_regs,
            "n_spills": compiled.n_spills,
            "shared_bytes": compiled.metadata.shared + self._reserved_bytes,
            "launcher": "direct",
        }


def prepare_forward(
    x_MN: torch.Tensor, y_MN: torch.Tensor, *, scale: float = 1.0, safe: bool = False, plan: LongRowsPlan
) -> LongRowsLaunch:
    """A launch `(x, y)`: y = softmax(x * scale) over each row; safe gives 0 for rows of nothing but -inf, else NaN.

    x_MN, y_MN: one shape and dtype, unit column stride. scale: 2^-90 to 2^90. ValueError otherwise.
    """
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale ({scale}) must be a number from 2^-90 to 2^90")
    _check(x_MN, y_MN)
    strides = {"x_stride": x_MN.stride(0), "y_stride": y_MN.stride(0)}
    return _prepare((x_MN, y_MN), 1, strides, {"scale": float(scale)}, {"SAFE": safe}, plan, "forward")


def prepare_backward(
    dy_MN: torch.Tensor, y_MN: torch.Tensor, dx_MN: torch.Tensor, *, scale: float = 1.0, plan: LongRowsPlan
) -> LongRowsLaunch:
    """A launch `(dy, y, dx)`: dx = y * (dy - sum(dy * y)) * scale over each row. Tensors as for `prepare_forward`."""
    _check(dy_MN, y_MN, dx_MN)
    strides = {"dy_stride": dy_MN.stride(0), "y_stride": y_MN.stride(0), "dx_stride": dx_MN.stride(0)}
    return _prepare((dy_MN, y_MN, dx_MN), 2, strides, {"scale": float(scale)}, {}, plan, "backward")


def forward(
    x_MN: torch.Tensor, y_MN: torch.Tensor, *, scale: float = 1.0, safe: bool = False, plan: LongRowsPlan
) -> None:
    """Write softmax(x * scale) to y, once; see `prepare_forward`."""
    prepare_forward(x_MN, y_MN, scale=scale, safe=safe, plan=plan)(x_MN, y_MN)


def backward(
    dy_MN: torch.Tensor, y_MN: torch.Tensor, dx_MN: torch.Tensor, *, scale: float = 1.0, plan: LongRowsPlan
) -> None:
    """Write the gradient of x to dx, once; see `prepare_backward`."""
    prepare_backward(dy_MN, y_MN, dx_MN, scale=scale, plan=plan)(dy_MN, y_MN, dx_MN)


def _check(*tensors: torch.Tensor) -> None:
    like = tensors[0]
    for tensor in tensors:
        if tensor.dim() != 2 or tensor.stride(1) != 1 or tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise ValueError("the tensors must be 2-D, of one shape and dtype, with a column stride of 1")


def _prepare(
    tensors: tuple[torch.Tensor, ...],
    n_inputs: int,
    strides: dict[str, int],
    scale: dict[str, float],
    constants: dict[str, Any],
    plan: LongRowsPlan,
    mode: str,
) -> LongRowsLaunch:
    """The launches: clear the words, then share rows; or sums of chunks, then results."""
    n_rows, n_cols = tensors[0].shape
    device = tensors[0].get_device()
    vector = 16 // tensors[0].element_size()
    if plan.n_chunks > MAX_CHUNKS or (plan.design == "held" and plan.access != "aligned"):
        raise ValueError(f"no such rows by {plan}")
    if INTERPRETED and plan.design == "held":
        plan = dataclasses.replace(plan, design="shared")  # the interpreter knows no Gluon
    n_words = n_rows * plan.n_chunks
    words = torch.empty(0, dtype=torch.int64, device=tensors[0].device)
    # The second kernel may start, and read its chunk, before the first one's end.
    overlap = not INTERPRETED and gpu_of(device).capability[0] >= 9
    sizes = {"n_cols": n_cols, "n_chunks": plan.n_chunks}
    tile = {"CHUNK": plan.chunk, "TILE": plan.tile}
    access = {
        "VECTOR": vector,
        "ACCESS": plan.access,
        "EXACT": plan.access == "aligned" and n_cols % plan.chunk == 0,
    }
    overlapping, reads = {"OVERLAP": overlap}, {"READS": plan.reads}
    spins: dict[str, int] = {}
    options: dict[str, Any] = {"num_warps": plan.num_warps}
    if plan.design == "partial":
        n_first, name = n_inputs, f"finish_{mode}"
        first = Kernel(
            getattr(long_rows_shared, f"partial_{mode}"), n_words, (*tensors[:n_inputs], words),
            {**dict(list(strides.items())[:n_inputs]), **sizes, **(scale if mode == "forward" else {})},
            {**tile, **access, **overlapping, **reads}, device, **options,
        )  # fmt: skip
    else:
        n_first, name = 0, f"{plan.design}_{mode}"
        first = Kernel(
            long_rows_shared.clear_words, -(-n_words // _CLEARED), (words,), {"n_words": n_words},
            {"BLOCK": _CLEARED, **overlapping}, device,
        )  # fmt: skip
        spins["spins"] = plan.spins
        if plan.max_registers and not INTERPRETED:
            options["maxnreg"] = plan.max_registers
    if overlap:
        options["launch_pdl"] = True
    # A thread a word at least: copies of one word in several threads, polled at different times, could disagree on
    # whether it is missing, and the program's threads would take different ways.
    warps = {"WARPS": plan.num_warps} if plan.design == "held" else {}
    n_polled = max(32 * plan.num_warps, next_power_of_2(plan.n_chunks))
    second = Kernel(
        getattr(long_rows_held if plan.design == "held" else long_rows_shared, name), n_words, (*tensors, words),
        {**strides, **sizes, **spins, **scale},
        {**tile, "WORDS": n_polled, **access, **constants, **overlapping, **reads, **warps}, device, **options,
    )  # fmt: skip
    held = plan.design == "held"
    itemsize = tensors[0].element_size()
    reserved = long_rows_held.reserved_bytes(itemsize, plan.chunk // 2 * itemsize) if held else 0
    return LongRowsLaunch(first, second, n_words, device, n_first, reserved)
