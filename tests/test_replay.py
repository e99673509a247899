"""Replaying: the same config again, no foreign code, and what is said about agreement."""

import dataclasses
from pathlib import Path

import pytest

from softmax_exp import cli, replay, results, tracking
from softmax_exp.config import ConfigError, TrackingSettings, from_fields
from softmax_exp.results import Results
from softmax_exp.sweep import Sweep
from tests import made_up
from tests.report import many

ROOT = Path(__file__).parents[1]
H200 = ROOT / "docs" / "results" / "h200_sweep.jsonl"
QUICK = ["seq=16", "batch=1", "heads=2", "variants=[eager]", "device=cpu", "measure=quick", "measure.budget_s=0.05"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A sweep of two small jobs, measured on the CPU and sent to its store."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert cli.main([*QUICK, "seed=3,4", f"outputs={folder}"]) == 0
    [path] = (folder / "sweeps").iterdir()
    return Sweep(path)


def newest(outputs: Path, but: Sweep) -> Sweep:
    [path] = [path for path in (outputs / "sweeps").iterdir() if path != but.folder]
    return Sweep(path)


def made(folder: Path, **config) -> str:
    """A sweep of one job with that config, as someone else may have sent it."""
    fields = {**from_fields({"shape": [1, 2, 8, 8], "variants": ["eager"], "device": "cpu"}, folder).config, **config}
    return str(made_up.sweep(folder, [made_up.passed(0, "eager", 8)], config=fields).folder)


def test_a_sweep_is_measured_again_by_the_config_that_was_kept(measured, tmp_path, capsys):
    status = replay.main([str(measured.folder), "--outputs", str(tmp_path), "--tracking", "off"])
    again, out = newest(tmp_path, measured), capsys.readouterr().out
    for then, now in zip(measured.records(), again.records(), strict=True):
        for name in ("config_hash", "kernel_hash", "input_checksum", "seed", "shape", "variant", "max_abs_error"):
            assert getattr(then, name) == getattr(now, name), name
    configs = [[job["config"] for job in sweep.manifest()["jobs"]] for sweep in (measured, again)]
    assert [{**each, "tracking": None} for each in configs[0]] == [{**each, "tracking": None} for each in configs[1]]
    assert again.manifest()["replay_of"] == measured.sweep_id and (again.folder / "report.html").exists()
    assert "its config is not" not in out and "has changed since" not in out
    said = {0: "it agrees within", 1: "it does not agree", 3: "cannot be told"}  # times on a busy machine decide
    assert said[status] in out.splitlines()[-1]


def test_a_run_of_mlflow_is_measured_again(measured, tmp_path, capsys):
    outputs = measured.folder.parents[1]
    store = tracking.open_store(TrackingSettings(uri=f"sqlite:///{outputs / 'mlflow.db'}"), outputs)
    assert store is not None
    [run] = store.client.search_runs([store.experiment_id], "tags.cell = '1/eager'")
    arguments = [run.info.run_id, "--uri", store.uri, "--outputs", str(tmp_path), "--tracking", "off"]
    assert replay.main(arguments) in (0, 1, 3)
    [record] = newest(tmp_path, measured).records()
    assert (record.seed, record.config_hash) == (4, measured.records()[1].config_hash)


def test_records_alone_give_the_config_with_the_preset_that_its_hash_tells():
    found = replay.configs(results.find(str(H200), ROOT))
    assert [each["shape"] for each in found] == [[8, 12, n, n] for n in (128, 512, 2048)]
    hashes = [record.config_hash for record in results.find(str(H200), ROOT).records[::4]]
    assert [from_fields(each, ROOT).config_hash for each in found] == hashes
    [wall, *_] = replay.configs(results.find(str(ROOT / "docs" / "results" / "h200_sweep_wall.jsonl"), ROOT))
    assert wall["measure"]["clock"] == "wall"


def test_code_named_in_a_config_is_never_called(tmp_path, capsys, monkeypatch):  # S30
    monkeypatch.setattr(cli, "run", lambda *_: pytest.fail("something was run"))
    named = made(tmp_path, measure={"_target_": "os.system", "command": f"touch {tmp_path / 'hacked'}"})
    for trust in ([], ["--trust"]):
        assert replay.main([named, "--outputs", str(tmp_path / "out"), *trust]) == 2
        assert "_target_ names code to call" in capsys.readouterr().err
    assert not (tmp_path / "hacked").exists() and not (tmp_path / "out").exists()


def test_a_file_of_code_is_executed_only_with_trust(tmp_path, capsys):  # S30
    mark, code = tmp_path / "executed", tmp_path / "mine.py"
    code.write_text(f"import torch\nopen({str(mark)!r}, 'w').close()\nmine = lambda x: torch.softmax(x, -1)\n")
    named = made(tmp_path, variants=["eager", f"{code}:mine"])
    arguments = [named, "--outputs", str(tmp_path / "out"), "--tracking", "off"]
    assert replay.main(arguments) == 2
    assert f"executes code of its own: {code}:mine" in capsys.readouterr().err
    assert not mark.exists() and not (tmp_path / "out").exists()
    assert replay.main([*arguments, "--trust"]) in (0, 1, 3)
    assert mark.exists()


def test_a_foreign_config_reads_nothing_of_this_environment_without_trust(tmp_path, capsys, monkeypatch):  # S29
    monkeypatch.setenv("SOME_TOKEN", "hunter2hunter2")
    named = made(tmp_path, variant_args={"eager": {"note": "${oc.env:SOME_TOKEN}"}})
    assert replay.main([named, "--outputs", str(tmp_path / "out")]) == 2
    assert "reads values from here" in capsys.readouterr().err


def test_where_a_foreign_run_was_tracked_and_kept_is_not_followed(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(replay, "run", lambda experiments, about: seen.extend(experiments) or 130)
    evil = {"kind": "server", "uri": "http://e.vil/${oc.env:HOME}", "experiment": "x"}
    named = made(tmp_path, tracking=evil, outputs=str(tmp_path / "elsewhere"), job=7, sweep_id="../../x")
    assert replay.main([named, "--outputs", str(tmp_path / "out")]) == 130
    [experiment] = seen
    assert experiment.tracking == TrackingSettings() and experiment.job == 0
    assert experiment.folder.parent == tmp_path / "out" / "sweeps"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dtpye": "float16"}, "unknown key dtpye; did you mean dtype?"),
        ({"dtype": "int8"}, "dtype (int8) must be one of"),
        ({"shape": "all of it"}, "shape"),
        ({"measure": {"budget_s": "soon"}}, "measure.budget_s (soon) must be a number"),
    ],
)
def test_a_config_that_is_none_is_told(tmp_path, capsys, config, told):
    assert replay.main([made(tmp_path, **config), "--outputs", str(tmp_path / "out")]) == 2
    assert told in capsys.readouterr().err


