"""The same sweep on one GPU and on two of one host: wall times, and whether the medians of each cell agree.

    python scripts/two_gpus.py [overrides, e.g. seq=512,1024,2048 dtype=fp16,bf16 variants=[eager,torch.compile,triton]]

Needs two free GPUs of one model and the extra `joblib`. A first run fills the caches of compiled code and is not
counted; then one GPU (CUDA_VISIBLE_DEVICES names the first), then two (hydra/launcher=joblib, a job process each,
every case on a GPU that is free). Exit status 0: at most 0.6 of the time, and each median within 1 % of the other.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from softmax_exp.records import Record
from softmax_exp.sweep import Sweep

SWEEP = [  # the longest cases first, so that both GPUs end at about one time; 4 minutes in all
    "seq=4096,2048,1024,512,256,128", "mode=forward,backward,full", "dtype=fp16,bf16,fp32", "variants=[eager,triton]",
    "tracking=off",
]  # fmt: skip
MOST_TIME, MOST_CHANGE_PCT = 0.6, 1.0


def main() -> int:
    """Run the three sweeps and print the comparison."""
    overrides = sys.argv[1:]
    replaced = {each.split("=")[0] for each in overrides}
    sweep = [each for each in SWEEP if each.split("=")[0] not in replaced] + overrides
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    if len(visible) != 2:
        sys.exit(f"CUDA_VISIBLE_DEVICES ({','.join(visible)}) must name two GPUs")
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder) / "warm-up", [*sweep, *joblib, "measure=quick"], visible)
        one_s, one = _run(Path(folder) / "one", sweep, visible[:1])
        two_s, two = _run(Path(folder) / "two", [*sweep, *joblib], visible)
    used = Counter(record.placement.get("gpu_uuid") for record in two.values())
    changes = {
        cell: 100 * (two[cell].device_ms / record.device_ms - 1)
        for cell, record in one.items()
        if record.device_ms and cell in two and two[cell].device_ms
    }
    own = {cell: change for cell, change in changes.items() if _gpu(two[cell]) == _gpu(one[cell])}
    print(f"wall time: {one_s:.1f} s on one GPU, {two_s:.1f} s on two: {two_s / one_s:.3f} of it")
    print(f"cells a GPU: {dict(used)}; {len(changes)} of {len(one)} cells timed in both")
    for title, some in (("all cells", changes), ("cells on the same GPU both times", own)):
        if some:
            sizes = sorted(map(abs, some.values()))
            print(f"{title}: |change| of the median {statistics.median(sizes):.3f} %, at most {sizes[-1]:.3f} %")
    flags = Counter(flag for run in (one, two) for record in run.values() for flag in record.flags)
    print(f"flags: {dict(flags)}")  # gpu_shared here would mean that a job process touched the other's GPU
    beyond = {cell: change for cell, change in changes.items() if abs(change) > MOST_CHANGE_PCT}
    for cell, change in sorted(beyond.items(), key=lambda item: -abs(item[1])):
        a, b = one[cell], two[cell]
        print(f"  {a.title}: {a.device_ms:.5f} ms, {b.device_ms:.5f} ms ({change:+.2f} %) {_gpu(b)} {b.flags}")
    return 0 if len(used) == 2 and two_s <= MOST_TIME * one_s and changes and not beyond else 1


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
