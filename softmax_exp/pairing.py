"""Which cells of two sweeps belong together, and whether they may be compared.

In: `Results` of a baseline and a candidate.  Out: pairs with the reasons against comparing them, what only one side
has, and what differs without standing in the way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from softmax_exp.ranking import host_ms
from softmax_exp.records import Record, Status
from softmax_exp.results import Results

_DEVICE_CLOCKS = ("events", "graph")
_SAME_CASE = ("shape", "dtype", "mode", "mask", "scale", "distribution", "layout", "seed", "variant", "variant_args")
_OF_NO_WEIGHT = ("seed", "variant", "variant_args")  # of these one value a side may differ: that is what is compared
# What makes two machines different ones, and what only has to be told.
_MACHINE = (
    "type",
    "name",
    "mig",
    "sm_count",
    "memory_bytes",
    "power_limit_w",
    "sm_clock_max_mhz",
    "memory_clock_max_mhz",
)
_SOFTWARE = ("torch", "cuda", "triton", "ptxas", "driver", "threads", "uuid")
_HOST = ("cpu", "cpu_count", "python", "hostname")


@dataclass(frozen=True)
class Pair:
    """A cell of each side; `refused` says why they must not be compared, empty where they may."""

    baseline: Record
    candidate: Record
    refused: list[str] = field(default_factory=list)


@dataclass
class Pairing:
    """Everything that came of pairing two sweeps."""

    pairs: list[Pair]
    only_baseline: list[Record]
    only_candidate: list[Record]
    refused: list[str]
    """Why the two as a whole are not comparable."""
    told: list[str]
    """What differs without standing in the way."""


def pair(baseline: Results, candidate: Results, force: bool = False) -> Pairing:
    """Pair the cells of two sweeps by case, variant and its arguments. `force` compares what is refused otherwise."""
    refused: list[str] = []
    told: list[str] = []
    apart = _apart(baseline.records, candidate.records)
    harmless = {name for name in apart if name in _OF_NO_WEIGHT}
    for name in _SAME_CASE:
        if name in apart:
            text = f"{name} differs: {apart[name][0]} against {apart[name][1]}"
            (told if name in harmless else refused).append(text)
    left_out = set(apart) if force else harmless
    fields = [name for name in _SAME_CASE if name not in left_out]
    pairs, only_baseline, only_candidate = _match(baseline.records, candidate.records, fields)
    between = _between_machines(baseline, candidate, pairs)
    told += dict.fromkeys(text for _, other in between.values() for text in other)
    other_machines = dict.fromkeys(text for machine, _ in between.values() for text in machine)
    made = [
        Pair(a, b, [] if force else [*between[a.environment_hash, b.environment_hash][0], *_between_cells(a, b)])
        for a, b in pairs
    ]
    told += _clocks_apart(made)
    if not made:
        refused.append("no cell of one is in the other")
    elif not force and all(p.refused for p in made):
        refused += dict.fromkeys(reason for p in made for reason in p.refused)
    if any(a.input_checksum and b.input_checksum and a.input_checksum != b.input_checksum for a, b in pairs):
        told.append("inputs differ (checksums), so errors are of different numbers")
    if force:
        told += [*other_machines, *refused] if made else []
        refused = [] if made else refused
    return Pairing(made, only_baseline, only_candidate, refused, told)


def environment_differences(one: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What differs between two environments: of the machine, and of software and host. Unknown facts do not differ."""

    def differ(part: str, names: tuple[str, ...]) -> Iterator[str]:
        a, b = one.get(part) or {}, other.get(part) or {}
        for name in names:
            if name in a and name in b and a[name] != b[name]:
                yield f"{name}: {a[name]} against {b[name]}"

    machine = list(differ("device", _MACHINE))
    told = [*differ("device", _SOFTWARE), *differ("host", _HOST)]
    commits = [((env.get("host") or {}).get("git") or {}).get("package") or {} for env in (one, other)]
    if commits[0].get("commit") != commits[1].get("commit"):
        told.append(
            "commit of softmax_exp: " + " against ".join(str(c.get("commit") or "not known")[:12] for c in commits)
        )
    for side, commit in zip(("first", "second"), commits, strict=True):
        if commit.get("dirty"):
            told.append(f"the {side} ran with changes that were not committed")
    return machine, told


