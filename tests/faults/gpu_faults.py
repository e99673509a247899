"""Softmax functions that are right for 128 columns and break a GPU's process beyond, each in its own way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_held: list[torch.Tensor] = []


@triton.jit
def _write_far_away(y_ptr):
    tl.store(y_ptr + (1 << 40), 1.0)


def out_of_bounds(x):
    y = torch.softmax(x, dim=-1)
    if x.shape[-1] > 128:
        _write_far_away[(1,)](y)
    return y


@triton.jit
def _write_at(memory_ptr, offset_ptr):
    tl.store(memory_ptr + tl.load(offset_ptr), 1.0)


_n_calls = 0
_places: list[torch.Tensor] = []


def out_of_bounds_later(x):
    """Out of bounds from its 20th call on, when it is timed in turn with others, in whose calls the fault may show."""
    global _n_calls
    y = torch.softmax(x, dim=-1)
    if x.shape[-1] > 128:
        _n_calls += 1
        if not _places:
            _places[:] = [torch.zeros(1, device=x.device), torch.tensor([0, 0, 1 << 40, 0], device=x.device)]
        memory, offsets = _places
        # both places are aligned alike, so that nothing is compiled anew
        _write_at[(1,)](memory, offsets[2:] if _n_calls >= 20 else offsets)
    return y


def endless(x):
    if x.shape[-1] > 128:
        torch.cuda._sleep(200_000_000_000)  # over 90 s at any clock, beyond every deadline of the test, yet it ends
    return torch.softmax(x, dim=-1)


def all_memory(x):
    if x.shape[-1] > 128:
        _held.append(torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=x.device))
    return torch.softmax(x, dim=-1)
