"""What takes the place of timing where nothing is timed, and what makes many small cases cheap.

In: the cases of one process, one after the other, and the calls of a variant.  Out: functions that are built once for
all cases that differ in their values alone; calls that are repeated without waiting, so that a race has its chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from softmax_exp.cases import Case

N_CALLS = {"cuda": 8, "cpu": 4}  # on a CPU only a variant's own threads could race
MOST_BYTES = 1 << 30  # of results that are held at once
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_problem: Any = None
_built: dict[str, Callable[..., Any]] = {}


def begin(case: Case, variant_args: dict[str, dict[str, Any]], *, timed: bool) -> bool:
    """A case begins. True where all that was built and compiled before has to go.

    It stays between untimed cases that differ in distribution and seed alone: compiling again would cost a second each.
    """
    global _problem
    before = _problem
    _problem = None if timed else (dataclasses.replace(case, distribution="normal", seed=0), variant_args)
    if _problem is not None and _problem == before:
        return False
    _built.clear()
    return True


def built(name: str, build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The function of a variant for the case that has begun: a new one where it is timed, else perhaps a kept one."""
    if _problem is None:
        return build()
    if name not in _built:
        _built[name] = build()
    return _built[name]


def repeat(call: Callable[[], Any], result_bytes: int, check: Callable[[Any], Any]) -> str:
    """Call again and again without waiting; `check` all results if they differ in a bit. The reason if they are wrong.

    Several calls are under way at once on a GPU, and all results are held, so that none may stand in another's memory.
    """
    results = [call()]
    first = results[0][0] if isinstance(results[0], tuple) else results[0]
    n_calls = max(2, min(N_CALLS[first.device.type], MOST_BYTES // max(1, result_bytes)))
    results += [call() for _ in range(n_calls - 1)]
    flat = [result if isinstance(result, tuple) else (result,) for result in results]
    places = [tensor.untyped_storage().data_ptr() for tensors in flat for tensor in tensors if tensor.numel()]
    if len(set(places)) < len(places):
        return "reuses_output: its results share memory, so the next call overwrites the last result"
    if not all(_same_bits(one, other) for tensors in flat[1:] for one, other in zip(flat[0], tensors, strict=True)):
        for result in results:
            check(result)
    return ""


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    kind = _BITS[one.element_size()]
    return torch.equal(one.detach().view(kind), other.detach().view(kind))
