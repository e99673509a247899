"""How many sets of inputs a case needs, so that no call finds its data in a cache.

In: the bytes of one call, a device, settings.  Out: a number of buffer sets.
"""

from __future__ import annotations

import torch

from softmax_exp.config import MeasureSettings
from softmax_exp.timing import machine
from softmax_exp.timing.device_clock import gpu_uuid, l2_bytes


def n_buffer_sets(case_bytes: int, device: torch.device, settings: MeasureSettings) -> int:
    """How many sets of inputs a case of `case_bytes` (inputs and outputs of one call) needs.

    On a GPU: a flush makes single launches cold, so one; but 8 to 32 where the kernel may be so short that graphs
    are wanted, whose calls must each find data of their own. On a CPU: three times its last-level cache. Bounded by an
    eighth of the free memory, and 1 where the cache is to be warm.
    """
    if settings.cache == "warm" or settings.clock != "device" or case_bytes <= 0:
        return 1
    if device.type == "cuda":
        rate = machine.Monitor(gpu_uuid(device), machine.load_nvml()).memory_rate_gbps() or 10_000.0
        if case_bytes > 1.3 * rate * 1e9 * settings.graph_below_us / 1e6:
            return 1
        wanted, least, memory = 3 * l2_bytes(device) // case_bytes, 8, torch.cuda.mem_get_info(device)[0]
    else:
        wanted, least, memory = 3 * machine.last_level_cache_bytes() // case_bytes, 1, machine.free_memory_bytes()
    return max(1, min(32, max(wanted + 1, least), memory // 8 // case_bytes))
