"""The same 24 cases by each of Hydra's launchers on this host: wall time, overhead a job, whether the cells agree.

    python scripts/launchers.py [--launchers basic,joblib,submitit_local,ray] [--processes 2] [--budget-s 0.1]

Runs the real command on the CPU, each time in an outputs folder of its own, and prints a Markdown table. What is
compared of a cell: status, hashes of config, kernel and input, the error. Ray is told of GPUs that are not there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from softmax_exp.sweep import Sweep

CASES = ["seq=16,24,32,40", "mode=forward,backward,full", "dtype=fp32,bf16"]
SAME = ("cell", "status", "config_hash", "kernel_hash", "input_checksum", "max_abs_error", "error_over_tolerance")


def main() -> None:
    """Run the sweeps and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launchers", default="basic,joblib,submitit_local,ray")
    parser.add_argument("--processes", type=int, default=2, help="jobs at once, where there can be several")
    parser.add_argument("--budget-s", type=float, default=0.1, help="of measuring a case")
    given = parser.parse_args()
    n = given.processes
    own = {
        "basic": [],
        "joblib": [f"hydra.launcher.n_jobs={n}"],
        "submitit_local": [f"hydra.sweeper.max_batch_size={n}"],
        "ray": [f"+hydra.launcher.ray.init.{each}={n}" for each in ("num_gpus", "num_cpus")],
    }
    print("| launcher | jobs at once | wall, s | measuring, s | overhead a job, s | cells as basic's |")
    print("|---|---:|---:|---:|---:|---|")
    first: list[tuple] | None = None
    for name in given.launchers.split(","):
        with tempfile.TemporaryDirectory() as folder:
            wall, records = _run(Path(folder), [f"hydra/launcher={name}", *own[name]], given.budget_s)
        cells = [tuple(getattr(record, field) for field in SAME) for record in records]
        first = first or cells
        n_jobs, measuring = len({r.job for r in records}), sum({r.job: r.measure_s or 0.0 for r in records}.values())
        same = sum(a == b for a, b in zip(cells, first, strict=True))
        row = [name, 1 if name == "basic" else n, f"{wall:.1f}", f"{measuring:.1f}"]
        row += [f"{(wall - measuring) / n_jobs:.2f}", f"{same} of {len(first)}"]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def _run(outputs: Path, launcher: list[str], budget_s: float) -> tuple[float, list]:
    settings = ["batch=2", "heads=2", "variants=eager", "measure=quick", f"measure.budget_s={budget_s}"]
    command = [sys.executable, "-m", "softmax_exp", *CASES, *settings, "device=cpu", f"outputs={outputs}", *launcher]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    wall = time.monotonic() - started
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    (manifest,) = outputs.glob("sweeps/*/manifest.json")
    return wall, Sweep(manifest.parent).records()


if __name__ == "__main__":
    main()
