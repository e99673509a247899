"""Inputs on which public softmax kernels have been wrong (S1 and others), and inputs whose result is known exactly."""

import dataclasses
import math

import pytest
import torch

from softmax_exp import softmax, triton_softmax, variants
from softmax_exp.accuracy import check
from softmax_exp.cases import DISTRIBUTIONS, Case
from softmax_exp.correctness import shrink
from softmax_exp.inputs import make_inputs
from softmax_exp.measure import measure
from softmax_exp.records import Status
from softmax_exp.reference import softmax_reference, verify
from softmax_exp.request import Request
from tests import faulty

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")  # numpy's
INF, NAN = math.inf, math.nan
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
VARIANTS = ("eager", "triton-simple", "triton") + (("torch.compile",) if CUDA else ())  # 10 s a shape on a CPU
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def ended(case: Case, *names: str) -> dict[str, dict]:
    """The results of variants in a case, nothing timed; Triton's interpreter runs the kernels on a CPU."""
    events: list[dict] = []
    case = dataclasses.replace(case, device=str(DEVICE))
    measure(Request(case, names or VARIANTS, shrink.SETTINGS, baseline=None, interpreted=not CUDA), events.append)
    return {event["variant"]: event for event in events if event["event"] == "result"}


def right(case: Case, *names: str) -> None:
    for name, result in ended(case, *names).items():
        assert result["status"] in (Status.PASSED, Status.UNSUPPORTED), (name, case.title, result)
        assert result["status"] == Status.PASSED or name == "triton-simple"


def computed(name: str, x: torch.Tensor, **fields) -> torch.Tensor:
    case = Case(shape=tuple(x.shape), dtype=str(x.dtype).removeprefix("torch."), device=str(DEVICE), **fields)
    return variants.load(name).build(case)(x.to(DEVICE)).cpu()


@pytest.fixture(scope="module")
def large_half():
    case = Case(shape=(4096, 4096), dtype="float16")
    return case, make_inputs(case, torch.device("cpu")).xs[0]


@pytest.mark.parametrize("fault", ["zeros", "uniform", "stale", "half_written"])
def test_s1_an_output_that_a_careless_tolerance_passes_is_incorrect(fault, large_half):
    case, x = large_half
    faulty._kept.clear()
    if fault == "stale":
        faulty.stale(x.flip(0))
    y = getattr(faulty, fault)(x)
    faulty._kept.clear()
    if fault != "half_written":
        assert torch.allclose(y[:8].double(), softmax_reference(x[:8].double()), atol=0.05), "careless enough"
    found = check(case, x, None, None, y)
    assert found.reason and found.error_over_tolerance > 100


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_s3_a_row_of_minus_infinity_is_nan_and_zero_where_safe(mask):
    case = Case(shape=(2, 16, 40), dtype="float32", distribution="padded", mask=mask)
    right(case)
    x = make_inputs(case, DEVICE).xs[0]
    empty = (x == -INF).all(-1)
    assert empty.any() and not empty.all()
    y = softmax(x, causal=mask == "causal", safe=True)
    assert (y[empty] == 0).all() and y.isfinite().all()
    sums = y[~empty].sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums))
    assert softmax(x, causal=mask == "causal")[empty].isnan().all()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_s4_a_row_with_infinity_or_nan_is_nan_and_harms_no_other(name, dtype):
    x = torch.tensor([[INF, 0, 1], [INF, INF, 1], [NAN, 0, 1], [-INF, NAN, 1], [0, 0, -INF]], dtype=DTYPES[dtype])
    y = computed(name, x)
    assert y[:4].isnan().all() and y[4].tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize("shape", [(0, 2), (10, 0), (4, 0, 0)])
def test_s8_empty_tensors_stay_empty(shape):
    found = ended(Case(shape=shape))
    assert {result["status"] for result in found.values()} == {Status.PASSED}, found


def test_s8_a_tensor_without_dimensions_is_one():
    x = torch.tensor(3.0, device=DEVICE)
    assert torch.softmax(x, -1) == 1 and softmax(x) == 1
    right(Case(shape=(), dtype="float32"), "eager", "triton")


@pytest.mark.parametrize("name", VARIANTS)
def test_s9_zeros_give_one_over_n(name):
    assert (computed(name, torch.zeros(1, 512, dtype=torch.bfloat16)) == 1 / 512).all()


@pytest.mark.parametrize("shape", [(3, 33), (2, 2, 1000)])
def test_s10_rows_beyond_32_bit_offsets(shape):
    case = Case(shape=shape, dtype="float16", layout="far")
    try:
        make_inputs(case, DEVICE)
    except RuntimeError as error:
        pytest.skip(f"no room for rows 2^31 elements apart: {error}")
    right(case)
    right(dataclasses.replace(case, mode="full"), "eager", "triton")


