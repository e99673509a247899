import io

import pytest
from rich.console import Console

from softmax_exp import table
from softmax_exp.records import Status
from softmax_exp.table import failures_in_words, markdown, print_table, ranking_in_words
from tests.made_up import failed, passed, records


def printed(cells, width=120, terminal=False):
    out = io.StringIO()
    print_table(cells, Console(file=out, width=width, force_terminal=terminal, _environ={"TERM": "xterm-256color"}))
    return out.getvalue()


def test_every_figure_of_a_cell_stands_in_its_row():
    row = next(line for line in printed(records()).splitlines() if line.startswith("  triton "))
    assert row.split() == ["triton", "0.001704", "±0.3%", "0.01450", "1.54x", "±1.0%", "98.5", "2.4e-05", "PASSED"]


def test_rows_are_grouped_under_their_case_with_its_limit():
    lines = printed(records()).splitlines()
    titles = [i for i, line in enumerate(lines) if line.startswith("8x12x")]
    assert [lines[i].split(",")[0] for i in titles] == [f"8x12x{n}x{n} float16 forward" for n in (128, 512, 2048)]
    assert "limit 0.02684 ms (3750 GB/s)" in lines[titles[1]]
    assert [line.split()[0] for line in lines[titles[1] + 1 : titles[1] + 5]] == [
        "eager", "torch.compile", "triton-simple", "triton",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_columns_fit_a_terminal_and_stay_aligned(width):
    cells = [
        *records(),
        passed(2, "torch.compile-max-autotune", 2048),
        passed(2, "path/to/a/long/file.py:softmax", 2048),
    ]
    lines = printed(cells, width, terminal=True).splitlines()
    assert max(len(line) for line in map(plain, lines)) <= width
    ends = {plain(line).index("PASSED") for line in lines if "PASSED" in line}
    assert len(ends) == 1


def test_intervals_of_speedups_give_way_before_names():
    wide, narrow = (printed([passed(0, "torch.compile-max-autotune", 512)], width) for width in (120, 80))
    assert "±1.0%" in wide and "±1.0%" not in narrow
    assert "torch.compile-max-autotune" in wide


def plain(line):
    while "\x1b[" in line:
        start = line.index("\x1b[")
        line = line[:start] + line[line.index("m", start) + 1 :]
    return line


def test_no_colours_where_it_is_no_terminal():
    assert "\x1b" not in printed(records())
    assert "\x1b" in printed(records(), terminal=True)


def test_a_disagreement_of_the_clocks_is_said():
    cells = [passed(0, variant, 128) for variant in ("eager", "triton")]
    assert ranking_in_words(cells) == (
        "the clocks disagree: fastest by the device clock triton, by the host clock eager"
    )
    cells[1].median_latency_ms = 0.001
    assert ranking_in_words(cells) == (
        "fastest by the device clock, and by the host's none is clearly before it: triton"
    )


def test_variants_within_each_others_intervals_are_called_level():
    first, second = passed(0, "triton", 128), passed(0, "torch.compile", 128)
    second.device_ms_ci_low = first.device_ms
    assert "triton (level with it: torch.compile)" in ranking_in_words([second, first])


def test_a_failed_variant_takes_no_part_in_the_ranking():
    fast = passed(0, "triton", 128, status=Status.INCORRECT)
    assert "triton" not in ranking_in_words([fast, passed(0, "eager", 128), passed(0, "torch.compile", 128)])


def test_without_a_device_clock_the_host_clock_ranks_alone():
    cells = [passed(0, variant, 128, device_ms=None) for variant in ("eager", "torch.compile")]
    assert ranking_in_words(cells) == "fastest by the host clock: eager"


def test_on_a_cpu_one_clock_is_not_called_two():
    cells = [passed(0, variant, 128, clock="host") for variant in ("eager", "triton")]
    assert ranking_in_words(cells) == "fastest by the host clock: triton"


def test_failures_are_told_once_with_their_reason():
    cells = [failed(job, "triton", 128, Status.SKIPPED, "requires a CUDA GPU") for job in range(3)]
    cells += [failed(3, "eager", 64, Status.CRASHED, "")]
    assert failures_in_words(cells) == [
        "SKIPPED triton, 3 cases: requires a CUDA GPU",
        "CRASHED eager, 8x12x64x64 float16 forward: no reason was given",
    ]


def test_flags_are_named_with_their_variants():
    assert "noisy: eager\n" in printed(records())


def test_an_error_that_is_no_number_is_not_blank():
    row = printed([failed(0, "triton", 128, Status.INCORRECT, "NaN", max_abs_error=None)]).splitlines()
    assert "no number" in next(line for line in row if "INCORRECT" in line)


def test_markdown_has_a_row_for_each_cell_and_escapes_names():
    text = markdown([*records(), failed(3, "<b>x|y", 8, Status.ERROR, "<script>\nline two")])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 13
    assert "&lt;b>x\\|y" in text and "<script>" not in text and "<b>" not in text


def test_markdown_that_is_cut_says_so():
    cells = [passed(job, variant, 128) for job in range(200) for variant in ("eager", "triton")]
    text = markdown(cells, 7900)
    assert len(text) <= 7900
    shown = text.count("| eager |")
    assert f"{shown} of 200 cases; all of them are in records.jsonl." in text and shown > 10


def test_an_empty_sweep_prints_headings_alone():
    assert "variant" in printed([])
    assert markdown([]).startswith("| case | variant |")


def test_of_a_large_sweep_the_first_cases_and_every_failure_are_shown(monkeypatch):
    monkeypatch.setattr(table, "MOST_CASES", 3)
    cells = [passed(job, "eager", 64 + job) for job in range(9)] + [failed(9, "eager", 99, Status.OOM, "too large")]
    text = printed(cells)
    assert [line for line in text.splitlines() if line.startswith("8x12x")] == [
        line for line in printed(cells[:3]).splitlines() if line.startswith("8x12x")
    ]
    assert "7 cases more; all 10 are in the report" in text and "too large" in text
