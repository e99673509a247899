"""What Hydra's launchers need around them so that a sweep is the same under each, and ends when it is told to.

In: a launcher, its config, the jobs' overrides.  Out: the jobs have run, or were asked to stop and did.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from softmax_exp import engine, stops


def register() -> None:
    """Make what conf/hydra/launcher needs known to OmegaConf."""
    OmegaConf.register_new_resolver("gpus_here", engine.gpus_here, replace=True)
    # Our presets bear the plugins' names, so that no one gets the plugins' own defaults by mistake. Hydra checks ours
    # against the plugin's schema, which is welcome, and says at each start that a later version will not.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema", UserWarning)


def launch(launcher: Launcher, hydra: DictConfig, jobs: list[list[str]], dismiss: Callable[[], None]) -> None:
    """Run the jobs. Where they run in other processes, a signal calls `dismiss`, and they end by themselves.

    RuntimeError where the engine could never run a job.
    """
    name = engine.name_of(hydra.launcher["_target_"])
    if name == "basic":
        launcher.launch(jobs, initial_job_idx=0)
        return
    engine.note_visible_devices()
    with stops.passed_on(dismiss):
        if name == "ray":
            _start_ray(OmegaConf.to_container(hydra.launcher["ray"], resolve=True))
        at_once = hydra.sweeper.max_batch_size or (engine.gpus_here() if name == "submitit_local" else len(jobs))
        for first in range(0, len(jobs), at_once):
            launcher.launch(jobs[first : first + at_once], initial_job_idx=first)
            if stops.asked():
                return


def _start_ray(settings: Any) -> None:
    """Start or join Ray, which takes SIGTERM for itself, and see that a job can ever get what it asks for."""
    import ray  # pyright: ignore[reportMissingImports]

    if not ray.is_initialized():
        ray.init(**{"object_store_memory": 78_643_200, **settings["init"]})  # the least that it takes; we need none
    stops.take_back()
    wanted, there = settings["remote"].get("num_gpus") or 0, ray.cluster_resources().get("GPU", 0)
    if wanted > there:
        raise RuntimeError(
            f"hydra.launcher.ray.remote.num_gpus ({wanted:g}) is more than Ray has ({there:g}); "
            "set it to 0 for device=cpu, or start Ray where the GPUs are"
        )
