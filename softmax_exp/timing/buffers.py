"""Whether a case is short, and how many sets of inputs it needs, so that no call finds its data in a cache.

In: the bytes of one call, a device, settings.  Out: the clock's choice, and a number of buffer sets.
"""

from __future__ import annotations

import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing import machine
from softmax_exp.timing.device_clock import gpu_uuid, l2_bytes

_UNKNOWN_RATE_GBPS = 10_000.0  # without NVML: more than any GPU's memory, so that no short case is taken for a long one


def is_short(case_bytes: int, device: torch.device, settings: MeasureSettings) -> bool:
    """Whether CUDA-graph replays are to time a case of `case_bytes` (inputs and outputs of one call).

    By these bytes at the memory's theoretical rate, and by nothing measured: near a bound, a measured time would give
    equal code one clock today and the other tomorrow. False on a CPU.
    """
    if device.type != "cuda":
        return False
    rate_gbps = machine.Monitor(gpu_uuid(device), machine.load_nvml()).memory_rate_gbps() or _UNKNOWN_RATE_GBPS
    return case_bytes < rate_gbps * 1e9 * settings.graph_below_us / 1e6


def n_buffer_sets(case_bytes: int, device: torch.device, settings: MeasureSettings) -> int:
    """How many sets of inputs a case of `case_bytes` needs.

    On a GPU: a flush makes single launches cold, so one; but 8 to 32 where the case is short, since each call of a
    graph must find data of its own. On a CPU: three times its last-level cache. Bounded by an eighth of the free
    memory, and 1 where the cache is to be warm.
    """
    if settings.cache == "warm" or settings.clock != "device" or case_bytes <= 0:
        return 1
    if device.type == "cuda":
        if not is_short(case_bytes, device, settings):
            return 1
        wanted, least, memory = 3 * l2_bytes(device) // case_bytes, 8, torch.cuda.mem_get_info(device)[0]
    else:
        wanted, least, memory = 3 * machine.last_level_cache_bytes() // case_bytes, 1, machine.free_memory_bytes()
    return max(1, min(32, max(wanted + 1, least), memory // 8 // case_bytes))
