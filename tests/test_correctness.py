import dataclasses
import functools
import gc
import io
import itertools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from softmax_exp import compose, correctness
from softmax_exp.cases import Case
from softmax_exp.cli import main
from softmax_exp.config import MeasureSettings
from softmax_exp.correctness import matrix, shrink
from softmax_exp.correctness.beside_eager import beside_eager
from softmax_exp.records import Record, Status
from softmax_exp.sweep import Sweep
from softmax_exp.worker import Worker
from tests import faulty
from tests.test_measure import planted, results

ROOT = Path(__file__).parents[1]

FIFTEEN = {  # every fault with what it takes to see it, beyond the committed sweep
    "wrong_axis": [],
    "no_max": [],
    "half_sum": ["shape=[8,4096]", "dtype=float16"],
    "last_partial_block_dropped": [],
    "int32_offset": ["shape=[3,33]", "dtype=float16", "layout=far"],
    "stride_ignored": [],
    "nan_dropping": [],
    "minus_infinity_row_zero": [],
    "stale_row": [],
    "wrong_scale": [],
    "one_column_too_many": [],
    "race_on_a_row": [],
    "gradient_of_wrong_sign": ["mode=full"],
    "reusing_output": [],
    "approximate_exp": [],
}


@functools.cache
def cases(*overrides: str) -> list[tuple[Case, MeasureSettings]]:
    """The cases of the committed sweep in an order that soon has met every value of every key."""
    jobs = compose.plan(["experiment=correctness", *overrides], "s").jobs
    step = next(n for n in (7, 11, 13, 17) if len(jobs) % n)
    order = [jobs[step * i % len(jobs)] for i in range(len(jobs))]
    return [(job.experiment.case, job.experiment.measure) for job in order]


def first_failure(name: str, device: str, *overrides: str) -> dict | None:
    """The first result of a planted fault that is not right; None where the whole sweep passes it."""
    for case, settings in cases(f"device={device}", *overrides):
        result = results(case, planted(name), settings=settings, baseline=None)[planted(name)]
        if result["status"] not in (Status.PASSED, Status.UNSUPPORTED):
            return result
    return None


@pytest.mark.parametrize("fault", FIFTEEN)
def test_each_of_fifteen_planted_faults_is_caught_by_the_committed_sweep(fault):
    found = first_failure(fault, "cpu", *FIFTEEN[fault])
    assert found is not None, "not caught"
    assert found["status"] == Status.INCORRECT, found


