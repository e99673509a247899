import pytest
import torch

from softmax_exp.cases import DISTRIBUTIONS, LAYOUTS, Case
from softmax_exp.inputs import checksum, make_inputs, make_x, refill, resolve_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_distribution_in_every_layout_has_the_shape_and_the_same_values_again(distribution, layout):
    for shape in [(7,), (3, 5), (2, 3, 9, 16), (0, 4), (4, 0)]:
        case = Case(shape=shape, distribution=distribution, layout=layout)
        x = make_x(case, CPU, 3)
        assert x.shape == shape and x.dtype == torch.float16
        assert checksum(x) == checksum(make_x(case, CPU, 3))


def test_layouts_are_what_they_are_called():
    strides = {layout: make_x(Case(shape=(4, 6, 10), layout=layout), CPU, 0).stride() for layout in LAYOUTS}
    assert strides["contiguous"] == (60, 10, 1)
    assert strides["transposed"] == (60, 1, 6)
    assert strides["expanded"][0] == 0
    assert strides["padded"] == (108, 18, 1)
    assert make_x(Case(shape=(4, 6), layout="offset"), CPU, 0).storage_offset() == 1


@pytest.mark.parametrize("layout", ["offset", "padded"])
def test_what_lies_beside_x_would_show_in_a_result(layout):
    x = make_x(Case(shape=(4, 6), layout=layout), CPU, 0)
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    assert whole.numel() > x.numel() and whole.isnan().sum() == whole.numel() - x.numel()


def test_far_rows_are_more_than_32_bits_apart():
    x = make_x(Case(shape=(2, 2, 7), layout="far"), CPU, 0)
    assert x.shape == (2, 2, 7) and x[-1, -1].storage_offset() >= 2**31 and x.isfinite().all()


def test_distributions_are_what_they_are_called():
    def drawn(name, dtype="float32"):
        return make_x(Case(shape=(16, 64), dtype=dtype, distribution=name), CPU, 0)

    assert drawn("large").abs().max() > 1e4 and drawn("large", "float16").isfinite().all()
    assert drawn("shifted")[::2].min() > 9e6 and drawn("shifted")[1::2].max() < -9e6
    assert drawn("shifted", "float16").isfinite().all()
    assert (drawn("constant") == 1).all()
    assert ((drawn("one_hot") == 50).sum(-1) == 1).all()
    assert (drawn("ties") == drawn("ties").round()).all()
    assert drawn("tiny").abs().max() < 0.01
    assert (drawn("padded")[0] == float("-inf")).all() and (drawn("padded")[1, 48:] == float("-inf")).all()
    assert drawn("nan").isnan().any(-1).sum() == 4 and drawn("inf").isinf().any(-1).sum() == 4
    assert (
        drawn("nan")[8, 0] == float("-inf")
        and drawn("inf")[8].isinf().sum() == 2
        and drawn("inf")[4].isinf().sum() == 1
    )
    assert (drawn("causal")[0] == float("-inf")).sum() == 15 and drawn("causal")[15].isfinite().all()
    y = torch.softmax(drawn("denormal"), -1)
    assert ((y > 0) & (y < torch.finfo(torch.float32).tiny)).any()


def test_buffer_sets_differ_and_set_zero_is_that_of_the_seed():
    inputs = make_inputs(Case(shape=(4, 8), seed=5), CPU, 3)
    assert len({checksum(x) for x in inputs.xs}) == 3
    torch.manual_seed(5)
    assert torch.equal(inputs.xs[0], torch.randn(4, 8, dtype=torch.float16))


def test_gradients_and_masks_come_with_the_modes_that_need_them():
    forward = make_inputs(Case(shape=(2, 3, 4, 8)), CPU)
    assert not forward.grads and forward.mask is None and not forward.xs[0].requires_grad
    full = make_inputs(Case(shape=(2, 3, 4, 8), mode="full", mask="additive"), CPU, 2)
    assert len(full.grads) == 2 and full.xs[0].requires_grad
    assert full.mask is not None and full.mask.shape == (1, 1, 4, 8) and full.mask.isfinite().any(-1).all()


def test_a_refill_keeps_the_address_and_changes_the_values():
    case = Case(shape=(4, 8), layout="transposed")
    x = make_x(case, CPU, 0)
    address, before = x.data_ptr(), checksum(x)
    refill(x, case, 1)
    assert x.data_ptr() == address and checksum(x) != before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_checksum_sees_one_bit_and_the_order(dtype):
    x = torch.randn(3, 7, dtype=dtype)
    changed = x.clone()
    changed[2, 6] = torch.nextafter(x[2, 6].float(), torch.tensor(9.0)).to(dtype) if dtype == torch.float32 else 9.0
    assert len({checksum(x), checksum(changed), checksum(x.flip(0)), checksum(x.flip(1)), checksum(x.view(7, 3))}) == 5
    assert checksum(x) == checksum(x.t().contiguous().t())


def test_devices():
    assert resolve_device("cpu") == CPU
    if not torch.cuda.is_available():
        assert resolve_device("auto") == CPU
        with pytest.raises(RuntimeError, match="requires a CUDA GPU"):
            resolve_device("cuda")
