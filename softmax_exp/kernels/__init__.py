"""The Triton softmax as a library: `softmax`, `triton_softmax`, and the simple kernel it is compared with.

In: CUDA tensors (CPU ones under TRITON_INTERPRET=1). Out: their softmax; `describe` tells what a call runs.
Imports without a GPU.
"""

from softmax_exp.kernels import registration as _registration  # noqa: F401 (registers the operator)
from softmax_exp.kernels.operator import describe, softmax, triton_softmax, with_plan
from softmax_exp.kernels.simple import simple_softmax

__all__ = ["describe", "simple_softmax", "softmax", "triton_softmax", "with_plan"]
