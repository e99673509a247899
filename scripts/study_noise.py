"""How often equal things are called different, and how far medians differ from process to process.

    python scripts/study_noise.py [--processes 6] [--out docs/results/noise.jsonl] [--quick]

Each process measures every case once, each variant twice under two names (an A/A pair), with intervals of 99 %.
About 25 s a process on an H200. `--quick` tries the script out on any machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study_cells import case_of, entries_of, provenance, sizes, write_lines

from softmax_exp import timing
from softmax_exp.config import MeasureSettings

AGAIN = " (again)"
SHORT_MS = 0.020


def measure_cells(process: int, quick: bool) -> None:
    """One process's part: a JSON line a variant and case on standard output."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = MeasureSettings(confidence=0.99, order_seed=process, budget_s=0.2 if quick else 2.0)
    print(json.dumps(provenance("noise", device)), flush=True)
    for size in sizes(quick):
        for dtype in ("float16", "bfloat16", "float32"):
            case = case_of(size, dtype, device, quick)
            entries, n_sets = entries_of(case, ["eager", "triton", "triton-simple"], device, settings)
            started = time.perf_counter()
            pairs = entries + [timing.Timed(entry.name + AGAIN, entry.call) for entry in entries]
            measured = timing.measure(pairs, n_sets, device, settings)
            took_s = time.perf_counter() - started
            for entry in entries:
                fields = timing.summarise(
                    measured, entry.name, baseline=entry.name + AGAIN, least_bytes=case.least_bytes, settings=settings
                )
                keys = ("device_ms", "device_ms_ci_low", "device_ms_ci_high", "clock", "n_samples", "stop_reason")
                keys += ("speedup", "speedup_ci_low", "speedup_ci_high", "verdict", "median_latency_ms", "flags")
                about = {"process": process, "size": size, "dtype": dtype, "variant": entry.name, "took_s": took_s}
                print(json.dumps(about | {key: fields[key] for key in keys}), flush=True)
            del entries, pairs, measured


def spreads(lines: list[dict[str, Any]], key: str) -> dict[tuple, tuple[float, np.ndarray]]:
    """By cell: the median over processes, and how far each two processes differ, in per cent of it."""
    cells: dict[tuple, list[float]] = {}
    for line in lines:
        cells.setdefault((line["size"], line["dtype"], line["variant"]), []).append(line[key])
    found = {}
    for cell, values in cells.items():
        middle = float(np.median(values))
        pairs = [abs(a - b) for i, a in enumerate(values) for b in values[:i]]
        found[cell] = middle, 100 * np.array(pairs) / middle
    return found


def report(lines: list[dict[str, Any]]) -> None:
    """The study's answers as text."""
    verdicts = [line["verdict"] for line in lines]
    counts = {word: verdicts.count(word) for word in ("same", "unclear", "faster", "slower")}
    off = [100 * abs(line["speedup"] - 1) for line in lines]
    print(f"A/A: {len(lines)} trials: {counts}; |ratio - 1|: median {np.median(off):.2f} %, largest {max(off):.2f} %")
    for key in ("device_ms", "median_latency_ms"):
        for title, short in (("below 20 us", True), ("20 us and more", False)):
            cells = {c: s for c, s in spreads(lines, "device_ms").items() if (s[0] < SHORT_MS) == short}
            chosen = [s[1] for c, s in spreads(lines, key).items() if c in cells]
            if not chosen:
                continue
            pairs, worst = np.concatenate(chosen), np.array([values.max(initial=0.0) for values in chosen])
            print(
                f"{key}, between processes, {title}: {len(worst)} cells; two processes differ by "
                f"{np.median(pairs):.2f} % (median), {np.quantile(pairs, 0.95):.2f} % (95 %); "
                f"most distant two: {np.quantile(worst, 0.95):.2f} % (95 % of cells), {worst.max():.2f} % (all)"
            )


def main() -> None:
    """Run the processes one after the other, keep every line, tell the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("docs/results/noise.jsonl"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process is not None:
        measure_cells(arguments.process, arguments.quick)
        return
    lines: list[dict[str, Any]] = []
    for process in range(arguments.processes):
        command = [sys.executable, __file__, "--process", str(process), *(["--quick"] if arguments.quick else [])]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        head, *found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        lines += found
        write_lines(arguments.out, [head, *lines])
    report(lines)


if __name__ == "__main__":
    main()
