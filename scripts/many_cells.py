"""Ten thousand tiny cells in one sweep: what a cell costs beyond its measuring, and what the sweep needs at its end.

    python scripts/many_cells.py [--cells 10000] [--outputs FOLDER] [--chunk N]

Runs the real command on the CPU (rows x columns x dtypes x modes, eager alone), watches its processes, and afterwards
makes the report and sends the sweep again, each timed. FOLDER is kept, to look at the report and the MLflow UI.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

TINY = ["measure=quick", "measure.budget_s=0.001", "measure.min_rounds=6", "measure.max_rounds=6", "measure.n_warmup=0"]
N_ROWS, KINDS = 10, ["dtype=float16,bfloat16,float32,float64", "mode=forward,backward"]


def main() -> None:
    """Run the sweep and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000, help="rounded down to a multiple of 80")
    parser.add_argument("--outputs", type=Path)
    parser.add_argument("--chunk", default="null")
    given = parser.parse_args()
    n_cols = given.cells // (N_ROWS * 8)
    with tempfile.TemporaryDirectory() as folder:
        run(given.outputs or Path(folder), [f"rows=range(2,{2 + N_ROWS})", f"cols=range(4,{4 + n_cols})"], given.chunk)


def run(outputs: Path, sizes: list[str], chunk: str) -> None:
    """The sweep, then its report and a second sync."""
    outputs.mkdir(parents=True, exist_ok=True)
    settings = ["workload=matrix", *sizes, *KINDS, "variants=eager", "device=cpu", *TINY, f"chunk={chunk}"]
    command = [sys.executable, "-m", "softmax_exp", *settings, f"outputs={outputs}"]
    # One thread: several wait for one another on a busy machine, for longer than a tiny tensor takes.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with open(outputs / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        peaks, cpu_s, moments = watch(process, outputs)
    wall_s = time.monotonic() - started
    folder = max(outputs.glob("sweeps/*"))
    measured_s, n, failed = figures(folder / "records.jsonl")
    first_s, last_s = moments[0] - started, moments[-1] - started
    print(f"{n} cells, {failed} not PASSED, exit status {process.returncode}, {wall_s:.0f} s")
    print(f"{1e3 * (wall_s - measured_s) / n:.1f} ms a cell beyond {1e3 * measured_s / n:.1f} ms of measuring")
    print(f"first record after {first_s:.1f} s, last after {last_s:.0f} s, then {wall_s - last_s:.1f} s to the end")
    for name, most_mb in peaks.items():
        print(f"{name}: {most_mb:.0f} MB at most, {1e3 * cpu_s[name] / n:.1f} ms of CPU a cell")
    for name in ("manifest.json", "records.jsonl", "report.html", "report.csv"):
        print(f"{name}: {(folder / name).stat().st_size / 1e6:.1f} MB")
    for what, module in (("report", "report"), ("sync that finds all there", "sync")):
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", f"softmax_exp.{module}", str(folder)], check=True, stdout=subprocess.DEVNULL
        )
        print(f"{what}: {time.monotonic() - began:.1f} s")


def watch(process: subprocess.Popen[bytes], outputs: Path) -> tuple[dict[str, float], dict[str, float], list[float]]:
    """Peaks of memory in MB, seconds of CPU, and the moments at which the file of records was seen to grow."""
    peaks: dict[str, float] = {}
    cpu_s: dict[str, float] = {}
    moments: list[float] = []
    size = 0
    while process.poll() is None:
        time.sleep(0.2)
        for path in outputs.glob("sweeps/*/records.jsonl"):
            if path.stat().st_size > size:
                size = path.stat().st_size
                moments.append(time.monotonic())
        for name, number in (("Hydra process", process.pid), *(("worker", child) for child in children(process.pid))):
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                peaks[name] = max(peaks.get(name, 0.0), peak_mb(number))
                cpu_s[name] = sum(psutil.Process(number).cpu_times()[:2])
    return peaks, cpu_s, moments


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def peak_mb(pid: int) -> float:
    """The most memory that a process held so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1e3 if found else 0.0


def figures(records: Path) -> tuple[float, int, int]:
    """Seconds of measuring, cells, and how many of them did not pass."""
    with records.open() as lines:
        cells = [json.loads(line) for line in lines]
    failed = sum(cell["status"] != "PASSED" for cell in cells)
    return sum(cell["measure_s"] or 0 for cell in cells), len(cells), failed


if __name__ == "__main__":
    main()
