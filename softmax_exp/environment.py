"""The machine and the software that a result depends on.

In: the running process, NVML, git.  Out: plain JSON dictionaries: `describe_host` without torch, `describe_device` with
torch, and of both the part that must be equal for two results to be comparable.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmax_exp import ptxas
from softmax_exp.cases import stable_hash
from softmax_exp.files import write_whole
from softmax_exp.redaction import redact

if TYPE_CHECKING:
    import torch

PACKAGES = ("softmax_exp", "torch", "triton", "numpy", "hydra-core", "omegaconf", "mlflow")


def describe_host() -> dict[str, Any]:
    """Host, CPU, GPUs by NVML, packages and git state, without importing torch. About 60 ms, most of it git."""
    return {
        "hostname": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cpu": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "gpus": describe_gpus(),
        "git": {"package": _git_of_package(), "directory": describe_git(Path.cwd())},
    }


def describe_gpus() -> list[dict[str, Any]]:
    """Every NVIDIA GPU of the machine as NVML sees it, CUDA_VISIBLE_DEVICES ignored; empty where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or no permission: then nothing is known, which is no fault
        return []
    try:
        return [_nvml_facts(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def describe_device(device: torch.device) -> dict[str, Any]:
    """What only the measuring process knows: the torch build and the device that it really runs on.

    A CUDA device is matched with NVML by its UUID, so that CUDA_VISIBLE_DEVICES and ordering cannot confuse them.
    """
    import torch

    facts: dict[str, Any] = {
        "type": device.type,
        "torch": torch.__version__,
        "torch_git": getattr(torch.version, "git_version", None),
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
    }
    if device.type != "cuda":
        return facts | {"name": _cpu_model(), "threads": torch.get_num_threads()}
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    facts |= {
        "name": properties.name,
        "index": index,
        "uuid": uuid,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "ptxas": ptxas.version((properties.major, properties.minor)),
    }
    known = [gpu for gpu in describe_gpus() if uuid and gpu["uuid"].removeprefix("GPU-") == uuid.removeprefix("GPU-")]
    # Within a MIG slice torch gives the UUID of the slice, which NVML lists under no GPU.
    return facts | ({key: value for key, value in known[0].items() if key not in facts} if known else {})


def environment_class(environment: dict[str, Any]) -> dict[str, Any]:
    """What must be equal for two latencies to be comparable.

    In: `{"host": describe_host(), "device": describe_device(device)}`. Which card of a model, the host's
    name and the git commit do not matter; kernels have a hash of their own.
    """
    host, device = environment["host"], environment["device"]
    of_device = ("type", "name", "torch", "cuda", "triton", "driver", "memory_bytes", "sm_count", "mig", "threads")
    limits = ("power_limit_w", "sm_clock_max_mhz", "memory_clock_max_mhz")
    same = {key: device.get(key) for key in of_device + limits}
    if "ptxas" in device:  # not known of results of before
        same["ptxas"] = device["ptxas"]
    return same | {key: host.get(key) for key in ("cpu", "cpu_count", "python")}


def environment_hash(environment: dict[str, Any]) -> str:
    """16 hexadecimal digits of `environment_class`: equal where results are comparable."""
    return stable_hash(environment_class(environment))


def keep_environment(folder: Path, environment: dict[str, Any]) -> str:
    """Write an environment to `environments/<hash>.json` of a sweep's folder, once, and return its hash."""
    name = environment_hash(environment)
    path = folder / "environments" / f"{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(environment, indent=1, sort_keys=True))
    return name


def describe_git(directory: Path) -> dict[str, Any] | None:
    """Commit, branch, dirty flag and remote of the repository around a directory; None where there is none.

    `dirty` counts files that git does not know as well, and is None where git took longer than 5 s.
    """
    state = _git(directory, "status", "--porcelain=v2", "--branch")
    if state is None:
        head = _git(directory, "rev-parse", "HEAD")
        return {"commit": head.strip(), "dirty": None} if head else None
    lines = state.splitlines()
    branch = {line.split()[1]: line.split(maxsplit=2)[2] for line in lines if line.startswith("# branch.")}
    remote = _git(directory, "config", "--get", "remote.origin.url")
    return {
        "commit": branch.get("branch.oid"),
        "branch": branch.get("branch.head"),
        "dirty": any(not line.startswith("#") for line in lines),
        "remote": redact(remote.strip()) if remote else None,
    }


def _git_of_package() -> dict[str, Any] | None:
    folder = Path(__file__).parent
    # An installed package may lie in a virtual environment inside a foreign repository.
    tracked = _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
    return describe_git(folder) if tracked else None


def _git(directory: Path, *arguments: str) -> str | None:
    # core.fsmonitor names a program that `status` would run; no lock is taken from someone who commits meanwhile.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _nvml_facts(handle: Any) -> dict[str, Any]:
    import pynvml

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            answer = question(*arguments)
        except pynvml.NVMLError:  # a figure that this card or driver does not give
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    milliwatts = ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    memory, mig = ask(pynvml.nvmlDeviceGetMemoryInfo, handle), ask(pynvml.nvmlDeviceGetMigMode, handle)
    return {
        "name": ask(pynvml.nvmlDeviceGetName, handle),
        "uuid": ask(pynvml.nvmlDeviceGetUUID, handle) or "",
        "driver": ask(pynvml.nvmlSystemGetDriverVersion),
        "memory_bytes": memory.total if memory else None,
        "power_limit_w": milliwatts / 1000 if milliwatts is not None else None,
        "sm_clock_max_mhz": ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_max_mhz": ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "memory_bus_bits": ask(pynvml.nvmlDeviceGetMemoryBusWidth, handle),
        "mig": bool(mig[0]) if mig else False,
    }
