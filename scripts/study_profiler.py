"""The clocks against a profiler: ncu's gpu__time_duration, and triton.testing.do_bench, for the same kernels.

    python scripts/study_profiler.py [--out docs/results/profiler.jsonl]

Needs a GPU and `ncu` with permission to read counters. ncu runs with --clock-control none, so that the card's
settings stay as they are, and flushes the caches before each kernel, as the cold clocks do.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study_cells import case_of, entries_of, provenance, sizes, write_lines

from softmax_exp import timing
from softmax_exp.config import MeasureSettings

NAMES = ["eager", "triton-simple"]  # one kernel a call at these sizes
REPEATS = 7
METRIC = "gpu__time_duration.sum"
NS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}


def entries(size: int, device: torch.device, settings: MeasureSettings) -> tuple[list[timing.Timed], int, Any]:
    """The variants and the first Triton copy of a case."""
    case = case_of(size, "float16", device, quick=False)
    variants, n_sets = entries_of(case, NAMES, device, settings)
    copies = timing.limit_kernels(case, n_sets, device)
    copy = next(entry for entry in copies if "triton" in entry.name)
    return [*variants, timing.Timed("copy", copy.call)], n_sets, case


def profiled() -> None:
    """What runs under ncu: each kernel `REPEATS` times, between the profiler's start and stop."""
    device = torch.device("cuda")
    for size in sizes(False)[:5]:
        found, _, _ = entries(size, device, MeasureSettings(cache="warm"))
        for entry in found:
            entry.call(0)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for entry in found:
            for _ in range(REPEATS):
                entry.call(0)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def ncu_medians_us() -> list[float]:
    """Median duration of each kernel, in the order of sizes and entries."""
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--metrics", METRIC, "--csv"]
    text = subprocess.run(
        [*command, sys.executable, __file__, "--profiled"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    times = [float(row["Metric Value"].replace(",", "")) * NS[row["Metric Unit"]] / 1e3 for row in rows]
    return [float(np.median(times[i : i + REPEATS])) for i in range(0, len(times), REPEATS)]


def main() -> None:
    """Time the kernels by every clock, then under the profiler; keep and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/profiler.jsonl"))
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.profiled:
        profiled()
        return
    import triton.testing

    device, settings, lines = torch.device("cuda"), MeasureSettings(), []
    for size in sizes(False)[:5]:
        found, n_sets, case = entries(size, device, settings)
        measured = timing.measure(found, n_sets, device, settings)
        for entry in found:
            fields = timing.summarise(
                measured, entry.name, baseline=None, least_bytes=case.least_bytes, settings=settings
            )
            bench = triton.testing.do_bench(lambda call=entry.call: call(0), return_mode="median")
            figures = {"events_us": fields["events_ms"], "graph_us": fields["graph_ms"], "do_bench_us": bench}
            in_us = {key: None if ms is None else 1e3 * float(ms) for key, ms in figures.items()}
            floors = {f"{kind}_floor_us": us for kind, us in measured.clock_floor_us.items()}
            lines.append({"size": size, "entry": entry.name, "clock": fields["clock"]} | in_us | floors)
    for line, ncu_us in zip(lines, ncu_medians_us(), strict=True):
        line["ncu_us"] = ncu_us
        own = line["graph_us"] if line["clock"] == "graph" else line["events_us"]
        line["difference_us"] = own - ncu_us
    write_lines(arguments.out, [provenance("profiler", device), *lines])
    for line in lines:
        print(json.dumps({key: round(v, 2) if isinstance(v, float) else v for key, v in line.items()}))


if __name__ == "__main__":
    main()
