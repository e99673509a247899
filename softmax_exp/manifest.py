"""The manifest of a sweep: every job that was asked for, written before the first of them runs.

In: about the sweep, and a dictionary a job.  Out: JSON in which what all jobs have in common stands once, a line a job,
and the same dictionaries again. A job of a sweep of 10,000 takes 300 bytes so, not 2,500.
"""

from __future__ import annotations

import json
from typing import Any

from softmax_exp.cases import finite

_NESTED = ("case", "config")  # dictionaries in which most is the same for all jobs


def to_json(about: dict[str, Any], jobs: list[dict[str, Any]]) -> str:
    """The text of the file."""
    common = _common(jobs)
    nested = {name: _common([job[name] for job in jobs]) for name in _NESTED if all(job.get(name) for job in jobs)}
    lines = []
    for job in jobs:
        own = {name: value for name, value in job.items() if name not in common and name not in nested}
        for name, shared in nested.items():
            own[name] = {key: value for key, value in job[name].items() if key not in shared}
        lines.append(json.dumps(finite(own), allow_nan=False))
    head = json.dumps(finite(about | {"common": common | nested}), indent=1, allow_nan=False)
    return head.removesuffix("\n}") + ',\n "jobs": [\n' + ",\n".join(lines) + "\n]}\n"


def expanded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest as it stands in the file, with each job whole; one that is whole already stays as it is.

    ValueError where it is damaged.
    """
    try:
        common = manifest.get("common")
        if not common:
            return manifest
        nested = {name: common[name] for name in _NESTED if name in common}
        jobs = [
            common | job | {name: shared | job[name] for name, shared in nested.items()} for job in manifest["jobs"]
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a manifest: {error}") from error
    return {name: value for name, value in manifest.items() if name != "common"} | {"jobs": jobs}


def folder_number(manifest: dict[str, Any], job: int) -> int:
    """The job whose number the folder of this one has: the first of its chunk."""
    return job - job % (manifest.get("chunk") or 1)


def _common(dictionaries: list[dict[str, Any]]) -> dict[str, Any]:
    """What is the same in all of them: of the same value and type, so that 1 is not true."""
    found = dict(dictionaries[0]) if dictionaries else {}
    texts = {name: repr(value) for name, value in found.items()}
    for other in dictionaries[1:]:
        for name in [name for name in found if name not in other or repr(other[name]) != texts[name]]:
            del found[name]
    return found
