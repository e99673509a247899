import math

import pytest
import torch

from softmax_exp import accuracy
from softmax_exp.cases import DISTRIBUTIONS, LAYOUTS, Case
from softmax_exp.inputs import make_inputs
from softmax_exp.variants import load
from tests import faulty

CPU = torch.device("cpu")


def checked(case: Case, function, *, on_second_set: bool = False) -> accuracy.Accuracy:
    inputs = make_inputs(case, CPU, 2)
    if on_second_set:
        function(inputs.xs[1])
    x = inputs.xs[0]
    y = function(x)
    result = y
    if case.mode != "forward":
        dx = torch.autograd.grad(y, x, inputs.grads[0])[0]
        result = dx if case.mode == "backward" else (y, dx)
    return accuracy.check(case, x, inputs.mask, inputs.grads[0] if inputs.grads else None, result)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "fault",
    ["zeros", "uniform", "half_written", "off_by_one_row", "wrong_axis", "last_column_dropped", "wrong_scale"],
)
def test_a_wrong_output_is_incorrect_at_4096_columns_where_careless_tolerances_pass_it(fault, dtype):
    case = Case(shape=(16, 4096), dtype=dtype)
    found = checked(case, getattr(faulty, fault))
    assert found.reason
    assert found.error_over_tolerance > 1


def test_the_whole_careless_case_s1():
    case = Case(shape=(4096, 4096), dtype="float16")
    assert float(torch.softmax(torch.randn(4, 4096), -1).max()) < 0.05  # why an absolute tolerance says nothing
    assert checked(case, faulty.zeros).reason
    assert not checked(case, faulty.right).reason


def test_stale_memory_is_incorrect():
    faulty._kept.clear()
    assert checked(Case(shape=(8, 64)), faulty.stale, on_second_set=True).reason


@pytest.mark.parametrize("distribution", ["nan", "inf"])
def test_dropping_nan_is_incorrect(distribution):
    case = Case(shape=(8, 64), distribution=distribution)
    assert checked(case, faulty.nan_dropping).nonfinite_mismatch > 0
    assert not checked(case, faulty.right).reason


def test_missing_max_overflows_and_is_incorrect():
    assert checked(Case(shape=(8, 64), dtype="float32", distribution="large"), faulty.no_max).reason


def test_summing_in_half_precision_is_incorrect():
    assert checked(Case(shape=(4, 4096), dtype="float16"), faulty.half_sum).reason


@pytest.mark.parametrize("mode", ["backward", "full"])
def test_a_gradient_of_the_wrong_sign_is_incorrect(mode):
    case = Case(shape=(8, 64), dtype="float32", mode=mode)
    assert checked(case, faulty.gradient_of_wrong_sign).reason.startswith("dx")
    assert not checked(case, faulty.right).reason


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other_dtype", "dtype torch.float32 instead of torch.float16"),
        ("other_shape", "shape (8, 63) instead of (8, 64)"),
        ("not_a_tensor", "is a list, not a tensor"),
        ("aliasing", "shares its memory with the input"),
    ],
)
def test_a_result_of_the_wrong_form_is_told(fault, words):
    assert words in checked(Case(shape=(8, 64)), getattr(faulty, fault)).reason


def test_the_reason_names_the_place_and_both_values():
    case = Case(shape=(8, 64), dtype="float32")
    x = make_inputs(case, CPU).xs[0]
    y = torch.softmax(x, -1)
    y[5, 7] = 0.5
    reason = accuracy.check(case, x, None, None, y).reason
    assert "row 5, column 7" in reason and "0.5 instead of" in reason


EAGER = load("eager")
AWKWARD = [(3, 1), (1000, 1), (2, 3, 9, 17), (1, 1, 8, 1000), (4, 4097), (1, 6000), (7,), (0, 4), (4, 0), (4, 0, 0)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["forward", "backward", "full"])
def test_eager_is_right_on_every_distribution_and_awkward_shape(dtype, mode):
    for distribution in DISTRIBUTIONS:
        for number, shape in enumerate(AWKWARD):
            layout = LAYOUTS[number % len(LAYOUTS)]
            case = Case(shape=shape, dtype=dtype, mode=mode, distribution=distribution, layout=layout)
            found = checked(case, EAGER.build(case))
            assert not found.reason, f"{case.title}: {found.reason}"


@pytest.mark.parametrize(
    ("mask", "scale"), [("causal", None), ("additive", None), ("boolean", 0.125), ("additive", 0.3)]
)
@pytest.mark.parametrize("mode", ["forward", "full"])
def test_eager_is_right_with_masks_and_scale(mask, scale, mode):
    for dtype in ("float16", "float32"):
        for distribution in ("normal", "padded", "large"):
            for shape in [(2, 3, 9, 17), (1, 2, 1, 33), (5, 7)]:
                case = Case(shape=shape, dtype=dtype, mode=mode, mask=mask, scale=scale, distribution=distribution)
                inputs = make_inputs(case, CPU)
                function = EAGER.build(case)
                mask_tensor = inputs.mask

                def masked(x, function=function, mask_tensor=mask_tensor):
                    return function(x) if mask_tensor is None else function(x, mask_tensor)

                found = checked(case, masked)
                assert not found.reason, f"{case.title}: {found.reason}"


