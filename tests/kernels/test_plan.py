"""The plan is pure: its choices and its refusals, without a GPU."""

import pytest

from softmax_exp.kernels.gpu import Gpu
from softmax_exp.kernels.long_rows_plan import choose
from softmax_exp.kernels.plan import plan


@pytest.mark.parametrize("n_cols", [1, 7, 128, 1000, 1185, 2048, 4097, 32768, 40000, 5_000_000])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("mode", ["forward", "backward"])
@pytest.mark.parametrize("access", ["aligned", "shifted", "scalar"])
def test_tiles_hold_their_rows(n_cols, itemsize, mode, access):
    chosen = plan(1000, n_cols, itemsize, mode, "none", access, Gpu(cluster=1))
    if chosen.kernel == "tile":
        ends = 16 // itemsize - 1 if access == "shifted" else 0
        assert chosen.cols + chosen.rest >= n_cols - ends
        assert chosen.rest % chosen.lanes(itemsize) == 0
    for power in (chosen.rows, chosen.cols, chosen.rest, chosen.num_warps):
        assert power & (power - 1) == 0
    assert 1 <= chosen.num_warps <= 32


@pytest.mark.parametrize(
    "n_cols, itemsize, mode, mask, kernel",
    [
        (32768, 4, "forward", "none", "tile"),
        (32769, 2, "forward", "none", "long_rows"),
        (32769, 2, "forward", "additive", "two_pass"),
        (32768, 2, "backward", "causal", "tile"),
        (16384, 4, "backward", "none", "tile"),
        (32768, 4, "backward", "none", "long_rows"),
        (32768, 4, "backward", "causal", "two_pass"),
    ],
)
def test_kernel(n_cols, itemsize, mode, mask, kernel):
    assert plan(1000, n_cols, itemsize, mode, mask, gpu=Gpu(cluster=1)).kernel == kernel


def test_widths_little_above_a_power_of_two_take_a_second_tile():
    chosen = plan(1000, 1185, 2, "forward", "none", "shifted", num_warps=2)
    assert (chosen.cols, chosen.rest) == (1024, 512)
    assert plan(1000, 1985, 2, "forward", "none", "shifted", num_warps=2).rest == 0


def test_reads_of_tensors_much_larger_than_the_l2_are_evicted_last():
    """From eight times the L2 read and written, on GPUs that know the policy; it takes other tiles for some rows."""
    l2 = Gpu().l2_bytes
    assert [plan(n * l2 // 4096, 1024, 4).reads for n in (4, 5)] == ["", "evict_last"]
    assert [plan(n * l2 // 4096, 1024, 4, "backward").reads for n in (2, 3)] == ["", "evict_last"]
    assert plan(10**6, 1024, 4, gpu=Gpu(capability=(7, 5))).reads == ""
    assert plan(10**6, 1024, 4, reads="").reads == ""
    assert [(p.rows, p.num_warps) for p in (plan(2**20, 4096, 2), plan(2**20, 4096, 2, reads=""))] == [(1, 8), (1, 4)]
    long = [choose(4096, n, size, mode) for mode, n, size in (("forward", 2**18, 2), ("forward", 2**18, 4),
            ("backward", 2**16, 2), ("backward", 2**18, 4), ("backward", 2**19, 4))]  # fmt: skip
    assert [chosen and chosen.reads for chosen in long] == ["evict_last", "evict_last", "", "evict_last", ""]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (dict(num_wraps=4), "allowed: kernel, rows"),
        (dict(num_warps=3), "1, 2, 4, 8, 16 or 32"),
        (dict(num_warps=64), "1, 2, 4, 8, 16 or 32"),
        (dict(cols=512), "must hold a row of 1000"),
        (dict(rows=3), "a power of two"),
        (dict(rest=3), "0 or a power of two"),
        (dict(rest=64), "must be a multiple"),
        (dict(num_stages=9), "1 to 8"),
        (dict(kernel="magic"), "tile, cluster, two_pass"),
        (dict(rows=2**12), "must not exceed 1,048,576"),
        (dict(max_registers=16), "0 or 24 to 255"),
        (dict(max_registers=80, num_warps=32), "at most 64 for 32 warps"),
        (dict(packed="yes"), "true or false"),
        (dict(reads="last"), "evict_last"),
    ],
)
def test_bad_overrides(overrides, message):
    with pytest.raises(ValueError, match=message):
        plan(1000, 1000, 2, **overrides)


def test_rows_beyond_the_swept_ones_are_tiles_on_demand():
    chosen = plan(8, 2**18, 2, kernel="tile")
    assert (chosen.kernel, chosen.cols, chosen.num_warps) == ("tile", 2**18, 32)
    for mode, mask in (("forward", "additive"), ("backward", "none"), ("backward", "causal")):
        assert plan(8, 2**18, 4, mode, mask, kernel="tile").num_warps == 32
    with pytest.raises(ValueError, match="must not exceed"):
        plan(8, 2**22, 4, kernel="tile")


def test_rows_too_long():
    with pytest.raises(ValueError, match="1,073,741,824"):
        plan(1, 2**31, 2)


def test_packed_is_for_16_bits():
    with pytest.raises(ValueError, match="2 bytes"):
        plan(1000, 1000, 4, packed=True)
