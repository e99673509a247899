"""Comparing sweeps: on six processes of a real H200, on planted changes, on what must not be compared."""

import dataclasses
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from softmax_exp.compare import main, percent
from softmax_exp.comparison import Question, compare, holm
from softmax_exp.pairing import pair
from softmax_exp.records import Record, Status
from softmax_exp.results import Results
from tests import made_up
from tests.report import many

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
CONFIG = {"measure": {"confidence": 0.99}}  # that the study of noise was made with


def processes() -> list[Results]:
    """Each process of the study of noise as a sweep of 54 cells, with its real figures."""
    head, *lines = [json.loads(line) for line in (RESULTS / "noise.jsonl").read_text().splitlines()]
    found = []
    for number, group in itertools.groupby(lines, key=lambda line: line["process"]):
        records = []
        for line in group:
            job, size = len(records) // 3, line["size"]
            kept = ("device_ms", "device_ms_ci_low", "device_ms_ci_high", "clock", "n_samples", "flags")
            shape = [8, 12, size, size] if size <= 2048 else [2**28 // size, size]
            fields = {name: line[name] for name in kept} | {"cache": "cold", "environment_hash": "e" * 16}
            record = Record(f"p{number}", job, line["variant"], shape, 0, size, line["dtype"], "forward", **fields)
            record.status = Status.PASSED
            records.append(record)
        jobs = [{"job": job, "variants": [], "config": CONFIG} for job in range(18)]
        device = {"type": "cuda", "name": head["name"], "torch": head["torch"]}
        found.append(Results(f"p{number}", records, {"jobs": jobs}, {"e" * 16: {"host": {}, "device": device}}))
    return found


def verdicts(first: Results, second: Results, **question) -> list:
    return compare(pair(first, second).pairs, first, second, Question(**question))


def slowed(results: Results, cell: int, factor: float) -> Results:
    """The same with one cell slower by a factor."""
    records = list(results.records)
    names = ("device_ms", "device_ms_ci_low", "device_ms_ci_high")
    records[cell] = dataclasses.replace(
        records[cell], **{name: factor * getattr(records[cell], name) for name in names}
    )
    return dataclasses.replace(results, records=records)


def on_disk(folder: Path, name: str, cells: list[Record], environment=None, **job) -> str:
    for cell in cells:
        cell.sweep_id = name
    made = made_up.sweep(folder, cells, **job)
    if environment is not None:
        for path in (made.folder / "environments").glob("*.json"):
            path.write_text(json.dumps(environment))
    return str(made.folder)


def test_processes_of_one_gpu_are_never_called_different():
    pairs = list(itertools.permutations(processes(), 2))
    found = [outcome for first, second in pairs for outcome in verdicts(first, second)]
    assert len(found) == 30 * 54
    assert {outcome.verdict for outcome in found} <= {"same", "unclear"} and not any(o.regressions for o in found)
    assert sum(outcome.verdict == "same" for outcome in found) > 0.8 * len(found)


def test_the_noise_between_processes_is_not_taken_too_small():
    # Without a margin, at most 5 % of pairs of equal sweeps may have any cell called different.
    pairs = list(itertools.combinations(processes(), 2))
    wrong = [any(o.verdict in ("slower", "faster") for o in verdicts(*each, margin_pct=0.0)) for each in pairs]
    assert len(pairs) == 15 and not any(wrong)
    # It is the noise between processes that does it: the intervals of the processes alone do not hold it.
    alone = [o for each in pairs for o in verdicts(*each, margin_pct=0.0, noise_pct=0.0)]
    assert any(outcome.verdict in ("slower", "faster") for outcome in alone)


@pytest.mark.parametrize("cell", range(54))
def test_a_slow_down_of_5_percent_in_one_cell_is_found_and_named(cell):
    first, second, *_ = processes()
    found = verdicts(first, slowed(second, cell, 1.05), fail_slower_pct=3.0)
    assert [o.candidate for o in found if o.regressions] == [slowed(second, cell, 1.05).records[cell]]
    [outcome] = [o for o in found if o.verdict in ("slower", "faster")]
    assert outcome.regressions == ("slower by more than 3 %",) and outcome.low_pct < 5 < outcome.high_pct + 0.6


def test_a_slow_down_below_the_limit_is_told_and_is_no_regression():
    first, second, *_ = processes()
    found = verdicts(first, slowed(second, 40, 1.025), fail_slower_pct=3.0)
    assert [o.verdict for o in found if o.verdict != "same" and o.verdict != "unclear"] == ["slower"]
    assert not any(o.regressions for o in found)


def test_the_command_finds_the_planted_cell_of_60(tmp_path, capsys):
    base, changed = many.records(60), many.records(60)
    names = ("device_ms", "device_ms_ci_low", "device_ms_ci_high")
    changed[37] = dataclasses.replace(changed[37], **{name: 1.05 * getattr(changed[37], name) for name in names})
    sides = [on_disk(tmp_path, "base", base), on_disk(tmp_path, "changed", changed)]
    assert main([*sides, "--fail-slower", "3%"]) == 1
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if "REGRESSION" in line]
    assert line.startswith(f"{changed[37].title}  SLOWER  +5.00 %  (+4.4") and "slower by more than 3 %" in line
    assert "60 cells: 1 slower, 0 faster, 0 unclear, 59 same; 1 regression " in out
    assert main([*sides, "--fail-slower", "3%"]) == 1 and capsys.readouterr().out == out
    assert main([*reversed(sides), "--fail-slower", "3%"]) == 0  # faster is no regression