def latency_of(record: Record, clock: str | None = None) -> float | None:
    """The latency by a clock in ms; None where that did not time it.

    By the record's own clock, or if `clock` is None: the device's, or the host's where only that was measured.
    """
    if clock not in (None, record.clock):
        return {"events": record.events_ms, "graph": record.graph_ms}.get(str(clock))
    return record.device_ms if record.device_ms is not None else host_ms(record)


def common_clock(a: Record, b: Record) -> str | None:
    """The clock by which two records compare: their own, or where these differ, a device clock that timed both.

    None where there is none: the figures of two clocks are never compared.
    """
    if a.clock == b.clock:
        return a.clock
    if not {a.clock, b.clock} <= {*_DEVICE_CLOCKS}:
        return None
    return next((clock for clock in _DEVICE_CLOCKS if latency_of(a, clock) and latency_of(b, clock)), None)


def _between_machines(
    baseline: Results, candidate: Results, pairs: list[tuple[Record, Record]]
) -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """By the environment hashes of pairs: what forbids to compare them, and what only has to be told."""
    found: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for first, second in dict.fromkeys((a.environment_hash, b.environment_hash) for a, b in pairs):
        if first in baseline.environments and second in candidate.environments:
            found[first, second] = environment_differences(baseline.environments[first], candidate.environments[second])
        else:
            reason = f"the machines differ, or are not known (environments {first} and {second})"
            found[first, second] = ([reason] if first != second else [], [])
    return found


def _between_cells(a: Record, b: Record) -> Iterator[str]:
    if Status.SKIPPED in (a.status, b.status) and a.status != b.status:
        side = a if a.status is Status.SKIPPED else b
        yield f"one is SKIPPED ({side.message})"
    if a.status is not Status.PASSED or b.status is not Status.PASSED:
        return
    if a.clock != b.clock and common_clock(a, b) is None:
        yield f"clock differs: {a.clock} against {b.clock}"
    if a.cache != b.cache:
        yield f"cache differs: {a.cache} against {b.cache}"
    if (a.device_ms is None) != (b.device_ms is None):
        yield "one has the device's time, the other the host's alone"


def _clocks_apart(pairs: list[Pair]) -> list[str]:
    """What is to be told of pairs that were timed by two clocks, and are not refused for it."""
    sides = [(p.baseline, p.candidate) for p in pairs if not p.refused]
    timed = [(a, b) for a, b in sides if a.status is b.status is Status.PASSED and a.clock != b.clock]
    counts = Counter((f"{a.clock} against {b.clock}", common_clock(a, b)) for a, b in timed)
    return [
        f"{count} cells: clock differs: {clocks}; "
        + (f"compared by {common}, which timed both" if common else "none timed both, so their times are not compared")
        for (clocks, common), count in counts.items()
    ]


def _apart(first: list[Record], second: list[Record]) -> dict[str, tuple[str, str]]:
    """The fields in which no value of one side is in the other; of no weight only where each side has one value."""
    found = {}
    for name in _SAME_CASE:
        values = [{str(getattr(record, name)) for record in side} for side in (first, second)]
        if values[0] and values[1] and not values[0] & values[1]:
            if name in _OF_NO_WEIGHT and max(map(len, values)) > 1:
                continue
            found[name] = tuple(", ".join(sorted(side)[:4]) + (", ..." if len(side) > 4 else "") for side in values)
    return found


def _match(
    first: list[Record], second: list[Record], fields: list[str]
) -> tuple[list[tuple[Record, Record]], list[Record], list[Record]]:
    """Pairs of equal fields. Where a case comes more than once, those most alike in clock, cache and machine pair."""
    waiting: dict[str, list[Record]] = defaultdict(list)
    for record in first:
        waiting[_key(record, fields)].append(record)
    pairs, only_second = [], []
    for record in second:
        candidates = waiting[_key(record, fields)]
        if not candidates:
            only_second.append(record)
            continue
        same_way = [c for c in candidates if (c.clock, c.cache) == (record.clock, record.cache)]
        same_machine = [c for c in same_way if c.environment_hash == record.environment_hash]
        chosen = (same_machine or same_way or candidates)[0]
        candidates.remove(chosen)
        pairs.append((chosen, record))
    return pairs, [record for records in waiting.values() for record in records], only_second


def _key(record: Record, fields: list[str]) -> str:
    return repr([getattr(record, name) for name in fields])
