"""Made-up but realistic records and sweeps, for tests of whatever comes after measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softmax_exp.environment import keep_environment
from softmax_exp.records import Record, Status
from softmax_exp.sweep import Sweep

VARIANTS = ("eager", "torch.compile", "triton-simple", "triton")
ENVIRONMENT: dict[str, Any] = {
    "host": {
        "hostname": "box",
        "cpu": "A CPU",
        "cpu_count": 16,
        "python": "3.12.3",
        "git": {"package": {"commit": "0123456789abcdef", "dirty": True}},
    },
    "device": {"type": "cuda", "name": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0", "triton": "3.6.0"},
}
_DEVICE_MS = {"eager": 1.0, "torch.compile": 0.66, "triton-simple": 0.92, "triton": 0.65}
_HOST_MS = {"eager": 1.3, "torch.compile": 3.5, "triton-simple": 2.6, "triton": 1.6}


def passed(job: int, variant: str, n_cols: int, sweep_id: str = "s", **changes: Any) -> Record:
    """A PASSED cell of an 8x12xSxS case, timed by both clocks, which rank differently."""
    eager_ms = 1.6e-7 * n_cols**2
    device_ms, limit_ms = eager_ms * _DEVICE_MS.get(variant, 1.0), 0.64 * eager_ms
    least_bytes = 2 * 2 * 96 * n_cols**2
    fields: dict[str, Any] = {
        "batch": 8, "heads": 12, "seq_q": n_cols, "seq": n_cols, "started_at": "2026-11-01T10:00:00Z",
        "config_hash": "c0ffee", "status": Status.PASSED, "baseline": "eager", "clock": "events", "cache": "cold",
        "max_abs_error": 2.4414e-05, "max_rel_error": 4e-4, "max_row_sum_error": 1e-4, "nonfinite_mismatch": 0,
        "mean_latency_ms": 0.009 + device_ms, "median_latency_ms": 0.008 * _HOST_MS.get(variant, 1.0) + device_ms,
        "device_ms": device_ms, "device_ms_ci_low": 0.997 * device_ms, "device_ms_ci_high": 1.003 * device_ms,
        "n_samples": 200, "least_bytes": least_bytes, "gbps": least_bytes / device_ms / 1e6,
        "limit_ms": limit_ms, "limit_gbps": least_bytes / limit_ms / 1e6, "pct_of_limit": 100 * limit_ms / device_ms,
        "speedup": eager_ms / device_ms, "speedup_ci_low": 0.99 * eager_ms / device_ms,
        "speedup_ci_high": 1.01 * eager_ms / device_ms, "first_call_s": 3.25, "compile_cache_hit": False,
        "plan": {"kernel": "rows", "tile": [4, n_cols], "num_warps": 4} if variant.startswith("triton") else {},
        "machine": {"sm_clock_mhz": 1980, "throttle_reasons": []},
    }  # fmt: skip
    return Record(
        sweep_id, job, variant, [8, 12, n_cols, n_cols], 96 * n_cols, n_cols, "float16", "forward", **(fields | changes)
    )


def failed(
    job: int, variant: str, n_cols: int, status: Status, message: str, sweep_id: str = "s", **changes: Any
) -> Record:
    """A cell of the same case that has no latency."""
    whole = passed(job, variant, n_cols, sweep_id)
    kept = {name: getattr(whole, name) for name in ("batch", "heads", "seq_q", "seq", "started_at", "config_hash")}
    fields = {**kept, "status": status, "message": message, **changes}
    return Record(sweep_id, job, variant, whole.shape, whole.n_rows, n_cols, "float16", "forward", **fields)


def records(sweep_id: str = "s", sizes: tuple[int, ...] = (128, 512, 2048)) -> list[Record]:
    """Four variants at each size, one of them timed out and one INCORRECT."""
    cells = [passed(job, variant, n, sweep_id) for job, n in enumerate(sizes) for variant in VARIANTS]
    cells[1] = failed(0, "torch.compile", sizes[0], Status.TIMEOUT, "the first call took over 300 s", sweep_id)
    cells[-2] = failed(
        len(sizes) - 1, "triton-simple", sizes[-1], Status.INCORRECT, "error 0.25 > 1.2e-04\nin row 3", sweep_id,
        max_abs_error=0.25, nonfinite_mismatch=0,
    )  # fmt: skip
    cells[0].flags = ["noisy"]
    return cells


def sweep(outputs: Path, cells: list[Record], **job: Any) -> Sweep:
    """A finished sweep on disk with these records, all of one sweep_id."""
    numbers = sorted({record.job for record in cells})
    jobs = [
        {
            "job": number,
            "overrides": [f"seq={next(r.n_cols for r in cells if r.job == number)}"],
            "variants": [record.variant for record in cells if record.job == number],
            "config": {"measure": {"n_iters": 30}},
            **job,
        }
        for number in numbers
    ]
    made = Sweep.create(outputs / "sweeps" / cells[0].sweep_id, jobs, {"command": "python -m softmax_exp"})
    name = keep_environment(made.folder, ENVIRONMENT)
    for record in cells:
        record.environment_hash = name
        made.append(record)
    return made