def test_a_mask_that_is_off_by_one_column_is_incorrect():
    case = Case(shape=(2, 2, 16, 16), dtype="float32", mask="causal")

    def off_by_one(x):
        ahead = torch.ones(16, 16, dtype=torch.bool).triu(2)
        return torch.softmax(x.masked_fill(ahead, float("-inf")), -1)

    assert checked(case, off_by_one).reason


def test_a_row_of_minus_infinity_is_nan_as_in_eager():
    case = Case(shape=(8, 16), distribution="padded")
    x = make_inputs(case, CPU).xs[0]
    assert (x[0] == float("-inf")).all()
    zero_instead = torch.softmax(x, -1).nan_to_num(0.0)
    assert accuracy.check(case, x, None, None, zero_instead).nonfinite_mismatch == 16


def test_special_rows_are_nan_rows():  # S4
    inf, nan = math.inf, math.nan
    x = torch.tensor([[inf, 0.0], [inf, inf], [nan, 0.0], [-inf, nan]], dtype=torch.float32)
    assert accuracy.softmax_reference(x.double()).isnan().all()
    assert torch.softmax(x, -1).isnan().all()


def test_constants_give_one_over_n():  # S9
    x = torch.zeros(1, 512, dtype=torch.bfloat16)
    case = Case(shape=(1, 512), dtype="bfloat16", distribution="constant")
    assert float(torch.softmax(x, -1)[0, 0]) == 1 / 512
    assert not accuracy.check(case, x, None, None, torch.full_like(x, 1 / 512)).reason
    assert accuracy.check(case, x, None, None, torch.full_like(x, 1.02 / 512)).reason


def test_zeros_are_incorrect_down_to_the_smallest_number_of_float16_and_right_below_its_half():
    case = Case(shape=(1, 2), dtype="float16")
    for distance, right in ((-16.7, 2.0**-24), (-17.3, 2.0**-24), (-17.4, 0.0)):  # beside 1; half of it is at -17.33
        x = torch.tensor([[0.0, distance]], dtype=torch.float16)
        assert float(torch.softmax(x, -1)[0, 1]) == right
        for value in (0.0, 2.0**-24):
            y = torch.tensor([[1.0, value]], dtype=torch.float16)
            assert bool(accuracy.check(case, x, None, None, y).reason) == (value != right), (distance, value)


@pytest.mark.gpu
def test_zeros_are_incorrect_at_16_million_equal_columns_of_float16():
    n = 1 << 24  # 1/n is the smallest number above zero
    case = Case(shape=(4, n), dtype="float16", distribution="constant", device="cuda")
    x = torch.zeros(4, n, dtype=torch.float16, device="cuda")
    for name in ("eager", "triton"):
        assert not accuracy.check(case, x, None, None, load(name).build(case)(x)).reason
    assert "0 instead of 5.96046e-08" in accuracy.check(case, x, None, None, torch.zeros_like(x)).reason


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("distribution", ["normal", "ties", "denormal", "one_hot"])
def test_a_gradient_by_eagers_formula_on_cuda_is_right(dtype, distribution):
    """It rounds dy * y to the dtype, sums in float32, subtracts, and rounds again."""
    case = Case(shape=(8, 4096), dtype=dtype, distribution=distribution, mode="backward")
    inputs = make_inputs(case, torch.device("cpu"))
    x, dy = inputs.xs[0].detach(), inputs.grads[0]
    y = torch.softmax(x, -1)
    product = (dy * y).float()
    dx = (product - product.sum(-1, keepdim=True) * y.float()).to(x.dtype)
    assert not accuracy.check(case, x, None, dy, dx).reason


@pytest.mark.parametrize("offset", [0.0, -1e7, 1e7])
def test_offsets_and_large_values_stay_finite_and_sum_to_one(offset):  # S11
    z = torch.randn(4, 100, dtype=torch.float64) * 1e4 + offset
    y = accuracy.softmax_reference(z)
    assert y.isfinite().all() and torch.allclose(y.sum(-1), torch.ones(4, dtype=torch.float64))


def test_one_column_gives_ones():  # S6
    case = Case(shape=(1000, 1), dtype="float32")
    assert not checked(case, torch.ones_like).reason
    assert checked(case, torch.zeros_like).reason


def test_the_reference_agrees_with_another_way_to_compute_it():
    z = torch.randn(64, 777, dtype=torch.float64) * 30
    y = accuracy.softmax_reference(z)
    assert torch.allclose(y, (z - torch.logsumexp(z, -1, keepdim=True)).exp(), rtol=1e-12, atol=0)


def test_on_a_cpu_the_first_and_the_last_row_of_a_large_case_are_among_the_checked():
    case = Case(shape=(8000, 1000), dtype="float32")
    x = make_inputs(case, CPU).xs[0]
    right = torch.softmax(x, -1)
    assert 3 <= accuracy.check(case, x, None, None, right).n_rows_checked < 8000
    for row in (0, 7999):
        wrong = right.clone()
        wrong[row, 3] = 0
        assert accuracy.check(case, x, None, None, wrong).reason