def test_the_order_of_records_changes_no_verdict():
    first, second, *_ = processes()
    second = slowed(second, 3, 1.02)
    mixed = random.Random(1).sample(second.records, len(second.records))
    whole = {o.candidate.cell: o for o in verdicts(first, second)}
    assert {o.candidate.cell: o for o in verdicts(first, dataclasses.replace(second, records=mixed))} == whole


def test_the_committed_sweep_and_study_agree(capsys):
    sweep, study = str(RESULTS / "h200_sweep.jsonl"), str(RESULTS / "study" / "records.jsonl")
    assert main([sweep, sweep]) == 0 and "12 same" in capsys.readouterr().out
    assert main([sweep, study]) == 0
    out = capsys.readouterr().out
    assert "missing in the candidate: 4 cells: eager 8x12x512x512 float16 forward" in out
    assert "missing in the baseline: 877 cells" in out and "8 cells: 0 slower, 0 faster, 4 unclear, 4 same" in out
    assert "note: uuid" in out  # 8x12x2048x2048 is of another card


def test_a_compiler_that_chose_badly_is_found(capsys):
    """The cases of the study that were replaced: Inductor had timed its configurations beside other work."""
    sweep, replaced = str(RESULTS / "h200_sweep.jsonl"), str(RESULTS / "study" / "replaced.jsonl")
    assert main([sweep, replaced]) == 1
    out = capsys.readouterr().out
    assert "4 cells: 1 slower, 0 faster" in out and "torch.compile 8x12x128x128 float16 forward  SLOWER  +68.4" in out


def test_committed_sweeps_of_three_h200s_agree(capsys):
    """Eager, which is the same code, takes 0.7 to 3.6 % less on the third than on the second."""
    other, third, sweep = (
        str(RESULTS / name) for name in ("another_card/records.jsonl", "third_card/records.jsonl", "h200_sweep.jsonl")
    )
    for one, two in ((other, third), (other, sweep), (third, sweep)):
        assert main([one, two]) == 0
        out = capsys.readouterr().out
        assert "12 cells: 0 slower, 0 faster" in out and "note: uuid" in out
    assert main([other, third, "--noise", "0.25"]) == 0  # without the noise between cards
    assert "12 cells: 0 slower, 4 faster" in capsys.readouterr().out


def test_the_host_clock_does_not_compare_with_the_devices(capsys):  # S26
    wall, device = str(RESULTS / "h200_sweep_wall.jsonl"), str(RESULTS / "h200_sweep.jsonl")
    assert main([wall, device]) == 3
    assert "not comparable: clock differs: host against graph" in capsys.readouterr().out
    assert main([wall, device, "--force"]) == 0
    out = capsys.readouterr().out
    assert "note: 4 cells: clock differs: host against graph; none timed both, so their times are not compared" in out
    assert (
        "eager 8x12x128x128 float16 forward  unclear  " in out
        and "clock: none in common (timed by host and graph)" in out
    )
    assert "12 cells: 0 slower, 0 faster, 12 unclear, 0 same" in out


