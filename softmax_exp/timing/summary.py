"""From raw samples to the latency fields of a record.

In: a `Measurement`, the name of an entry, the baseline's name, the least bytes of the case.  Out: a dict of fields of
`records.Record`, unrounded, with the flags that the figures themselves give reason for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softmax_exp.config import MeasureSettings
from softmax_exp.timing.samples import LIMIT_PREFIX, Measurement
from softmax_exp.timing.statistics import median_interval, quantiles, ratio_interval, verdict

NOISY_PCT = 5.0  # interquartile range of device samples, as a percentage of the median
HOST_NOISY_PCT = 25.0  # the same of host samples
CLOCKS_AGREE_PCT = 5.0  # of the graph's time; seen on an H200: 0.5 us or 6 % once each clock's floor is taken off
BEYOND_CACHE = 4  # times the L2: traffic that cannot hide in it


def summarise_wall(times_ms: np.ndarray) -> dict[str, Any]:
    """The fields of a `wall` measurement: the host clock alone, as the first version gave it."""
    return _host_fields(quantiles(times_ms)) | {"clock": "host", "cache": "warm", "n_samples": int(times_ms.size)}


def summarise(
    measurement: Measurement, name: str, *, baseline: str | None, least_bytes: int, settings: MeasureSettings
) -> dict[str, Any]:
    """The latency fields of one entry. `baseline` may be absent from the measurement: then there is no speed-up.

    The limit and the baseline are compared by one clock, round by round.
    """
    samples, used = measurement.samples[name], measurement.used
    clock = measurement.clock_of(name)
    device = samples.device_ms(clock)
    assert device is not None and samples.host_result_ms is not None and samples.host_return_ms is not None
    device = device[used]
    level, seed = settings.confidence, settings.order_seed
    median, low, high = median_interval(device, level, seed)
    spread, host = quantiles(device), quantiles(samples.host_result_ms[used])
    fields = _host_fields(host) | {
        "host_return_us": 1e3 * float(np.median(samples.host_return_ms[used])),
        "device_ms": median,
        "device_ms_ci_low": low,
        "device_ms_ci_high": high,
        "device_ms_std": spread["std"],
        **{f"device_ms_{q}": spread[q] for q in ("p05", "p25", "p75", "p95")},
        "n_samples": int(device.size),
        "clock": clock,
        "cache": measurement.cache,
        "clock_floor_us": measurement.clock_floor_us.get(clock),
        **{kind: _median(getattr(samples, kind), used) for kind in ("events_ms", "graph_ms", "warm_ms")},
        "stop_reason": measurement.stop_reason,
        "least_bytes": least_bytes,
        "gbps": least_bytes / median / 1e6,
        "machine": measurement.machine,
    }
    fields |= _against_limit(measurement, name, least_bytes, level, seed)
    fields |= _against_baseline(measurement, name, baseline, settings)
    flags = [*measurement.flags.get(name, []), *_flags(measurement, fields, spread, host, settings.margin_pct)]
    return fields | {"flags": list(dict.fromkeys(flags))}


def _median(values: np.ndarray | None, used: np.ndarray) -> float | None:
    return None if values is None else float(np.median(values[used]))


def _host_fields(host: dict[str, float]) -> dict[str, Any]:
    return {f"{name}_latency_ms": host[name] for name in ("mean", "std", "median", "p05", "p95")}


def _against_limit(measurement: Measurement, name: str, least_bytes: int, level: float, seed: int) -> dict[str, Any]:
    clock = measurement.clock_of(name)
    copies = {
        limit: values
        for limit in measurement.samples
        if limit.startswith(LIMIT_PREFIX) and (values := measurement.device_ms(limit, clock)) is not None
    }
    if not copies:
        return {}
    best = min(copies, key=lambda limit: float(np.median(copies[limit])))
    own = measurement.device_ms(name, clock)
    assert own is not None
    ratio, low, high = ratio_interval(copies[best], own, level, seed)
    limit_ms = float(np.median(copies[best]))
    return {
        "limit_ms": limit_ms,
        "limit_gbps": least_bytes / limit_ms / 1e6,
        "limit_kernel": best.removeprefix(LIMIT_PREFIX),
        "pct_of_limit": 100 * ratio,
        "pct_of_limit_ci_low": 100 * low,
        "pct_of_limit_ci_high": 100 * high,
    }


def _against_baseline(
    measurement: Measurement, name: str, baseline: str | None, settings: MeasureSettings
) -> dict[str, Any]:
    if baseline is None or baseline not in measurement.samples:
        return {}
    if baseline == name:
        return {"baseline": baseline, "speedup": 1.0, "speedup_ci_low": 1.0, "speedup_ci_high": 1.0}
    clocks = {measurement.clock_of(name), measurement.clock_of(baseline)}
    clock = clocks.pop() if len(clocks) == 1 else "events"
    theirs, own = measurement.device_ms(baseline, clock), measurement.device_ms(name, clock)
    assert theirs is not None and own is not None
    ratio, low, high = ratio_interval(theirs, own, settings.confidence, settings.order_seed)
    return {
        "baseline": baseline,
        "speedup": ratio,
        "speedup_ci_low": low,
        "speedup_ci_high": high,
        "verdict": verdict(low, high, settings.margin_pct),
    }


def _flags(
    measurement: Measurement,
    fields: dict[str, Any],
    spread: dict[str, float],
    host: dict[str, float],
    margin_pct: float,
) -> list[str]:
    """Flags that the figures give reason for; `spread` and `host` are the quantiles of device and host times."""
    flags = []
    if 100 * (spread["p75"] - spread["p25"]) > NOISY_PCT * spread["median"]:
        flags.append("noisy")
    if 100 * (host["p75"] - host["p25"]) > HOST_NOISY_PCT * host["median"]:
        flags.append("host_noisy")
    if fields["clock"] != "host" and fields["host_return_us"] > 1e3 * fields["device_ms"]:
        flags.append("host_bound")
    if fields.get("pct_of_limit_ci_low", 0.0) > 100 + margin_pct:
        flags.append("faster_than_limit")
    rate, cache = measurement.machine.get("memory_rate_gbps"), measurement.machine.get("l2_bytes")
    if rate and cache and fields["least_bytes"] > BEYOND_CACHE * cache and fields["gbps"] > rate:
        flags.append("beyond_memory_rate")
    events, graph = fields["events_ms"], fields["graph_ms"]
    if events is not None and graph is not None:
        floors = {clock: measurement.clock_floor_us.get(clock, 0.0) / 1e3 for clock in ("events", "graph")}
        apart = abs((events - floors["events"]) - (graph - floors["graph"]))
        if apart > floors["events"] + CLOCKS_AGREE_PCT / 100 * graph:  # the floor: gaps between kernels of one call
            flags.append("clocks_disagree")
    return flags
