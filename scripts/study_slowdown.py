"""How often a kernel that is 2 % slower is called slower.

    python scripts/study_slowdown.py [--trials 100] [--out docs/results/slowdown.jsonl] [--quick]

The slower one is the same kernel on the same tensor with 2 % more rows, so nothing but its work differs. Kernels of
100 us and more. `triton-simple` has a program a row, of which an SM runs 16, 8 or 4 at once: on a GPU of 132 SMs its
rows are whole waves, 50 and 51 or a multiple, since 62.1 and 63.3 waves, begun 63 and 64 times, took 1.45 % more time.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from study_cells import provenance, write_lines

from softmax_exp import timing, variants
from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.inputs import make_x

WAVE = 132 * 16  # rows that run at once, or a multiple of them
CASES = [
    ("eager", 65536, 4096),
    ("triton-simple", 50 * WAVE, 1024),
    ("triton-simple", 50 * WAVE, 4096),
    ("triton-simple", 100 * WAVE, 2048),
]


def main() -> None:
    """Measure each pair, keep every line, tell the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("docs/results/slowdown.jsonl"))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = MeasureSettings(budget_s=0.1 if arguments.quick else 2.0)
    cases = [("eager", 256, 64)] if arguments.quick else CASES
    prepared = []
    for name, rows, cols in cases:
        case = Case((rows, cols), device=str(device), workload="matrix")
        x = make_x(replace(case, shape=(round(1.02 * rows), cols)), device, seed=0)
        function = variants.load(name).build(case)
        pair = [
            timing.Timed(name, lambda index, x=x[:rows], function=function: function(x)),
            timing.Timed("2 % more rows", lambda index, x=x, function=function: function(x)),
        ]
        prepared.append((name, case, pair))
    lines = []
    for trial in range(arguments.trials):
        name, case, pair = prepared[trial % len(prepared)]
        trial_settings = replace(settings, order_seed=trial)
        measured = timing.measure(pair, 1, device, trial_settings)
        fields = timing.summarise(
            measured, pair[1].name, baseline=name, least_bytes=case.least_bytes, settings=trial_settings
        )
        keys = ("device_ms", "speedup", "speedup_ci_low", "speedup_ci_high", "verdict", "n_samples", "stop_reason")
        about = {"trial": trial, "variant": name, "shape": list(case.shape)}
        lines.append(about | {key: fields[key] for key in keys})
        write_lines(arguments.out, [provenance("slowdown", device), *lines])
    verdicts = [line["verdict"] for line in lines]
    ratios = np.array([line["speedup"] for line in lines])
    print(
        f"2 % more rows: {verdicts.count('slower')} of {len(lines)} called slower, "
        f"{verdicts.count('unclear')} unclear; "
        f"time ratio {1 / np.median(ratios):.4f} (median), {1 / ratios.max():.4f} to {1 / ratios.min():.4f}"
    )


if __name__ == "__main__":
    main()
