import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softmax_exp import tracking
from softmax_exp.config import TrackingSettings
from softmax_exp.records import Status
from softmax_exp.tracking import StoreError, curves, finish, links, open_store, sending, sync, views
from softmax_exp.tracking import store as store_module
from softmax_exp.tracking.runs import numbers, texts
from tests import made_up

ROOT = Path(__file__).parents[1]
LOCAL = TrackingSettings()


@pytest.fixture
def outputs(tmp_path, empty_database, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "outputs"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def store(outputs):
    opened = open_store(LOCAL, outputs)
    assert opened is not None
    return opened


def runs(store, kind="cell", condition=""):
    condition = f"tags.kind = '{kind}'{condition}"
    return list(store.client.search_runs([store.experiment_id], condition, max_results=5000))


def by_name(store, kind="cell"):
    found = runs(store, kind)
    named = {run.info.run_name: run for run in found}
    assert len(named) == len(found)
    return named


def python(code, **more):
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, text=True, **more)


# What a cell's run holds


def test_each_cell_is_one_flat_run_with_readable_values(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records("s1"))
    assert sync(sweep, store) == 12
    run = by_name(store)["triton 8x12x512x512 float16 forward"]
    assert run.info.status == "FINISHED" and run.info.end_time - run.info.start_time == 3250
    assert "mlflow.parentRunId" not in run.data.tags
    expected = {"sweep_id": "s1", "kind": "cell", "cell": "1/triton", "overrides": "seq=512", "status": "PASSED"}
    assert expected.items() <= run.data.tags.items()
    assert json.loads(run.data.tags["config"]) == {"measure": {"n_iters": 30}}
    params = {"variant": "triton", "shape": "8x12x512x512", "dtype": "float16", "plan.kernel": "rows", "seq": "512"}
    environment = {"env.name": "NVIDIA H200", "env.git_commit": "0123456789abcdef", "env.git_dirty": "True"}
    assert (params | environment).items() <= run.data.params.items()
    metrics = run.data.metrics
    assert (metrics["n_cols"], metrics["batch"], metrics["least_bytes"]) == (512, 8, 4 * 96 * 512**2)
    assert metrics["device_ms"] == 0.027263 and metrics["pct_of_limit"] == 98.462 and metrics["plan.num_warps"] == 4
    assert (metrics["passed"], metrics["flag.noisy"], metrics["compile_cache_hit"]) == (1, 0, 0)


@pytest.mark.parametrize("status", list(Status))
def test_a_run_fails_where_its_status_does_and_says_why(outputs, store, status):
    cell = made_up.failed(0, "triton", 128, status, "because", traceback="Traceback: here")
    sync(made_up.sweep(outputs, [cell]), store)
    (run,) = runs(store)
    assert run.info.status == ("KILLED" if status == "KILLED" else "FAILED" if status.failed else "FINISHED")
    assert run.data.metrics["passed"] == (status is Status.PASSED)
    if status is not Status.PASSED:
        assert run.data.tags["reason"] == "because"
        assert "because" in run.data.tags["mlflow.note.content"] and "here" in run.data.tags["mlflow.note.content"]


def test_an_error_that_is_no_number_is_a_finite_flag(outputs, store):
    good = made_up.passed(0, "eager", 128)
    bad = made_up.failed(0, "triton", 128, Status.INCORRECT, "NaN", max_abs_error=None, nonfinite_mismatch=4)
    sync(made_up.sweep(outputs, [good, bad]), store)
    names = [run.data.params["variant"] for run in runs(store, condition=" and metrics.max_abs_error < 0.1")]
    assert names == ["eager"]
    metrics = next(run for run in runs(store) if run.data.params["variant"] == "triton").data.metrics
    assert metrics["error_is_finite"] == 0 and metrics["nonfinite_mismatch"] == 4 and "max_abs_error" not in metrics