@pytest.mark.parametrize(("field", "other"), [("cache", "warm"), ("clock", "graph"), ("dtype", "bfloat16")])
def test_another_method_or_dtype_is_refused_and_told(tmp_path, capsys, field, other):  # S26
    cells = [dataclasses.replace(cell, **{field: other}) for cell in many.records(8)]
    sides = [on_disk(tmp_path, "a", many.records(8)), on_disk(tmp_path, "b", cells)]
    assert main(sides) == 3
    out = capsys.readouterr().out
    assert f"not comparable: {field} differs: " in out and other in out and "nothing was compared" in out
    assert main([*sides, "--force"]) == 0
    assert f"note: {field} differs" in capsys.readouterr().out or field != "dtype"


def by_graph(cell: Record, events_ms: float) -> Record:
    """The cell as graph replays give it, 3.5 us below what events read, and their time beside it."""
    ms = events_ms - 0.0035
    figures = {"device_ms": ms, "device_ms_ci_low": 0.999 * ms, "device_ms_ci_high": 1.001 * ms, "graph_ms": ms}
    return dataclasses.replace(cell, clock="graph", events_ms=events_ms, **figures)


def by_events(cell: Record, ms: float) -> Record:
    figures = {"device_ms": ms, "device_ms_ci_low": 0.997 * ms, "device_ms_ci_high": 1.003 * ms, "events_ms": ms}
    return dataclasses.replace(cell, **figures)


def test_two_device_clocks_compare_by_the_one_that_timed_both(tmp_path, capsys):
    base, cells = many.records(8), many.records(8)
    base[4], cells[4] = by_graph(base[4], 0.0203), by_events(cells[4], 0.0204)
    base[5], cells[5] = by_events(base[5], 0.0203), by_graph(cells[5], 0.0223)
    sides = [on_disk(tmp_path, "a", base), on_disk(tmp_path, "b", cells)]
    page, text = tmp_path / "c.html", tmp_path / "c.md"
    assert main([*sides, "--html", str(page), "--markdown", str(text)]) == 1
    out = capsys.readouterr().out
    for clocks in ("graph against events", "events against graph"):
        told = f"1 cells: clock differs: {clocks}; compared by events, which timed both"
        assert f"note: {told}\n" in out and told in page.read_text() and told in text.read_text()
    [line] = [line for line in out.splitlines() if "SLOWER" in line]
    assert (
        line.startswith(f"{cells[5].title}  SLOWER  +9.85 %")
        and "  clock: events (timed by events and graph)  " in line
    )
    assert "8 cells: 1 slower, 0 faster, 1 unclear, 6 same; 1 regression" in out


def test_a_clock_that_is_not_the_records_own_is_not_taken_for_finer_than_it_is():
    base = made_up.passed(0, "eager", 256)
    graph, events = by_graph(base, 0.0203), by_events(base, 0.0203)

    def width(first: Record, second: Record) -> float:
        [outcome] = verdicts(Results("a", [first]), Results("b", [second]))
        assert outcome.clock == "events" and outcome.change_pct == pytest.approx(0)
        return outcome.high_pct - outcome.low_pct

    assert width(graph, events) == width(events, graph) == pytest.approx(width(events, events))


def test_events_are_not_compared_with_graphs_where_neither_timed_both():
    base = made_up.passed(0, "eager", 256, clock="graph", graph_ms=0.01, events_ms=None)
    [made] = pair(Results("a", [base]), Results("b", [made_up.passed(0, "eager", 256, events_ms=0.01)])).pairs
    assert made.refused == ["clock differs: graph against events"]
    forced = pair(Results("a", [made.baseline]), Results("b", [made.candidate]), force=True)
    [outcome] = compare(forced.pairs, Results("a", []), Results("b", []), Question())
    assert (outcome.verdict, outcome.clock, outcome.change_pct) == ("unclear", None, None)


def on_card(results: Results, uuid: str, change: float = 1.0, floor_us: float = 3.0) -> Results:
    """The same on a card, with every time longer by a factor."""
    records = [slowed(results, cell, change).records[cell] for cell in range(len(results.records))]
    about = {"placement": {"gpu_uuid": uuid}}
    floors = [floor_us if r.clock == "events" else 1.0 for r in records]
    records = [dataclasses.replace(r, clock_floor_us=f, **about) for r, f in zip(records, floors, strict=True)]
    return dataclasses.replace(results, records=records)


