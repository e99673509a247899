"""A million cells on a thousand GPUs, on paper: chunks, the store and the shared folder as queues.

    python scripts/simulate_cluster.py

Prints the table of docs/scaling.md. What it rests on are the costs below; their sources stand in that page. Each GPU
takes the next chunk when it is free, as an engine hands them out; one store serves all, in the order of asking.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

N_CASES, VARIANTS_A_CASE, N_GPUS = 250_000, 4, 1000
SEED = 0


@dataclass(frozen=True)
class Costs:
    """Seconds, measured on 2 cores unless the page says that they are assumed."""

    compose_s: float = 0.0028  # checking one job before the first starts, in one process
    start_s: float = 20.0  # an engine starts a process: queue, imports, CUDA context
    hydra_s: float = 0.025  # Hydra's own part of a chunk
    job_s: float = 0.014  # from case to case: config, request, two synced writes
    case_s: float = 6.0  # median of measuring a case of four variants, compilation included
    case_spread: float = 0.5  # of its logarithm
    record_s: float = 0.030  # one record to the store, while one asks
    finish_s: float = 0.0013  # table, report and curves, a cell, in one process at the end
    manifest_bytes: int = 420  # a job
    record_bytes: int = 2200  # a cell, its samples aside


@dataclass(frozen=True)
class Design:
    """One way to run it."""

    name: str
    chunk: int
    store_writers: int  # records that the store takes at once; 0: none during the sweep
    reuses_process: bool = True  # whether a GPU's process stays from chunk to chunk


DESIGNS = (
    Design("a job a case, one writer", 1, 1, reuses_process=False),
    Design("chunks of 100, one writer", 100, 1, reuses_process=False),
    Design("chunks of 100, 8 writers", 100, 8, reuses_process=False),
    Design("chunks of 100, 64 writers", 100, 64, reuses_process=False),
    Design("chunks of 100, synced afterwards", 100, 0, reuses_process=False),
    Design("chunks of 50, synced afterwards", 50, 0, reuses_process=False),
    Design("chunks of 50, kept processes, synced afterwards", 50, 0),
)


@dataclass(frozen=True)
class Outcome:
    """Hours, unless a name says something else."""

    checking: float
    running: float
    pct_measuring: float
    pct_store_busy: float
    syncing: float
    finishing: float
    processes: int

    @property
    def whole(self) -> float:
        """From the command to its last line."""
        return self.checking + self.running + self.syncing + self.finishing


def simulate(design: Design, costs: Costs = Costs(), n_cases: int = N_CASES, n_gpus: int = N_GPUS) -> Outcome:
    """Run a design."""
    dice = np.random.default_rng(SEED)
    cases_s = costs.case_s * np.exp(costs.case_spread * dice.standard_normal(n_cases))
    sending_s = VARIANTS_A_CASE * costs.record_s
    writers = [0.0] * design.store_writers
    left = [(0, 0)] * n_gpus  # of each GPU's chunk: its next case, and where it ends
    fresh, end_s, n_processes, next_case = [True] * n_gpus, 0.0, 0, 0
    events = [(0.0, gpu, False) for gpu in range(n_gpus)]  # moments at which a GPU is done, with records or without
    while events:
        now, gpu, has_records = heapq.heappop(events)
        if has_records and writers:  # nothing is sent while the GPU is timed, so it waits
            now = max(now, heapq.heappop(writers)) + sending_s
            heapq.heappush(writers, now)
        at, until = left[gpu]
        if at == until:
            if next_case == n_cases:
                end_s = max(end_s, now)
                continue
            at, until = next_case, min(next_case + design.chunk, n_cases)
            next_case = until
            now += costs.hydra_s
            if fresh[gpu] or not design.reuses_process:
                now, n_processes, fresh[gpu] = now + costs.start_s, n_processes + 1, False
        left[gpu] = at + 1, until
        heapq.heappush(events, (now + costs.job_s + cases_s[at], gpu, True))
    total_sending_s = n_cases * sending_s
    busy = total_sending_s / (end_s * design.store_writers) if writers else 0.0
    return Outcome(
        checking=n_cases * costs.compose_s / 3600,
        running=end_s / 3600,
        pct_measuring=100 * float(cases_s.sum()) / (end_s * n_gpus),
        pct_store_busy=100 * busy,
        syncing=0.0 if writers else total_sending_s / 3600,
        finishing=n_cases * VARIANTS_A_CASE * costs.finish_s / 3600,
        processes=n_processes,
    )


def table() -> str:
    """The designs and their outcomes, in Markdown."""
    heads = ("design", "processes", "running, h", "measuring, %", "store busy, %", "sync after it, h", "in all, h")
    rows = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for design in DESIGNS:
        found = simulate(design)
        cells = (
            f"{found.processes:,}", f"{found.running:.2f}", f"{found.pct_measuring:.0f}", f"{found.pct_store_busy:.0f}",
            f"{found.syncing:.2f}", f"{found.whole:.2f}",
        )  # fmt: skip
        rows.append(f"| {design.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
