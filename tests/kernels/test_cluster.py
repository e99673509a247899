"""Rows that a thread-block cluster holds: the plan without a GPU, values and gradients on one."""

import math
from typing import ClassVar

import pytest
import torch

from softmax_exp.kernels import prepare, softmax
from softmax_exp.kernels.cluster_plan import cluster_of
from softmax_exp.kernels.gpu import H200, Gpu
from softmax_exp.kernels.plan import plan
from softmax_exp.kernels.prepare import prepare_backward, prepare_forward

from .oracle import assert_close, assert_gradient_close, oracle
from .test_long_rows import DTYPES, on_the_gpu


@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("n_rows", [1, 4, 64, 700, 100_000])
def test_clusters_hold_their_rows(mode, itemsize, n_rows):
    for n_cols in (2056, 4096, 8200, 10_000, 16384, 32000, 32768, 50304, 65536, 131072, 262144):
        chosen = plan(n_rows, n_cols, itemsize, mode)
        if chosen.kernel == "cluster":
            assert chosen.programs in (2, 4, 8, 16) and chosen.programs * chosen.cols >= n_cols
            assert chosen.cols * itemsize <= 32 * 2**10
            assert chosen.cols * itemsize >= 512 * chosen.num_warps * chosen.clusters, "a vector for each thread"
            assert chosen.clusters == 1 or (mode == "forward" and n_rows * chosen.clusters <= 8)
            assert not chosen.packed or itemsize == 2


def kernels(mode, itemsize, n_cols, access="aligned", mask="none", gpu=H200):
    return [plan(n, n_cols, itemsize, mode, mask, access, gpu).kernel for n in (1, 300, 100_000)]


def test_where_clusters_are_planned():
    """Few rows from 8 KiB on, many from 64 KiB on, as far as 16 programs hold one."""
    assert kernels("forward", 2, 4096) == ["tile", "tile", "tile"]
    assert kernels("forward", 2, 8192) == ["cluster", "cluster", "tile"]
    assert kernels("forward", 2, 16384) == ["cluster", "cluster", "tile"]
    assert kernels("forward", 2, 32768) == ["cluster", "cluster", "cluster"]
    assert kernels("forward", 4, 131072) == ["cluster", "cluster", "cluster"]
    assert kernels("forward", 2, 131072) == ["cluster", "cluster", "cluster"]
    assert kernels("forward", 2, 2**18) == ["cluster", "long_rows", "long_rows"]
    assert kernels("forward", 4, 2**18) == kernels("backward", 2, 2**18) == ["long_rows"] * 3
    assert kernels("backward", 4, 8192) == ["cluster", "cluster", "cluster"]
    assert kernels("forward", 2, 2**19) == ["long_rows"] * 3


def test_where_they_cannot_be():
    for other in (dict(access="shifted"), dict(mask="causal"), dict(gpu=Gpu(cluster=1))):
        assert "cluster" not in kernels("forward", 2, 32768, **other)
    assert [plan(n, 32768, 2).kernel for n in (2**25 - 1, 2**25)] == ["cluster", "tile"]
    assert kernels("forward", 2, 40000)[-1] == "long_rows", "too little of its registers would be filled"


def test_a_row_or_two_have_several_clusters():
    def clusters(n_cols, itemsize):
        chosen = [plan(n_rows, n_cols, itemsize) for n_rows in (1, 2, 3, 4, 8)]
        assert {p.kernel for p in chosen} == {"cluster"}
        return [p.clusters for p in chosen]

    assert clusters(131072, 2) == clusters(131072, 4) == clusters(262144, 2) == clusters(65536, 4) == [4, 2, 1, 1, 1]
    assert clusters(65536, 2) == clusters(32000, 4) == [4, 4, 2, 2, 1], "programs of 4 warps"
    assert clusters(32000, 2) == clusters(8192, 4) == [1] * 5, "too little for a warp to write"
    assert plan(1, 131072, 2, "backward").clusters == 1


