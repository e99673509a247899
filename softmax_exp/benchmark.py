"""The first version's benchmark as a function: the host clock, one variant after the other.

In: a device and the sizes of attention scores.  Out: a `SoftmaxVariantResult` for each of eager, torch.compile and
our Triton softmax.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.records import Status

VARIANTS = ("eager", "torch.compile", "triton")


class SoftmaxVariantResult(TypedDict):
    """`variant` with its latency in ms (host clock) and largest error against float64, or with an `error`."""

    variant: str
    mean_latency_ms: NotRequired[float]
    std_latency_ms: NotRequired[float]
    max_abs_error: NotRequired[float]
    error: NotRequired[str]


def benchmark_softmax_variants(
    device: Any,
    batch: int = 8,
    heads: int = 12,
    seq: int = 512,
    n_warmup: int = 5,
    n_iters: int = 30,
    seed: int = 0,
) -> list[SoftmaxVariantResult]:
    """Time the softmax of float16 (batch, heads, seq, seq) normal scores on `device`, a CUDA torch.device or its name.

    Each of `n_iters` calls is timed between two synchronisations after `n_warmup` calls. A failing variant has an
    `error` and stops no other. Without CUDA: one result, variant `all`.
    """
    from softmax_exp.measure import measure
    from softmax_exp.outcome import NO_GPU
    from softmax_exp.request import Request

    if not str(device).startswith("cuda"):
        return [{"variant": "all", "error": NO_GPU}]
    case = Case(shape=(batch, heads, seq, seq), seed=seed, device=str(device))
    settings = MeasureSettings(clock="wall", n_warmup=n_warmup, n_iters=n_iters)
    events: list[dict[str, Any]] = []
    measure(Request(case, VARIANTS, settings), events.append)
    return [_result(event) for event in events if event["event"] == "result"]


def _result(event: dict[str, Any]) -> SoftmaxVariantResult:
    if event["status"] != Status.PASSED:
        return {"variant": event["variant"], "error": event["message"] or event["status"]}
    return {
        "variant": event["variant"],
        "mean_latency_ms": event["mean_latency_ms"],
        "std_latency_ms": event["std_latency_ms"],
        "max_abs_error": event["max_abs_error"],
    }
