"""Checks that an entry does its work where the clocks look for it: on the current stream, in the call, in new memory.

In: an entry on buffer set 0.  Out: flags, empty where all is well: `work_outside_timing`, `synchronises`,
`reuses_output`, `not_audited` (no memory for it); and `aliases`, which needs the inputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from softmax_exp.timing.device_clock import LONGEST_BLOCK_MS, Block
from softmax_exp.timing.samples import Timed

_SAMPLE_BYTES = 1 << 16
_POISON_BYTES = 1 << 31
POISON = 0xFF  # NaN in every float format


def tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from tensors(list(outputs.values()))
    elif isinstance(outputs, list | tuple):
        for item in outputs:
            yield from tensors(item)


def aliases(outputs: Any, inputs: Any) -> bool:
    """Whether an output shares memory with an input (as an operation in place would), or with another output."""
    of_inputs = {t.untyped_storage().data_ptr() for t in tensors(inputs) if t.numel()}
    of_outputs = [t.untyped_storage().data_ptr() for t in tensors(outputs) if t.numel()]
    return len(set(of_outputs)) < len(of_outputs) or not of_inputs.isdisjoint(of_outputs)


def _sample(outputs: Any) -> torch.Tensor:
    """A copy of the first, middle and last bytes of every output's storage, on the current stream."""
    parts = []
    for tensor in tensors(outputs):
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        size, take = memory.numel(), min(_SAMPLE_BYTES, memory.numel())
        parts += [memory[at : at + take] for at in (0, (size - take) // 2, size - take)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _poison(sizes: list[int], device: torch.device) -> None:
    """Fill with NaN the memory that the allocator will hand out next for temporaries and outputs of these bytes."""
    copies = max(2, min(6, _POISON_BYTES // max(1, sum(sizes))))
    held = [torch.full((size,), POISON, dtype=torch.uint8, device=device) for size in sizes * copies]
    del held


def audit(entry: Timed, device: torch.device) -> list[str]:
    """Run an entry a few times on buffer set 0 and flag what would make its timing a lie.

    `reuses_output`: two results in one memory. `synchronises`: the call waits for the device, so its launch cost is in
    every figure. `work_outside_timing`: work that ignores the current stream, or is not done when the stream is.
    """
    first, second = entry.call(0), entry.call(0)
    flags = ["reuses_output"] if aliases(second, []) or aliases(first, second) else []
    if device.type != "cuda":
        late = _runs_late_on_cpu(entry)
        return flags + (["work_outside_timing"] if late else [])
    torch.cuda.synchronize()
    expected = _sample(first)
    sizes = [tensor.untyped_storage().nbytes() for tensor in tensors(first)]
    del first, second
    if 6 * sum(sizes) > torch.cuda.mem_get_info(device)[0]:
        return [*flags, "not_audited"]
    trials, kept = [], []
    for _ in range(2):  # twice, the first result held: stale memory cannot pass for work that ran ahead both times
        trial, outputs = _trial(entry, expected, sizes, device)
        trials.append(trial)
        kept.append(outputs)
    if all(trial.waits for trial in trials):
        return [*flags, "synchronises"]
    ahead = not flags and all(trial.ahead for trial in trials)
    return flags + (["work_outside_timing"] if ahead or any(trial.late for trial in trials) else [])


def _runs_late_on_cpu(entry: Timed) -> bool:
    outputs = entry.call(0)
    at_once = _sample(outputs)
    time.sleep(0.005)
    return not torch.equal(at_once, _sample(outputs))


@dataclass(frozen=True)
class _Trial:
    waits: bool  # the call did not return while the stream was blocked
    ahead: bool  # its result was there while the stream was blocked
    late: bool  # its result changed after the stream was done


def _trial(entry: Timed, expected: torch.Tensor, sizes: list[int], device: torch.device) -> tuple[_Trial, Any]:
    """One call on a blocked stream, its memory poisoned before; a longer block where the host was too slow."""
    block, side, block_ms = Block(), torch.cuda.Stream(device), 3.0
    with torch.cuda.stream(side):
        _sample(expected)  # allocates what looking at the blocked call's result will need
    while True:
        _poison(sizes, device)
        torch.cuda.synchronize()
        block.ms = block_ms
        block.start()
        outputs = entry.call(0)
        returned = block.holds()
        with torch.cuda.stream(side):
            peek = _sample(outputs)
        side.synchronize()
        held = block.holds()
        behind = _sample(outputs)
        torch.cuda.synchronize()
        time.sleep(0.002)  # for a thread that launches late
        torch.cuda.synchronize()
        if held or block_ms >= LONGEST_BLOCK_MS:
            break
        del outputs
        block_ms = min(LONGEST_BLOCK_MS, 4 * block_ms)
    late = not torch.equal(behind, _sample(outputs))
    return _Trial(not returned, held and torch.equal(peek, expected), late), outputs
