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
    """Seconds; where each comes from stands in docs/scaling.md."""

    compose_s: float = 0.003  # checking one job before the first starts, in one process
    start_s: float = 20.0  # an engine starts a process: its queue, imports, CUDA context
    hydra_s: float = 0.025  # Hydra's own part of a chunk
    job_s: float = 0.014  # between two cases: config, request, synced writes
    case_s: float = 6.0  # median of measuring a case of four variants, compilation included
    case_spread: float = 0.5  # of its logarithm
    append_s: float = 0.0027  # a record into its sweep's file: lock, write, fsync; one after the other
    client_s: float = 0.012  # CPU time of a record where it was measured
    store_s: float = 0.037  # CPU time of a record in server and database, on one of the store's cores
    direct_s: float = 0.030  # a record into a local SQLite file, by one process
    finish_s: float = 0.0015  # table, report and curves, a cell, in one process at the end


@dataclass(frozen=True)
class Design:
    """One way to run it, in so many sweeps at once.

    `store_cores` serve records while the sweep runs; 0: they are sent afterwards, to a local file by one process.
    """

    name: str
    chunk: int
    sweeps: int
    store_cores: int
    keeps_processes: bool = False


DESIGNS = (
    Design("a job a case, one sweep, a store of 64 cores", 1, 1, 64),
    Design("chunks of 100, one sweep, a store of 64 cores", 100, 1, 64),
    Design("chunks of 100, 20 sweeps, a store of 2 cores", 100, 20, 2),
    Design("chunks of 100, 20 sweeps, a store of 16 cores", 100, 20, 16),
    Design("chunks of 100, 20 sweeps, a store of 64 cores", 100, 20, 64),
    Design("chunks of 50, 20 sweeps, 64 cores, kept processes", 50, 20, 64, keeps_processes=True),
    Design("chunks of 100, 20 sweeps, synced afterwards", 100, 20, 0),
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
    client_s, store_s = VARIANTS_A_CASE * costs.client_s, VARIANTS_A_CASE * costs.store_s
    cores, files = [0.0] * design.store_cores, [0.0] * design.sweeps
    left = [(0, 0)] * n_gpus  # of each GPU's chunk: its next case, and where it ends
    fresh, end_s, n_processes, next_case = [True] * n_gpus, 0.0, 0, 0
    events = [(0.0, gpu, False) for gpu in range(n_gpus)]  # moments at which a GPU is done, with records or without
    while events:
        now, gpu, has_records = heapq.heappop(events)
        if has_records:
            file = gpu % design.sweeps
            now = files[file] = max(now, files[file]) + VARIANTS_A_CASE * costs.append_s
        if has_records and cores:  # nothing is sent while the GPU is timed, so it waits
            now = max(now, heapq.heappop(cores)) + store_s
            heapq.heappush(cores, now)
        at, until = left[gpu]
        if at == until:
            if next_case == n_cases:
                end_s = max(end_s, now)
                continue
            at, until = next_case, min(next_case + design.chunk, n_cases)
            next_case = until
            now += costs.hydra_s
            if fresh[gpu] or not design.keeps_processes:
                now, n_processes, fresh[gpu] = now + costs.start_s, n_processes + 1, False
        left[gpu] = at + 1, until
        heapq.heappush(events, (now + costs.job_s + cases_s[at] + (client_s if cores else 0.0), gpu, True))
    return Outcome(
        checking=n_cases / design.sweeps * costs.compose_s / 3600,
        running=end_s / 3600,
        pct_measuring=100 * float(cases_s.sum()) / (end_s * n_gpus),
        pct_store_busy=100 * n_cases * store_s / (end_s * design.store_cores) if cores else 0.0,
        syncing=0.0 if cores else n_cases * VARIANTS_A_CASE * costs.direct_s / 3600,
        finishing=n_cases / design.sweeps * VARIANTS_A_CASE * costs.finish_s / 3600,
        processes=n_processes,
    )


def table() -> str:
    """The designs and their outcomes, in Markdown."""
    heads = ("design", "processes started", "running, h", "measuring, %", "store busy, %", "syncing, h", "in all, h")
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