def test_figures_within_the_noise_agree_and_others_do_not(capsys):
    then = Results("then", many.records(8))
    assert replay.judge(then, Results("now", many.records(8, factor=1.001))) == 0
    assert "it agrees within the noise between processes: 8 cells timed, 8 checked" in capsys.readouterr().out
    assert replay.judge(then, Results("now", many.records(8, factor=1.05))) == 1
    assert "it does not agree: 8 of 8 cells differ" in capsys.readouterr().out
    wrong = many.records(8)
    wrong[0].error_over_tolerance = 0.9
    assert replay.judge(then, Results("now", wrong)) == 1


def test_one_run_of_a_job_is_judged_by_its_own_cell(capsys):
    then = Results("then", many.records(8)[:1])
    assert replay.judge(then, Results("now", many.records(8))) == 0
    assert "missing" not in capsys.readouterr().out


def test_records_of_an_h200_on_a_cpu_tell_exactly_what_differs(measured, capsys):
    then = results.find(str(H200), ROOT)
    own = results.of_sweep(measured)
    cells = [
        dataclasses.replace(cell, environment_hash=own.records[0].environment_hash, clock="host")
        for cell in then.records
    ]
    assert replay.judge(then, dataclasses.replace(own, records=cells)) == 3
    out = capsys.readouterr().out
    device = next(iter(own.environments.values()))["device"]
    for line in (
        "not comparable: type: cuda against cpu",
        f"not comparable: name: NVIDIA H200 against {device['name']}",
        "not comparable: clock differs: events against host",
        f"note: torch: 2.11.0+cu130 against {device['torch']}",
        "note: cuda: 13.0 against None",
    ):
        assert line in out.splitlines(), line
    assert out.splitlines()[-1].startswith("whether it agrees cannot be told")


def test_what_has_changed_since_is_told(measured):
    then = results.of_sweep(measured)
    experiments = [from_fields(each, ROOT) for each in replay.configs(then)]
    assert replay.differences_of_configs(then, experiments) == []
    then.records[0].kernel_hash, then.records[1].config_hash = "0" * 16, "1" * 16
    assert replay.differences_of_configs(then, experiments) == [
        "the source of eager has changed since",
        "job 1: its config is not exactly what it was; see below for what can be compared",
    ]


def test_refusal_looks_at_every_level():
    with pytest.raises(ConfigError, match="_partial_"):
        replay.refuse_foreign([{"variants": ["eager"], "variant_args": {"eager": [{"a": {"_partial_": True}}]}}], True)
