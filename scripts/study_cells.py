"""What the studies of the clock share: entries of a case, where the results come from, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from softmax_exp import timing, variants
from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.environment import describe_device
from softmax_exp.inputs import make_inputs


def sizes(quick: bool) -> list[int]:
    """The lengths S of the cases (8, 12, S, S); two small ones for a trial of a study on a CPU."""
    return [32, 64] if quick else [128, 256, 512, 1024, 2048, 4096]


def case_of(size: int, dtype: str, device: torch.device, quick: bool) -> Case:
    """The case (8, 12, S, S), or (1, 2, S, S) for a trial."""
    return Case((1, 2, size, size) if quick else (8, 12, size, size), dtype=dtype, device=str(device))


def entries_of(
    case: Case, names: Sequence[str], device: torch.device, settings: MeasureSettings
) -> tuple[list[timing.Timed], int]:
    """The variants of a case that run on this device, called once, as entries; and the number of buffer sets."""
    n_sets = timing.n_buffer_sets(case.least_bytes, device, settings)
    xs = make_inputs(case, device, n_sets).xs
    entries = []
    for name in names:
        variant = variants.load(name)
        if variant.needs_cuda and device.type != "cuda":
            continue
        function = variant.build(case)
        function(xs[0])
        entries.append(timing.Timed(name, lambda index, function=function: function(xs[index])))
    return entries, n_sets


def provenance(study: str, device: torch.device) -> dict[str, Any]:
    """The first line of a file of results: which study, on what."""
    facts = describe_device(device)
    keep = ("name", "driver", "torch", "cuda", "triton", "sm_clock_max_mhz", "power_limit_w", "threads")
    return {"study": study} | {key: facts[key] for key in keep if facts.get(key) is not None}


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """JSON, one object a line; floats to six digits, which is finer than any clock here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    short = [{k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in line.items()} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in short))
