"""The command: what it writes, what it refuses before it writes anything, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

import softmax_exp
from softmax_exp import cli, compose, jobs, variants
from softmax_exp.config import Experiment
from softmax_exp.records import Record, Status
from softmax_exp.sweep import Sweep

ROOT = Path(__file__).parent.parent


def record(experiment: Experiment, job: int, variant: str, status: Status, environment: str = "e0") -> None:
    case = experiment.case
    Sweep(experiment.folder).append(
        Record(
            sweep_id=experiment.sweep_id,
            job=job,
            variant=variant,
            shape=list(case.shape),
            n_rows=case.n_rows,
            n_cols=case.n_cols,
            dtype=case.dtype,
            mode=case.mode,
            status=status,
            config_hash=experiment.config_hash,
            kernel_hash="" if variant == "all" else variants.kernel_hash(variant),
            environment_hash=environment,
        )
    )


class Joint(types.ModuleType):
    """Stands in for softmax_exp.jobs: what the command calls for each job and at the end."""

    Unkept, kept, n_jobs = jobs.Unkept, staticmethod(jobs.kept), 0

    def __init__(self) -> None:
        super().__init__("softmax_exp.jobs")
        self.ran: list[int] = []
        self.finished: list[Sweep] = []
        self.on_job: Callable[[Experiment, int], None] = lambda experiment, job: None
        self.statuses: dict[tuple[int, str], Status] = {}
        self.abandoned = 0
        self.asked: list[list[str]] = []
        self.environment = "e0"

    def environments(self, devices: list[str], log: Path) -> dict[str, set[str]]:
        self.asked.append(devices)
        return {device: {self.environment} for device in devices}

    def abandon(self) -> None:
        self.abandoned += 1

    def run_case(self, experiment: Experiment) -> None:
        job = experiment.job
        self.ran.append(job)
        self.on_job(experiment, job)
        for variant in experiment.variants if experiment.remaining is None else experiment.remaining:
            record(experiment, job, variant, self.statuses.get((job, variant), Status.PASSED), self.environment)

    def finish(self, sweep: Sweep, experiment: Experiment) -> None:
        assert experiment.folder == sweep.folder
        self.finished.append(sweep)


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Joint:
    stand_in = Joint()
    monkeypatch.setitem(sys.modules, "softmax_exp.jobs", stand_in)
    monkeypatch.setattr(softmax_exp, "jobs", stand_in, raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return stand_in


def run(*overrides: str) -> int:
    return cli.main(["variants=[eager]", "outputs=out", *overrides])


def the_sweep() -> Sweep:
    (folder,) = Path("out/sweeps").iterdir()
    return Sweep(folder)


def test_jobs_run_in_order_and_the_manifest_tells_what_was_expected(joint: Joint) -> None:
    seen = {}

    def look(experiment: Experiment, job: int) -> None:
        seen[job] = Sweep(experiment.folder).manifest()

    joint.on_job = look
    assert run("-m", "seq=16,32", "dtype=bf16", "variants=[eager,torch.compile]") == 0
    assert joint.ran == [0, 1]
    assert [sweep.sweep_id for sweep in joint.finished] == [the_sweep().sweep_id]
    manifest = the_sweep().manifest()
    assert seen[0] == manifest, "the manifest was there, whole, before job 0"
    assert manifest["command"].endswith("variants=[eager,torch.compile]'")
    assert [job["case"]["shape"] for job in manifest["jobs"]] == [[8, 12, 16, 16], [8, 12, 32, 32]]
    assert manifest["jobs"][1]["overrides"] == ["variants=[eager,torch.compile]", "seq=32", "dtype=bf16"]
    assert list(the_sweep().expected_cells()) == [
        (job, variant) for job in (0, 1) for variant in ("eager", "torch.compile")
    ]
    kept = OmegaConf.to_container(OmegaConf.load(the_sweep().job_folder(1) / "config.yaml"), resolve=False)
    assert kept == manifest["jobs"][1]["config"]
    assert sorted(path.name for path in the_sweep().folder.iterdir()) == ["jobs", "manifest.json", "records.jsonl"]


def test_two_sweeps_of_one_second_have_folders_of_their_own(joint: Joint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.time, "gmtime", lambda: (2026, 11, 5, 10, 11, 12, 3, 309, 0))
    assert cli.new_sweep_id().startswith("20261105-101112-")
    assert len({cli.new_sweep_id() for _ in range(20)}) > 10


def test_a_failing_job_is_told_at_once_and_costs_no_other(joint: Joint, capsys: pytest.CaptureFixture[str]) -> None:
    told = {}

    def fail_in_job_1(experiment: Experiment, job: int) -> None:
        told[job] = capsys.readouterr().err
        if job == 1:
            raise ZeroDivisionError("divisor (0)")

    joint.on_job = fail_in_job_1
    assert run("seq=16,32,48") == 1
    assert joint.ran == [0, 1, 2]
    assert told[0] == told[1] == ""
    assert "job 1 (8x12x32x32 float16 forward) failed: ZeroDivisionError: divisor (0)" in told[2]
    error = the_sweep().job_folder(1) / "error.txt"
    assert str(error.absolute()) in told[2]
    assert "raise ZeroDivisionError" in error.read_text()
    assert [r.job for r in the_sweep().records()] == [0, 2]
    assert not (the_sweep().job_folder(0) / "error.txt").exists()
    assert len(joint.finished) == 1


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({}, 0),
        ({(0, "torch.compile"): Status.SKIPPED, (1, "torch.compile"): Status.UNSUPPORTED}, 0),
        ({(1, "torch.compile"): Status.INCORRECT}, 1),
        ({(0, "eager"): Status.OOM}, 1),
        ({(job, variant): Status.SKIPPED for job in (0, 1) for variant in ("eager", "torch.compile")}, 1),
    ],
)
def test_the_exit_status_comes_from_the_records(joint: Joint, statuses: dict, expected: int) -> None:
    joint.statuses = statuses
    assert run("seq=16,32", "variants=[eager,torch.compile]") == expected


def test_one_record_for_all_variants_stands_for_its_job(joint: Joint) -> None:
    joint.run_case = lambda experiment: record(  # type: ignore[method-assign]
        experiment,
        experiment.job,
        "all" if experiment.job else "eager",
        Status.SKIPPED if experiment.job else Status.PASSED,
    )
    assert run("device=cpu,cuda") == 0


def test_nothing_measured_is_a_failure(joint: Joint) -> None:
    joint.run_case = lambda experiment: record(experiment, experiment.job, "all", Status.SKIPPED)  # type: ignore[method-assign]
    assert run("device=cuda") == 1


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_starts_no_further_job_and_the_sweep_is_finished(
    joint: Joint, number: signal.Signals, expected: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(experiment: Experiment, job: int) -> None:
        if job == 1:
            os.kill(os.getpid(), number)

    joint.on_job = interrupt
    assert run("seq=16,32,48,64,80") == expected
    assert joint.ran == [0, 1]
    assert len(joint.finished) == 1
    assert [r.job for r in the_sweep().records()] == [0, 1], "the running job ends in good order"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "overrides",
    [
        ["measure.n_itres=5"],
        ["+foo=1"],
        ["seq=-1"],
        ["seq=16,0"],
        ["dtype=int8"],
        ["variants=[]"],
        ["seq=1e9"],
        ["seq=1000000000"],
        ["hydra.mode=RUN"],
        ["--run"],
        ["--config-name=other"],
        ["--config-dir=no/such/folder"],
        ["--experimental-rerun=config.pickle"],
    ],
)
def test_a_bad_config_writes_nothing(joint: Joint, overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*overrides) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert 0 < len(told.err) < 600
    assert "Traceback" not in told.err
    assert joint.ran == [] and joint.finished == []
    assert list(Path().iterdir()) == []


def test_a_config_error_comes_without_importing_what_is_slow(tmp_path: Path) -> None:
    program = (
        "import sys; from softmax_exp.cli import main; status = main(['seq=128,256', 'measure.n_iters=0']);"
        "print(status, [m for m in ('torch', 'triton', 'mlflow', 'numpy', 'rich', 'pynvml') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 []\n"
    assert done.stderr.startswith("measure.n_iters (0) must be >= 1; for a fast run use measure=quick\n")


def test_the_command_runs_as_a_module_and_shows_its_config(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for flags, told in (
        (["--help"], "python -m softmax_exp -m seq=128,512,2048"),
        (["--cfg", "job", "seq=99"], "seq: 99"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "softmax_exp", *flags], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert told in done.stdout
    bad = subprocess.run(
        [sys.executable, "-m", "softmax_exp", "--cfg", "job", "sed=1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (bad.returncode, bad.stderr) == (2, "unknown key sed; did you mean seed?\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "override",
    [
        "+hydra.callbacks.x={_target_:shutil.copyfile,src:secret,dst:copy}",
        "+hydra.callbacks.x._target_=shutil.copyfile",
        "++hydra.launcher._target_=os.system",
        "+hydra.launcher.x={_target_:os.system}",
        "hydra.sweeper._target_=os.system",
        "hydra.job_logging.root={handlers:[x]}",
        "+_target_=os.system",
        "+variant_args.eager.x={_target_:os.system}",
        "variant_args.eager._target_=os.system",
        "+measure._target_=os.system",
    ],
)
def test_no_code_can_be_named_on_the_command_line(
    joint: Joint, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("secret").touch()
    assert run(override) == 2
    assert capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["secret"]


EVIL = {
    "callback": "hydra: {callbacks: {x: {_target_: shutil.copyfile, src: secret, dst: copy}}}",
    "launcher": "hydra: {launcher: {_target_: shutil.copyfile, src: secret, dst: copy}}",
    "sweeper": "hydra: {sweeper: {_target_: shutil.copyfile, src: secret, dst: copy}}",
    "logging": "hydra: {job_logging: {root: {handlers: [x]}, handlers: {x: {class: FileHandler, filename: copy}}}}",
    "folder": "hydra: {sweep: {dir: copy}}",
    "chdir": "hydra: {job: {chdir: true}}",
    "environment": "hydra: {job: {env_set: {LD_PRELOAD: mine.so}}}",
    "target": "_target_: os.system",
    "argument": "variant_args: {eager: {_target_: os.system}}",
    "nested": "variant_args: {eager: {x: {_target_: os.system}}}",
}


@pytest.mark.parametrize("name", EVIL)
def test_no_code_can_be_named_in_a_file(joint: Joint, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("secret").touch()
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/evil.yaml").write_text(f"# @package _global_\n{EVIL[name]}\n")
    assert run("--config-dir=mine", "experiment=evil") == 2
    assert capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["mine", "secret"]


def test_a_launcher_of_one_s_own_is_not_code_to_call(joint: Joint, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine/hydra/launcher").mkdir(parents=True)
    Path("mine/hydra/launcher/evil.yaml").write_text("_target_: os.mkdir\npath: copy\n")
    assert run("--config-dir=mine", "hydra/launcher=evil") == 2
    assert "hydra.launcher must not name code to call" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["mine"]


def test_an_experiment_of_one_s_own_runs_from_its_folder(joint: Joint) -> None:
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/tiny.yaml").write_text(
        "# @package _global_\nbatch: 1\nhydra: {sweeper: {params: {seq: '16,32'}}}\n"
    )
    assert run("--config-dir=mine", "experiment=tiny") == 0
    shapes = [job["case"]["shape"] for job in the_sweep().manifest()["jobs"]]
    assert shapes == [[1, 12, 16, 16], [1, 12, 32, 32]]


def test_secrets_stay_out_of_every_file_and_message(
    joint: Joint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_STORE_WORD", "hunter-two-hunter")
    monkeypatch.setenv("SERVICE_TOKEN", "t0ken-in-the-open")

    def fail(experiment: Experiment, job: int) -> None:
        assert experiment.tracking.uri == "http://me:pa55word@127.0.0.1:9", "the program itself still has it"
        assert experiment.variant_args["torch.compile"]["word"] == "hunter-two-hunter"
        raise OSError(f"{experiment.tracking.uri} refused t0ken-in-the-open and {experiment.variant_args}")

    joint.on_job = fail
    secret = ["tracking.uri=http://me:pa55word@127.0.0.1:9", "variant_args.torch.compile.word=${oc.env:MY_STORE_WORD}"]
    assert run("variants=[torch.compile]", *secret, "seq=16,32") == 1
    assert run("device=${oc.env:SERVICE_TOKEN}") == 2
    assert run("seq=${oc.env:MY_STORE_WORD}") == 2
    everything = "".join(capsys.readouterr())
    files = [path for path in Path("out").rglob("*") if path.is_file()]
    assert len(files) == 2 + 2 * 2
    assert "tracking.uri=http://***@127.0.0.1:9" in the_sweep().manifest()["jobs"][0]["overrides"]
    everything += "".join(path.read_text() for path in files)
    for word in ("pa55word", "hunter-two", "t0ken-in"):
        assert word not in everything
    assert "http://***@127.0.0.1:9" in everything


@pytest.mark.parametrize("key", ["resume", "outputs", "retry"])
def test_a_reference_to_nothing_in_a_key_of_the_whole_sweep_is_told(capsys, key):
    assert cli.main(["seq=16", "variants=eager", key + "=${oc.env:NO_SUCH_VARIABLE}"]) == 2
    assert f"{key}: " in (said := capsys.readouterr().err) and "'NO_SUCH_VARIABLE' not found" in said


def test_a_user_s_own_variant_is_named_by_its_path(joint: Joint) -> None:
    shutil.copyfile(ROOT / "softmax_exp/variants/eager.py", "mine.py")
    assert cli.main(["outputs=out", "variants=[eager,mine.py:build]", "seq=16"]) == 0
    assert the_sweep().manifest()["jobs"][0]["variants"] == ["eager", "mine.py:build"]


def test_an_output_folder_may_have_any_name(joint: Joint) -> None:
    assert cli.main(["variants=eager", "outputs='it''s, a [folder]=$x'".replace("''", "\\'")]) == 0
    assert (Path("it's, a [folder]=$x") / "sweeps").is_dir()


def test_finished_jobs_leave_nothing_in_memory(joint: Joint, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = []

    class Watch(compose.Forget):
        def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: object) -> None:
            super().on_job_end(config, job_return, **kwargs)
            returns.append(job_return)

    monkeypatch.setattr(compose, "Forget", Watch)
    assert run("seq=16,32,48") == 0
    assert len(returns) == 3
    assert all(job.cfg is None and job.hydra_cfg is None for job in returns)