@pytest.mark.gpu
def test_s10_more_than_2_to_the_31_elements():
    right(Case(shape=((1 << 31) // 4096 + 3, 4096), dtype="float16", workload="matrix"), "eager", "triton")


@pytest.mark.parametrize("distribution", ["large", "shifted"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_s11_large_values_and_offsets_stay_finite_and_rows_sum_to_one(distribution, dtype):
    case = Case(shape=(6, 100), dtype=dtype, distribution=distribution, workload="matrix")
    for name, result in ended(case).items():
        assert result["status"] == Status.PASSED, (name, result)
        assert result["max_row_sum_error"] < 0.05 and result["nonfinite_mismatch"] == 0


def test_s12_an_input_that_wants_a_gradient_gets_one_or_a_refusal():
    found = ended(Case(shape=(3, 33), dtype="float32", mode="full"))
    assert {name for name, result in found.items() if result["status"] == Status.PASSED} >= {"eager", "triton"}
    assert found["triton-simple"]["status"] == Status.UNSUPPORTED
    x = torch.randn(2, 8, device=DEVICE, requires_grad=True)
    for function in (softmax, triton_softmax):
        y = function(x)
        assert y.requires_grad
        assert torch.autograd.grad(y[:, 0].sum(), x)[0].abs().sum() > 0


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", VARIANTS)
def test_s13_a_tensor_on_the_second_gpu_while_the_first_is_current(name):
    x = torch.randn(4, 100, device="cuda:1")
    assert torch.cuda.current_device() == 0
    y = variants.load(name).build(Case(shape=(4, 100), dtype="float32", device="cuda:1"))(x)
    assert y.device == x.device and torch.allclose(y, torch.softmax(x, -1))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 64, 1000, 4097])
def test_constants_give_one_over_n(name, dtype, n):
    expected = torch.tensor(1 / n).to(DTYPES[dtype])
    for value in (0.0, 1.0, -300.0):
        y = computed(name, torch.full((2, n), value, dtype=DTYPES[dtype]))
        if n & (n - 1) == 0:
            assert (y == expected).all()
        assert torch.allclose(y, expected.expand(2, n), rtol=torch.finfo(DTYPES[dtype]).eps, atol=0)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_hot_gives_one_and_zeros(name, dtype):
    x = torch.full((3, 100), -150.0, dtype=DTYPES[dtype])
    places = torch.tensor([0, 57, 99])
    x[torch.arange(3), places] = 50
    assert torch.equal(computed(name, x), torch.nn.functional.one_hot(places, 100).to(DTYPES[dtype]))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shifts_change_nothing(name, dtype):
    torch.manual_seed(0)
    x = torch.randint(-8, 8, (4, 257)).to(DTYPES[dtype])  # so that the shifted values are exact in every dtype
    y = computed(name, x)
    for shift in (64, -100):
        assert torch.equal(computed(name, x + shift), y)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_permutations_permute(name, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 257).to(DTYPES[dtype])
    rows, columns = torch.randperm(4), torch.randperm(257)
    y, permuted = computed(name, x), computed(name, x[rows][:, columns])
    eps = torch.finfo(DTYPES[dtype]).eps  # the order of a sum may follow the alignment of a row, or its permutation
    assert torch.allclose(computed(name, x[rows]), y[rows], rtol=4 * eps, atol=0)
    assert torch.allclose(permuted, y[rows][:, columns], rtol=4 * eps, atol=0)


def test_the_reference_that_is_wrong_is_told():
    y = softmax_reference(torch.randn(5, 777, dtype=torch.float64))
    verify(y)
    verify(torch.cat([y, torch.full((1, 777), NAN, dtype=torch.float64)]))
    y[3, 5] += 1e-6
    with pytest.raises(RuntimeError, match="the float64 reference is wrong on cpu: its row 3 sums to"):
        verify(y)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 33, 513, 577, 767, 769, 1001, 1023, 4097])
def test_the_reference_is_the_same_on_cpu_and_cuda_at_odd_widths(n):
    z = torch.randn(64, n, dtype=torch.float64) * 10
    on_cuda = softmax_reference(z.cuda())
    verify(on_cuda)
    assert torch.allclose(on_cuda.cpu(), softmax_reference(z), rtol=1e-12, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["eager", "torch.compile", "triton-simple", "triton"])
def test_every_distribution_on_the_gpu(name):
    for distribution in DISTRIBUTIONS:
        right(Case(shape=(2, 3, 33, 513), distribution=distribution), name)
