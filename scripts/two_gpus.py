"""The same sweep on one GPU and on two of one host: wall times, and whether the medians of each cell agree.

    python scripts/two_gpus.py [--out FILE] [overrides, e.g. seq=1024,2048 dtype=fp16 variants=[eager,triton,liger]]

Needs two free GPUs of one model and the extra `joblib`. A first run fills the caches of compiled code and is not
counted; then one GPU (CUDA_VISIBLE_DEVICES names the first), then two (hydra/launcher=joblib, a job process each,
every case on a GPU that is free). Exit status 0: at most 0.6 of the time, and each median within 1 % of the other. That
is asked of kernels of 20 us and more: shorter ones differ by more between two cards (softmax_exp/noise.py), so the
sweep has none. `--out` keeps both figures of each cell, from which that noise can be taken.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_exp.noise import CARD_SD_PCT
from softmax_exp.pairing import common_clock, latency_of
from softmax_exp.records import Record
from softmax_exp.sweep import Sweep

SWEEP = [  # the longest cases first, so that both GPUs end at about one time; 54 cases, some 5 minutes in all
    "seq=4096,2048,1024", "batch=8,6", "mode=forward,backward,full", "dtype=fp16,bf16,fp32", "variants=[eager,triton]",
    "tracking=off",
]  # fmt: skip
MOST_TIME, MOST_CHANGE_PCT = 0.6, 1.0


@dataclass(frozen=True)
class Both:
    """A cell that was timed in both sweeps, by a clock that timed it in both."""

    one: Record
    two: Record
    clock: str

    @property
    def ms(self) -> tuple[float, float]:
        """The medians by that clock."""
        one, two = (latency_of(record, self.clock) for record in (self.one, self.two))
        assert one and two
        return one, two

    @property
    def change_pct(self) -> float:
        """By how much the second median is above the first."""
        return 100 * (self.ms[1] / self.ms[0] - 1)

    @property
    def moved(self) -> bool:
        """Whether it was on another GPU the second time."""
        return _gpu(self.one) != _gpu(self.two)

    def line(self) -> dict[str, Any]:
        """The fields that are kept of it."""
        one, two = self.one, self.two
        about = {"title": one.title, "shape": one.shape, "dtype": one.dtype, "mode": one.mode, "variant": one.variant}
        about |= {"clock": self.clock, "change_pct": self.change_pct}
        for name, record in (("one", one), ("two", two)):
            about |= {f"{name}_ms": record.device_ms, f"{name}_clock": record.clock, f"{name}_gpu": _gpu(record)}
            about |= {f"{name}_flags": record.flags}
        return about


def main() -> int:
    """Run the three sweeps and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep a JSON line a cell")
    parser.add_argument("overrides", nargs="*", help="of the sweep")
    given = parser.parse_args()
    replaced = {each.split("=")[0] for each in given.overrides}
    sweep = [each for each in SWEEP if each.split("=")[0] not in replaced] + given.overrides
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    if len(visible) != 2:
        sys.exit(f"CUDA_VISIBLE_DEVICES ({','.join(visible)}) must name two GPUs")
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder) / "warm-up", [*sweep, *joblib, "measure=quick"], visible)
        one_s, one = _run(Path(folder) / "one", sweep, visible[:1])
        two_s, two = _run(Path(folder) / "two", [*sweep, *joblib], visible)
    cells = timed_in_both(one, two)
    if given.out:
        import torch
        from study_cells import provenance, write_lines

        write_lines(given.out, [provenance("two_gpus", torch.device("cuda")), *(cell.line() for cell in cells)])
    used = Counter(map(_gpu, two.values()))
    print(f"wall time: {one_s:.1f} s on one GPU, {two_s:.1f} s on two: {two_s / one_s:.3f} of it")
    print(f"cells a GPU: {dict(used)}; {len(cells)} of {len(one)} cells timed in both")
    print("\n".join(answers(cells)))
    flags = Counter(flag for run in (one, two) for record in run.values() for flag in record.flags)
    print(f"flags: {dict(flags)}")  # gpu_shared here would mean that a job process touched the other's GPU
    agree = bool(cells) and not beyond(cells)
    return 0 if len(used) == 2 and two_s <= MOST_TIME * one_s and agree else 1


