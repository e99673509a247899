"""Sweeps of any size, made of plausible records, for tests of what must stay small and quick."""

import dataclasses
import itertools
from pathlib import Path

from softmax_exp.files import write_whole
from softmax_exp.records import Record, Status
from softmax_exp.sweep import Sweep
from tests import made_up

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
KINDS = tuple(
    itertools.product(("float16", "bfloat16", "float32"), ("forward", "backward", "full"), ("none", "causal"))
)


def records(n: int, sweep_id: str = "many", factor: float = 1.0) -> list[Record]:
    """`n` cells: four variants a case, eight sizes a kind of case, every hundredth cell wrong."""
    cells = []
    for index in range(n):
        job, variant = divmod(index, len(made_up.VARIANTS))
        kind, size = divmod(job, len(SIZES))
        dtype, mode, mask = KINDS[kind % len(KINDS)]
        heads = 12 + kind // len(KINDS)
        cell = made_up.passed(job, made_up.VARIANTS[variant], SIZES[size], sweep_id)
        spread = {
            f"device_ms_{name}": by * (cell.device_ms or 0)
            for name, by in (("p05", 0.99), ("p25", 0.998), ("p75", 1.002), ("p95", 1.02))
        }
        ms = (cell.device_ms or 0) * factor
        cell = dataclasses.replace(
            cell, dtype=dtype, mode=mode, mask=mask, heads=heads, shape=[8, heads, SIZES[size], SIZES[size]],
            n_rows=8 * heads * SIZES[size], error_over_tolerance=0.4 + 0.01 * variant, host_return_us=20.0 + variant,
            device_ms=ms, device_ms_ci_low=0.998 * ms, device_ms_ci_high=1.002 * ms, kernel_hash="c0ffee", **spread,
        )  # fmt: skip
        if index % 100 == 99:
            cell = dataclasses.replace(cell, status=Status.INCORRECT, message=f"off by {index}", device_ms=None)
        cells.append(cell)
    return cells


def sweep(folder: Path, cells: list[Record]) -> Sweep:
    """These records on disk, written in one go: an fsync a record would take minutes."""
    made = made_up.sweep(folder, cells[:1])
    by_job = itertools.groupby(cells, key=lambda cell: cell.job)
    jobs = [
        {"job": job, "overrides": [], "variants": [c.variant for c in group], "config": None} for job, group in by_job
    ]
    import json

    manifest = made.manifest() | {"jobs": jobs}
    write_whole(made.folder / "manifest.json", json.dumps(manifest))
    for cell in cells:
        cell.environment_hash = cells[0].environment_hash
    write_whole(made.records_path, "".join(cell.to_json() + "\n" for cell in cells))
    return made
