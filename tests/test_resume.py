"""Going on with a sweep: what is measured again, what is not, and what is refused."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from softmax_exp import cli, compose, resume, variants
from softmax_exp.config import hash_of
from softmax_exp.records import Record, Status
from softmax_exp.sweep import Sweep
from tests.test_cli import Joint, joint, run, the_sweep
from tests.test_jobs import TINY, command, only_sweep
from tests.test_measure import planted

__all__ = ["joint"]  # a fixture

BOTH = "variants=[eager,torch.compile]"
COMMAND = ("-m", "seq=16,32,48", BOTH)


def damage(position: int, change=lambda line: line[:50]) -> None:
    """Change one line of the sweep's records; by default only its first half is there."""
    path = the_sweep().records_path
    lines = path.read_text().splitlines()
    lines[position] = change(lines[position])
    path.write_text("".join(line + "\n" for line in lines))


def altered(**fields):
    return lambda line: json.dumps({**json.loads(line), **fields})


def cells() -> list[str]:
    lines = the_sweep().records_path.read_text().splitlines()
    return [f"{json.loads(line)['job']}/{json.loads(line)['variant']}" for line in lines if line.endswith("}")]


@pytest.fixture
def finished(joint: Joint) -> Joint:
    assert run(*COMMAND) == 0
    joint.ran.clear()
    joint.remaining = {}
    joint.on_job = lambda experiment, job: joint.remaining.update({job: experiment.remaining})
    return joint


def test_a_finished_sweep_runs_nothing_more(finished: Joint, capsys) -> None:
    assert run(*COMMAND, "resume=true") == 0
    assert finished.ran == [] and finished.asked == [["auto"]] and len(finished.finished) == 2
    assert "0 cells to measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda line: line[:50], "1 not measured yet"),
        (lambda line: "{" * 100_000, "1 not measured yet"),
        (altered(status="KILLED"), "1 stopped"),
        (altered(config_hash="c0ffee"), "1 measured with another config"),
        (altered(kernel_hash="c0ffee"), "1 measured with another kernel"),
        (altered(environment_hash="e1"), "1 measured with another environment"),
        (altered(environment_hash="../../secret"), "1 not measured yet"),
        (altered(shape="wide"), "1 not measured yet"),
        (altered(status="WELL"), "1 not measured yet"),
    ],
)
def test_a_cell_without_a_whole_record_of_the_same_hashes_is_measured(finished: Joint, capsys, change, reason) -> None:
    damage(3, change)
    assert run(*COMMAND, "resume=true") == 0
    assert finished.ran == [1] and finished.remaining == {1: ("torch.compile",)}
    assert reason in capsys.readouterr().err
    assert [(r.job, r.variant, r.status) for r in the_sweep().records()] == [
        (job, variant, Status.PASSED) for job in range(3) for variant in ("eager", "torch.compile")
    ]


def test_after_an_interrupt_the_rest_is_measured_once(joint: Joint) -> None:  # S17
    def fall_ill(experiment, job):
        if job == 1:
            raise KeyboardInterrupt

    joint.on_job = fall_ill
    with pytest.raises(KeyboardInterrupt):
        cli.start(compose.expand(["variants=[eager]", "outputs=out", *COMMAND[1:]]), ["outputs=out", *COMMAND])
    joint.on_job = lambda experiment, job: None
    assert run(*COMMAND) == 0 and len(list(Path("out/sweeps").iterdir())) == 2, "a sweep of its own"
    first = min(Path("out/sweeps").iterdir(), key=lambda path: len((path / "records.jsonl").read_text()))
    assert cli.main(["outputs=out", *COMMAND, f"resume={first.name}"]) == 0
    lines = [json.loads(line) for line in (first / "records.jsonl").read_text().splitlines()]
    assert [(line["job"], line["variant"]) for line in lines] == list(Sweep(first).expected_cells())
    kept = [json.loads(line) for line in (first / "resumed.jsonl").read_text().splitlines()]
    assert [(line["cells"], line["why"]) for line in kept] == [(4, {"not measured yet": 4})]