def test_flags_are_metrics_of_0_and_1(outputs, store):
    cells = [made_up.passed(0, "eager", 128, flags=["throttled", "not_graphable"]), made_up.passed(0, "triton", 128)]
    sync(made_up.sweep(outputs, cells), store)
    eager, triton = (by_name(store)[f"{v} 8x12x128x128 float16 forward"].data.metrics for v in ("eager", "triton"))
    assert (eager["flag.throttled"], eager["flag.noisy"], eager["flag.not_graphable"]) == (1, 0, 1)
    assert (triton["flag.throttled"], triton["flag.noisy"]) == (0, 0)


def test_only_finite_numbers_become_metrics():
    values = {
        "nan": float("nan"),
        "inf": float("-inf"),
        "none": None,
        "text": "1",
        "a%b": 2,
        "true": True,
        "pi": 3.1415926,
    }
    assert numbers(values) == {"a_b": 2.0, "true": 1.0, "pi": 3.1416}


def test_a_value_that_mlflow_would_cut_silently_is_cut_with_a_note(outputs, store):
    cell = made_up.passed(0, "triton", 128, variant_args={"long": "x" * 9000}, message="y" * 20000, status=Status.ERROR)
    sweep = made_up.sweep(outputs, [cell])
    finish(sweep, store)
    (run,) = runs(store)
    for value, whole in ((run.data.params["variant_args.long"], 9000), (run.data.tags["reason"], 20000)):
        assert value.endswith(f"(cut from {whole} characters; whole in records.jsonl)")
    (summary,) = runs(store, "summary")
    kept = Path(store.client.download_artifacts(summary.info.run_id, "records.jsonl")).read_text()
    assert "x" * 9000 in kept and "y" * 20000 in kept


def test_secrets_reach_no_tag_param_or_file(outputs, store, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    secret = "hunter2-hunter2"
    cell = made_up.failed(
        0, "triton", 128, Status.ERROR, f"{secret} at http://me:passw@host/", variant_args={"a": secret}
    )
    sweep = made_up.sweep(outputs, [cell], overrides=[f"+tag={secret}"], config={"tag": secret})
    finish(sweep, store)
    for run in runs(store) + runs(store, "summary"):
        assert secret not in str(run.to_dictionary()) and "passw" not in str(run.to_dictionary())
    for file in (outputs / "mlartifacts").rglob("*"):
        assert not file.is_file() or (secret not in file.read_text() and "passw" not in file.read_text())


def test_values_are_redacted_one_by_one(monkeypatch):
    assert texts({"a": "http://host", "b": "me@home", "none": None, "empty": ""}, 100) == {
        "a": "http://host",
        "b": "me@home",
    }


# Sending again


def test_after_a_sweep_the_one_database_file_holds_everything(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = open_store(LOCAL, tmp_path)
    assert store is not None and store.database is not None
    finish(made_up.sweep(tmp_path, made_up.records()), store)
    (tmp_path / "copy").mkdir()
    shutil.copy(store.database, tmp_path / "copy" / "mlflow.db")
    copied = open_store(LOCAL, tmp_path / "copy")
    assert copied is not None
    assert {kind: len(runs(copied, kind)) for kind in ("cell", "curve", "summary")} == {
        "cell": 12,
        "curve": 4,
        "summary": 1,
    }


@pytest.mark.parametrize("disk, mode", [("ext4", "wal"), ("nfs4", "delete")])
def test_a_new_store_has_a_write_ahead_log_on_local_disks_alone(tmp_path, monkeypatch, disk, mode):
    real = Path.read_text
    mounts = f"/dev/a / xfs rw 0 0\nhost:/x {tmp_path} {disk} rw 0 0\n"
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: mounts if str(self) == "/proc/mounts" else real(self, *a, **k)
    )
    store_module._check_sqlite(tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)


def test_sending_again_changes_nothing(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records())
    cells = sweep.records()
    assert sync(sweep, store, [record for record in cells if record.job == 0]) == 4
    first = finish(sweep, store)
    before = {run.info.run_id for kind in ("cell", "curve", "summary") for run in runs(store, kind)}
    assert first == 8 + 4 + 1 and len(before) == 12 + 4 + 1
    assert finish(sweep, store) == 0
    assert before == {run.info.run_id for kind in ("cell", "curve", "summary") for run in runs(store, kind)}


def test_a_cell_that_was_measured_again_replaces_its_run(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records())
    finish(sweep, store)
    sweep.append(made_up.passed(0, "torch.compile", 128))
    assert finish(sweep, store) == 3  # the cell, its curve, the summary
    run = by_name(store)["torch.compile 8x12x128x128 float16 forward"]
    assert run.info.status == "FINISHED" and len(runs(store)) == 12
    assert len(runs(store, "curve")) == 4 and len(runs(store, "summary")) == 1


def test_curves_that_are_no_more_go(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records())
    finish(sweep, store)
    for job, n_cols in enumerate((128, 512, 2048)):
        sweep.append(made_up.failed(job, "triton", n_cols, Status.ERROR, "broken"))
    finish(sweep, store)
    assert "triton float16 forward" not in by_name(store, "curve")


def test_all_pages_are_read_when_looking_for_what_is_there(outputs, store, monkeypatch):
    monkeypatch.setattr(sending, "_DATABASE_PAGE", 5)
    sweep = made_up.sweep(outputs, made_up.records())
    assert sync(sweep, store) == 12
    assert sync(sweep, store) == 0


@pytest.mark.parametrize("n_sent", [12, 11, 3])  # the last cases of a sweep are sent at its end
def test_what_one_sender_sent_is_not_asked_for_again(outputs, store, monkeypatch, n_sent):
    sweep = made_up.sweep(outputs, made_up.records())
    sender = sending.Sender(sweep, store)
    assert sender.send(sweep.records()[:n_sent]) == n_sent
    monkeypatch.setattr(sending, "sync", lambda *_: pytest.fail("asked again"))
    finish(sweep, store, sender=sender)
    assert len(runs(store)) == 12 and len(runs(store, "summary")) == 1


@pytest.mark.parametrize("other", ["a sync of the same sweep", "a failure", "a record not sent"])
def test_what_a_sender_may_have_missed_or_doubled_is_put_right(outputs, store, monkeypatch, other):
    sweep = made_up.sweep(outputs, made_up.records())
    sender, records = sending.Sender(sweep, store), sweep.records()
    sender.send(records[:4])
    if other == "a sync of the same sweep":
        assert sync(sweep, store) == 8
    if other == "a failure":
        with monkeypatch.context() as patch:
            patch.setattr(type(store.client), "log_batch", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("gone")))
            with pytest.raises(StoreError):
                sender.send(records[4:5])
    sender.send(records[4:] if other != "a record not sent" else records[4:11])
    finish(sweep, store, sender=sender)
    assert sorted(run.data.tags["key"] for run in runs(store)) == sorted(f"cell {record.cell}" for record in records)


