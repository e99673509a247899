"""The verdicts in words."""

import dataclasses

from softmax_exp.ranking import fastest
from softmax_exp.records import Status
from softmax_exp.report.words import latency, scores, summary, verdict
from softmax_exp.results import Results
from tests import made_up


def case(*cells):
    return [made_up.passed(0, *cell) if isinstance(cell, tuple) else cell for cell in cells]


def test_the_fastest_is_told_with_interval_speedup_and_limit():
    cells = case(("eager", 2048), ("triton", 2048))
    assert verdict(cells) == (
        "triton is fastest: 0.4362 ms (0.4349 to 0.4375), 1.54x as fast as eager (1.52 to 1.55), 98.5 % of the limit."
    )


def test_what_overlaps_is_level_and_no_winner_of_the_other_clock():
    cells = case(("torch.compile", 2048), ("triton", 2048))
    cells[0] = dataclasses.replace(cells[0], device_ms=0.4363, device_ms_ci_low=0.435, median_latency_ms=0.1)
    assert [record.variant for record in fastest(cells)] == ["triton", "torch.compile"]
    assert "Level with it: torch.compile." in verdict(cells)
    assert "launch cost" not in verdict(cells)


def test_where_the_clocks_disagree_both_are_told():
    text = verdict(case(("eager", 128), ("triton", 128)))
    assert "triton is fastest" in text
    assert "eager comes first (13.02 us against 14.50 us): the host's launch cost decides." in text


def test_a_difference_within_the_hosts_unrest_is_no_disagreement():
    cells = case(("eager", 128), ("triton", 128))
    cells[0].median_latency_ms = 0.95 * (cells[1].median_latency_ms or 0)
    assert "launch cost" not in verdict(cells)


def test_failures_and_doubts_are_told():
    bad = made_up.failed(0, "triton", 128, Status.INCORRECT, "zeros")
    cells = case(("eager", 128), bad)
    cells[0].flags = ["noisy", "host_bound"]
    assert verdict(cells).endswith("Not timed: triton INCORRECT. With care: noisy.")
    assert verdict([bad]) == "Nothing was timed: triton INCORRECT."


def test_latencies_of_another_clock_are_not_ranked():
    cells = case(("eager", 128), ("triton", 128))
    odd = dataclasses.replace(cells[0], variant="odd", clock="host", device_ms=1e-9)
    assert fastest([*cells, odd])[0].variant == "triton"


def test_a_sweep_is_summed_up():
    results = Results("s", made_up.records())
    assert summary(results) == "Fastest: triton in 3 of 3 cases that were timed. 2 of 12 cells failed."
    best = scores(results)[0]
    assert (best.variant, best.n_fastest, best.n_passed, best.n_cases) == ("triton", 3, 3, 3)
    assert round(best.geometric_speedup or 0, 3) == round(1 / 0.65, 3)


def test_missing_cells_are_told():
    cells = made_up.records()
    manifest = {"jobs": [{"job": 0, "variants": ["eager", "gone"]}]}
    assert summary(Results("s", cells, manifest)).endswith("1 cell of the sweep missing.")


def test_latencies_have_their_unit():
    assert [latency(ms) for ms in (0.0051, 0.0999, 0.1, 12.5, None)] == [
        "5.100 us",
        "99.90 us",
        "0.1000 ms",
        "12.50 ms",
        "",
    ]
