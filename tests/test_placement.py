"""Which GPU a job gets: a free one of one model, the one that the engine promised, or a refusal that says why."""

from __future__ import annotations

import contextlib
import sys
import types
import uuid

import pytest
import torch

from softmax_exp import engine, placement
from softmax_exp.engine import Assignment
from softmax_exp.placement import Place, Refused
from softmax_exp.records import Status


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the GPUs that torch would see; each has a UUID of its own. What was made current is in `current`."""
    names: list[str] = ["NVIDIA H200", "NVIDIA H200"]
    salt = uuid.uuid4().hex
    monkeypatch.setattr(placement, "devices", lambda wish: [torch.device("cuda", n) for n in range(len(names))])
    monkeypatch.setattr(
        placement, "facts", lambda d: {"type": "cuda", "name": names[d.index], "uuid": f"GPU-{salt}-{d.index}"}
    )
    monkeypatch.setattr(placement, "_last", None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return names


def given(n_gpus: int | None, fault: str = "") -> Place:
    return Place(assignment=Assignment("ray", n_gpus, "0", fault))


def told_device(told: list[dict]) -> int:
    return int([event for event in told if event["event"] == "device"][-1]["environment"]["uuid"][-1])


def test_two_jobs_at_once_get_two_gpus_and_the_next_case_stays_where_the_last_was(gpus) -> None:
    told: list[dict] = []
    with placement.taken("auto", Place(), told.append) as refused:
        assert refused is None and told_device(told) == 0
        with placement.taken("cuda", Place(), told.append) as refused:
            assert refused is None and told_device(told) == 1
    with placement.taken("auto", Place(), told.append):
        assert told_device(told) == 1, "another GPU would cost another context"


def test_a_host_of_two_models_is_never_mixed_in_one_sweep_and_a_wish_chooses(gpus) -> None:
    gpus[:] = ["NVIDIA H200", "NVIDIA L4", "NVIDIA L4"]
    told: list[dict] = []
    with contextlib.ExitStack() as stack:
        for expected in (1, 2):
            assert stack.enter_context(placement.taken("auto", Place("l4"), told.append)) is None
            assert told_device(told) == expected
        assert stack.enter_context(placement.taken("auto", Place(), told.append)) is None
        assert told_device(told) == 0


def test_another_model_is_skipped_with_the_reason(gpus) -> None:
    with placement.taken("auto", Place("A100"), lambda event: None) as refused:
        assert refused == Refused(Status.SKIPPED, "placement.gpu_model (A100) is not here: NVIDIA H200")
        assert refused.as_event()["refused"] and refused.as_event()["variant"] == "all"


def test_a_cpu_is_no_gpu_of_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "devices", lambda wish: [torch.device("cpu")])
    with placement.taken("auto", Place("H200"), lambda event: None) as refused:
        assert refused == Refused(Status.SKIPPED, "placement.gpu_model (H200) is not here: no GPU")


@pytest.mark.parametrize(("n_seen", "place", "message"), [
    (2, given(1), "ray promised this job 1 GPU, but it sees 2 (CUDA_VISIBLE_DEVICES is 0); see docs/launchers.md"),
    (0, given(1), "ray promised this job 1 GPU, but it sees 0 (CUDA_VISIBLE_DEVICES is 0); see docs/launchers.md"),
    (1, given(1, "Ray gave this job the GPU 1, but …"), "Ray gave this job the GPU 1, but …"),
])  # fmt: skip
def test_a_broken_promise_is_an_error_before_anything_is_measured(gpus, n_seen, place, message) -> None:
    gpus[:] = ["NVIDIA H200"] * n_seen
    with placement.taken("auto", place, lambda event: None) as refused:
        assert refused == Refused(Status.ERROR, message)


def test_a_promise_that_is_kept_is_no_matter(gpus) -> None:
    gpus[:] = ["NVIDIA H200"]
    with placement.taken("auto", given(1), lambda event: None) as refused:
        assert refused is None


@pytest.mark.parametrize(("launcher", "config", "expected"), [
    ("ray", {"ray": {"remote": {"num_gpus": 1}}}, 1),
    ("ray", {"ray": {"remote": {"num_gpus": 0}}}, None),
    ("ray", {"ray": {"remote": {}}}, None),
    ("submitit_slurm", {"gpus_per_node": 1}, 1),
    ("submitit_slurm", {"gpus_per_node": None, "gres": "gpu:h100:2,lscratch:20"}, 2),
    ("submitit_slurm", {"gpus_per_node": None, "gres": "gpu"}, 1),
    ("submitit_slurm", {"gpus_per_node": None, "gres": None}, None),
    ("submitit_local", {"gpus_per_node": 1}, None),
    ("joblib", {"n_jobs": 2}, None),
])  # fmt: skip
def test_what_an_engine_promises(launcher: str, config: dict, expected: int | None) -> None:
    assert engine._promised(launcher, config) == expected


def test_submitits_local_executor_gets_no_say_in_what_is_visible() -> None:
    for ours, theirs in (({}, ""), ({"CUDA_VISIBLE_DEVICES": "2,3"}, "0")):
        variables = dict(ours)
        engine.note_visible_devices(variables)
        variables |= {"CUDA_VISIBLE_DEVICES": theirs, "SUBMITIT_EXECUTOR": "local"}
        engine.undo_local_submitit(variables)
        assert variables.get("CUDA_VISIBLE_DEVICES") == ours.get("CUDA_VISIBLE_DEVICES")
    slurm = {"CUDA_VISIBLE_DEVICES": "0", "SUBMITIT_EXECUTOR": "slurm", "SOFTMAX_EXP_VISIBLE_DEVICES": "all"}
    engine.undo_local_submitit(slurm)
    assert slurm["CUDA_VISIBLE_DEVICES"] == "0", "Slurm does assign"


@pytest.mark.parametrize(("visible", "expected"), [("0,1,2", 3), ("GPU-a", 1), ("", 1), ("0,-1,2", 1), ("-1", 1)])
def test_gpus_are_counted_as_cuda_reads_the_variable(monkeypatch: pytest.MonkeyPatch, visible, expected) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert engine.gpus_here() == expected


def test_ray_is_asked_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(get_gpu_ids=lambda: [1]))  # type: ignore[arg-type]
    assert engine._ray_fault("1") == ""
    assert engine._ray_fault(None) == "Ray gave this job the GPU 1, but CUDA_VISIBLE_DEVICES is None"
