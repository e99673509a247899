import dataclasses
from pathlib import Path

import pytest
import torch

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.measure import measure
from softmax_exp.outcome import NO_GPU
from softmax_exp.records import Status
from softmax_exp.request import Request
from tests import faulty

FAULTY = Path(faulty.__file__)
QUICK = MeasureSettings(budget_s=0.05, min_rounds=3, max_rounds=20, n_warmup=1)
SMALL = Case(shape=(2, 3, 16, 64), dtype="float32", device="cpu")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


def planted(name: str) -> str:
    return f"{FAULTY}:{name}"


def results(case: Case, *names: str, **more) -> dict[str, dict]:
    events: list[dict] = []
    request = Request(case, names, **({"settings": QUICK} | more))
    measure(request, events.append)
    found = [event for event in events if event["event"] == "result"]
    assert len({event["variant"] for event in found}) == len(found)
    return {event["variant"]: event for event in found}


def test_variants_are_measured_with_both_accuracy_and_latency():
    found = results(SMALL, "eager", planted("right"))
    assert [result["status"] for result in found.values()] == [Status.PASSED] * 2
    for result in found.values():
        assert result["device_ms"] > 0 and result["mean_latency_ms"] > 0 and result["n_samples"] >= 3
        assert result["max_abs_error"] < 1e-6 and result["first_call_s"] > 0
        assert result["clock"] == "host" and result["least_bytes"] == 2 * SMALL.tensor_bytes
    assert found["eager"]["speedup"] == 1.0
    assert found[planted("right")]["speedup"] == pytest.approx(1.0, rel=0.9)


@pytest.mark.parametrize(
    "fault",
    [
        "zeros",
        "uniform",
        "stale",
        "cached_by_address",
        "half_written",
        "off_by_one_row",
        "input_mutating",
        "aliasing",
        "other_shape",
        "reusing_output",
        "late",
    ],
)
def test_a_faulty_variant_is_incorrect_without_a_latency_and_beside_others(fault):
    faulty._kept.clear()
    faulty._by_address.clear()
    found = results(SMALL, planted(fault), "eager")
    assert found[planted(fault)]["status"] == Status.INCORRECT, found
    assert "device_ms" not in found[planted(fault)] and "mean_latency_ms" not in found[planted(fault)]
    assert found["eager"]["status"] == Status.PASSED


def test_dropping_nan_is_incorrect():
    case = dataclasses.replace(SMALL, distribution="nan")
    assert results(case, planted("nan_dropping"))[planted("nan_dropping")]["status"] == Status.INCORRECT


def test_one_failure_stops_no_other_variant():
    found = results(SMALL, planted("raising"), "eager", planted("raising_when_timed"), planted("right"))
    assert found[planted("raising")]["status"] == Status.ERROR
    assert "RuntimeError: planted" in found[planted("raising")]["message"]
    assert "faulty.py" in found[planted("raising")]["traceback"]
    assert found[planted("raising_when_timed")]["status"] == Status.ERROR
    assert found["eager"]["status"] == found[planted("right")]["status"] == Status.PASSED


def test_too_much_memory_is_oom():
    found = results(SMALL, planted("all_memory"), "eager")
    assert found[planted("all_memory")]["status"] == Status.OOM
    assert found["eager"]["status"] == Status.PASSED


@pytest.mark.parametrize("mode", ["backward", "full"])
def test_gradients_are_checked_and_a_detached_result_is_refused(mode):  # S12
    case = dataclasses.replace(SMALL, mode=mode)
    found = results(case, "eager", planted("detached"), planted("gradient_of_wrong_sign"))
    assert found["eager"]["status"] == Status.PASSED
    assert found[planted("detached")]["status"] == Status.UNSUPPORTED
    assert "detached" in found[planted("detached")]["message"]
    assert found[planted("gradient_of_wrong_sign")]["status"] == Status.INCORRECT


def test_backward_is_timed_without_the_forward():
    forwards = []

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            forwards.append(1)
            y = torch.softmax(x, -1)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            return y * (dy - (dy * y).sum(-1, keepdim=True))

    faulty.counted = Counted.apply  # type: ignore[attr-defined]
    import softmax_exp.variants as variants

    original = variants.load
    variants.load = lambda name: dataclasses.replace(original("eager"), build=lambda case: Counted.apply)  # type: ignore[assignment]
    try:
        result = results(dataclasses.replace(SMALL, mode="backward"), "eager")["eager"]
    finally:
        variants.load = original
    assert result["status"] == Status.PASSED
    assert len(forwards) < result["n_samples"] + 3 * 16  # one a buffer set, none a timed call


def test_recompiling_while_timed_is_rejected():  # S2
    found = results(SMALL, planted("recompiling"), "eager")
    assert found[planted("recompiling")]["status"] == Status.ERROR
    assert "recompil" in found[planted("recompiling")]["message"].lower()
    assert found["eager"]["status"] == Status.PASSED


