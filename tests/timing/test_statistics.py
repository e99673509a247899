import numpy as np
import pytest

from softmax_exp.timing.statistics import (
    half_width_pct,
    median_interval,
    quantiles,
    ratio_interval,
    verdict,
)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        samples = random.lognormal(0.0, 0.1, size=41)  # true median 1
        _, low, high = median_interval(samples, 0.95)
        covered += low <= 1.0 <= high
    assert 0.91 <= covered / 400 <= 0.985


def test_it_is_what_resampling_the_values_themselves_gives() -> None:
    samples = np.random.default_rng(2).normal(10, 1, size=30)
    resamples = np.random.default_rng(3).choice(samples, size=(20_000, 30))
    expected = np.quantile(np.median(resamples, axis=1), [0.05, 0.95])
    _, *interval = median_interval(samples, 0.90)
    assert interval == pytest.approx(expected, abs=0.08)


def test_a_seed_gives_the_same_interval_again_and_more_confidence_a_wider_one() -> None:
    samples = np.random.default_rng(4).normal(10, 1, size=50)
    assert median_interval(samples, 0.95, seed=7) == median_interval(samples, 0.95, seed=7)
    _, low, high = median_interval(samples, 0.95)
    _, lower, higher = median_interval(samples, 0.99)
    assert lower < low < high < higher


def test_pairing_cancels_drift_that_both_share() -> None:
    drift = np.linspace(1.0, 2.0, 60)  # clocks that fall to half
    noise = np.random.default_rng(5).normal(1.0, 0.002, size=(2, 60))
    ratio = ratio_interval(1.10 * drift * noise[0], drift * noise[1], 0.95)
    assert ratio[0] == pytest.approx(1.10, rel=0.002)
    assert half_width_pct(ratio) < 0.2
    assert half_width_pct(median_interval(drift, 0.95)) > 5


def test_one_sample_is_its_own_interval_and_none_is_an_error() -> None:
    assert median_interval(np.array([3.0]), 0.95) == (3.0, 3.0, 3.0)
    assert quantiles(np.array([3.0]))["std"] == 0.0
    with pytest.raises(ValueError, match="at least one"):
        median_interval(np.array([]), 0.95)
    with pytest.raises(ValueError, match="one length"):
        ratio_interval(np.ones(3), np.ones(4), 0.95)


def test_an_outlier_stays_in_the_samples() -> None:
    samples = np.array([1.0] * 99 + [1000.0])
    assert quantiles(samples)["mean"] == pytest.approx(10.99)
    assert median_interval(samples, 0.95)[0] == 1.0


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.995, 1.005, "same"),
        (1.0001, 1.009, "same"),  # a difference, but a smaller one than anyone asked about
        (1.02, 1.03, "faster"),
        (0.97, 0.98, "slower"),
        (0.98, 1.02, "unclear"),
        (1.005, 1.03, "unclear"),
        (0.9901, 1.01, "same"),  # 1 / 1.01 = 0.990099
        (0.9899, 1.0, "unclear"),
    ],
)
def test_verdicts(low: float, high: float, said: str) -> None:
    assert verdict(low, high, margin_pct=1.0) == said


def test_equal_variants_are_not_called_different_and_two_per_cent_is_seen() -> None:
    random, said = np.random.default_rng(6), []
    for _ in range(100):
        a, b = random.normal(100, 0.5, size=(2, 40))
        said.append(
            (verdict(*ratio_interval(a, b, 0.99)[1:], 1.0), verdict(*ratio_interval(a, 1.02 * b, 0.99)[1:], 1.0))
        )
    assert [pair[0] for pair in said].count("same") >= 95
    assert [pair[1] for pair in said].count("slower") >= 90