def timed_in_both(one: dict[str, Record], two: dict[str, Record]) -> list[Both]:
    """The cells of two sweeps that one clock timed in both."""
    pairs = [(record, two[cell]) for cell, record in one.items() if cell in two and record.clock and two[cell].clock]
    return [Both(a, b, clock) for a, b in pairs if (clock := common_clock(a, b)) and latency_of(a) and latency_of(b)]


def beyond(cells: list[Both]) -> list[Both]:
    """The cells that differ by more than is asked for, the most distant first."""
    apart = [cell for cell in cells if abs(cell.change_pct) > MOST_CHANGE_PCT]
    return sorted(apart, key=lambda cell: -abs(cell.change_pct))


def answers(cells: list[Both]) -> list[str]:
    """How far medians differ: of all cells, of those that stayed on their GPU, and of those that moved, by latency."""
    found = []
    stayed = [cell for cell in cells if not cell.moved]
    for title, some in (("all cells", cells), ("cells on the same GPU both times", stayed)):
        if some:
            sizes = sorted(abs(cell.change_pct) for cell in some)
            found.append(f"{title}: |change| of the median {statistics.median(sizes):.3f} %, at most {sizes[-1]:.3f} %")
    least = 0.0
    for below, _ in CARD_SD_PCT:
        logs = [math.log(c.ms[1] / c.ms[0]) for c in cells if c.moved and least <= c.ms[0] < below]
        if logs:
            sd_pct = 100 * math.sqrt(statistics.fmean(log**2 for log in logs))
            band = f"{1e3 * least:g} us and more" if math.isinf(below) else f"{1e3 * least:g} to {1e3 * below:g} us"
            found.append(f"cells on another GPU, {band}: {len(logs)}, standard deviation of log ratio {sd_pct:.3f} %")
        least = below
    for cell in beyond(cells):
        before, after = cell.ms
        by = f"{cell.clock}, timed by {cell.one.clock} and {cell.two.clock}"
        by = cell.clock if cell.one.clock == cell.two.clock else by
        found.append(
            f"  {cell.one.title}: {before:.5f} ms, {after:.5f} ms ({cell.change_pct:+.2f} %) by {by}; "
            f"{_gpu(cell.two)} {cell.two.flags}"
        )
    return found


def _gpu(record: Record) -> str:
    return str(record.placement.get("gpu_uuid"))


def _run(outputs: Path, overrides: list[str], visible: list[str]) -> tuple[float, dict[str, Record]]:
    command = [sys.executable, "-m", "softmax_exp", *overrides, "device=cuda", f"outputs={outputs}"]
    started, started_at = time.monotonic(), time.time()
    done = subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(visible)})
    wall = time.monotonic() - started
    _tell_where_time_went(outputs, started_at, time.time())
    manifests = [*outputs.glob("sweeps/*/manifest.json")]
    if not manifests:
        sys.exit(done.returncode)
    return wall, {record.cell: record for record in Sweep(manifests[0].parent).records()}


def _tell_where_time_went(outputs: Path, started: float, ended: float) -> None:
    """Print when the first case was kept, and the last one."""
    kept = sorted(path.stat().st_mtime for path in outputs.glob("sweeps/*/jobs/*/samples.jsonl"))
    if kept:
        at = {"first case kept": kept[0], "last case kept": kept[-1], "end": ended}
        print(f"{outputs.name}: " + ", ".join(f"{what} at {when - started:.1f} s" for what, when in at.items()))


if __name__ == "__main__":
    sys.exit(main())
