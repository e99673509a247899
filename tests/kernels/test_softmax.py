"""softmax and triton_softmax against float64: shapes, dtypes, strides, masks, special values, gradients."""

import math

import pytest
import torch
from torch import library

from softmax_exp.kernels import describe, operator, prepare, softmax, triton_softmax, with_plan
from tests.kernels.oracle import assert_close, oracle

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(5,), (3, 1), (1000, 1), (7, 2), (2, 3, 9, 40), (2, 3, 4, 128), (9, 1000), (3, 1024), (5, 1185), (2, 4097),
          (1, 12289), (2, 16384), (1, 32768), (1, 40000), (1, 70001)]  # fmt: skip


def random(*shape, dtype=torch.float32, device="cpu", seed=0):
    """Normal numbers, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dtype, device):
    x = random(*shape, dtype=dtype, device=device)
    before = x.clone()
    assert_close(softmax(x), oracle(x), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize("n_cols", [*range(1, 70), 255, 256, 257, 511, 513, 1023, 1025, 2047, 2049])
def test_awkward_widths(n_cols, device):
    x = random(3, n_cols, dtype=torch.float16, device=device)
    assert_close(triton_softmax(x), oracle(x), torch.float16)


def test_zero_dimensions_and_empty(device):
    assert softmax(torch.tensor(3.0, device=device)).item() == 1.0
    for shape in [(0, 2), (10, 0), (4, 0, 0)]:
        assert softmax(torch.zeros(shape, device=device)).shape == shape


@pytest.mark.parametrize("name", ["transposed", "every_second", "shifted", "padded", "expanded", "five", "column_step"])
def test_strides(name, device):
    base = random(6, 8, 10, 48, dtype=torch.float16, device=device)
    x = {
        "transposed": base.transpose(1, 2),
        "every_second": base[:, ::2],
        "shifted": base.flatten()[3 : 3 + 5 * 77].view(5, 77),
        "padded": base[..., :37],
        "expanded": base[:1].expand(3, 8, 10, 48),
        "five": base.view(2, 3, 8, 10, 48).permute(3, 2, 0, 1, 4)[::2],
        "column_step": base[..., ::3],
    }[name]
    assert_close(softmax(x), oracle(x), torch.float16)


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_other_dimensions(dim, device):
    x = random(5, 6, 7, device=device)
    assert_close(softmax(x, dim), oracle(x, dim), torch.float32)


@pytest.mark.parametrize("n_cols", [33, 40000])
@pytest.mark.parametrize("scale", [1e-20, 1e-27, 1e-36, 1e-38, 1e-44])
def test_tiny_scales_of_huge_numbers(scale, n_cols, device):
    x = torch.zeros(2, n_cols, device=device)
    x[0, :3] = torch.tensor([1.0, -2.0, -math.inf]) * min(1 / scale, 1e38)
    assert_close(softmax(x, scale=scale), oracle(x, scale=scale), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [1e-46, 1e-50])
def test_scales_below_float32_are_zero(scale, dtype, device):
    x = random(3, 21, dtype=dtype, device=device)
    assert_close(softmax(x, scale=scale), torch.full_like(x, 1 / 21).double(), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n_cols", [21, 33, 300, 1185, 4097, 40001])
@pytest.mark.parametrize("scale", [0.125, -2.0, 0.0])
def test_scale(scale, n_cols, dtype, device):
    """Also with rows that begin at another distance from a 16-byte boundary each."""
    x = random(4, n_cols, dtype=dtype, device=device)
    assert_close(softmax(x, scale=scale), oracle(x, scale=scale), dtype)
    assert_close(softmax(x, scale=scale, causal=True), oracle(x, scale=scale, causal=True), dtype)


@pytest.mark.parametrize("n_queries, n_cols", [(64, 64), (1, 50), (7, 19), (9, 4), (2, 40000)])
def test_causal(n_queries, n_cols, device):
    x = random(2, n_queries, n_cols, dtype=torch.float16, device=device)
    assert_close(softmax(x, causal=True), oracle(x, causal=True), torch.float16)


MASK_SHAPES = [(1, 1, 8, 64), (8, 64), (2, 1, 1, 64), (2, 3, 8, 64), (2, 1, 8, 64), (1, 3, 1, 64), (2, 3, 8, 1), (64,)]


@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["additive", "boolean", "float32"])
@pytest.mark.parametrize("causal", [False, True])
def test_masks(shape, kind, causal, device):
    x = random(2, 3, 8, 64, dtype=torch.float16, device=device)
    mask = random(*shape, dtype=torch.float32 if kind == "float32" else torch.float16, device=device, seed=1)
    mask = mask > -1 if kind == "boolean" else mask
    expected = oracle(x, scale=0.5, mask=mask, causal=causal)
    assert_close(softmax(x, scale=0.5, mask=mask, causal=causal), expected, torch.float16)


@pytest.mark.parametrize("n_cols", [50, 40001])
def test_masks_of_awkward_rows(n_cols, device):
    x = random(2, 2, n_cols, dtype=torch.float16, device=device)
    mask = random(2, n_cols, dtype=torch.float16, device=device, seed=1)
    assert_close(softmax(x, mask=mask), oracle(x, mask=mask), torch.float16)


def test_a_mask_of_many_queries_and_an_odd_number_of_heads(device):
    x = random(1, 3, 192, 520, dtype=torch.float16, device=device)
    mask = random(192, 520, dtype=torch.float16, device=device, seed=1)
    assert_close(softmax(x, mask=mask), oracle(x, mask=mask), torch.float16)


def test_a_mask_for_strided_heads(device):
    x = random(2, 8, 3, 64, dtype=torch.float16, device=device).transpose(1, 2)
    mask = random(2, 1, 8, 64, dtype=torch.float16, device=device, seed=1)
    assert_close(softmax(x, mask=mask), oracle(x, mask=mask), torch.float16)


@pytest.mark.parametrize("options", [dict(), dict(causal=True), dict(mask=True)], ids=str)
def test_offsets_of_64_bits(options, device, monkeypatch):
    monkeypatch.setattr(prepare, "_MOST_IN_32_BITS", 0)
    monkeypatch.setattr(operator, "_prepared", {})
    options = dict(options)
    x = random(2, 3, 9, 48, device=device).requires_grad_()
    if "mask" in options:
        options["mask"] = random(9, 48, device=device, seed=1)
    dy = random(2, 3, 9, 48, device=device, seed=2)
    (found,) = torch.autograd.grad(softmax(x, **options), x, dy)
    (expected,) = torch.autograd.grad(oracle(x, **options), x, dy.double())
    assert (found - expected).abs().max() < 1e-6


@pytest.mark.parametrize("n_cols", [48, 49, 40000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(n_cols, dtype, device):
    inf, nan = math.inf, math.nan
    x = random(8, n_cols, dtype=dtype, device=device)
    x[0] = -inf
    x[1, 3], x[2, 3], x[2, 5], x[3, 4], x[4, 1], x[4, 2] = inf, inf, inf, nan, -inf, nan
    x[5], x[6, 7], x[7, ::2] = nan, -inf, -inf
    y = softmax(x)
    assert_close(y, oracle(x), dtype)
    assert torch.equal(y.isnan(), torch.softmax(x, -1).isnan())


@pytest.mark.parametrize("n_cols", [48, 40000])
def test_safe_rows_are_zero_and_others_unchanged(n_cols, device):
    x = random(4, n_cols, device=device)
    x[1], x[2, 0], x[3, 0] = -math.inf, math.nan, math.inf
    y = softmax(x, safe=True)
    assert (y[1] == 0).all() and y[2].isnan().all() and y[3].isnan().all()
    assert_close(y[:1], oracle(x[:1]), torch.float32)
    empty = softmax(random(3, 2, device=device), causal=True, safe=True)
    assert (empty[0] == 0).all() and empty[1].tolist() == [1, 0]


@pytest.mark.parametrize("offset", [1e4, -1e7])
def test_large_logits(offset, device):
    x = random(3, 500, device=device) + offset
    y = softmax(x)
    assert (y.double() - oracle(x)).abs().max() < 1e-7
    assert (y.double().sum(-1) - 1).abs().max() < 1e-5


def test_extremes_of_float32(device):
    x = torch.tensor([[3e38, 3e38, -3e38], [1e-44, 0, 0]], device=device)
    assert_close(softmax(x), oracle(x), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [None, 300.0])
@pytest.mark.parametrize("n_cols", [9, 4096, 40000])
def test_extremes_of_16_bits(dtype, scale, n_cols, device):
    """Values whose multiple by log2(e) or by the scale overflows, neighbours, ties, and all that is far below them."""
    info = torch.finfo(dtype)
    largest, below = info.max, info.max * (1 - info.eps / 2)
    rows = [
        [largest, below, 0, -largest],
        [largest, largest, below, 1],
        [-largest, -largest, -largest, -math.inf],
        [-below, -largest, -math.inf, -largest],
        [largest / 2**5, largest / 2**5 * (1 - info.eps), 0, 1],
        [info.tiny, 0, -info.tiny, info.tiny * info.eps],
        [10_000, 10_000 * (1 - info.eps), 9_000, -10_000],
        [60, 59.5, -60, 0],
        [0, -largest, -largest, -math.inf],
    ]
    x = torch.full((len(rows), n_cols), -math.inf, dtype=dtype, device=device)
    x[:, :4] = torch.tensor(rows, dtype=torch.float64).to(dtype).to(device)
    x[2] = -largest
    x = x.roll(n_cols // 2, -1)
    assert_close(softmax(x, scale=scale), oracle(x, scale=scale), dtype)


@pytest.mark.parametrize("kind", ["none", "scale", "mask"])
@pytest.mark.parametrize("n_cols", [640, 641, 40000])
def test_small_results_of_float32_have_few_wrong_bits(n_cols, kind, device):
    x = -0.125 * torch.arange(n_cols, device=device).remainder(640).flip(0)[None]  # differences without rounding
    given = {"none": {}, "scale": {"scale": 1.7}, "mask": {"mask": torch.zeros(1, n_cols, device=device)}}[kind]
    x = x / 2 if kind == "scale" else x
    exact = torch.softmax(x.double() * torch.tensor(given.get("scale", 1.0)).double(), -1)
    assert exact.min() < 1e-27
    error = (softmax(x, **given).double() / exact - 1).abs()
    assert error.max() < 1e-6  # 5e-6 if the exponent is rounded once


@pytest.mark.parametrize("n_cols", [200, 201, 40000])
def test_float32_results_below_the_normal_numbers_are_kept(n_cols, device):
    x = -torch.linspace(80, 106, n_cols, device=device)[None]  # results from 2^-115 down to 0
    x[0, n_cols // 2] = 0
    exact = torch.softmax(x.double(), -1)
    error = (softmax(x).double() - exact).abs()
    assert (error <= exact * 2**-21 + 2**-149).all()
    assert (softmax(x)[exact > 2**-148] > 0).all()


def test_uniform_bfloat16(device):
    assert (softmax(torch.zeros(1, 512, dtype=torch.bfloat16, device=device)) == 1 / 512).all()


GRADIENTS = [
    dict(), dict(scale=0.3), dict(causal=True), dict(dim=1), dict(mask=True), dict(mask=True, scale=2.0, causal=True),
]  # fmt: skip


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
@pytest.mark.parametrize("n_cols", [1, 33, 64, 20000])
def test_gradients(options, n_cols, device):
    if n_cols == 1 and options.get("causal"):
        pytest.skip("rows without any element have no gradient to compare")
    options = dict(options)
    x = random(2, 3, n_cols, device=device).requires_grad_()
    inputs = [x]
    if options.get("mask"):
        options["mask"] = random(3, n_cols, device=device, seed=1).requires_grad_()
        inputs.append(options["mask"])
    dy = random(2, 3, n_cols, device=device, seed=2)
    found = torch.autograd.grad(softmax(x, **options), inputs, dy)
    expected = torch.autograd.grad(oracle(x, **options), inputs, dy.double())
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).abs().max() < 1e-6


def test_gradient_of_a_broadcast_and_a_transposed_output(device):
    x = random(4, 6, 40, dtype=torch.float16, device=device).requires_grad_()
    (found,) = torch.autograd.grad(softmax(x)[..., 0].sum() + softmax(x).transpose(0, 1).cos().sum(), x)
    (expected,) = torch.autograd.grad(oracle(x)[..., 0].sum() + oracle(x).cos().sum(), x)
    assert (found - expected).abs().max() < 2e-3


def test_only_the_output_is_saved(device):
    saved = []
    x = random(4, 40, device=device).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = softmax(x, mask=random(4, 40, device=device))
    assert saved == [y.data_ptr()]


def test_second_order_is_refused(device):
    x = random(4, 40, device=device).requires_grad_()
    (dx,) = torch.autograd.grad(softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_float64_is_computed_by_eager(device):
    x = random(4, 40, device=device).double().requires_grad_()
    y = softmax(x, scale=0.5, causal=True)
    assert describe(x)["kernel"] == "eager"
    assert torch.allclose(y, oracle(x, scale=0.5, causal=True), rtol=1e-12)
    assert torch.autograd.gradcheck(lambda x: softmax(x, scale=0.5, causal=True), x)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(dim=2), "dim"),
        (dict(scale=math.nan), "scale"),
        (dict(mask=torch.zeros(3, 40)), "broadcast"),
        (dict(mask=torch.zeros(4, 40, dtype=torch.int32)), "boolean or floating"),
        (dict(causal=True, dim=0), "causal"),
    ],
)
def test_bad_options(options, message, device):
    if "mask" in options:
        options = {"mask": options["mask"].to(device)}
    with pytest.raises(ValueError, match=message):
        softmax(torch.zeros(4, 40, device=device), **options)


def test_unsupported_dtype(device):
    with pytest.raises(ValueError, match="int64"):
        softmax(torch.zeros(4, 40, dtype=torch.int64, device=device))


@pytest.mark.parametrize(
    "overrides",
    [dict(rows=8), dict(kernel="two_pass", cols=128), dict(num_warps=8), dict(packed=True), dict(max_registers=64),
     dict(rotated=True, num_warps=1), dict(cols=512, rest=256, num_warps=1), dict(reads="evict_last")],
    ids=str,
)  # fmt: skip
def test_with_plan(overrides, device):
    x = random(9, 600, dtype=torch.float16, device=device)
    assert_close(with_plan(**overrides)(x), oracle(x), torch.float16)
    with pytest.raises(ValueError, match="allowed"):
        with_plan(num_wraps=8)(x)


def test_compiled_without_graph_break(device):
    def model(x, mask):
        return softmax(x * 2, scale=0.5, mask=mask) * 3

    x = random(4, 40, device=device).requires_grad_()
    mask = random(40, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    y = compiled(x, mask)
    assert torch.allclose(y, model(x, mask), rtol=1e-5)
    assert torch.allclose(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (y, model(x, mask))), rtol=1e-4)


def test_operator_is_registered_well(device):
    x = random(4, 40, device=device).requires_grad_()
    library.opcheck(torch.ops.softmax_exp.forward.default, (x, None, -1, 0.5, False, False))


def test_more_rows_than_a_grid_had_once(device):
    x = random(70_000, 3, dtype=torch.float16, device=device)
    assert_close(softmax(x), oracle(x), torch.float16)


@pytest.mark.gpu
def test_more_elements_than_32_bits_count(device):
    """Rows beyond element 2^31, of a contiguous tensor and of one with a stride of 2^30."""
    x = torch.zeros(2**20 + 3, 2048, dtype=torch.float16, device=device)
    x[-1] = random(2048, dtype=torch.float16, device=device)
    assert_close(softmax(x)[-1], oracle(x[-1]), torch.float16)
    far = x.as_strided((3, 2048), (2**30, 1))
    far[2] = random(2048, dtype=torch.float16, device=device, seed=1)
    assert_close(softmax(far), oracle(far), torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n_cols", [512, 1185, 2048, 4096, 16384, 65536])
def test_tensors_much_larger_than_the_l2(n_cols, dtype, device):
    """Forward and backward with the plan of large tensors, where reads are evicted last."""
    x = torch.randn(2**28 // n_cols, n_cols, dtype=dtype, device=device)
    assert describe(x)["reads"] == "evict_last"
    y = softmax(x)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(softmax(x.requires_grad_()), x, dy)
    for row in (0, len(x) // 2, len(x) - 1):
        expected = oracle(x[row].detach())
        assert_close(y[row], expected, dtype)
        y64, dy64 = y[row].double(), dy[row].double()
        gradient = y64 * (dy64 - (dy64 * y64).sum())
        assert (dx[row] - gradient).abs().max() <= gradient.abs().max() * torch.finfo(dtype).eps + 2**-24


@pytest.mark.gpu
@pytest.mark.parametrize("n_cols", [100, 2048, 65536])
def test_captured_in_a_graph(n_cols, device):
    x = random(5, n_cols, dtype=torch.float16, device=device).requires_grad_()
    dy = random(5, n_cols, dtype=torch.float16, device=device, seed=1)
    torch.autograd.grad(softmax(x), x, dy)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = softmax(x)
        (dx,) = torch.autograd.grad(y, x, dy)
    with torch.no_grad():
        x.copy_(random(5, n_cols, dtype=torch.float16, device=device, seed=2))
    graph.replay()
    assert_close(y.detach(), oracle(x.detach()), torch.float16)
    # Another leaf: this one's gradient belongs to the stream that captured it.
    again = x.detach().requires_grad_()
    (expected,) = torch.autograd.grad(oracle(again), again, dy.double())
    assert (dx - expected).abs().max() < 2e-3


@pytest.mark.gpu
def test_on_the_current_stream(device):
    x = torch.zeros(2**22, 64, dtype=torch.float16, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        x[:, 0] = 8
        y = softmax(x)
    stream.synchronize()
    assert_close(y[::4096].contiguous(), oracle(x[::4096]), torch.float16)


@pytest.mark.gpu
def test_on_its_own_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = random(5, 100, device="cuda:1")
    assert softmax(x).device == x.device and torch.cuda.current_device() == 0
    assert_close(softmax(x), oracle(x), torch.float32)
