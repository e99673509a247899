"""The page about scaling holds what its simulation prints, and the simulation knows what it should."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts import simulate_cluster
from scripts.simulate_cluster import Costs, Design, simulate

FREE = Costs(**{field.name: 0.0 for field in dataclasses.fields(Costs)} | {"case_s": 6.0})


def test_the_page_holds_the_table_that_the_script_prints() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()
    assert simulate_cluster.table() in page


def test_without_any_cost_all_gpus_measure_all_the_time() -> None:
    found = simulate(Design("", 1, 1, 1), FREE, n_cases=1000, n_gpus=10)
    assert found.running == pytest.approx(1000 * 6 / 10 / 3600) and found.pct_measuring == pytest.approx(100)


def test_a_store_that_takes_one_at_a_time_bounds_the_sweep() -> None:
    slow = dataclasses.replace(FREE, store_s=1.0)
    one, many = (simulate(Design("", 1, 1, cores), slow, n_cases=1000, n_gpus=100) for cores in (1, 1000))
    assert one.running * 3600 == pytest.approx(4 * 1000 + 6, rel=0.01) and one.pct_store_busy > 99
    assert many.running * 3600 == pytest.approx(1000 / 100 * (6 + 4))


def test_chunks_pay_for_a_start_once() -> None:
    starts = dataclasses.replace(FREE, start_s=20.0)
    for chunk, processes in ((1, 1000), (10, 100)):
        found = simulate(Design("", chunk, 1, 1), starts, n_cases=1000, n_gpus=10)
        assert found.processes == processes
        assert found.running * 3600 == pytest.approx(100 * (6 + 20 / chunk))
    kept = simulate(Design("", 10, 1, 1, keeps_processes=True), starts, n_cases=1000, n_gpus=10)
    assert kept.processes == 10