@pytest.fixture(autouse=True, scope="module")
def no_long_collections():
    """Without what is there already, as in the measuring process: hundreds of cases would look through all of it."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_there_are_fifteen():
    assert len(FIFTEEN) == 15


def test_what_is_right_passes_the_committed_sweep():
    for case, settings in itertools.islice(cases("device=cpu", "shape=[9,1],[2,3,7,33],[2,5001]"), 90):
        result = results(case, "eager", planted("right"), settings=settings, baseline=None)
        assert {each["status"] for each in result.values()} == {Status.PASSED}, (case.title, result)
        assert not any("latency" in name or "device_ms" in name for each in result.values() for name in each)
    for overrides in (["shape=[3,33]", "layout=far", "dtype=float16"], ["shape=[2,3,7,33]", "mode=full"]):
        for case, settings in itertools.islice(cases("device=cpu", *overrides), 12):
            assert results(case, "eager", settings=settings)["eager"]["status"] == Status.PASSED, case.title


def test_an_untimed_variant_is_built_once_for_cases_that_differ_in_their_values_alone(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\ndef softmax(case):\n"
        "    with open(__file__ + '.log', 'a') as log:\n        log.write('built\\n')\n"
        "    return lambda x: torch.softmax(x, -1)\n"
    )
    settings = shrink.SETTINGS
    case = Case(shape=(2, 3), device="cpu")
    for each in (case, dataclasses.replace(case, distribution="nan"), dataclasses.replace(case, seed=3)):
        assert results(each, f"{mine}:softmax", settings=settings)[f"{mine}:softmax"]["status"] == Status.PASSED
    log = tmp_path / "mine.py.log"
    assert log.read_text() == "built\n"
    results(dataclasses.replace(case, dtype="float32"), f"{mine}:softmax", settings=settings)
    assert log.read_text() == "built\n" * 2


def test_the_smallest_failing_case_is_found_and_nothing_simpler_fails():
    tried = []

    def attempt(case: Case) -> tuple[str, str]:
        tried.append(case)
        return ("INCORRECT" if case.n_cols > 1000 and case.layout == "padded" else "PASSED"), f"{case.n_cols}"

    case = Case(
        shape=(2, 3, 64, 70001), mode="full", mask="causal", scale=0.5, layout="padded", distribution="nan", seed=4
    )
    found, said = shrink.smallest(case, "INCORRECT", "as it was", attempt)
    assert found == Case(shape=(1, 1001), dtype="float32", layout="padded", seed=4, workload="matrix")
    assert said == "1001" and len(tried) < 150
    assert all(attempt(smaller)[0] == "PASSED" for smaller in shrink.smaller_than(found))


def test_the_search_does_not_slip_from_one_fault_to_another():
    def attempt(case: Case) -> tuple[str, str]:
        partial_block = case.n_cols % 32 != 0
        return ("INCORRECT" if partial_block or (case.layout == "transposed" and case.n_rows > 4) else "PASSED"), ""

    case = Case(shape=(8, 64), dtype="float32", layout="transposed", workload="matrix")
    assert shrink.smallest(case, "INCORRECT", "", attempt)[0] == dataclasses.replace(case, shape=(5, 32))


def test_shrinking_stops_when_it_is_late_and_keeps_what_it_has():
    case = Case(shape=(64, 64))
    assert shrink.smallest(case, "ERROR", "why", lambda _: ("ERROR", ""), lambda: True) == (case, "why")


def test_a_failure_whose_plain_twin_passed_has_a_cause_of_its_own():
    def cell(case: Case, status: Status) -> tuple[Case, Record]:
        return case, record("mine", status, error_over_tolerance=2.0)

    odd, even = (Case(shape=(8, n), dtype="float32", workload="matrix") for n in (33, 64))
    strided = dataclasses.replace(even, layout="transposed")
    cells = dict([cell(odd, Status.INCORRECT), cell(even, Status.PASSED), cell(strided, Status.INCORRECT)])

    def attempt(case: Case) -> tuple[str, str]:
        return ("INCORRECT" if case.n_cols % 32 or case.layout == "transposed" else "PASSED"), "off"

    found = shrink._smallest_of("mine", {}, cells, attempt, lambda: False)
    assert [(failure.title, failure.n_cells) for failure in found] == [
        ("1x1 float32 forward", 1), ("1x32 float32 forward transposed", 1),
    ]  # fmt: skip


def test_a_failure_of_another_kind_is_not_taken_for_the_same():
    case = Case(shape=(4, 4), dtype="float32")
    assert shrink.smallest(case, "INCORRECT", "why", lambda _: ("ERROR", "another"))[0] == case


def test_a_simple_failure_may_explain_harder_ones_and_no_simpler_ones():
    simple = Case(shape=(1, 65), dtype="float32")
    assert shrink.is_harder(Case(shape=(2, 3, 4, 100), dtype="float16", distribution="nan"), simple)
    assert not shrink.is_harder(Case(shape=(1, 64), dtype="float32"), simple)
    assert not shrink.is_harder(simple, dataclasses.replace(simple, layout="padded"))


def test_the_command_names_what_is_unusual_and_quotes_it():
    case = Case(shape=(3, 5), mask="causal", scale=0.5, distribution="nan", seed=2, device="cpu", workload="matrix")
    command = shrink.command_for("my dir/it's.py:soft", {"n": 4, "how": "x y"}, case)
    words = shlex.split(command)
    assert words[-2:] == ["measure=none", "tracking=off"]
    start = words.index("softmax_exp")
    assert {"shape=[3,5]", "mask=causal", "scale=0.5", "distribution=nan", "seed=2"} <= set(words[start:])
    expanded = compose.expand([word for word in words[start + 1 :] if not word.startswith("variants=")])
    assert expanded.jobs == [words[start + 2 :]]
    usual = shlex.split(shrink.command_for("eager", {}, Case(shape=(2,))))
    assert usual[-5:] == ["variants=[eager]", "shape=[2]", "dtype=float16", "measure=none", "tracking=off"]


def sweep_of(tmp_path: Path, *overrides: str) -> tuple[int, Sweep]:
    command = [f"outputs={tmp_path}", "experiment=correctness", "device=cpu", *overrides]
    status = main(command)
    return status, Sweep(next((tmp_path / "sweeps").iterdir()))


def test_a_sweep_ends_in_a_matrix_the_smallest_failures_and_commands_that_show_them(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, sweep = sweep_of(
        tmp_path, "variants=[eager,tests/faulty.py:stride_ignored,tests/faulty.py:raising]", "dtype=float32",
        "shape=[2,3,7,33]", "layout=contiguous,padded", "distribution=normal,nan",
    )  # fmt: skip
    assert status == 1
    out = capfd.readouterr().out
    assert "2 of 4 fail" in out and "4 of 4 fail: ERROR" in out and "distribution nan" in out
    text = (sweep.folder / "correctness.md").read_text()
    assert "| layout padded |" in text and "who is right where" in text
    found = correctness._smallest(sweep)
    raising, smallest = sorted(found, key=lambda failure: failure.variant)
    assert raising.variant.endswith(":raising") and smallest.variant.endswith(":stride_ignored")
    assert "padded" in smallest.title and smallest.n_cells == 2 and "'shape=[" in smallest.command
    assert "RuntimeError: planted" in raising.message and raising.title == "1x1 float32 forward"
    assert smallest.command in text and smallest.command in out
    command = [sys.executable, *shlex.split(smallest.command)[1:], f"outputs={tmp_path / 'again'}"]
    assert shlex.split(smallest.command)[0] in ("python", "TRITON_INTERPRET=1")
    command = [word for word in command if word not in ("python", "TRITON_INTERPRET=1")]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert told.returncode == 1 and "1 of 1 fail" in told.stdout, told


def test_a_crash_costs_one_try(tmp_path):
    from tests import made_up

    crash = planted("segfault")
    died = made_up.failed(0, crash, 8, Status.CRASHED, "died", device="cpu", workload="matrix")
    sweep = made_up.sweep(
        tmp_path, [died], config={"variant_args": {}}, case=Case(shape=(2, 8), device="cpu").to_dict()
    )
    worker, told = Worker(), []
    try:
        (found,) = shrink.smallest_failures(sweep, worker, told.append)
    finally:
        worker.stop()
    assert found.status == "CRASHED" and found.title == "1x1 float32 forward" and "SIGSEGV" in found.message
    assert told


def record(variant: str, status: Status, **fields) -> Record:
    shape = fields.pop("shape", [2, 3])
    return Record("s", fields.pop("job", 0), variant, shape, 2, 3, "float16", "forward", status=status, **fields)


def test_the_matrix_tells_who_fails_where_and_by_how_much():
    found = [
        record("a", Status.PASSED, error_over_tolerance=0.25),
        record("b", Status.INCORRECT, error_over_tolerance=4e6, nonfinite_mismatch=0),
        record("c", Status.SKIPPED, message="not installed"),
        record("a", Status.PASSED, error_over_tolerance=0.75, layout="padded"),
        record("b", Status.INCORRECT, error_over_tolerance=0.1, nonfinite_mismatch=2, layout="padded"),
        record("c", Status.CRASHED, layout="padded"),
    ]
    assert list(matrix.rows(found, ["a", "b", "c"])) == [
        ("layout contiguous", "0.25", "1 of 1 fail: 4e+06", "skipped"),
        ("layout padded", "0.75", "1 of 1 fail: NaN or inf", "1 of 1 fail: CRASHED"),
        ("all", "0.75", "2 of 2 fail: 4e+06, NaN or inf", "1 of 2 fail: CRASHED"),
    ]
    assert list(matrix.refusals(found)) == ["SKIPPED c, 1 cell: not installed"]
    console = Console(record=True, width=60, file=io.StringIO())
    matrix.show(found, [shrink.Failure("b", "INCORRECT", "off", "2x3", "python -m x", 2)], console)
    shown = console.export_text()
    assert "see it again by: python -m x" in shown and "6 cells: 2 PASSED, 2 INCORRECT, 1 SKIPPED, 1 CRASHED." in shown


def test_a_kernel_that_is_right_and_yet_rougher_than_eager_is_told(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    rough = "tests/faulty.py:rough"
    status, sweep = sweep_of(
        tmp_path, f"variants=[eager,{rough},tests/faulty.py:right]", "dtype=float32", "shape=[2,3,7,33],[1,1]",
        "mode=forward,backward", "layout=contiguous", "distribution=normal,nan",
    )  # fmt: skip
    assert status == 0
    found = {(each.variant.rpartition(":")[2], each.mode): each for each in beside_eager(sweep.records())}
    assert {key: (each.n_compared, len(each.worse)) for key, each in found.items()} == {
        ("rough", "forward"): (4, 3), ("right", "forward"): (4, 0),
        ("rough", "backward"): (4, 2), ("right", "backward"): (4, 0),
    }  # fmt: skip
    assert all(record.status is Status.PASSED for record, _ in found["rough", "forward"].worse)
    for text in (capfd.readouterr().out, (sweep.folder / "correctness.md").read_text()):
        assert "4 cells beside eager's, 3 with more than 2 x eager's largest error" in text.replace("\\", "")


def test_twice_eagers_error_is_allowed_and_the_nearest_number_always():
    def worse(own: float, eagers: float, ulp: float = 3.0) -> bool:
        eager = record("eager", Status.PASSED, max_abs_error=eagers)
        (found,) = beside_eager([record("a", Status.PASSED, max_abs_error=own, max_ulp_error=ulp), eager])
        return bool(found.worse)

    assert not worse(2e-5, 1e-5) and worse(2.1e-5, 1e-5)
    assert worse(1e-5, 0.0, ulp=0.6) and not worse(1e-5, 0.0, ulp=0.5)
    failed = record("a", Status.INCORRECT, max_abs_error=1e-9, max_ulp_error=0.5)
    assert beside_eager([failed, record("eager", Status.PASSED, max_abs_error=0.0)])[0].worse
    assert not beside_eager([failed, record("eager", Status.PASSED, max_abs_error=0.0, layout="padded")])
    assert not beside_eager([failed, record("eager", Status.INCORRECT, max_abs_error=9.0)])


def test_names_and_messages_cannot_become_markup():
    found = [record("a|<b>", Status.ERROR, message="x | <script>")]
    text = matrix.markdown("s", found, [shrink.Failure("a|<b>", "ERROR", "x | <script>", "2x3", "python", 1)])
    assert "<script>" not in text and "<b>" not in text and "a|" not in text and "a\\|" in text


@pytest.mark.gpu
@pytest.mark.parametrize("fault", FIFTEEN)
def test_each_planted_fault_is_caught_on_the_gpu(fault):
    found = first_failure(fault, "cuda", *FIFTEEN[fault])
    assert found is not None, "not caught"
    assert found["status"] == Status.INCORRECT, found


@pytest.mark.gpu
def test_a_race_between_programs_of_a_row_is_caught():
    name = f"{Path(faulty.__file__).with_name('racing.py')}:softmax"
    case = Case(shape=(512, 8192), dtype="float32", device="cuda", workload="matrix")
    assert results(case, name, settings=shrink.SETTINGS)[name]["status"] == Status.INCORRECT


def test_a_sweep_that_is_stopped_is_reported_without_a_search(tmp_path):
    from tests import made_up

    died = made_up.failed(0, "eager", 8, Status.INCORRECT, "off")
    sweep = made_up.sweep(tmp_path, [died], config={"variant_args": {}}, case=Case(shape=(2, 8)).to_dict())
    worker = Worker()
    assert correctness.finish(sweep, worker, print, search=False) == [sweep.folder / "correctness.md"]
    assert worker.process is None and "1 of 1 fail" in (sweep.folder / "correctness.md").read_text()
