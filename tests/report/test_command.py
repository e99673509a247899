"""The command, on committed records of a real GPU, on sweeps on disk, on runs in MLflow."""

import subprocess
import sys
from pathlib import Path

import pytest

from softmax_exp import compare, tracking
from softmax_exp.config import TrackingSettings
from softmax_exp.report.__main__ import main
from tests import made_up
from tests.report import many

ROOT = Path(__file__).parents[2]
H200 = ROOT / "docs" / "results" / "h200_sweep.jsonl"


def test_the_committed_records_of_an_h200_make_a_report(tmp_path, capsys):
    assert main([str(H200), "--out", str(tmp_path)]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.split()] == ["report.html", "report.md", "report.csv"]
    text = (tmp_path / "report.html").read_text()
    assert "Fastest: triton in 3 of 3 cases that were timed. No cell failed." in text
    assert "NVIDIA H200" in text and "580.159.04" in text  # the environment beside the records, by its hash


def test_several_sweeps_together(tmp_path, capsys):
    for name in ("first", "second"):
        made_up.sweep(tmp_path, made_up.records(name))
    assert main(["first", str(tmp_path / "sweeps" / "second"), "--outputs", str(tmp_path)]) == 0
    path = Path(capsys.readouterr().out.split()[0])
    assert path.parent == tmp_path / "reports" / "first+1"
    assert "triton [1]" in path.read_text() and "triton [2]" in path.read_text()


def test_a_sweep_has_its_report_in_its_folder(tmp_path, capsys):
    made = made_up.sweep(tmp_path, made_up.records())
    assert main([str(made.folder)]) == 0 and (made.folder / "report.html").exists()


@pytest.mark.parametrize("named", ["nowhere", "0" * 32])
def test_what_is_not_there_is_told(tmp_path, capsys, named, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main([named, "--outputs", str(tmp_path)]) == 2
    assert named in capsys.readouterr().err


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A sweep in an SQLite store: the store, the sweep and its runs by kind and key."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        store = tracking.open_store(TrackingSettings(), folder)
    assert store is not None
    sweep = made_up.sweep(folder, made_up.records())
    tracking.finish(sweep, store)
    runs = store.client.search_runs([store.experiment_id], max_results=100)
    return store, sweep, {(run.data.tags["kind"], run.data.tags["key"]): run.info.run_id for run in runs}


def test_a_run_of_mlflow_is_the_cell_with_the_figures_of_its_record(stored):
    store, sweep, runs = stored
    found = tracking.read_run(store, runs["cell", "cell 1/triton"])
    [wanted] = [record for record in sweep.records() if record.cell == "1/triton"]
    assert found["records"] == [wanted]
    assert [job["variants"] for job in found["manifest"]["jobs"]] == [["triton"]]
    assert found["environments"] == {wanted.environment_hash: made_up.ENVIRONMENT}


def test_the_summary_and_a_curve_are_the_whole_sweep(stored):
    store, sweep, runs = stored
    for key in (("summary", "summary"), ("curve", "curve triton float16 forward")):
        assert tracking.read_run(store, runs[key])["records"] == sweep.records()


def test_without_a_summary_the_cells_themselves_are_read(stored, monkeypatch):
    store, sweep, runs = stored
    monkeypatch.setattr("softmax_exp.tracking.reading._from_files", lambda *_: None)
    monkeypatch.setattr("softmax_exp.tracking.sending._DATABASE_PAGE", 5)  # S28: every page is read
    found = tracking.read_run(store, runs["summary", "summary"])
    by_cell = {record.cell: record for record in found["records"]}
    assert by_cell.keys() == {record.cell for record in sweep.records()}
    for wanted in sweep.records():
        have = by_cell[wanted.cell]
        for name in (
            "variant",
            "shape",
            "dtype",
            "mode",
            "n_cols",
            "seq_q",
            "status",
            "clock",
            "seed",
            "scale",
            "flags",
        ):
            assert getattr(have, name) == getattr(wanted, name), name
        assert have.message == wanted.message and have.environment_hash == wanted.environment_hash
        assert (
            have.device_ms == pytest.approx(wanted.device_ms, rel=1e-4) if wanted.device_ms else have.device_ms is None
        )
    assert found["environments"][by_cell["1/triton"].environment_hash]["device"]["name"] == "NVIDIA H200"


def test_runs_make_a_report_and_other_runs_are_refused(stored, tmp_path, capsys):
    store, _, runs = stored
    named = ",".join([runs["cell", "cell 0/eager"], runs["cell", "cell 1/triton"]])
    assert main([named, "--uri", store.uri, "--out", str(tmp_path)]) == 0
    assert "Fastest: eager in 1, triton in 1 of 2 cases" in (tmp_path / "report.md").read_text()
    other = store.client.create_run(store.experiment_id).info.run_id
    assert main([other, "--uri", store.uri]) == 2
    assert "is no result of softmax_exp" in capsys.readouterr().err


def test_runs_of_mlflow_are_compared(stored, capsys):
    store, _, runs = stored
    named = [runs["cell", f"cell 1/{variant}"] for variant in ("eager", "triton")]
    assert compare.main([*named, "--uri", store.uri]) == 0
    assert "eager -> triton 8x12x512x512 float16 forward  faster  -35.00 %" in capsys.readouterr().out
    assert compare.main([*reversed(named), "--uri", store.uri]) == 1


def test_10000_records_take_less_than_15_s_and_1_gb(tmp_path):
    made = many.sweep(tmp_path, many.records(10_000))
    code = (
        "import sys, resource; from softmax_exp.report.__main__ import main; status = main(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime, used.ru_maxrss);"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(made.folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, kilobytes = map(float, done.stdout.splitlines()[-1].split())
    assert seconds < 15 and kilobytes < 1e6  # of the processor, which other work on the machine does not add to