def test_a_store_that_fails_in_the_middle_costs_nothing(outputs, store, monkeypatch):
    import mlflow

    sweep = made_up.sweep(outputs, made_up.records())
    calls, log_batch = [], type(store.client).log_batch

    def failing(*arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("database is locked")
        return log_batch(*arguments, **more)

    monkeypatch.setattr(type(store.client), "log_batch", failing)
    first, second = ([r for r in sweep.records() if r.job == job] for job in (0, 1))
    with pytest.raises(StoreError, match="database is locked"):
        sync(sweep, store, first)
    assert mlflow.active_run() is None
    assert sync(sweep, store, second) == 4
    assert finish(sweep, store) > 0
    assert len(by_name(store)) == 12
    assert {run.info.status for run in runs(store)} == {"FINISHED", "FAILED"}


KILLED_WHILE_WRITING = """
import os, sys
from pathlib import Path
from softmax_exp import tracking
from softmax_exp.config import TrackingSettings
from softmax_exp.sweep import Sweep
store = tracking.open_store(TrackingSettings(), Path(sys.argv[1]))
calls, log_batch = [], type(store.client).log_batch
def dying(*arguments, **more):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), 9)
    return log_batch(*arguments, **more)
type(store.client).log_batch = dying
tracking.sync(Sweep(Path(sys.argv[2])), store)
"""


def test_a_process_killed_while_writing_leaves_no_double_and_nothing_running(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records("killed"))
    code = KILLED_WHILE_WRITING.replace("sys.argv[1]", repr(str(outputs))).replace(
        "sys.argv[2]", repr(str(sweep.folder))
    )
    assert python(code).wait(120) == -signal.SIGKILL
    assert [run.info.status for run in runs(store)].count("RUNNING") == 1
    other = made_up.sweep(outputs, [made_up.passed(0, "eager", 128, "other")])
    finish(other, store)
    statuses = [run.info.status for run in runs(store, condition=" and tags.sweep_id = 'killed'")]
    assert statuses.count("KILLED") == 1 and "RUNNING" not in statuses
    sync(sweep, store)
    again = runs(store, condition=" and tags.sweep_id = 'killed'")
    assert len(again) == 12 and {run.info.status for run in again} == {"FINISHED", "FAILED"}
    assert len({run.data.tags["cell"] for run in again}) == 12


def test_a_run_that_another_live_process_is_writing_is_left_alone(store):
    writer = sending._writer()
    own = {"kind": "cell", "writer": writer}
    run_id = store.client.create_run(store.experiment_id, tags=own).info.run_id
    foreign = f"elsewhere 1 2 {time.time():.0f}"
    store.client.create_run(store.experiment_id, tags={"kind": "cell", "writer": foreign})
    store.client.create_run(store.experiment_id, tags={"kind": "cell", "writer": "elsewhere 1 2 100"})
    host, pid, _start, moment = writer.split(" ")
    store.client.create_run(store.experiment_id, tags={"kind": "cell", "writer": f"{host} {pid} 1 {moment}"})
    assert sending.close_stale(store) == 2
    assert store.client.get_run(run_id).info.status == "RUNNING"


EIGHT_AT_ONCE = """
import os, traceback
from pathlib import Path
import mlflow  # once, before the others split off, so that they come to the store together
from softmax_exp import tracking
from softmax_exp.config import TrackingSettings
from tests import made_up
outputs = Path({outputs!r})
children = []
for number in range(8):
    child = os.fork()
    if child == 0:
        try:
            store = tracking.open_store(TrackingSettings(experiment="fresh"), outputs)
            cells = [made_up.passed(0, variant, 128, f"sweep{{number}}") for variant in ("eager", "triton")]
            tracking.sync(made_up.sweep(outputs, cells), store)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_eight_processes_on_a_store_that_is_not_there_yet_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code = EIGHT_AT_ONCE.format(outputs=str(tmp_path))
    ran = python(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert ran.communicate(timeout=250)[0].strip() == str([0] * 8)
    store = open_store(TrackingSettings(experiment="fresh"), tmp_path)
    assert store is not None
    assert [e.name for e in store.client.search_experiments()].count("fresh") == 1
    assert sorted(r.data.tags["sweep_id"] for r in runs(store)) == sorted(f"sweep{n}" for n in range(8) for _ in "ab")


# Curves, summary, views


def test_a_curve_has_its_figures_at_step_n_cols(outputs, store):
    finish(made_up.sweep(outputs, made_up.records()), store)
    found = by_name(store, "curve")
    assert set(found) == {f"{variant} float16 forward" for variant in made_up.VARIANTS}
    points = store.client.get_metric_history(found["eager float16 forward"].info.run_id, "device_ms")
    assert [(p.step, p.value) for p in points] == [(128, 0.0026214), (512, 0.041943), (2048, 0.67109)]
    points = store.client.get_metric_history(found["triton-simple float16 forward"].info.run_id, "host_ms")
    assert [point.step for point in points] == [128, 512]  # the third was INCORRECT


def test_no_curves_where_sizes_do_not_vary(outputs, store):
    finish(made_up.sweep(outputs, [made_up.passed(0, "eager", 128), made_up.passed(1, "triton", 128)]), store)
    assert runs(store, "curve") == []
    assert [label for label, _ in links(store, tracking.newest(store.database)[1])].count("chart") == 0


def test_curves_of_several_batches_are_kept_apart(outputs, store):
    cells = [
        made_up.passed(job, "eager", n, batch=b) for job, (n, b) in enumerate([(64, 1), (128, 1), (64, 2), (128, 2)])
    ]
    finish(made_up.sweep(outputs, cells), store)
    assert set(by_name(store, "curve")) == {f"eager float16 forward batch {b} heads 12" for b in (1, 2)}


def test_the_summary_describes_and_keeps_the_sweep(outputs, store, tmp_path):
    sweep = made_up.sweep(outputs, made_up.records())
    (tmp_path / "report.html").write_text("<p>report")
    finish(sweep, store, [tmp_path / "report.html"])
    (summary,) = runs(store, "summary")
    note = summary.data.tags["mlflow.note.content"]
    assert note.startswith("**10 PASSED, 1 TIMEOUT, 1 INCORRECT** of 12 cells") and note.count("| eager |") == 3
    assert summary.info.status == "FAILED" and summary.data.metrics["n_failed"] == 2
    files = {file.path for file in store.client.list_artifacts(summary.info.run_id)}
    assert files == {"records.jsonl", "manifest.json", "table.md", "environments", "latency.svg", "report.html"}
    svg = Path(store.client.download_artifacts(summary.info.run_id, "latency.svg")).read_text()
    assert svg.count("<polyline") == 4 and "device clock" in svg


def test_a_description_of_many_cells_is_cut_where_mlflow_would_cut_it(outputs, store):
    cells = [made_up.passed(job, "eager", 128) for job in range(150)]
    summary = curves.summary_run(made_up.sweep(outputs, cells), cells, [])
    assert len(summary.tags["mlflow.note.content"]) <= 8000
    assert "of 150 cases; all of them are in records.jsonl" in summary.tags["mlflow.note.content"]
    assert summary.artifacts["table.md"].count(b"| eager |") == 150


def test_views_of_old_sweeps_are_forgotten(outputs, store, monkeypatch):
    monkeypatch.setattr(views, "_KEPT_SWEEPS", 2)
    for name in ("a1", "a2", "a3"):
        finish(made_up.sweep(outputs, [made_up.passed(0, "eager", 128, name)]), store)
    tags = store.client.get_experiment(store.experiment_id).tags
    assert sorted(tags) == [
        f"mlflow.sharedViewState.softmax_exp.{n}.{v}" for n in ("a2", "a3") for v in ("chart", "table")
    ]
    table = json.loads(tags["mlflow.sharedViewState.softmax_exp.a3.table"])
    assert (table["orderByKey"], table["orderByAsc"]) == ("metrics.`n_cols`", True)
    assert "metrics.`device_ms`" in table["selectedColumns"] and "params.`dtype`" not in table["selectedColumns"]


def test_links_name_the_command_and_the_pages(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records())
    finish(sweep, store)
    found = dict(links(store, sweep))
    assert list(found) == ["open the UI with", "table", "chart", "summary"]
    assert found["open the UI with"].endswith(f"-m softmax_exp.ui {outputs / 'mlflow.db'}")
    (summary,) = runs(store, "summary")
    assert f"/runs/{summary.info.run_id}" in found["summary"]


# The store


def test_two_working_directories_share_one_store(tmp_path, empty_database, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "outputs").mkdir()
    shutil.copy(empty_database, tmp_path / "outputs" / "mlflow.db")
    ids = set()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        store = open_store(LOCAL, Path("../outputs").resolve())
        assert store is not None
        finish(made_up.sweep(tmp_path / "outputs", [made_up.passed(0, "eager", 128, name)]), store)
        ids.add(store.experiment_id)
        assert list((tmp_path / name).iterdir()) == []
    assert len(ids) == 1 and (tmp_path / "outputs" / "mlartifacts" / "softmax_exp").is_dir()


def test_off_does_nothing(tmp_path):
    assert open_store(TrackingSettings(kind="off"), tmp_path / "outputs") is None
    sweep = made_up.sweep(tmp_path, [made_up.passed(0, "eager", 128)])
    assert (sync(sweep, None), finish(sweep, None), links(None, sweep)) == (0, 0, [])
    assert not (tmp_path / "outputs").exists()


def test_mlflow_is_not_imported_before_a_store_is_opened():
    code = "import sys, softmax_exp.tracking; sys.exit(bool({'mlflow', 'torch'} & set(sys.modules)))"
    assert python(code).wait(60) == 0


def test_opening_a_fresh_store_prints_nothing_and_calls_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code = f"""
import logging, socket, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO)
calls = []
socket.socket.connect = lambda self, address: calls.append(address)
from softmax_exp import tracking
from softmax_exp.config import TrackingSettings
from tests import made_up
outputs = Path({str(tmp_path)!r})
store = tracking.open_store(TrackingSettings(), outputs)
tracking.finish(made_up.sweep(outputs, made_up.records()), store)
sys.exit(len([a for a in calls if not isinstance(a, str)]))
"""
    ran = python(code, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (ran.communicate(timeout=120)[0], ran.returncode) == ("", 0)


def test_the_address_in_the_environment_is_used_and_one_in_the_config_goes_before_it(
    tmp_path, empty_database, monkeypatch
):
    for name in ("a", "b"):
        shutil.copy(empty_database, tmp_path / f"{name}.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/a.db")
    first = open_store(LOCAL, tmp_path)
    second = open_store(TrackingSettings(uri=f"sqlite:///{tmp_path}/b.db"), tmp_path)
    assert first is not None and second is not None
    assert (first.database, second.database) == (tmp_path / "a.db", tmp_path / "b.db")


def test_a_server_without_an_address_is_a_mistake(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match=r"tracking.uri=http://host:port or MLFLOW_TRACKING_URI"):
        open_store(TrackingSettings(kind="server"), tmp_path)


@pytest.mark.parametrize("uri", ["http://me:passw@127.0.0.1:9", "postgresql://me:passw@127.0.0.1:9/x"])
def test_an_address_where_nobody_answers_is_told_in_seconds(tmp_path, uri):
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"no answer .*tracking=local or tracking=off") as caught:
        open_store(TrackingSettings(kind="server", uri=uri), tmp_path)
    assert time.monotonic() - started < 20
    assert "passw" not in str(caught.value) and "***@127.0.0.1:9" in str(caught.value)


def test_a_server_that_hangs_is_told_in_seconds(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(StoreError, match="no answer"):
            open_store(TrackingSettings(kind="server", uri=f"http://127.0.0.1:{silent.getsockname()[1]}"), tmp_path)
        assert time.monotonic() - started < 30


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns"])
def test_a_folder_as_store_is_refused_with_advice(tmp_path, uri):
    with pytest.raises(StoreError, match="must be an address"):
        open_store(TrackingSettings(uri=uri), tmp_path)


def test_a_deleted_experiment_is_named_with_the_ways_out(outputs, store):
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(
        StoreError, match=r"was deleted. Restore it by .*experiments restore -x .*tracking.experiment=NAME"
    ):
        open_store(LOCAL, outputs)


def test_an_experiment_deleted_during_a_sweep_is_told_and_nothing_is_lost(outputs, store):
    sweep = made_up.sweep(outputs, made_up.records())
    sync(sweep, store, sweep.records()[:4])
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(StoreError):
        sync(sweep, store, sweep.records()[4:])
    store.client.restore_experiment(store.experiment_id)
    finish(sweep, store)
    assert len(by_name(store)) == 12


def test_a_newer_schema_is_told_with_advice(outputs):
    with contextlib.closing(sqlite3.connect(outputs / "mlflow.db")) as connection, connection:
        connection.execute("update alembic_version set version_num = 'fedcba987654'")
    with pytest.raises(StoreError, match=r"found version fedcba987654.*if a newer MLflow made it, install that MLflow"):
        open_store(LOCAL, outputs)


def test_a_file_that_is_no_database_is_left_as_it_is(outputs):
    (outputs / "mlflow.db").write_text("my notes " * 100)
    started = time.monotonic()
    with pytest.raises(StoreError, match=r"not a database.*Move the file away"):
        open_store(LOCAL, outputs)
    assert time.monotonic() - started < 10 and (outputs / "mlflow.db").read_text().startswith("my notes")


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"MLflow store sqlite:///.*(Not a directory|File exists)"):
        open_store(LOCAL, tmp_path / "file" / "outputs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_is_told(outputs):
    (outputs / "mlflow.db").chmod(0o444)
    with pytest.raises(StoreError, match="no right to write"):
        open_store(LOCAL, outputs)
