"""What a case costs beyond its measuring, and whether anything grows: 200 tiny cases on the CPU.

    python scripts/overhead.py [--cases 200]

Runs the real command with `variants=eager measure=quick` in an outputs folder of its own and watches its processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

FROM = 50  # cases before the first reading: imports, the store, caches


def main() -> None:
    """Run the sweep, print milliseconds a case and the growth of each process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    n_cases = parser.parse_args().cases
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder)
        sizes = f"seed=range({n_cases})"
        settings = ["seq=16", "batch=1", "heads=1", "variants=eager", "measure=quick", "measure.budget_s=0.02"]
        command = [sys.executable, "-m", "softmax_exp", *settings, sizes, "device=cpu", f"outputs={outputs}"]
        with open(outputs / "log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            readings = {n: _when(process, outputs, n) for n in (FROM, n_cases)}
            status = process.wait()
        if status:
            sys.exit((outputs / "log").read_text())
        records = [json.loads(line) for path in outputs.glob("sweeps/*/records.jsonl") for line in path.open()]
    (moment, memory), (later, grown) = readings[FROM], readings[n_cases]
    measuring = sum(record["measure_s"] for record in records[FROM:])
    overhead_ms = 1e3 * (later - moment - measuring) / (n_cases - FROM)
    print(f"{overhead_ms:.0f} ms a case beyond {1e3 * measuring / (n_cases - FROM):.0f} ms of measuring")
    for name in ("Hydra process", "worker"):
        print(f"{name}: {memory[name]:.0f} MB at case {FROM}, {grown[name] - memory[name]:+.1f} MB by case {n_cases}")


def _when(process: subprocess.Popen[bytes], outputs: Path, n: int) -> tuple[float, dict[str, float]]:
    """The moment of the n-th record, and resident memory in MB then."""
    while process.poll() is None:
        for path in outputs.glob("sweeps/*/records.jsonl"):
            if path.read_bytes().count(b"\n") >= n:
                moment = time.monotonic()
                owner = psutil.Process(process.pid)
                workers = [child for child in owner.children() if "softmax_exp.worker" in " ".join(child.cmdline())]
                found = {"Hydra process": owner, "worker": workers[0]}
                return moment, {name: each.memory_info().rss / 1e6 for name, each in found.items()}
        time.sleep(0.005)
    sys.exit((outputs / "log").read_text())


if __name__ == "__main__":
    main()
