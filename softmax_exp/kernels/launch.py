"""Compile a kernel once for a call's types and constants, then launch it with the least work on the host.

In: a Triton kernel, its pointers' dtypes, its run-time numbers and constants. Out: a `Launch` to call with tensors,
and what the compiler made of it (registers, spills, shared memory).
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from softmax_exp.kernels.forward import tile_forward
from softmax_exp.kernels.plan import Gpu, Plan

INTERPRETED = not isinstance(tile_forward, JITFunction)


def check_device(x: torch.Tensor) -> None:
    """RuntimeError unless x is on CUDA, or Triton's interpreter runs and x is on the CPU."""
    if not x.is_cuda and not (INTERPRETED and x.device.type == "cpu"):
        raise RuntimeError(
            f"the Triton softmax needs a CUDA tensor, not one on {x.device}; "
            "set TRITON_INTERPRET=1 before importing to run it on the CPU (slowly)"
        )


@functools.cache
def gpu_of(index: int) -> Gpu:
    """The properties of CUDA device `index` that the plan uses; those of an H200 under the interpreter (-1)."""
    if index < 0:
        return Gpu()
    properties = torch.cuda.get_device_properties(index)
    return Gpu(
        n_sms=properties.multi_processor_count,
        capability=(properties.major, properties.minor),
        l2_bytes=properties.L2_cache_size,
        registers_per_sm=properties.regs_per_multiprocessor,
    )


class Launch:
    """One kernel with its grid, run-time numbers and constants, compiled for the device that is current.

    Called with the tensors alone, in the kernel's order (None for an absent one). Pointers are passed as integers:
    the caller vouches that the tensors are on the device, alive and of the dtypes compiled for.
    """

    def __init__(
        self,
        kernel: Any,
        grid: int,
        tensors: tuple[torch.Tensor | None, ...],
        numbers: dict[str, int | float],
        constants: dict[str, Any],
        chosen: Plan,
        device: int,
    ) -> None:
        self._kernel, self._grid, self._numbers, self._constants = kernel, grid, numbers, constants
        self._options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        self._tail = (*numbers.values(), *constants.values())
        self._device = device
        if INTERPRETED:
            return
        dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]
        with torch.cuda.device(device):
            compiled = kernel.warmup(*dtypes, *self._tail, grid=(grid,), **self._options)
            self._run, self._function = compiled.run, compiled.function
        self._compiled, self._packed = compiled, compiled.packed_metadata

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        """Enqueue on the device's current stream."""
        if INTERPRETED:
            # Rows of NaN and lanes beyond the last row are no news, but NumPy warns of them.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                self._kernel[(self._grid,)](*tensors, *self._tail)
            return
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        self._run(
            self._grid, 1, 1, stream, self._function, self._packed, None, None, None, *pointers, *self._tail
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Registers and spills a thread (32-bit words) and shared bytes a program; None under the interpreter."""
        if INTERPRETED:
            return {"n_regs": None, "n_spills": None, "shared_bytes": None, "launcher": "interpreter"}
        return {
            "n_regs": self._compiled.n_regs,
            "n_spills": self._compiled.n_spills,
            "shared_bytes": self._compiled.metadata.shared,
            "launcher": "direct",
        }
