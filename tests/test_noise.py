"""The noise between processes that comparisons use is what the committed study found."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from softmax_exp import noise
from tests import made_up

STUDY = Path(__file__).parents[1] / "docs/results/noise.jsonl"


@pytest.mark.parametrize(("low", "band"), [*zip((0.0, 0.02, 0.06), noise.DEVICE_SD_PCT, strict=True)])
def test_the_device_clocks_noise_is_what_the_study_found(low, band):
    cells: dict[tuple, list[float]] = {}
    for line in map(json.loads, STUDY.read_text().splitlines()[1:]):
        cells.setdefault((line["size"], line["dtype"], line["variant"]), []).append(line["device_ms"])
    assert len(cells) == 54 and all(len(values) == 6 for values in cells.values())
    below, used = band
    found = [100 * np.std(np.log(ms), ddof=1) for ms in cells.values() if low <= np.median(ms) < below]
    assert len(found) >= 9
    assert np.sqrt(np.mean(np.square(found))) <= used + 0.005 and used <= max(found) + 0.005


def test_two_cards_noise_by_hand():
    one, other = (made_up.passed(0, "eager", 256, clock="events", clock_floor_us=floor) for floor in (3.0, 4.0))
    assert noise.card_sd(one, one, "events", 0.1) == pytest.approx(2**0.5 * 0.005)
    assert noise.card_sd(one, other, "events", 0.1) == pytest.approx((2 * 0.005**2 + 0.01**2) ** 0.5)
    assert noise.card_sd(one, one, "events", 0.004) == pytest.approx(2**0.5 * 0.05)
    graph = dataclasses.replace(other, clock="graph", clock_floor_us=1.0)  # its floor by events is not known
    assert noise.card_sd(one, graph, "events", 0.1) == pytest.approx((2 * 0.005**2 + 0.018**2) ** 0.5)
    assert noise.card_sd(one, other, "host", 0.1) == 0
