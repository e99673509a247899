from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from softmax_exp.config import MeasureSettings
from softmax_exp.timing.machine import Monitor
from softmax_exp.timing.rounds import Rounds, run, settled_within, warm_up
from softmax_exp.timing.samples import Timed
from tests.timing.fakes import FakeClock, FakeNvml, FakeTime

NAMES = ["eager", "triton", "limit/copy"]
ENTRIES = [Timed(name, lambda index: None) for name in NAMES]
SETTINGS = MeasureSettings(budget_s=1.0, min_rounds=20, max_rounds=400)


def measured(
    times=lambda name, n: 1.0,
    settings: MeasureSettings = SETTINGS,
    reasons=lambda time: 0,
    round_s: float = 0.01,
) -> tuple[Rounds, FakeClock, FakeTime]:
    time = FakeTime()
    clock = FakeClock(time, times, round_s)
    monitor = Monitor("1234", FakeNvml(reasons=lambda: reasons(time)), now=time.now)
    test = settled_within("events_ms", NAMES, settings)
    return run(clock, ENTRIES, settings, monitor, test, now=time.now, pause=time.pause), clock, time


def test_steady_times_stop_at_the_target_after_the_least_rounds() -> None:
    rounds, _, _ = measured()
    assert rounds.stop_reason == "target" and len(rounds.readings) == 20


def test_noisy_times_go_on_to_the_end_of_the_budget() -> None:
    random = np.random.default_rng(0)
    rounds, _, time = measured(lambda name, n: random.lognormal(0, 0.5))
    assert rounds.stop_reason == "budget"
    assert time.now_s == pytest.approx(1.0, abs=0.02)


def test_one_noisy_entry_is_enough_to_go_on() -> None:
    random = np.random.default_rng(0)
    rounds, _, _ = measured(lambda name, n: random.lognormal(0, 0.5) if name == "triton" else 1.0)
    assert rounds.stop_reason == "budget"


def test_the_least_rounds_are_measured_beyond_the_budget_and_the_most_end_it() -> None:
    rounds, _, time = measured(round_s=0.2)
    assert len(rounds.readings) == 20 and time.now_s > SETTINGS.budget_s
    random = np.random.default_rng(0)
    rounds, _, _ = measured(lambda name, n: random.lognormal(0, 0.5), replace(SETTINGS, max_rounds=30))
    assert rounds.stop_reason == "max_rounds" and len(rounds.readings) == 30


def test_every_round_holds_every_entry_once_in_an_order_that_the_seed_gives() -> None:
    _, clock, _ = measured()
    assert all(sorted(order) == sorted(NAMES) for order in clock.orders)
    first = Counter(order[0] for order in clock.orders)
    assert len(first) == 3, "no entry always comes first"
    _, again, _ = measured()
    assert clock.orders == again.orders
    _, other, _ = measured(settings=replace(SETTINGS, order_seed=1))
    assert clock.orders != other.orders


def test_throttled_rounds_are_measured_again_and_kept_beside_the_good_ones() -> None:
    readings = iter([0x4] * 3 + [0] * 1000)  # power capped at first
    rounds, _, time = measured(
        lambda name, n: 2.0 if n <= 3 else 1.0, reasons=lambda time: next(readings), round_s=0.03
    )
    assert rounds.throttled[:3] == [True] * 3 and not any(rounds.throttled[3:])
    assert not rounds.gave_up and rounds.used.sum() == 20 and len(rounds.readings) == 23
    column = rounds.column("eager", "events_ms")
    assert column is not None and np.all(column[rounds.used] == 1.0) and np.all(column[:3] == 2.0)
    assert time.pauses == 3


def test_a_gpu_that_stays_throttled_is_measured_all_the_same() -> None:
    rounds, _, time = measured(reasons=lambda time: 0x20, round_s=0.03)
    assert rounds.gave_up and rounds.used.all() and len(rounds.readings) == 20
    assert time.pauses == SETTINGS.throttle_retries


def test_a_reading_speaks_for_the_rounds_since_the_one_before() -> None:
    readings = iter([0, 0x8] + [0] * 1000)  # one reading each 20 ms, rounds of 5 ms
    rounds, _, _ = measured(reasons=lambda time: next(readings), round_s=0.005)
    assert rounds.throttled[:6] == [False, True, True, True, True, False]


def test_progress_rises_and_is_told_now_and_then() -> None:
    time, told, random = FakeTime(), [], np.random.default_rng(0)
    clock = FakeClock(time, lambda name, n: random.lognormal(0, 0.5))
    test = settled_within("events_ms", NAMES, SETTINGS)
    run(clock, ENTRIES, SETTINGS, Monitor(None), test, told.append, time.now, time.pause)
    assert told == sorted(told) and 5 <= len(told) <= 11 and 0 < told[0] < told[-1] <= 1


def test_a_clock_that_was_not_used_has_no_column() -> None:
    rounds, _, _ = measured()
    assert rounds.column("eager", "graph_ms") is None and rounds.column("absent", "events_ms") is None


def test_warming_up_ends_once_the_times_are_flat() -> None:
    time = FakeTime()
    clock = FakeClock(time, lambda name, n: 1.0 + 2.0 * 0.5**n)
    expected = warm_up(clock, ENTRIES, "events_ms", limit_s=60.0)
    assert 8 <= len(clock.orders) <= 20
    assert expected["eager"] == pytest.approx(1.0, abs=0.02)
