"""A sweep in chunks, killed in the middle of one: the same cells as from jobs of their own."""

from __future__ import annotations

import json
import signal

from softmax_exp.sweep import Sweep
from tests.faults.sweeps import GOOD, Command, count, the_sweep

SIXTY = ["workload=matrix", "rows=2,3", "cols=range(4,19)", GOOD, "device=cpu"]
TINY = ["measure=quick", "measure.budget_s=0.001", "measure.min_rounds=6", "measure.n_warmup=0"]


def test_sixty_cells_in_chunks_killed_and_resumed_are_those_of_jobs_of_their_own(outputs) -> None:
    whole = outputs / "whole"
    single = Command(whole, *SIXTY, *TINY, "tracking=off", "chunk=1")
    assert single.wait() == 0, single.said
    killed = Command(outputs, *SIXTY, *TINY, "chunk=12")
    assert killed.wait_for_records(33), killed.said
    killed.send(signal.SIGKILL)
    killed.wait()
    assert killed.orphans() == []
    resumed = Command(outputs, *SIXTY, *TINY, "resume=true")
    assert resumed.wait() == 0, resumed.said

    def cells(sweep: Sweep) -> list[tuple]:
        return [
            (r.job, r.variant, r.status, r.config_hash, r.kernel_hash, r.environment_hash, r.input_checksum)
            for r in sweep.records()
        ]

    assert cells(the_sweep(outputs)) == cells(the_sweep(whole)) and len(cells(the_sweep(whole))) == 60
    assert count(the_sweep(outputs)).wrong == 0
    folder = the_sweep(outputs).folder
    assert sorted(path.name for path in folder.glob("jobs/*") if path.is_dir()) == ["0", "12", "24"]
    sampled = {
        json.loads(line)["job"]
        for path in folder.glob("jobs/*/samples.jsonl")
        for line in path.read_text().splitlines()
    }
    assert sampled == {*range(30)}