def test_overrides_name_the_kernel_or_are_of_the_tile():
    assert plan(8192, 32768, 2, num_warps=8).kernel == "tile"
    assert plan(8192, 32768, 2, reads="").kernel == "cluster"
    chosen = plan(8192, 32768, 2, programs=16, num_warps=2)
    assert (chosen.kernel, chosen.programs, chosen.cols, chosen.num_warps) == ("cluster", 16, 2048, 2)
    assert plan(8, 128, 2, kernel="cluster", num_warps=1, cols=256).programs == 2
    assert cluster_of(8192, 32768, 2, "forward", 2).cols == 16384
    assert plan(8, 131072, 2, clusters=2).clusters == 2
    assert plan(1, 131072, 2, kernel="cluster", num_warps=16).clusters == 1, "chosen for other warps"
    own = dict(kernel="cluster", num_warps=8, packed=False, cols=8192)
    assert plan(1, 131072, 2, **own) == plan(1, 131072, 2) and plan(1, 131072, 2).clusters == 4
    assert plan(1, 131072, 2, "backward", clusters=4).clusters == 1, "one set of overrides does for both"
    assert plan(0, 65536, 2).kernel == "cluster"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(kernel="cluster", programs=1), "programs is 2, 4, 8 or 16"),
        (dict(kernel="tile", programs=4), "programs and clusters are 1"),
        (dict(kernel="long_rows", clusters=2), "programs and clusters are 1"),
        (dict(clusters=8), "clusters must be 1, 2 or 4, not 8"),
        (dict(clusters=2, packed=True), "for packed=false"),
        (dict(programs=4, num_stages=4), "num_stages are not for clusters"),
        (dict(n_cols=2**17, programs=2, num_warps=16, max_registers=255), "at most 128 for 16 warps"),
        (dict(n_rows=1, n_cols=2**25, kernel="cluster"), "must not exceed"),
        (dict(n_rows=1, programs=16, clusters=4, num_warps=8), "side by side, 8192 of a row of 4 clusters, not 2048"),
        (dict(programs=2, num_warps=32), "at most 16 warps, not 1, 0 and 32"),
        (dict(programs=3), "1, 2, 4, 8 or 16"),
        (dict(programs=4, rows=2), "rows=1"),
        (dict(programs=4, rest=8192), "rest=0"),
        (dict(programs=4, rotated=True), "rotated, queries"),
        (dict(programs=4, queries=8), "rotated, queries"),
        (dict(programs=16, num_warps=16), "side by side, 4096 of a row of 1 clusters, not 2048"),
        (dict(programs=4, cols=1024, num_warps=4), "4 programs of cols .4096. must hold a row of 32768"),
        (dict(programs=16, cols=2**17), "1 x 131072 x 16. must not exceed"),
        (dict(programs=4, access="shifted"), "16-byte boundaries"),
        (dict(programs=4, gpu=Gpu(cluster=1)), "compute capability 9.0"),
        (dict(programs=4, n_rows=2**25), "up to 33,554,431 rows"),
    ],
)
def test_bad_clusters(overrides, message):
    with pytest.raises(ValueError, match=message):
        plan(**(dict(n_rows=8192, n_cols=32768, itemsize=2) | overrides))


class Recorder:
    """Stands for `Launch`: compiles nothing, and keeps what it was given."""

    made: ClassVar[list["Recorder"]] = []

    def __init__(self, kernel, grid, tensors, numbers, constants, chosen, device):
        self.names, self.passed = kernel.arg_names, [*numbers, *constants]
        self.grid, self.tensors, self.numbers, self.constants, self.plan = grid, tensors, numbers, constants, chosen
        self.enqueue = lambda *tensors: None
        Recorder.made.append(self)


@pytest.fixture
def on_an_h200(monkeypatch):
    """Calls are planned as on an H200; nothing is compiled or run."""
    monkeypatch.setattr(prepare, "gpu_of", lambda index: H200)
    monkeypatch.setattr(prepare, "Launch", Recorder)
    monkeypatch.setattr(Recorder, "made", [])


@pytest.mark.parametrize("kernel", ["cluster", "tile", "two_pass"])
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_kernels_are_given_their_arguments_in_their_order(on_an_h200, kernel, mode):
    x = torch.empty(40, 16384, dtype=torch.float16)
    if mode == "forward":
        prepare_forward(x, -1, 0.5, None, False, True, {"kernel": kernel})
    else:
        prepare_backward(x, x, -1, 0.5, False, {"kernel": kernel})
    [made] = Recorder.made
    assert made.plan.kernel == kernel and made.names[3:] == made.passed
    first, _, third = made.names[:3]  # the output is the second
    assert (first, third) == (("x_ptr", "mask_ptr") if mode == "forward" else ("dy_ptr", "y_ptr"))
    assert (made.tensors[2] is None) == (mode == "forward")


def rows_of_16384(*shape):
    return torch.empty(*shape, 16384, dtype=torch.float16)


