"""The same sweep by each launcher: the same cells; stopped beneath one, gone on with beneath another."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from softmax_exp import compose, engine, guard
from softmax_exp.checks import ConfigError
from softmax_exp.records import Status
from softmax_exp.sweep import Sweep
from tests.faults.sweeps import GOOD, TINY, Command, the_sweep, whole_lines

SWEEP = ["-m", "seq=16,17,18", GOOD, "tracking=off"]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
SUBMITIT = ["hydra/launcher=submitit_local", "hydra.sweeper.max_batch_size=3"]
RAY = ["hydra/launcher=ray", "+hydra.launcher.ray.init.num_gpus=2", "+hydra.launcher.ray.init.num_cpus=2"]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs hydra-ray-launcher")
needs_plugins = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("submitit", "hydra_plugins")),
    reason="needs hydra-joblib-launcher and hydra-submitit-launcher",
)


def what(sweep: Sweep) -> list[tuple]:
    """What must not depend on the launcher, of each cell."""
    return [
        (r.cell, r.status, r.config_hash, r.kernel_hash, r.environment_hash, r.input_checksum, r.max_abs_error)
        for r in sweep.records()
    ]


@pytest.mark.parametrize("name", engine.PLUGINS)
def test_a_preset_says_what_it_needs_or_names_its_plugin(name: str) -> None:
    path = compose.CONF / "hydra" / "launcher" / f"{name}.yaml"
    assert OmegaConf.load(path)["_target_"] == engine.PLUGINS[name][0]
    try:
        master = compose.expand(["seq=16", "variants=eager", f"hydra/launcher={name}"]).master
    except ConfigError as error:
        assert f"pip install -e '.[{engine.PLUGINS[name][1]}]'" in str(error)
    else:
        assert master.hydra.launcher["_target_"] == engine.PLUGINS[name][0]


def test_a_plugin_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        def discover(self, kind: type) -> list:
            return []

    monkeypatch.setattr(guard.Plugins, "instance", staticmethod(lambda: Empty()))
    monkeypatch.setattr(guard, "FIXED", {})
    launcher = {"_target_": engine.PLUGINS["ray"][0]}
    with pytest.raises(ConfigError, match=r"hydra/launcher \(ray\) needs .*'\.\[ray\]'"):
        guard.refuse_code(OmegaConf.create({"hydra": {"launcher": launcher}}))


@needs_plugins
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_joblib_is_stopped_in_good_order(tmp_path: Path, number: signal.Signals) -> None:  # S19
    """SIGINT as a terminal sends it, to every process of the group; SIGTERM to the command alone."""
    endless = ["measure.budget_s=3600", "measure.target_pct=1e-9", "measure.max_rounds=1000000000"]
    command = Command(tmp_path, *SWEEP, *TINY, *endless, *JOBLIB)
    while sum("softmax_exp.worker" in " ".join(each.cmdline()) for each in command.processes()) < 2:
        assert command.process.poll() is None, command.said
        time.sleep(0.1)
    (os.killpg if number == signal.SIGINT else os.kill)(command.process.pid, number)
    assert command.wait() == 128 + number, command.said
    assert command.orphans() == [] and "Traceback" not in command.said
    sweep = the_sweep(tmp_path)
    assert sweep.records() and {record.status for record in sweep.records()} == {Status.KILLED}
    assert whole_lines(sweep.records_path) and len(sweep.records()) <= 4, "the third job never began"
    assert f"resume={sweep.sweep_id}" in command.said


@needs_plugins
def test_each_launcher_leaves_the_same_cells_and_one_goes_on_where_another_was_killed(tmp_path: Path) -> None:
    basic = Command(tmp_path / "basic", *SWEEP, *TINY)
    assert basic.wait() == 0, basic.said
    killed = Command(tmp_path / "other", *SWEEP, *TINY, *JOBLIB)
    assert killed.wait_for_records(1)
    killed.send(signal.SIGKILL)
    killed.wait()
    assert killed.orphans() == []
    sweep = the_sweep(tmp_path / "other")
    finished = len(sweep.records())
    again = Command(tmp_path / "other", *SWEEP, *TINY, *SUBMITIT, f"resume={sweep.sweep_id}")
    assert again.wait() == 0, again.said
    assert what(sweep) == what(the_sweep(tmp_path / "basic")) and whole_lines(sweep.records_path)
    launchers = {record.placement["launcher"] for record in sweep.records()}
    assert launchers == ({"joblib", "submitit_local"} if finished < 6 else {"joblib"})


@needs_ray
def test_ray_gives_each_job_a_gpu_of_its_own(tmp_path: Path) -> None:
    """Two GPUs that only Ray's books know of: the jobs run on the CPU."""
    basic, by_ray = Command(tmp_path / "basic", *SWEEP, *TINY), Command(tmp_path / "ray", *SWEEP, *TINY, *RAY)
    assert (basic.wait(), by_ray.wait()) == (0, 0), by_ray.said
    sweep = the_sweep(tmp_path / "ray")
    assert what(sweep) == what(the_sweep(tmp_path / "basic"))
    assert {record.placement["visible_devices"] for record in sweep.records()} == {"0", "1"}


@needs_ray
def test_a_gpu_that_ray_does_not_have_is_told(tmp_path: Path) -> None:
    command = Command(tmp_path, *SWEEP, *TINY, "hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2")
    assert command.wait() == 1
    assert "hydra.launcher.ray.remote.num_gpus (1) is more than Ray has (0)" in command.said
