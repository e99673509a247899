"""The Triton softmax as a library: `softmax`, `triton_softmax`, and the simple kernel it is compared with.

In: CUDA tensors (CPU ones under TRITON_INTERPRET=1). Out: their softmax; `describe` tells what a call runs.
Imports without a GPU.
"""

from typing import TYPE_CHECKING, Any

from softmax_exp.kernels import registration as _registration  # noqa: F401 (registers the operator)
from softmax_exp.kernels.operator import describe, softmax, triton_softmax, with_plan
from softmax_exp.kernels.simple import simple_softmax

if TYPE_CHECKING:
    from softmax_exp.benchmark import benchmark_softmax_variants

__all__ = ["benchmark_softmax_variants", "describe", "simple_softmax", "softmax", "triton_softmax", "with_plan"]


def __getattr__(name: str) -> Any:
    if name != "benchmark_softmax_variants":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from softmax_exp.benchmark import benchmark_softmax_variants  # the benchmark stands above the kernels

    return benchmark_softmax_variants
