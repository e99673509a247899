"""The schema, its bounds, and the checks across keys, by way of what a command line would give."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf, open_dict

from softmax_exp import compose, config, memory
from softmax_exp.config import ConfigError, Experiment, MeasureSettings, Schema, TrackingSettings

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def roomy_machine_without_tracking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total_bytes", lambda device: (64 << 30, "this machine"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def jobs(*overrides: str) -> list[Experiment]:
    if not any(text.startswith("variants") for text in overrides):
        overrides = ("variants=[eager]", *overrides)
    return [job.experiment for job in compose.plan(overrides, "a-sweep").jobs]


def fault(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        jobs(*overrides)
    return str(caught.value)


def test_the_bare_command_is_the_first_version_s_case() -> None:
    plan = compose.plan(["variants=[eager]"], "a-sweep")
    (job,) = plan.jobs
    assert job.experiment.case.to_dict() == {
        "shape": [8, 12, 512, 512],
        "dtype": "float16",
        "mode": "forward",
        "mask": "none",
        "scale": None,
        "distribution": "normal",
        "layout": "contiguous",
        "seed": 0,
        "device": "auto",
        "workload": "attention",
    }
    assert job.experiment.baseline == "eager"
    assert job.experiment.measure == MeasureSettings()
    assert job.experiment.tracking == TrackingSettings(kind="local", uri=None, experiment="softmax_exp")
    assert plan.folder == ROOT / "outputs" / "sweeps" / "a-sweep"


def test_the_default_variants_are_the_four_of_the_manual() -> None:
    assert OmegaConf.load(ROOT / "conf/config.yaml")["variants"] == [
        "eager",
        "torch.compile",
        "triton-simple",
        "triton",
    ]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["measure.n_itres=5"], "unknown key measure.n_itres; did you mean measure.n_iters?"),
        (["sed=5"], "unknown key sed; did you mean seed?"),
        (["+foo=1"], "unknown key foo; the keys are workload, shape, batch"),
        (["++measure.foo=1"], "unknown key measure.foo; the keys of measure are clock, n_warmup"),
        (["+tracking.urj=x"], "unknown key tracking.urj; did you mean tracking.uri?"),
        (["n_iters=5"], "unknown key n_iters; did you mean measure.n_iters?"),
        (["+measure.seq=5"], "unknown key measure.seq; did you mean seq?"),
        (["seq.x=5"], "seq ({}) must be a whole number"),
        (["seq=-1"], "seq (-1) must be >= 1"),
        (["seq=[128,512]"], "must be a whole number; a sweep over values is written without brackets: seq=128,512"),
        (["dtype=[fp16,bf16]"], "must be text; a sweep over values is written without brackets: dtype=fp16,bf16"),
        (["seq=0"], "seq (0) must be >= 1"),
        (["seq=1e9"], "seq (1000000000.0) must be a whole number; write 1000000000"),
        (["seq=1000000000"], "shape ([8, 12, 1000000000, 1000000000]) has 9.6e+19 elements"),
        (["seq=100000"], "it needs 7.0 TiB at least, and this machine has 64 GiB; make a size smaller"),
        (["seq=long"], "seq (long) must be a whole number"),
        (["seq_q=0"], "seq_q (0) must be >= 1"),
        (["batch=null"], "shape"),
        (["dtype=int8"], "dtype (int8) must be one of float16, bfloat16, float32, float64, fp16"),
        (["dtype=flaot16"], "did you mean float16?"),
        (["mode=fwd"], "mode (fwd) must be one of forward, backward, full"),
        (["device=gpu"], "device (gpu) must be auto, cpu, cuda or one GPU such as cuda:1"),
        (["scale=nan"], "scale (nan) must be a finite number"),
        (["seed=-1"], "seed (-1) must be >= 0"),
        (["variants=[]"], "variants ([]) must name at least one variant, e.g. variants=[eager,triton]"),
        (["variants={a:1}"], "variants: Cannot merge DictConfig with ListConfig"),
        (["variants=[eager,1]"], "variants (['eager', 1]) must be a list of names"),
        (["variants=[eagre]"], "variants (eagre): unknown variant 'eagre'; did you mean 'eager'?"),
        (["variants=[no/such.py:f]"], "no file no/such.py"),
        (["variants=[eager,eager]"], "variants (eager) is there twice"),
        (["baseline=torch.compile"], "baseline (torch.compile) must be one of the variants: eager; or null"),
        (["measure.n_iters=0"], "measure.n_iters (0) must be >= 1; for a fast run use measure=quick"),
        (["measure.confidence=1"], "measure.confidence (1.0) must be > 0 and < 1; e.g. 0.95"),
        (
            ["measure.n_iters=10"],
            "measure.n_iters (10) would be ignored with measure.clock=device; set measure.clock=w",
        ),
        (
            ["measure.max_rounds=5"],
            "measure.max_rounds (5) must be >= measure.min_rounds (20); set measure.min_rounds=5",
        ),
        (["measure.clock=gpu"], "measure.clock (gpu) must be one of device, wall"),
        (["measure=quik"], "measure (quik) is not there; did you mean quick? Allowed: default, none, quick, wall"),
        (["tracking=server"], "tracking.uri (null) must be set with tracking=server"),
        (["workload=matrix", "seq=5"], "seq (5) would be ignored with workload=matrix; its sizes are rows, cols"),
        (["rows=4"], "rows (4) would be ignored with workload=attention; its sizes are batch, heads, seq, seq_q"),
        (["shape=[4,4]", "seq=512"], "seq (512) would be ignored beside shape=[4, 4]; set one or the other"),
        (["shape=[]"], "shape ([]) must have at least one dimension"),
        (["shape=[4,0]"], "shape ([4, 0]) must be >= 1 in every dimension"),
        (["shape=7"], "shape (7) must be a list, e.g. [8,12,512,512]"),
        (["shape=[4,x]"], "shape[1] (x) must be a whole number"),
        (["shape=[1,[2]]"], "shape ([1, [2]]) must be whole numbers"),
        (["batch=${variants}"], "must be a whole number"),
        (["shape=[4]", "mask=causal"], "mask (causal) needs a shape of two dimensions or more, not [4]"),
        (["variant_args.triton.num_warps=4"], "variant_args.triton would be ignored; it must name one of the variants"),
        (["variant_args.eager=4"], "variant_args.eager (4) must hold arguments"),
        (["variant_args.eager.a={b:1}"], "variant_args.eager.a ({'b': 1}) must be a number, text"),
        (["variant_args.eager.blokc=1"], "unknown argument variant_args.eager.blokc; it takes no arguments"),
        (["seq=${nope}"], "Interpolation key 'nope' not found"),
        (["seq=${oc.env:NO_SUCH_VARIABLE}"], "Environment variable 'NO_SUCH_VARIABLE' not found"),
        (["~seq"], "~seq must not be taken away"),
        (["sweep_id=mine"], "sweep_id (mine) is set by the program"),
        (["hydra.mode=RUN"], "hydra.mode (RUN) must be MULTIRUN; leave it out"),
        (["hydra.sweep.dir=/tmp"], "hydra.sweep.dir cannot be set"),
        (["outputs=a,b"], "outputs (a,b) must be one value for a whole sweep"),
        (["seq=a=b,"], "seq=a=b, cannot be read as key=value (mismatched input '=' expecting <EOF>); put"),
    ],
)
def test_a_bad_config_is_told_with_key_value_and_what_is_allowed(overrides: list[str], told: str) -> None:
    assert told in fault(*overrides)


def test_a_size_in_terms_of_an_unused_one_is_told_once() -> None:
    assert fault("seq=-1") == "seq (-1) must be >= 1"


def test_every_fault_of_a_job_is_told_and_which_job_it_was() -> None:
    text = fault("seq=128,-1", "dtype=int8")
    assert text.count("must be") == 1  # the first job's: its seq is right
    assert "in job 0 of 2 (variants=[eager] seq=128 dtype=int8); nothing was started" in text
    assert fault("seq=-1", "dtype=int8").splitlines() == [
        "seq (-1) must be >= 1",
        "dtype (int8) must be one of float16, bfloat16, float32, float64, fp16, half, bf16, fp32, float, fp64, double",
    ]


def test_the_last_job_of_a_sweep_is_checked_too() -> None:
    assert "in job 2 of 3" in fault("seq=128,256,0")


def test_shapes_sweep_as_lists_of_whole_numbers() -> None:
    first, second = jobs("shape=[8,12,512,512],[1,1,64,64]")
    assert first.case.shape == (8, 12, 512, 512)
    assert second.case.shape == (1, 1, 64, 64)
    assert all(type(size) is int for size in first.case.shape)


def test_sizes_make_the_shape() -> None:
    assert [job.case.shape for job in jobs("seq=128,512")] == [(8, 12, 128, 128), (8, 12, 512, 512)]
    assert jobs("seq=256", "seq_q=1")[0].case.shape == (8, 12, 1, 256)
    (matrix,) = jobs("workload=matrix", "rows=3", "cols=7")
    assert (matrix.case.shape, matrix.case.workload) == ((3, 7), "matrix")


def test_a_shape_may_be_written_in_terms_of_a_size() -> None:
    assert [job.case.shape for job in jobs("shape=[2,${seq}]", "seq=64,65")] == [(2, 64), (2, 65)]


@pytest.mark.parametrize(("alias", "name"), [("fp16", "float16"), ("bf16", "bfloat16"), ("half", "float16")])
def test_aliases_of_dtypes_are_recorded_by_their_name(alias: str, name: str) -> None:
    (job,) = jobs(f"dtype={alias}")
    assert job.case.dtype == job.config["dtype"] == name


def test_a_bare_variant_is_a_list_of_one_and_several_are_a_sweep() -> None:
    assert [job.variants for job in jobs("variants=eager")] == [("eager",)]
    assert [job.variants for job in jobs("variants=eager,torch.compile")] == [("eager",), ("torch.compile",)]


def test_a_baseline_that_is_not_measured_is_none() -> None:
    assert jobs("variants=[torch.compile]")[0].baseline is None
    assert jobs("baseline=null")[0].baseline is None
    assert jobs("variants=[eager,torch.compile]", "baseline=torch.compile")[0].baseline == "torch.compile"


def test_arguments_go_to_their_variant(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def softmax(x, block=1):\n    return x\n")
    overrides = [
        f"variants=[eager,torch.compile,torch.compile-max-autotune,{mine}:softmax]",
        "variant_args.torch.compile.a=1",
        "variant_args.softmax.block=4,8",
    ]
    assert [job.variant_args for job in jobs(*overrides)] == [
        {"torch.compile": {"a": 1}, f"{mine}:softmax": {"block": block}} for block in (4, 8)
    ]


def test_a_misspelt_argument_of_one_s_own_function_is_told(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def softmax(x, mask=None, *, block=1):\n    return x\ndef build(case, **any):\n    return 1\n")
    assert f"variant_args.{mine}:softmax.blokc; did you mean block?" in fault(
        f"variants=[{mine}:softmax]", "baseline=null", "variant_args.softmax.blokc=4"
    )
    assert "it takes block" in fault(f"variants=[{mine}:softmax]", "variant_args.softmax.mask=4")
    assert jobs(f"variants=[{mine}:build]", "variant_args.build.anything=4")


def test_measure_settings_come_from_their_choice_and_their_keys() -> None:
    assert jobs("measure=quick")[0].measure == MeasureSettings(n_warmup=2, budget_s=0.2, min_rounds=8, target_pct=2.0)
    wall = jobs("measure=wall", "measure.n_iters=7")[0].measure
    assert (wall.clock, wall.n_warmup, wall.n_iters) == ("wall", 5, 7)


def test_the_environment_names_the_tracking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter22@host:5000")
    (job,) = jobs()
    assert job.tracking.uri == "http://user:hunter22@host:5000"
    assert "hunter22" not in str(job.config)


def test_a_config_makes_the_same_experiment_again() -> None:
    for overrides in (["seq=128", "seq_q=1"], ["workload=matrix", "dtype=bf16"], ["measure=wall", "scale=0.5"]):
        (job,) = jobs(*overrides)
        again = config.from_fields(job.config, job.outputs, job.sweep_id)
        assert dataclasses.replace(again, chunk=1) == job
        assert again.config_hash == job.config_hash


def test_a_replayed_config_may_hold_schema_fields_only() -> None:
    (job,) = jobs()
    with pytest.raises(ConfigError, match="unknown key _target_"):
        config.from_fields({**job.config, "_target_": "os.system"}, job.outputs)
    with pytest.raises(ConfigError, match=r"unknown key measure\._target_"):
        config.from_fields({**job.config, "measure": {"_target_": "os.system"}}, job.outputs)


def test_the_hash_tells_what_is_measured_and_how_but_not_where_it_goes() -> None:
    hashes = [jobs(*overrides)[0].config_hash for overrides in ([], ["tracking=off", "outputs=x"], ["seed=1"])]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["seq=128", "dtype=bf16", "variant_args.torch.compile.x=3"],
        ["shape=[3,4]", "measure=quick", "measure.budget_s=1"],
        ["workload=matrix", "rows=5", "tracking=off"],
        ["+variant_args.torch.compile.y=[1,2]", "seq=7"],
        ["experiment=decode", "seq=2048", "variants=eager"],
    ],
)
def test_a_copy_with_values_set_equals_a_full_composition(overrides: list[str]) -> None:
    plan = compose.plan(["variants=[eager]"], "a-sweep")
    quick = plan.loader.load_sweep_config(plan.master, overrides)
    full = ConfigLoaderImpl.load_sweep_config(plan.loader, plan.master, overrides)
    for composed in (quick, full):
        composed.hydra.job.override_dirname = ""  # names folders; ours are numbered
        composed.hydra.overrides.task = sorted(composed.hydra.overrides.task)
    assert OmegaConf.to_container(quick, resolve=False) == OmegaConf.to_container(full, resolve=False)
    with open_dict(full):
        del full["hydra"]
    assert plan.loader.load_job(plan.master, overrides) == full


@pytest.mark.parametrize(
    "path", sorted((ROOT / "conf").glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_yaml_composes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    monkeypatch.setattr(memory, "total_bytes", lambda device: (128 << 30, "the GPU"))
    assert compose.plan([f"{path.parent.name}={path.stem}"], "a-sweep").jobs


def test_a_committed_sweep_is_expanded_and_its_values_can_be_replaced() -> None:
    assert [job.case.shape for job in jobs("experiment=decode")] == [
        (64, 32, 1, seq) for seq in (1024, 4096, 16384, 65536)
    ]
    assert [job.case.shape for job in jobs("experiment=decode", "seq=99")] == [(64, 32, 1, 99)]


def test_the_manual_names_every_key_and_every_value_that_it_may_have() -> None:
    manual = (ROOT / "conf/config.yaml").read_text()
    for prefix, schema in (("", Schema), ("measure.", MeasureSettings), ("tracking.", TrackingSettings)):
        for declared in dataclasses.fields(schema):
            assert re.search(rf"\b{re.escape(prefix + declared.name)}\b", manual), declared.name
            for value in declared.metadata.get("allowed") or ():
                assert re.search(rf"\b{value}\b", manual), (declared.name, value)


@pytest.mark.parametrize("seen_from", ["one", "another"])
def test_results_go_to_the_checkout_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_from: str
) -> None:
    (tmp_path / seen_from).mkdir()
    monkeypatch.chdir(tmp_path / seen_from)
    assert jobs()[0].outputs == ROOT / "outputs"
    assert jobs("outputs=here")[0].outputs == tmp_path / seen_from / "here"


def test_an_installed_package_writes_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compose, "CHECKOUT", None)
    assert jobs()[0].outputs == tmp_path / "outputs"


def test_only_a_case_that_could_never_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total_bytes", lambda device: (4 * 8 * 12 * 4096 * 4096 * 2, "the GPU"))
    assert jobs("seq=4096")
    assert "the GPU has" in fault("seq=4096", "mode=backward")
    monkeypatch.setattr(memory, "total_bytes", lambda device: None)
    assert jobs("seq=100000")


def test_an_unknown_field_of_our_plan_is_told_with_the_nearest_before_anything_starts():
    with pytest.raises(ConfigError, match="did you mean num_warps"):
        compose.plan(["variants=[eager,triton]", "variant_args.triton.num_wraps=4"], "a-sweep")
