"""What runs a sweep's jobs: Hydra's launcher, the engine behind it, and the GPU that it promised each job.

In: Hydra's config and a job's environment variables.  Out: the `Assignment` that goes with the job's request to the
measuring process and into its records. Nothing here imports torch.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig

VISIBLE = "CUDA_VISIBLE_DEVICES"
OF_THE_SWEEP = "SOFTMAX_EXP_VISIBLE_DEVICES"  # the sweep's own VISIBLE, for engines that write over it
PLUGINS = {  # by the choice of hydra/launcher: the class that Hydra makes, and our extra that brings it
    "joblib": ("hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "joblib"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher", "submitit"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher", "submitit"),
    "ray": ("hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher", "ray"),
}
REMOTE = ("submitit_slurm", "ray")  # may run jobs on machines that the sweep's process knows nothing of


@dataclass(frozen=True)
class Assignment:
    """What a job was given, by which launcher."""

    launcher: str = ""
    promised: int | None = None
    """GPUs that the engine was asked for; None where it assigns none, and any that can be seen may be taken."""
    visible_devices: str | None = None
    """The job's CUDA_VISIBLE_DEVICES."""
    fault: str = ""
    """Why that cannot be right, if so."""


def name_of(target: str) -> str:
    """The choice of hydra/launcher that makes this class; the class's own name where it is not one of ours."""
    by_target = {target: name for name, (target, _) in PLUGINS.items()}
    return by_target.get(target) or target.rpartition(".")[2].removesuffix("Launcher").lower()


def assignment() -> Assignment:
    """The assignment of the job that runs in this process."""
    visible = os.environ.get(VISIBLE)
    if not HydraConfig.initialized():  # a replay runs its jobs without Hydra
        return Assignment("basic", visible_devices=visible)
    launcher: Any = HydraConfig.get().launcher
    name = name_of(launcher["_target_"])
    promised = _promised(name, launcher)
    fault = _ray_fault(visible) if name == "ray" and promised else ""
    return Assignment(name, promised, visible, fault)


def _promised(name: str, launcher: Any) -> int | None:
    """GPUs a job that the engine is asked for; None where it is asked for none, or assigns none."""
    if name == "ray":
        n_gpus = launcher["ray"]["remote"].get("num_gpus")
    elif name == "submitit_slurm":
        n_gpus = launcher.get("gpus_per_task") or launcher.get("gpus_per_node") or _of_gres(launcher.get("gres"))
    else:
        n_gpus = None
    return int(n_gpus) if n_gpus and n_gpus >= 1 else None


def _of_gres(gres: str | None) -> int | None:
    """The GPUs of a Slurm request such as `gpu:h100:2`."""
    found = re.search(r"\bgpu(?::[A-Za-z_][\w.-]*)?(?::(\d+))?", gres or "")
    return int(found[1] or 1) if found else None


def _ray_fault(visible: str | None) -> str:
    """Whether Ray's own books say another GPU than the one that this job sees."""
    if "ray" not in sys.modules:
        return ""
    given = [str(each) for each in sys.modules["ray"].get_gpu_ids()]
    seen = [each for each in (visible or "").split(",") if each]
    if given == seen:
        return ""
    return f"Ray gave this job the GPU {','.join(given) or 'none'}, but {VISIBLE} is {visible}"


def note_visible_devices(variables: MutableMapping[str, str] = os.environ) -> None:
    """Tell job processes what this one may see, before a launcher starts them."""
    variables[OF_THE_SWEEP] = variables.get(VISIBLE, "all")


def undo_local_submitit(variables: MutableMapping[str, str] = os.environ) -> None:
    """Let a job of submitit's local executor see the GPUs that the sweep may see.

    It assigns nothing: it hides every GPU unless gpus_per_node is set, and else names the first ones to all jobs.
    """
    if variables.get("SUBMITIT_EXECUTOR") != "local" or OF_THE_SWEEP not in variables:
        return
    variables[VISIBLE] = variables[OF_THE_SWEEP]
    if variables[VISIBLE] == "all":
        del variables[VISIBLE]


def gpus_here() -> int:
    """GPUs that this process may use, by NVML and CUDA_VISIBLE_DEVICES; 1 where there is none, for the CPU."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        named = [each.strip() for each in visible.split(",")]
        valid = next((n for n, each in enumerate(named) if each in ("", "-1")), len(named))
        return max(1, valid)  # CUDA stops reading at the first name that is none
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver: then there is no GPU to count
        return 1
    try:
        return max(1, pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
