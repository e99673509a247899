"""The limit: the best copy, on this machine, of the bytes that the case must move at least.

In: a case, the number of buffer sets, a device.  Out: copies as `Timed` entries, measured in the same rounds as the
variants; which one is best is decided from their samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from softmax_exp.cases import Case
from softmax_exp.timing.samples import LIMIT_PREFIX, Timed

Pass = tuple[torch.Tensor, torch.Tensor]  # what one launch reads and what it writes, 1-D int32


def limit_kernels(case: Case, n_sets: int, device: torch.device) -> list[Timed]:
    """Copies that read `case.bytes_read` and write `case.bytes_written`; in mode `full`, forward then backward.

    On a GPU: torch's own kernels and Triton copies of several tiles. On a CPU: torch's copy of as many bytes in all.
    Empty for a case without elements. Their buffers live as long as the entries.
    """
    if case.numel == 0:
        return []
    modes = ("forward", "backward") if case.mode == "full" else (case.mode,)
    cases = [dataclasses.replace(case, mode=mode) for mode in modes]
    sizes = [(_words(c.bytes_read), _words(c.bytes_written)) for c in cases]
    if device.type != "cuda":
        sizes = [((read + written) // 2, (read + written) // 2) for read, written in sizes]
    sets = [_buffers(sizes, device) for _ in range(n_sets)]
    entries = [_entry("torch.copy_", sets, lambda src, dst: dst.copy_(src), graphable=False)]
    if device.type != "cuda":
        return entries
    if any(read != written for read, written in sizes):
        entries = []
    if all(read == written for read, written in sizes):
        entries.append(_entry("torch.neg", sets, lambda src, dst: torch.neg(src, out=dst)))
    if all(read == 2 * written for read, written in sizes):
        entries.append(_entry("torch.add", sets, lambda src, dst: torch.add(*src.view(2, -1), out=dst)))

    from softmax_exp.kernels.copy import FORMS, move

    n_sms = torch.cuda.get_device_properties(device).multi_processor_count
    for form in FORMS:
        entries.append(_entry(form.name, sets, lambda src, dst, form=form: move(src, dst, form, n_sms)))
    return entries


def _words(n_bytes: int) -> int:
    """4-byte words for so many bytes, a multiple of 16, so that loads and stores are 16 bytes wide."""
    return 16 * -(-n_bytes // 64)


def _buffers(sizes: list[tuple[int, int]], device: torch.device) -> list[Pass]:
    """Buffers of the given words; a later pass reads what the earlier one wrote, as backward reads forward's output.

    They hold random words: memory of zeros can be faster than real data.
    """
    passes: list[Pass] = []
    for read, written in sizes:
        src = torch.randint(-(2**31), 2**31 - 1, (read,), dtype=torch.int32, device=device)
        if passes and passes[-1][1].numel() <= read:
            passes[-1] = (passes[-1][0], src[: passes[-1][1].numel()])
        passes.append((src, torch.empty(written, dtype=torch.int32, device=device)))
    return passes


def _entry(
    name: str, sets: list[list[Pass]], copy: Callable[[torch.Tensor, torch.Tensor], object], graphable: bool = True
) -> Timed:
    def call(index: int) -> list[torch.Tensor]:
        for src, dst in sets[index]:
            copy(src, dst)
        return [dst for _, dst in sets[index]]

    return Timed(LIMIT_PREFIX + name, call, graphable)
