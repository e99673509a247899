"""What a call costs the host until it returns: our softmax beside eager, with and without a gradient to come.

    python scripts/host_cost.py [--seq 128] [--rounds 400]

Interleaved in random order, the GPU idle at each call. Prints medians in us and ratios. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch

from softmax_exp import softmax

PAIRS = (("ours", "eager"), ("ours, with grad", "eager, with grad"))


def main() -> None:
    """Time the calls and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=400)
    arguments = parser.parse_args()
    x = torch.randn(8, 12, arguments.seq, arguments.seq, device="cuda", dtype=torch.float16)
    leaf = x.clone().requires_grad_()
    calls = {
        "eager": lambda: torch.softmax(x, -1),
        "ours": lambda: softmax(x),
        "eager, with grad": lambda: torch.softmax(leaf, -1),
        "ours, with grad": lambda: softmax(leaf),
    }
    names, times_us = list(calls), {name: [] for name in calls}
    for turn in range(arguments.rounds + 20):
        random.shuffle(names)
        for name in names:
            torch.cuda.synchronize()
            started = time.perf_counter_ns()
            calls[name]()
            if turn >= 20:  # the first rounds compile and warm up
                times_us[name].append((time.perf_counter_ns() - started) / 1e3)
    medians = {name: statistics.median(values) for name, values in times_us.items()}
    for ours, theirs in PAIRS:
        ratio = medians[ours] / medians[theirs]
        print(f"{ours}: {medians[ours]:.1f} us; {theirs}: {medians[theirs]:.1f} us; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