@pytest.mark.parametrize(
    "x, stride",
    [
        (rows_of_16384(40), 16384),
        (rows_of_16384(2, 4, 5), 16384),
        (rows_of_16384(80)[::2], 32768),
        (rows_of_16384(1).expand(40, 16384), 0),
        (torch.empty(40, 16400, dtype=torch.float16)[:, 8:-8], 16400),
        (torch.empty(16384, 40, dtype=torch.float16).t(), 16384),
        (rows_of_16384(), 0),
    ],
)
def test_rows_one_stride_apart_are_clusters(on_an_h200, x, stride):
    for prepared in (
        prepare_forward(x, -1, 2.0**90, None, False, True, {}),
        prepare_backward(x, torch.empty(x.shape, dtype=x.dtype), -1, -3.0, False, {}),
    ):
        made = Recorder.made[-1]
        assert prepared.plan.kernel == "cluster" and made.grid == max(1, x.numel() // 16384)
        assert next(iter(made.numbers.values())) == stride and made.constants["EXACT"]


def test_other_calls_are_not(on_an_h200):
    """Rows that one stride does not reach or of other alignment, masks, and scales to be applied before the maximum."""
    x, four = rows_of_16384(40), rows_of_16384(2, 4, 6)[:, :, :5]
    calls = [(x, scale, None, False) for scale in (0.0, -1.0, 2.0**91, 2.0**-91)]
    calls += [(x, None, torch.ones(40, 16384, dtype=torch.bool), False), (four, None, None, False)]
    calls += [(rows_of_16384(2, 4, 5), None, None, True), (torch.empty(40, 16385).half()[:, 1:], None, None, False)]
    for tensor, scale, mask, causal in calls:
        assert prepare_forward(tensor, -1, scale, mask, causal, False, {}).plan.kernel == "tile"
    assert prepare_backward(four, torch.empty(four.shape).half(), -1, None, False, {}).plan.kernel == "tile"
    with pytest.raises(ValueError, match="a scale from"):
        prepare_forward(x, -1, -1.0, None, False, False, {"kernel": "cluster"})


# Each number of programs, warps and clusters, whole rows and ragged ones, programs without a column, packed or not.
SHAPES = [(40, 65536), (40, 50_000), (5, 131072), (7, 33_000), (3, 8192), (600, 16384), (1100, 8192), (300, 32768)]
SHAPES += [(40, 20480), (1, 4104), (200, 131072), (300, 8192), (64, 128256), (2, 131072), (2, 36_000), (1, 65544)]
SHAPES += [(100, 65536), (300, 65536)]


def hard(n_rows, n_cols, dtype):
    """Rows with NaN, infinity, nothing but -inf, a part of -inf, a single number, and values that almost overflow."""
    x = torch.randn(max(n_rows, 1), n_cols, device="cuda").to(dtype)
    specials = [(7, math.nan), (n_cols - 1, math.inf), (slice(None), -math.inf), (slice(n_cols // 16), -math.inf)]
    specials += [(slice(1, None), -math.inf), (slice(None), -60000.0), (slice(None), math.nan)]
    for row, (columns, value) in zip(range(1, n_rows), specials, strict=False):
        x[row, columns] = value
    return x


@on_the_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
def test_values(n_rows, n_cols, dtype):
    x = hard(n_rows, n_cols, dtype)
    prepared = prepare_forward(x, -1, 0.5, None, False, False, {})
    assert prepared.plan == plan(n_rows, n_cols, x.element_size()), "of an H200's plan"
    assert_close(prepared.run(x, None), oracle(x, scale=0.5), dtype)
    expected = oracle(x)
    expected[3 : 4 if n_rows > 3 else 3] = 0
    assert_close(softmax(x, safe=True), expected, dtype)


@on_the_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_cols", [36_000, 65536])
@pytest.mark.parametrize("clusters", [2, 4])
@pytest.mark.parametrize("safe", [False, True])
def test_hard_rows_of_several_clusters(n_cols, dtype, clusters, safe):
    x = hard(8, n_cols, dtype)
    overrides = {"clusters": clusters, "num_warps": 4}
    prepared = prepare_forward(x, -1, 0.5, None, False, safe, overrides)
    assert (prepared.plan.kernel, prepared.plan.clusters) == ("cluster", clusters)
    expected = oracle(x, scale=0.5)
    if safe:
        expected[3] = 0
    assert_close(prepared.run(x, None), expected, dtype)


@on_the_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
def test_gradients(n_rows, n_cols, dtype):
    y = torch.softmax(torch.randn(n_rows, n_cols, device="cuda"), 1).to(dtype)
    dy = torch.randn(n_rows, n_cols + 8, device="cuda").to(dtype)[:, :n_cols]  # rows further apart
    prepared = prepare_backward(dy, y, -1, 0.5, False, {})
    assert_gradient_close(prepared.run(dy, y), dy, y, scale=0.5)


def test_each_choice_of_the_plan_was_run_above():
    found = {
        (chosen.programs, chosen.num_warps, chosen.packed, chosen.clusters, mode)
        for mode in ("forward", "backward")
        for size in (2, 4)
        for n_rows, n_cols in SHAPES
        for chosen in [plan(n_rows, n_cols, size, mode)]
        if chosen.kernel == "cluster"
    }
    assert {(programs, mode) for programs, _, _, _, mode in found} == {
        (programs, mode) for programs in (2, 4, 8, 16) for mode in ("forward", "backward")
    }
    assert {(warps, packed) for _, warps, packed, _, _ in found} == {
        (4, False), (8, False), (4, True), (8, True), (16, True),
    }  # fmt: skip
    assert {(clusters, mode) for _, _, _, clusters, mode in found} == {
        (1, "forward"), (2, "forward"), (4, "forward"), (1, "backward"),
    }  # fmt: skip


@on_the_gpu
def test_calls_are_captured_and_replayed_beside_others():
    """Two graphs of clusters at once, on streams of their own: each waits for room, none for the other."""
    xs = [torch.randn(300, 131072, device="cuda").half() for _ in range(2)]
    graphs, results = [], []
    for x in xs:
        softmax(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(softmax(x))
        graphs.append(graph)
    streams = [torch.cuda.Stream(priority=priority) for priority in (0, -1)]
    torch.cuda.synchronize()
    for _ in range(200):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for x, y in zip(xs, results, strict=True):
        assert_close(y[::50].contiguous(), oracle(x[::50]), x.dtype)
