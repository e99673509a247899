import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from softmax_exp.records import Record, Status
from softmax_exp.sweep import Sweep
from tests.test_measure import planted

TINY = ["batch=1", "heads=2", "measure=quick", "measure.budget_s=0.05", "device=cpu"]


def command(outputs: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The real command, without the interpreter that other tests here may run under."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | variables
    return subprocess.run(
        [sys.executable, "-m", "softmax_exp", *overrides, f"outputs={outputs}"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=outputs,
        env=env,
    )


def only_sweep(outputs: Path) -> Sweep:
    (folder,) = (outputs / "sweeps").iterdir()
    return Sweep(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of three sizes with a wrong, a deadly and a good variant."""
    outputs = tmp_path_factory.mktemp("outputs")
    names = ["eager", planted("right"), planted("zeros"), planted("segfault")]
    done = command(outputs, "-m", "seq=16,32,64", f"variants=[{','.join(names)}]", *TINY)
    return done, only_sweep(outputs)


def test_every_expected_cell_has_a_record_and_failures_are_told(finished):
    done, sweep = finished
    assert done.returncode == 1, done.stderr
    records = sweep.records()
    assert [(r.job, r.variant) for r in records] == list(sweep.expected_cells())
    by_variant = {r.variant: r.status for r in records}
    assert list(by_variant.values()) == [Status.PASSED, Status.PASSED, Status.INCORRECT, Status.CRASHED]
    assert "INCORRECT" in done.stdout and "SIGSEGV" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_record_holds_identity_accuracy_and_latency(finished):
    _, sweep = finished
    record = next(r for r in sweep.records() if r.variant == "eager" and r.n_cols == 32)
    assert (record.shape, record.n_rows, record.batch, record.heads, record.seq) == ([1, 2, 32, 32], 64, 1, 2, 32)
    assert record.sweep_id == sweep.sweep_id and record.dtype == "float16" and record.baseline == "eager"
    for name in ("config_hash", "kernel_hash", "environment_hash", "input_checksum"):
        assert len(getattr(record, name)) == 16, name
    figures = ("max_abs_error", "tolerance", "mean_latency_ms", "device_ms", "device_ms_ci_low", "gbps", "limit_ms")
    assert all(getattr(record, name) is not None for name in figures)
    assert record.device_ms_ci_low <= record.device_ms <= record.device_ms_ci_high
    assert record.gbps == pytest.approx(record.least_bytes / record.device_ms / 1e6)


def test_what_did_not_pass_has_no_latency(finished):
    _, sweep = finished
    for record in sweep.records():
        if record.status is not Status.PASSED:
            assert record.device_ms is None and record.mean_latency_ms is None and record.speedup is None
            assert record.message


def test_raw_samples_make_the_median_again(finished):
    _, sweep = finished
    record = next(r for r in sweep.records() if r.variant == "eager")
    lines = [json.loads(line) for line in (sweep.job_folder(record.job) / "samples.jsonl").read_text().splitlines()]
    samples = [line for line in lines if line["variant"] == "eager"][-1]["host_result_ms"]
    assert torch.tensor(samples, dtype=torch.float64).quantile(0.5).item() == pytest.approx(record.device_ms)


def test_every_record_and_the_summary_are_in_mlflow(finished):
    _, sweep = finished
    warnings.simplefilter("ignore")  # MLflow and SQLAlchemy warn about each other
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{sweep.folder.parents[1] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("softmax_exp")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    kinds = [run.data.tags["kind"] for run in runs]
    assert kinds.count("cell") == 12 and kinds.count("summary") == 1 and kinds.count("curve") == 2
    status = {(run.data.tags["cell"], run.info.status) for run in runs if run.data.tags["kind"] == "cell"}
    assert ("0/eager", "FINISHED") in status and (f"1/{planted('zeros')}", "FAILED") in status
    assert not [run for run in runs if run.info.status == "RUNNING"]


def test_the_environment_and_the_config_are_kept(finished):
    _, sweep = finished
    (environment,) = (sweep.folder / "environments").iterdir()
    facts = json.loads(environment.read_text())
    assert facts["device"]["torch"] == torch.__version__ and facts["host"]["packages"]["mlflow"]
    assert "seed: 0" in (sweep.job_folder(0) / "config.yaml").read_text()


def test_stdout_is_plain_and_names_the_links(finished):
    done, sweep = finished
    assert "\x1b[" not in done.stdout + done.stderr
    assert str(sweep.records_path) in done.stdout
    assert "softmax_exp.ui" in done.stdout and "http://127.0.0.1:5000/#/experiments/" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_cuda_without_a_gpu_is_one_record_and_exit_status_1(tmp_path):
    done = command(tmp_path, "device=cuda", "seq=16", "tracking=off")
    assert done.returncode == 1
    (record,) = only_sweep(tmp_path).records()
    assert (record.variant, record.status) == ("all", Status.SKIPPED)
    assert record.message == "skipped: requires a CUDA GPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_triton_variants_are_skipped_on_a_cpu_and_that_fails_nothing(tmp_path):
    done = command(tmp_path, "seq=16", "variants=[eager,triton,triton-simple]", "tracking=off", *TINY[:-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r.variant: r.status for r in only_sweep(tmp_path).records()} == {
        "eager": Status.PASSED,
        "triton": Status.SKIPPED,
        "triton-simple": Status.SKIPPED,
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
def test_under_tritons_interpreter_the_errors_of_triton_variants_are_told_without_a_latency(tmp_path):
    names = "variants=[eager,triton,triton-simple]"
    done = command(tmp_path, "seq=24", names, "tracking=off", *TINY, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    for record in only_sweep(tmp_path).records():
        assert record.status is Status.PASSED and record.max_abs_error is not None
        assert (record.device_ms is None) == record.variant.startswith("triton")


def test_a_store_that_does_not_answer_costs_no_record(tmp_path):
    done = command(tmp_path, "seq=16", "variants=eager", "tracking=server", "tracking.uri=http://127.0.0.1:9", *TINY)
    assert len(only_sweep(tmp_path).records()) == 1
    assert "not in MLflow yet" in done.stderr and "softmax_exp.sync" in done.stderr
    assert done.returncode == 0, done.stderr


def test_a_record_never_has_a_field_that_nobody_declared():
    with pytest.raises(TypeError):
        Record(sweep_id="", job=0, variant="", shape=[], n_rows=0, n_cols=0, dtype="", mode="", nonsense=1)  # type: ignore[call-arg]
