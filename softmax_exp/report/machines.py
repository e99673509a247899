"""Which machines a sweep's cells were measured on, where they are of more than one kind.

In: `Results`.  Out: a name for each environment that tells its kind of machine from the others, and what ran where.
"""

from __future__ import annotations

from collections import Counter

from softmax_exp.pairing import environment_differences
from softmax_exp.results import Results


def kinds(results: Results) -> dict[str, str]:
    """By environment hash the name of its kind of machine; empty where all that have a latency are of one kind.

    Of one kind are those whose latencies compare: another host, driver or torch is told elsewhere.
    """
    used = {record.environment_hash for record in results.records if record.measure_s is not None or record.device_ms}
    members: list[list[str]] = []
    for name in sorted(used & results.environments.keys()):
        for kind in members:
            if not environment_differences(results.environments[kind[0]], results.environments[name])[0]:
                kind.append(name)
                break
        else:
            members.append([name])
    if len(members) < 2:
        return {}
    names = [str((results.environments[kind[0]].get("device") or {}).get("name")) for kind in members]
    told = [f"{name} ({names[:n].count(name) + 1})" if names.count(name) > 1 else name for n, name in enumerate(names)]
    return {name: words for kind, words in zip(members, told, strict=True) for name in kind}


def warning(results: Results) -> str:
    """A sentence about a sweep of several kinds of machines; empty for one kind."""
    by_hash = kinds(results)
    if not by_hash:
        return ""
    cells = Counter(by_hash.get(record.environment_hash, "") for record in results.records)
    told = ", ".join(f"{count} cells on {name}" for name, count in cells.items() if name)
    n_kinds = len({*by_hash.values()})
    return f"Measured on {n_kinds} kinds of machines ({told}): figures of one kind do not compare with another."


def places(results: Results, environment: str, name: str) -> str:
    """Where the records of an environment were measured, by `host` or `gpu_uuid`, with the number of cells."""
    cells = Counter(record.placement.get(name) for record in results.records if record.environment_hash == environment)
    return ", ".join(f"{place} ({count} cells)" for place, count in sorted(cells.items(), key=str) if place)
