"""Which softmax is fastest on this GPU, at these shapes, and is it right?

As a library: `softmax`, `triton_softmax`, and `benchmark_softmax_variants`, the first version's benchmark. As a
command: `python -m softmax_exp`. Importing the package imports neither torch nor triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softmax_exp.benchmark import SoftmaxVariantResult, benchmark_softmax_variants
    from softmax_exp.kernels import softmax, triton_softmax

__all__ = ["SoftmaxVariantResult", "benchmark_softmax_variants", "softmax", "triton_softmax"]

_HOME = {
    "SoftmaxVariantResult": "benchmark",
    "benchmark_softmax_variants": "benchmark",
    "softmax": "kernels",
    "triton_softmax": "kernels",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
