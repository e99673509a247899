"""On a GPU: a variant that writes out of bounds, one that never ends, one that takes all memory, in mid-sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmax_exp.records import Status
from tests.faults.sweeps import Command, the_sweep

FAULTS = Path(__file__).with_name("gpu_faults.py")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name, status",
    [
        ("out_of_bounds", Status.CRASHED),
        ("out_of_bounds_later", Status.CRASHED),
        ("endless", Status.TIMEOUT),
        ("all_memory", Status.OOM),
    ],
)
def test_only_the_faulty_variant_is_lost(tmp_path, name, status) -> None:  # S16
    bad = f"{FAULTS}:{name}"
    overrides = ["-m", "seq=128,256,512", f"variants=[eager,{bad},triton-simple]", "measure=quick", "tracking=off"]
    command = Command(tmp_path, *overrides, "measure.first_call_deadline_s=20", "measure.measure_deadline_s=20")
    assert command.wait() == 1
    assert "Traceback" not in command.said and not command.orphans()
    found = [(r.job, r.variant, r.status) for r in the_sweep(tmp_path).records()]
    hit = {job: Status.PASSED if job == 0 else status for job in range(3)}  # the fault begins with the second case
    assert found == [
        (job, variant, hit[job] if variant == bad else Status.PASSED)
        for job in range(3)
        for variant in ("eager", bad, "triton-simple")
    ]
