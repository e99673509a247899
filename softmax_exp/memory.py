"""How much memory a case could have at most on this machine, without torch.

In: a device wish.  Out: bytes of the largest GPU (NVML) or of the host (its control group's limit), None if unknown.
"""

from __future__ import annotations

import os
from pathlib import Path

_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total_bytes(device: str) -> tuple[int, str] | None:
    """Bytes of memory behind `auto`, `cpu`, `cuda` or `cuda:1`, and whose they are; None if nothing tells."""
    gpu = None if device == "cpu" else _gpu_bytes()
    if gpu is not None:
        return gpu, "the GPU"
    if device.startswith("cuda"):
        return None
    return _host_bytes(), "this machine"


def _gpu_bytes() -> int | None:
    """The largest GPU's: which of them CUDA_VISIBLE_DEVICES selects is CUDA's business."""
    import pynvml  # 20 ms that only a large case needs

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return max((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=None)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _host_bytes() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in map(Path, _GROUP_LIMITS):
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total