def test_what_two_cards_differ_by_is_no_difference_of_code_and_more_is():
    first, second, *_ = processes()
    here, there = on_card(first, "one"), on_card(second, "two", 1.025)
    assert {o.verdict for o in verdicts(here, there)} <= {"same", "unclear"}
    same_card = verdicts(here, on_card(second, "one", 1.025))
    assert sum(o.verdict == "slower" for o in same_card) > 20, "so it is the cards that do it"
    found = verdicts(here, on_card(second, "two", 1.05))
    long = {o.candidate.cell: o.verdict for o in found if o.candidate.device_ms > 0.06}
    assert len(long) > 20 and set(long.values()) == {"slower"}


def test_events_that_read_more_around_any_kernel_on_one_card_are_no_slower_kernels():
    first, second, *_ = processes()
    later = [dataclasses.replace(r, device_ms=r.device_ms + 0.0018) for r in second.records if r.clock == "events"]
    there = on_card(dataclasses.replace(second, records=later), "two", floor_us=4.8)
    assert {o.verdict for o in verdicts(on_card(first, "one"), there)} <= {"same", "unclear"}


def test_a_part_of_another_method_is_left_out_and_the_rest_compared(tmp_path, capsys):
    cells = many.records(8)
    cells[0].cache = "warm"
    assert main([on_disk(tmp_path, "a", many.records(8)), on_disk(tmp_path, "b", cells)]) == 3
    out = capsys.readouterr().out
    assert "not comparable: 1 cells: cache differs: cold against warm" in out and "7 cells:" in out


def test_another_gpu_is_refused_and_other_software_is_told(tmp_path, capsys):
    device = made_up.ENVIRONMENT["device"]
    gpu = made_up.ENVIRONMENT | {"device": device | {"name": "NVIDIA H100"}}
    newer = made_up.ENVIRONMENT | {"device": device | {"torch": "2.12.0"}}
    base = on_disk(tmp_path, "base", many.records(8))
    assert main([base, on_disk(tmp_path, "gpu", many.records(8), gpu)]) == 3
    assert "not comparable: name: NVIDIA H200 against NVIDIA H100" in capsys.readouterr().out
    assert main([base, on_disk(tmp_path, "newer", many.records(8), newer)]) == 0
    assert "note: torch: 2.11.0 against 2.12.0" in capsys.readouterr().out


def test_unknown_machines_are_refused_where_their_hashes_differ():
    cells = [dataclasses.replace(cell, environment_hash="b") for cell in many.records(4)]
    found = pair(Results("a", many.records(4)), Results("b", cells))
    assert found.refused == ["the machines differ, or are not known (environments  and b)"]


def test_one_variant_against_another(tmp_path, capsys):
    old = [made_up.passed(0, "a.py:old", 512, device_ms=0.5), made_up.passed(1, "a.py:old", 1024)]
    new = [made_up.passed(0, "a.py:new", 512, device_ms=0.4), made_up.passed(1, "a.py:new", 1024)]
    for cell in (old[0], new[0]):
        cell.device_ms_ci_low, cell.device_ms_ci_high = 0.999 * cell.device_ms, 1.001 * cell.device_ms
    assert main([on_disk(tmp_path, "o", old), on_disk(tmp_path, "n", new)]) == 0
    out = capsys.readouterr().out
    assert "note: variant differs: a.py:old against a.py:new" in out
    assert "a.py:old -> a.py:new 8x12x512x512 float16 forward  faster  -20.00 %" in out


def test_outcomes_that_are_no_latency():
    base, cells = many.records(8), many.records(8)
    cells[0].status, cells[0].message = Status.INCORRECT, "zeros\nin row 1"
    cells[1].status, cells[1].message = Status.UNSUPPORTED, "no"
    base[2].status = Status.CRASHED
    cells[3].error_over_tolerance = 0.9
    base[4].status = cells[4].status = Status.OOM
    first, second = Results("a", base), Results("b", cells)
    found = {o.candidate.cell: o for o in verdicts(first, second)}
    told = {cell: (o.verdict, o.regressions) for cell, o in found.items() if o.verdict != "same" or o.regressions}
    assert told == {
        "0/eager": ("broken", ("INCORRECT where the baseline PASSED: zeros",)),
        "0/torch.compile": ("broken", ("UNSUPPORTED where the baseline PASSED: no",)),
        "0/triton-simple": ("fixed", ()),
        "0/triton": ("same", ("its error grew from 0.43 to 0.9 of the tolerance",)),
        "1/eager": ("not timed", ()),
    }