def test_ten_shapes_in_one_process_are_each_compiled_for_their_shape():  # S2
    from torch._dynamo.utils import counters

    for n_cols in range(40, 50):
        before = counters["stats"]["unique_graphs"]
        case = Case(shape=(2, n_cols), dtype="float32", device="cpu")
        result = results(case, "torch.compile")["torch.compile"]
        assert result["status"] == Status.PASSED, result
        assert counters["stats"]["unique_graphs"] == before + 1


@no_gpu
def test_without_a_gpu_triton_variants_are_skipped_and_the_others_measured():
    found = results(dataclasses.replace(SMALL, device="auto"), "triton", "triton-simple", "eager")
    assert found["triton"]["status"] == found["triton-simple"]["status"] == Status.SKIPPED
    assert found["triton"]["message"] == NO_GPU
    assert found["eager"]["status"] == Status.PASSED


@no_gpu
def test_cuda_without_a_gpu_gives_the_one_result_of_the_first_version():
    found = results(dataclasses.replace(SMALL, device="cuda"), "eager", "triton")
    assert list(found) == ["all"]
    assert found["all"]["status"] == Status.SKIPPED and found["all"]["message"] == "skipped: requires a CUDA GPU"


@pytest.mark.parametrize("shape", [(0, 2), (10, 0), (4, 0, 0)])
def test_empty_tensors_are_right_and_not_timed(shape):  # S8
    result = results(Case(shape=shape, device="cpu"), "eager")["eager"]
    assert result["status"] == Status.PASSED and "device_ms" not in result
    assert result["message"] == "no latency: nothing to time"


def test_one_column_and_a_row_beyond_a_triton_block():  # S6, S7
    assert results(Case(shape=(1000, 1), device="cpu"), "eager")["eager"]["status"] == Status.PASSED
    long = Case(shape=(1, 1048577), device="cpu")
    found = results(long, "eager", "triton-simple", interpreted=True)
    assert found["eager"]["status"] == Status.PASSED
    assert found["triton-simple"]["status"] == Status.UNSUPPORTED
    assert "1,048,577" in found["triton-simple"]["message"]


def test_wall_gives_the_first_versions_figures():
    settings = MeasureSettings(clock="wall", n_warmup=2, n_iters=7)
    result = results(SMALL, "eager", settings=settings)["eager"]
    assert result["mean_latency_ms"] > 0 and result["std_latency_ms"] >= 0 and result["n_samples"] == 7
    assert "device_ms" not in result


def test_the_same_seed_gives_the_same_input_and_another_seed_another():
    first, again = (results(SMALL, "eager")["eager"]["input_checksum"] for _ in range(2))
    other = results(dataclasses.replace(SMALL, seed=1), "eager")["eager"]["input_checksum"]
    assert first == again != other


def test_variant_args_reach_the_variant_and_wrong_ones_are_told():
    found = results(SMALL, "eager", variant_args={"eager": {"num_wraps": 4}})
    assert found["eager"]["status"] == Status.ERROR and "num_wraps" in found["eager"]["message"]


def test_the_self_check_measures_the_baseline_twice_and_tells_when_that_differs(monkeypatch):
    settings = dataclasses.replace(QUICK, self_check=True)
    events: list[dict] = []
    measure(Request(SMALL, ("eager",), settings), events.append)
    assert {e["variant"] for e in events if e["event"] == "samples"} >= {"eager", "eager (again)"}
    monkeypatch.setattr("softmax_exp.timing.summary.verdict", lambda *arguments: "slower")
    assert "self_check_slower" in results(SMALL, "eager", settings=settings)["eager"]["flags"]


@pytest.mark.gpu
@pytest.mark.parametrize("seq", [64, 1024])
def test_work_on_another_stream_is_found_out(seq):
    case = Case(shape=(2, 3, seq, seq), device="cuda")
    found = results(case, planted("other_stream"), "eager")
    assert found[planted("other_stream")]["status"] == Status.INCORRECT, found[planted("other_stream")]
    assert found["eager"]["status"] == Status.PASSED


@pytest.mark.gpu
def test_each_size_has_its_own_peak_memory_and_all_is_given_back():  # S22
    peaks, held = {}, torch.cuda.memory_allocated()
    for millions in (15, 10, 5, 1):
        result = results(Case(shape=(millions * 1000, 1000), device="cuda"), "eager")["eager"]
        peaks[millions] = result["peak_memory_bytes"] / 2e6
        assert torch.cuda.memory_allocated() < held + 64e6
    assert all(peaks[size] == pytest.approx(size, rel=0.1) for size in peaks), peaks


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu_is_used_while_the_first_is_current():  # S13
    found = results(Case(shape=(2, 3, 64, 64), device="cuda:1"), "eager", "triton", "triton-simple")
    assert {result["status"] for result in found.values()} == {Status.PASSED}


@pytest.mark.parametrize("mask", ["causal", "additive", "boolean"])
def test_masked_cases_run(mask):
    found = results(dataclasses.replace(SMALL, mask=mask, scale=0.125), "eager", planted("right"))
    assert found["eager"]["status"] == Status.PASSED
    assert found[planted("right")]["status"] == Status.UNSUPPORTED