@pytest.mark.parametrize(
    "retry, expected",
    [
        ([], []),
        (["retry=failed"], [0, 1, 2]),
        (["retry=OOM"], [0]),
        (["retry=[TIMEOUT,CRASHED]"], [1, 2]),
    ],
)
def test_failed_cells_are_measured_again_on_request_only(joint: Joint, retry, expected) -> None:
    joint.statuses = {(0, "eager"): Status.OOM, (1, "eager"): Status.TIMEOUT, (2, "eager"): Status.CRASHED}
    assert run(*COMMAND) == 1
    joint.statuses = {}
    joint.ran.clear()
    assert run(*COMMAND, "resume=true", *retry) == (0 if len(expected) == 3 else 1)
    assert joint.ran == expected


def test_what_was_skipped_as_a_whole_stays_so_until_the_machine_changes(joint: Joint) -> None:
    from tests.test_cli import record

    joint.run_case = lambda experiment: (  # type: ignore[method-assign]
        joint.ran.append(experiment.job),
        record(experiment, experiment.job, "all", Status.SKIPPED),
    )
    assert run(*COMMAND) == 1
    joint.ran.clear()
    assert run(*COMMAND, "resume=true") == 1 and joint.ran == []
    joint.environment = "e1"
    run(*COMMAND, "resume=true")
    assert joint.ran == [0, 1, 2]


@pytest.mark.parametrize("wish", ["{}", "out/sweeps/{}", "{cwd}/out/sweeps/{}"])
@pytest.mark.parametrize("arguments", [COMMAND, ()])
def test_a_sweep_may_be_named_with_or_without_its_command(finished: Joint, wish, arguments) -> None:
    damage(-1)
    named = wish.format(the_sweep().sweep_id, cwd=Path.cwd())
    before = the_sweep().manifest()
    given = ["variants=[eager]", "outputs=out", *arguments] if arguments else ["outputs=out"]
    assert cli.main([*given, f"resume={named}"]) == 0
    assert finished.remaining == {2: ("torch.compile",)}
    assert the_sweep().manifest() == before


def test_true_means_the_last_sweep_of_the_same_command(finished: Joint, capsys) -> None:
    assert run("-m", "seq=64") == 0
    capsys.readouterr()
    assert run(BOTH, "seq=16,32,48", "resume=true") == 0, "in any order"
    assert finished.ran == [0]
    assert run("seq=16", "resume=true") == 2
    assert "must follow a sweep of the same command" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["seq=16,32,48", BOTH, "measure.budget_s=1"], "measure.budget_s: 2.0 in the sweep, 1.0 now (job 0, 1, 2)"),
        (["seq=16,32,64", BOTH], "shape: [8, 12, 48, 48] in the sweep, [8, 12, 64, 64] now (job 2)"),
        (["seq=16,32", BOTH], "the sweep has 3 jobs, this command 2"),
        (["seq=16,32,48", BOTH, "retry=PASSED"], "retry (PASSED) must be one of these"),
        (
            ["seq=16,32,48", BOTH, "+variant_args.torch.compile.x=1"],
            "variant_args.torch.compile: not there in the sweep",
        ),
    ],
)
def test_another_config_is_refused_with_the_difference(finished: Joint, capsys, arguments, told) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in Path("out").rglob("*"))
    assert run(*arguments, f"resume={the_sweep().sweep_id}") == 2
    assert told in capsys.readouterr().err
    assert finished.ran == [] and before == sorted((path, path.stat().st_mtime_ns) for path in Path("out").rglob("*"))


def test_where_it_is_tracked_may_change(finished: Joint) -> None:
    damage(0)
    assert run(*COMMAND, "tracking=off", f"resume={the_sweep().sweep_id}") == 0
    assert finished.ran == [0]


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["retry=failed"], "without resume"),
        (["resume=3"], "must be true"),
        (["resume=../x"], "neither"),
        (["resume=a,b"], "one value"),
        (["job=3"], "set by the program"),
        (["remaining=[eager]"], "set by the program"),
    ],
)
def test_what_makes_no_sense_is_told(joint: Joint, capsys, arguments, told) -> None:
    assert run(*arguments) == 2
    assert told in capsys.readouterr().err and list(Path().iterdir()) == []


def test_a_sweep_that_is_being_measured_is_left_alone(finished: Joint, capsys) -> None:
    with the_sweep().held():
        assert run(*COMMAND, "resume=true") == 2
    assert "is being measured by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"jobs": 3}', '{"jobs": [{"job": 7}]}', '{"jobs": [null]}', "[" * 100_000]
)
def test_a_damaged_manifest_is_told(finished: Joint, capsys, text) -> None:
    (the_sweep().folder / "manifest.json").write_text(text)
    assert run(*COMMAND, f"resume={the_sweep().sweep_id}") == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told and ("damaged" in told or "does not hold" in told)


