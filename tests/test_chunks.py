"""Chunks: the same jobs, records and hashes as one by one, whatever their configs hold and whenever they are killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from softmax_exp import compose, config, manifest
from softmax_exp.config import Experiment
from tests.test_cli import Joint, joint, run, the_sweep

__all__ = ["joint"]  # a fixture

SEVEN = "seq=16,32,48,64,80,96,112"


def folders() -> list[str]:
    return sorted(path.name for path in (the_sweep().folder / "jobs").iterdir() if path.is_dir())


@pytest.mark.parametrize(("chunk", "expected"), [(1, "0123456"), (3, "036"), (7, "0"), (100, "0")])
def test_jobs_run_in_order_in_the_folders_of_their_chunks(joint: Joint, chunk: int, expected: str) -> None:
    hashes = []
    joint.on_job = lambda experiment, job: hashes.append(experiment.config_hash)
    assert run(SEVEN, f"chunk={chunk}") == 0
    assert joint.ran == [*range(7)] and folders() == [*expected]
    assert hashes == [job.experiment.config_hash for job in compose.plan([SEVEN, "variants=[eager]"], "x").jobs]
    assert the_sweep().manifest()["chunk"] == chunk


@pytest.mark.parametrize(("n_jobs", "chunk"), [(1, 1), (200, 1), (201, 2), (10_000, 50), (1_000_000, 100)])
def test_small_sweeps_have_no_chunks_and_large_ones_enough_for_many_gpus(n_jobs: int, chunk: int) -> None:
    assert compose._chunk_size(n_jobs) == chunk


def test_values_of_every_kind_come_through(joint: Joint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_NUMBER", "3")
    overrides = [
        "variants=[eager,torch.compile]",
        "chunk=5",
        "+variant_args.torch.compile.x=true,1,1.0,'1','$\\{a}','it\\'s \"new\"',[1,{b: null}],${oc.env:SOME_NUMBER}",
        "measure=quick,wall",
        "scale=null,1,0.5",
        "seq_q='${seq}',1",
    ]
    planned: list[Experiment] = []
    plan = compose.expand([*overrides, f"outputs={Path('out').absolute()}"]).plan("a-sweep")
    planned = [job.experiment for job in plan.jobs]
    came: list[Experiment] = []
    plan.launch(lambda composed: came.extend(config.jobs_of(composed)))
    assert len(planned) == 8 * 2 * 3 * 2 and len(plan.chunks) == 20
    assert came == planned and list(map(repr, came)) == list(map(repr, planned))


def test_the_config_of_a_chunk_tells_what_each_job_sets(joint: Joint) -> None:
    assert run(SEVEN, "chunk=3", "mode=backward") == 0
    from omegaconf import OmegaConf

    kept = OmegaConf.to_container(OmegaConf.load(the_sweep().folder / "jobs/3/config.yaml"))
    assert isinstance(kept, dict)
    jobs = kept.pop("jobs")
    assert [job.pop("job") for job in jobs] == [3, 4, 5]
    assert [kept | job for job in jobs] == [job["config"] for job in the_sweep().manifest()["jobs"][3:6]]


def test_a_failing_job_costs_no_other_of_its_chunk(joint: Joint) -> None:
    def fail(experiment: Experiment, job: int) -> None:
        if job in (1, 2):
            raise ZeroDivisionError(f"in {job}")

    joint.on_job = fail
    assert run(SEVEN, "chunk=4") == 1
    assert [record.job for record in the_sweep().records()] == [0, 3, 4, 5, 6]
    errors = (the_sweep().folder / "jobs/0/error.txt").read_text()
    assert "in 1" in errors and "in 2" in errors and not (the_sweep().folder / "jobs/4/error.txt").exists()


def test_a_sweep_is_resumed_within_a_chunk_and_keeps_its_chunks(joint: Joint, capsys) -> None:
    def stop(experiment: Experiment, job: int) -> None:
        if job == 4:
            signal.raise_signal(signal.SIGTERM)

    joint.on_job = stop
    assert run(SEVEN, "chunk=3") == 143
    assert joint.ran == [0, 1, 2, 3, 4], "the rest of the chunk does not begin"
    joint.on_job = lambda experiment, job: None
    assert run(SEVEN, "chunk=2", "resume=true") == 2
    assert "chunk (2) must be that of the sweep, 3" in capsys.readouterr().err
    assert run(SEVEN, "resume=true") == 0
    assert joint.ran == [*range(7)] and folders() == ["0", "3", "6"]
    assert [record.job for record in the_sweep().records()] == [*range(7)]


def test_a_manifest_comes_back_as_it_was_and_costs_little_for_a_job() -> None:
    case = {"shape": [4, 4], "mask": None, "mode": "forward"}
    jobs = [
        {"job": n, "overrides": [f"seed={n}"], "variants": ["eager"], "case": case | {"seed": n}, "config": {"a": case}}
        for n in range(1000)
    ]
    jobs[7]["config"] = {"a": case, "x": True}
    jobs[8]["config"] = {"a": case, "x": 1}
    text = manifest.to_json({"sweep_id": "s"}, jobs)
    assert manifest.expanded(json.loads(text)) == {"sweep_id": "s", "jobs": jobs}
    assert repr(manifest.expanded(json.loads(text))["jobs"][7]["config"]["x"]) == "True"
    assert len(text) < 150 * len(jobs)
    whole = {"sweep_id": "s", "jobs": jobs}
    assert manifest.expanded(whole) is whole
