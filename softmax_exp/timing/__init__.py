"""Timing: the only package that measures latency.

In: calls to time (`Timed`), buffer sets, settings.  Out: a `Measurement` of raw samples from interleaved rounds, and
`summarise`, the latency fields of a record. Importing it does not import torch. See docs/measuring.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softmax_exp.timing.samples import Measurement, Samples, Timed

if TYPE_CHECKING:
    from softmax_exp.timing.audit import aliases
    from softmax_exp.timing.buffers import n_buffer_sets
    from softmax_exp.timing.host_clock import wall
    from softmax_exp.timing.limit import limit_kernels
    from softmax_exp.timing.measurement import measure
    from softmax_exp.timing.summary import summarise, summarise_wall

_HOME = {
    "aliases": "audit",
    "limit_kernels": "limit",
    "measure": "measurement",
    "n_buffer_sets": "buffers",
    "summarise": "summary",
    "summarise_wall": "summary",
    "wall": "host_clock",
}

__all__ = [
    "Measurement",
    "Samples",
    "Timed",
    "aliases",
    "limit_kernels",
    "measure",
    "n_buffer_sets",
    "summarise",
    "summarise_wall",
    "wall",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