def test_a_sweep_of_someone_else_runs_no_code_and_writes_nowhere_else(finished: Joint, capsys) -> None:  # S30
    manifest = json.loads((the_sweep().folder / "manifest.json").read_text())
    for argument in (
        "variants=[mine.py:softmax]",
        "--config-dir=mine",
        "tracking.uri=sqlite:////tmp/x.db",
        "hydra.x=1",
    ):
        forged = manifest | {"command": f"python -m softmax_exp {argument}"}
        (the_sweep().folder / "manifest.json").write_text(json.dumps(forged))
        assert cli.main(["outputs=out", f"resume={the_sweep().sweep_id}"]) == 2
        assert f"because it held {argument}" in capsys.readouterr().err
    (the_sweep().folder / "manifest.json").write_text(json.dumps(manifest | {"sweep_id": "../../elsewhere"}))
    assert run(*COMMAND, f"resume={the_sweep().sweep_id}") == 2
    assert "does not hold the sweep ../../elsewhere" in capsys.readouterr().err
    shutil.move(the_sweep().folder, "moved")
    assert run(*COMMAND, "resume=moved") == 2
    assert finished.ran == []


def test_ten_thousand_finished_cells_are_skipped_in_seconds(joint: Joint) -> None:
    n_jobs, command = 2500, ["seed=range(2500)", "seq=16", "variants=[eager,torch.compile,triton,triton-simple]"]
    plan = compose.expand([*command, "outputs=out"])
    one = plan.plan("20261101-000000-abcd", remaining={0: []}).jobs[0].experiment
    jobs = []
    for number in range(n_jobs):
        config = one.config | {"seed": number}
        made_from = plan.made_from(number)
        jobs.append({"job": number, "made_from": made_from, "variants": config["variants"], "config": config})
    about = {"command": "python -m softmax_exp " + " ".join(command)}
    sweep = Sweep.create(Path("out/sweeps/20261101-000000-abcd").absolute(), jobs, about)
    same = {"shape": [8, 12, 16, 16], "n_rows": 96 * 16, "n_cols": 16, "dtype": "float16", "mode": "forward"}
    same |= {"status": Status.PASSED, "environment_hash": "e0"}
    kernels = {name: variants.kernel_hash(name) for name in one.variants}
    with sweep.records_path.open("w") as file:
        for job in jobs:
            config_hash = hash_of(job["config"])
            for name in one.variants:
                hashes = {"config_hash": config_hash, "kernel_hash": kernels[name]}
                file.write(Record("", job["job"], name, **same, **hashes).to_json() + "\n")
    started = time.process_time()
    assert cli.main([*command, "outputs=out", "resume=20261101-000000-abcd"]) == 0
    assert joint.ran == [] and time.process_time() - started < 10


def test_speed_ups_stay_paired_with_the_baseline_measured_again(tmp_path: Path) -> None:
    arguments = ["-m", "seq=16,24", f"variants=[eager,{planted('right')}]", *TINY, "tracking=off"]
    assert command(tmp_path, *arguments).returncode == 0
    sweep = only_sweep(tmp_path)
    lines = sweep.records_path.read_text().splitlines()
    sweep.records_path.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:99])
    done = command(tmp_path, *arguments, "resume=true")
    assert done.returncode == 0, done.stderr
    records = sweep.records()
    assert [r.measured_again for r in records] == [[], [], [], ["eager"]]
    assert records[-1].speedup is not None and records[-1].baseline == "eager"
    whole = [line for line in sweep.records_path.read_text().splitlines() if line.endswith("}")]
    assert whole[:3] == lines[:3] and len(whole) == 4


def test_the_difference_of_two_configs_is_told_by_dotted_keys() -> None:
    was, now = {"a": 1, "b": {"c": 2, "d": 3}, "tracking": 1}, {"a": 1, "b": {"c": 3}, "e": None, "tracking": 2}
    assert list(resume.differences(was, now)) == [
        "b.c: 2 in the sweep, 3 now",
        "b.d: 3 in the sweep, not there now",
        "e: not there in the sweep, null now",
    ]