def test_errors_within_the_order_of_summation_are_no_regression():
    cells = many.records(4)
    cells[0].error_over_tolerance = 0.41
    assert not any(o.regressions for o in verdicts(Results("a", many.records(4)), Results("b", cells)))


def test_a_skipped_variant_is_not_comparable(tmp_path, capsys):
    cells = [dataclasses.replace(c, status=Status.SKIPPED, message="requires a CUDA GPU") for c in many.records(4)]
    assert main([on_disk(tmp_path, "a", many.records(4)), on_disk(tmp_path, "b", cells)]) == 3
    assert "one is SKIPPED (requires a CUDA GPU)" in capsys.readouterr().out


def test_times_that_other_work_disturbed_say_nothing_on_a_cpu():
    cpu = {"e": {"host": {}, "device": {"type": "cpu"}}}
    base = made_up.passed(0, "eager", 512, clock="host", environment_hash="e")
    cell = dataclasses.replace(base, device_ms=10 * (base.device_ms or 0))
    first = Results("a", [base], environments=cpu)
    names = ("device_ms_ci_low", "device_ms_ci_high")
    cell = dataclasses.replace(cell, **{name: 10 * getattr(base, name) for name in names})
    assert [o.verdict for o in verdicts(first, Results("b", [cell], environments=cpu))] == ["slower"]
    noisy = dataclasses.replace(cell, flags=["noisy"])
    assert [o.verdict for o in verdicts(first, Results("b", [noisy], environments=cpu))] == ["unclear"]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.6, 0.7]) == [1.0, 1.0]


def test_the_page_and_the_markdown_escape_names(tmp_path):
    name = "<b>x|y</b>"
    cells = [made_up.passed(0, name, 512), made_up.failed(1, name, 512, Status.ERROR, "<script>")]
    base = [made_up.passed(0, name, 512), made_up.passed(1, name, 512)]
    sides = [on_disk(tmp_path, "a", base), on_disk(tmp_path, "b", cells)]
    page, text = tmp_path / "c.html", tmp_path / "c.md"
    assert main([*sides, "--html", str(page), "--markdown", str(text)]) == 1
    assert "<b>" not in page.read_text() and page.read_text().count("<script>") == 1
    assert "<b>" not in text.read_text() and "&lt;b&gt;x\\|y&lt;/b&gt;" in text.read_text()
    assert "broken" in page.read_text().lower() and "ERROR where the baseline PASSED" in text.read_text()


@pytest.mark.parametrize(("text", "value"), [("3%", 3.0), (" 2.5 % ", 2.5), ("0", 0.0)])
def test_percentages(text, value):
    assert percent(text) == value


@pytest.mark.parametrize("arguments", [["--fail-slower", "fast"], ["--margin", "-1%"], ["--confidence", "95"]])
def test_bad_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["a", "b", *arguments])
    assert stopped.value.code == 2 and capsys.readouterr().err


def test_a_name_that_leads_nowhere_is_told(tmp_path, capsys):
    assert main(["nowhere", "there", "--outputs", str(tmp_path)]) == 2
    assert "nowhere is neither a sweep's folder nor the id of one" in capsys.readouterr().err


def test_the_time_grows_with_the_records_and_not_with_their_square(tmp_path):
    """10,000 take 3 s of a core, 8 s of a slow one; that is 2.6 times what 2,500 take."""
    code = (
        "import sys, resource; from softmax_exp.compare import main; status = main(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime); sys.exit(status)"
    )
    seconds = []
    for n_records in (2_500, 10_000):
        sides = []
        for name, factor in (("a", 1.0), ("b", 1.001)):
            sides.append(str(many.sweep(tmp_path / str(n_records), many.records(n_records, name, factor)).folder))
        done = subprocess.run([sys.executable, "-c", code, *sides], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"{n_records * 99 // 100} same, {n_records // 100} not timed" in done.stdout
        seconds.append(float(done.stdout.split()[-1]))
    assert seconds[1] < 4 * seconds[0]  # squared: 16 times
