"""Compile a kernel once for a call's types and constants, then launch it with the least work on the host.

In: a Triton kernel, its pointers' dtypes, its run-time numbers and constants. Out: a `Launch` to call with tensors,
and what the compiler made of it (registers, spills, shared memory).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from softmax_exp.kernels.forward import tile_forward
from softmax_exp.kernels.gpu import Gpu
from softmax_exp.kernels.plan import Plan

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
    """The properties of CUDA device `index` that the plan uses; an H200's without clusters for the interpreter (-1)."""
    if index < 0:
        return Gpu(cluster=1)  # the interpreter knows no Gluon
    properties = torch.cuda.get_device_properties(index)
    n_sms, capability = properties.multi_processor_count, (properties.major, properties.minor)
    return Gpu(
        n_sms=n_sms,
        capability=capability,
        l2_bytes=properties.L2_cache_size,
        registers_per_sm=properties.regs_per_multiprocessor,
        # Run on capability 9.0 alone; one of fewer SMs may be a slice of a GPU, without room for clusters of 16.
        cluster=16 if capability == (9, 0) and n_sms >= 100 and not INTERPRETED else 1,
    )


class Launch:
    """One kernel with its grid, run-time numbers and constants, compiled for one device.

    `enqueue(first, out, third)` puts it on the device's current stream, for tensors in the kernel's order (`third` may
    be None): the caller vouches that they are alive, of the dtypes compiled for, and on that device, which is current.
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
        tail = (*numbers.values(), *constants.values())
        if INTERPRETED:
            self._compiled, self.launcher = None, "interpreter"
            self.enqueue = functools.partial(_interpret, kernel[(grid,)], tail)
            return
        dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]
        options: dict[str, Any] = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        if chosen.max_registers:
            options["maxnreg"] = chosen.max_registers
        if chosen.programs > 1:
            options["num_ctas"] = chosen.programs
        with torch.cuda.device(device):
            self._compiled = kernel.warmup(*dtypes, *tail, grid=(grid,), **options)
            run = self._compiled.run
        arguments = (grid, device, self._compiled.function, self._compiled.packed_metadata, tail)
        if _has_launcher_of_triton_3_6(run):
            self.launcher, self.enqueue = "direct", _directly(run.launch, *arguments)
        else:
            self.launcher, self.enqueue = "compiled", _by_compiled_kernel(run, *arguments)

    def describe(self) -> dict[str, Any]:
        """Registers and spills a thread (32-bit words) and shared bytes a program; None under the interpreter."""
        if self._compiled is None:
            return {"n_regs": None, "n_spills": None, "shared_bytes": None, "launcher": self.launcher}
        return {
            "n_regs": self._compiled.n_regs,
            "n_spills": self._compiled.n_spills,
            "shared_bytes": self._compiled.metadata.shared,
            "launcher": self.launcher,
        }


def _interpret(kernel: Any, tail: tuple[Any, ...], *tensors: torch.Tensor | None) -> None:
    # Rows of NaN and lanes beyond the last row are no news, but NumPy warns of them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        kernel(*tensors, *tail)


def _has_launcher_of_triton_3_6(run: Any) -> bool:
    """Whether the launcher below `run` takes its arguments as in Triton 3.6, and needs no scratch memory."""
    return (
        triton.__version__.startswith("3.6.")
        and run.global_scratch_size + run.profile_scratch_size == 0
        and not (run.launch_cooperative_grid or run.launch_pdl)
    )


def _directly(
    launch: Any, grid: int, device: int, function: int, packed: Any, tail: tuple[Any, ...]
) -> Callable[..., None]:
    """Call the C function below the launcher: 2 us less a call than the launcher, 20 us less than `kernel[grid]`.

    Pointers go as integers: for a tensor the launcher would ask the driver whose memory it is.
    """
    current_stream = torch._C._cuda_getCurrentRawStream

    def enqueue(first: torch.Tensor, out: torch.Tensor, third: torch.Tensor | None) -> None:
        launch(
            grid, 1, 1, current_stream(device), function, False, False, None, None, packed, None, None, None,
            first.data_ptr(), out.data_ptr(), None if third is None else third.data_ptr(), *tail,
        )  # fmt: skip

    return enqueue


def _by_compiled_kernel(
    run: Any, grid: int, device: int, function: int, packed: Any, tail: tuple[Any, ...]
) -> Callable[..., None]:
    """Call the compiled kernel's own launcher, whose arguments are the same in Triton 3.6 and 3.7."""
    current_stream = torch._C._cuda_getCurrentRawStream

    def enqueue(first: torch.Tensor, out: torch.Tensor, third: torch.Tensor | None) -> None:
        run(
            grid, 1, 1, current_stream(device), function, packed, None, None, None,
            first.data_ptr(), out.data_ptr(), None if third is None else third.data_ptr(), *tail,
        )  # fmt: skip

    return enqueue
