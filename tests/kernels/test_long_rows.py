"""Rows shared by many programs: right in every design, with neighbours' help and without, planned for all shapes."""

import dataclasses
import math

import pytest
import torch

from softmax_exp.kernels import long_rows
from softmax_exp.kernels.gpu import Gpu
from softmax_exp.kernels.long_rows_plan import DESIGNS, MAX_CHUNKS, LongRowsPlan, choose, resident_programs

from .oracle import assert_close, assert_gradient_close, oracle


def on_the_gpu(test):
    """Mark a test that needs a GPU."""
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")(test))


DTYPES = [torch.float16, torch.bfloat16, torch.float32]
# Under the interpreter programs run one after another: all but a row's last find words missing, and help.
SMALL = LongRowsPlan("shared", 2048, 1024, 0, 4, None, 3, "aligned", "")


def small(design, n_cols, dtype, access="aligned", chunk=2048):
    """A plan for few columns, so that the interpreter can run it."""
    tile = 4 * 512 // torch.finfo(dtype).bits * 8
    span = n_cols + (16 // (torch.finfo(dtype).bits // 8) - 1 if access == "shifted" else 0)
    return dataclasses.replace(SMALL, design=design, chunk=chunk, tile=tile, n_chunks=-(-span // chunk), access=access)


def rows(n_rows, n_cols, dtype, device, lead=0, stride=None):
    """Random rows that begin `lead` elements after a 16-byte boundary, `stride` elements apart."""
    stride = n_cols if stride is None else stride
    generator = torch.Generator().manual_seed(n_rows * n_cols)
    flat = torch.randn(lead + n_rows * stride, generator=generator) * 3
    return flat.to(device=device, dtype=dtype)[lead:].as_strided((n_rows, n_cols), (stride, 1), lead)


def poisoned(like):
    """Memory for a result, dense, all NaN."""
    return torch.full(like.shape, math.nan, dtype=like.dtype, device=like.device)


@pytest.mark.parametrize("design", ["shared", "partial"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_cols", "lead", "stride", "access"),
    [
        (8192, 0, 8192, "aligned"),
        (5008, 0, 5024, "aligned"),
        (5003, 0, 5003, "shifted"),
        (5003, 3, 5010, "scalar"),
    ],
)
def test_forward_is_right_for_any_alignment(device, design, dtype, n_cols, lead, stride, access):
    x = rows(3, n_cols, dtype, device, lead, stride)
    y = poisoned(x)
    long_rows.forward(x, y, plan=small(design, n_cols, dtype, access))
    assert_close(y, oracle(x), dtype)


@pytest.mark.parametrize("design", ["shared", "partial"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n_cols", "access"), [(4096, "aligned"), (5008, "aligned"), (5003, "shifted"), (5003, "scalar")]
)
def test_backward_is_right_for_any_alignment(device, design, dtype, n_cols, access):
    y = torch.softmax(rows(2, n_cols, torch.float32, device), 1).to(dtype)
    dy = rows(2, n_cols, dtype, device).roll(1, 1).contiguous()
    dx = poisoned(y)
    long_rows.backward(dy, y, dx, scale=0.5, plan=small(design, n_cols, dtype, access))
    assert_gradient_close(dx, dy, y, scale=0.5)


@pytest.mark.parametrize("design", ["shared", "partial"])
def test_non_finite_rows_are_as_eager_gives_them(device, design):
    x = rows(7, 5008, torch.float32, device)
    x[0, 4000] = math.nan
    x[1, 10] = math.inf
    x[2, 10], x[2, 3000] = math.inf, math.inf
    x[3] = -math.inf
    x[4, :2048] = -math.inf  # a whole chunk
    x[5, 1:] = -math.inf
    x[6, 7], x[6, 9] = math.nan, math.inf
    y = poisoned(x)
    long_rows.forward(x, y, plan=small(design, 5008, x.dtype))
    assert_close(y, oracle(x), x.dtype)
    long_rows.forward(x, y, safe=True, plan=small(design, 5008, x.dtype))
    expected = oracle(x)
    expected[3] = 0
    assert_close(y, expected, x.dtype)


@pytest.mark.parametrize("design", ["shared", "partial"])
def test_the_largest_numbers_do_not_overflow(device, design):
    """A row masked by the least float32 is uniform, as eager gives it."""
    x = torch.full((1, 4096), torch.finfo(torch.float32).min, device=device)
    y = poisoned(x)
    long_rows.forward(x, y, plan=small(design, 4096, x.dtype))
    assert torch.equal(y, torch.full_like(x, 1 / 4096))


def test_the_scale_is_applied_and_must_be_above_zero(device):
    x = rows(2, 4096, torch.float32, device)
    y = poisoned(x)
    long_rows.forward(x, y, scale=0.25, plan=small("shared", 4096, x.dtype))
    assert_close(y, oracle(x, scale=0.25), x.dtype)
    for scale in (0.0, -1.0, 1e-30, 1e30, math.nan, math.inf):
        with pytest.raises(ValueError, match="from 2\\^-90 to 2\\^90"):
            long_rows.forward(x, y, scale=scale, plan=small("shared", 4096, x.dtype))


def test_held_rows_are_shared_under_the_interpreter_and_must_be_aligned(device):
    x = rows(2, 8192, torch.float32, device)
    y = poisoned(x)
    plan = dataclasses.replace(SMALL, design="held", chunk=4096, n_chunks=2)
    long_rows.forward(x, y, plan=plan)
    assert_close(y, oracle(x), x.dtype)
    with pytest.raises(ValueError, match="no such rows"):
        long_rows.forward(x, y, plan=dataclasses.replace(plan, access="shifted"))


def test_tensors_that_do_not_fit_are_refused(device):
    x = rows(2, 4096, torch.float32, device)
    for y in (x.half(), x[:1], x.t().contiguous().t(), x[0]):
        with pytest.raises(ValueError, match="2-D"):
            long_rows.forward(x, y, plan=small("shared", 4096, x.dtype))


@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("access", ["aligned", "shifted", "scalar"])
def test_a_plan_covers_its_row_and_fits_on_the_gpu(mode, itemsize, access):
    for n_rows in (1, 16, 4096):
        for n_cols in (32769, 50257, 65536, 128256, 131072, 262152, 1 << 20, 1 << 22, 5_000_000, 1 << 24):
            plan = choose(n_rows, n_cols, itemsize, mode, access)
            assert plan is not None and plan.design in DESIGNS
            span = n_cols + (16 // itemsize - 1) * (access == "shifted")
            assert span <= plan.n_chunks * plan.chunk
            assert (plan.n_chunks - 1) * plan.chunk < span
            assert plan.chunk % plan.tile == 0 and plan.n_chunks <= MAX_CHUNKS
            if plan.design in ("shared", "held"):
                assert plan.n_chunks <= 0.5 * resident_programs(plan, itemsize, Gpu())


def test_the_plan_uses_every_design():
    assert choose(4096, 131072, 2).design == "shared"
    assert choose(256, 1 << 20, 2).design == "held"
    assert choose(256, 1 << 20, 2, access="scalar").design == "shared"
    assert choose(256, 1 << 20, 2, gpu=Gpu(capability=(8, 0))).design == "shared"
    assert choose(1, 131072, 2).design == "partial"
    assert choose(1, 131072, 2, "backward").design == "partial"
    assert choose(1, 131073, 2, access="shifted").design == "partial"
    assert choose(8, 1 << 24, 4).design == "partial"
    assert choose(1, 1 << 26, 4) is None


# What the plan gives for shapes that stand for its branches, on a GPU as users run it.
PLANNED = [
    (131072, 96, torch.float16, 0),
    (131071, 96, torch.bfloat16, 0),
    (131072, 96, torch.bfloat16, 1),
    (262144, 64, torch.float32, 0),
    (1 << 20, 16, torch.float16, 0),
    (1_000_008, 16, torch.bfloat16, 0),
    (1 << 22, 4, torch.float32, 0),
    (1 << 22, 4, torch.float16, 0),
    (131072, 1, torch.float16, 0),
    (1 << 24, 2, torch.float32, 0),
]


def planned(x, y, mode="forward"):
    """The plan of a call on x and y, which may be slices of larger tensors."""
    vector = 16 // x.element_size()
    lead, width = x.data_ptr() // x.element_size() % vector, x.shape[1]
    alike = lead == y.data_ptr() // y.element_size() % vector and (x.stride(0) - y.stride(0)) % vector == 0
    whole = alike and lead == 0 and x.stride(0) % vector == 0 and width % vector == 0
    return choose(*x.shape, x.element_size(), mode, "aligned" if whole else "shifted" if alike else "scalar")


@on_the_gpu
@pytest.mark.parametrize(("n_cols", "n_rows", "dtype", "lead"), PLANNED)
def test_planned_forward_and_backward_on_the_gpu(n_cols, n_rows, dtype, lead):
    x = torch.randn(lead + n_rows * n_cols, device="cuda").to(dtype)[lead:].view(n_rows, n_cols)
    y = poisoned(x)
    long_rows.forward(x, y, plan=planned(x, y))
    for row in {0, n_rows // 2, n_rows - 1}:
        assert_close(y[row], oracle(x[row]), dtype)
    assert not y.isnan().any()
    dx = poisoned(y)
    long_rows.backward(x, y, dx, plan=planned(x, y, "backward"))
    for row in {0, n_rows - 1}:
        assert_gradient_close(dx[row], x[row], y[row])


@on_the_gpu
@pytest.mark.parametrize("spins", [0, 200])
@pytest.mark.parametrize("n_cols", [131072, 1 << 20])
def test_helping_gives_the_same_result(n_cols, spins):
    """With no patience at all every program helps its row."""
    x = torch.randn(24, n_cols, device="cuda").half()
    y = poisoned(x)
    plan = dataclasses.replace(choose(4096, n_cols, 2), spins=spins)
    long_rows.forward(x, y, plan=plan)
    assert_close(y[5], oracle(x[5]), x.dtype)
    dx = poisoned(y)
    plan = dataclasses.replace(choose(4096, n_cols, 2, "backward"), spins=spins)
    long_rows.backward(x, y, dx, plan=plan)
    y64, dy64 = y[5].double(), x[5].double()
    expected = y64 * (dy64 - (dy64 * y64).sum())
    # rounding to float16 alone costs up to 2^-11 of a value
    assert (dx[5].double() - expected).abs().max() < 2**-11 * expected.abs().max() + 2**-24


@on_the_gpu
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("n_cols", [65536, 1 << 20, 1 << 22])
def test_each_word_is_polled_by_one_thread_once_at_each_place(n_cols, mode):
    """Copies of a word that were polled at different times could disagree on whether it is missing."""
    x = torch.randn(16, n_cols, device="cuda")
    plan = choose(4096, n_cols, 4, mode)
    if plan.design == "partial":
        return
    prepare = long_rows.prepare_forward if mode == "forward" else long_rows.prepare_backward
    ir = prepare(*[x] * (2 if mode == "forward" else 3), plan=plan)._second.compiled.asm["ttgir"]
    polls = [line for line in ir.splitlines() if "ld.relaxed.gpu" in line]
    assert len(polls) == 2
    assert all(f"tensor<{max(128, 1 << (plan.n_chunks - 1).bit_length())}xi64" in line for line in polls)


@on_the_gpu
def test_calls_can_be_captured_and_replayed_with_new_input():
    x = torch.randn(16, 1 << 20, device="cuda").half()
    y = poisoned(x)
    launch = long_rows.prepare_forward(x, y, plan=planned(x, y))
    launch(x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y)
        launch(y, x)
    for seed in range(3):
        torch.manual_seed(seed)
        new = torch.randn_like(x)
        x.copy_(new)
        y.fill_(math.nan)
        graph.replay()
        assert_close(y[3], oracle(new[3]), x.dtype)
        assert_close(x[3], oracle(y[3]), x.dtype)


@on_the_gpu
def test_a_finished_call_leaves_no_memory_behind():
    x = torch.randn(16, 1 << 20, device="cuda").half()
    y = poisoned(x)
    launch = long_rows.prepare_forward(x, y, plan=planned(x, y))
    launch(x, y)
    before = torch.cuda.memory_allocated()
    launch(x, y)
    assert torch.cuda.memory_allocated() == before
