"""What the compiler makes of the kernels for Hopper, without a GPU: wide accesses, no spills, no needless barriers."""

import json
import os
import subprocess
import sys

import pytest

from softmax_exp.kernels.gpu import Gpu
from softmax_exp.kernels.long_rows_plan import choose
from softmax_exp.kernels.plan import plan


def options_of(chosen):
    """The compiler's options, by a plan."""
    return dict(num_warps=chosen.num_warps) | ({"maxnreg": chosen.max_registers} if chosen.max_registers else {})


def case(n_cols, mode="forward", dtype="fp16", mask="none", access="aligned", kernel=None, **constants):
    """What `compile_for_hopper` takes, as the plan has it for such a call."""
    itemsize = 4 if dtype == "fp32" else 2
    overrides = {"kernel": kernel} if kernel else {}
    chosen = plan(100_000, n_cols, itemsize, mode, mask, access, Gpu(cluster=1), **overrides)
    exact = access == "aligned" and n_cols == chosen.cols
    two_pass = chosen.kernel == "two_pass"
    tile = dict(
        ROWS=chosen.rows, COLS=chosen.cols, REST=chosen.rest, LANES=chosen.cols if two_pass else chosen.lanes(itemsize),
        VECTOR=1 if access == "scalar" else 16 // itemsize, ACCESS=access, EXACT=exact, PACKED=chosen.packed,
    )  # fmt: skip
    return [f"{chosen.kernel}_{mode}", dtype, options_of(chosen), tile | constants]


def long_case(n_rows, n_cols, kernel="", mode="forward", dtype="fp16", access="aligned"):
    """The same for long rows. kernel: one of those that make up the planned design, if several do."""
    itemsize = 4 if dtype == "fp32" else 2
    chosen = choose(n_rows, n_cols, itemsize, mode, access)
    constants = dict(
        CHUNK=chosen.chunk, TILE=chosen.tile, WORDS=128, VECTOR=16 // itemsize, ACCESS=access, READS=chosen.reads,
        EXACT=access == "aligned" and n_cols % chosen.chunk == 0, WARPS=chosen.num_warps,
    )  # fmt: skip
    return [f"{kernel or chosen.design}_{mode}", dtype, options_of(chosen), constants]


def cluster_case(n_rows, n_cols, mode="forward", dtype="fp16"):
    """The same for rows of a cluster each."""
    itemsize = 4 if dtype == "fp32" else 2
    chosen = plan(n_rows, n_cols, itemsize, mode)
    constants = dict(
        PROGRAMS=chosen.programs, COLS=chosen.cols, VECTOR=16 // itemsize, PACKED=chosen.packed, READS=chosen.reads,
        EXACT=n_cols == chosen.programs * chosen.cols, WARPS=chosen.num_warps, CLUSTERS=chosen.clusters,
    )  # fmt: skip
    return [f"{chosen.kernel}_{mode}", dtype, options_of(chosen) | dict(num_ctas=chosen.programs), constants]


CAUSAL = dict(CAUSAL=True, SPLIT="query")
MASKED = dict(MASK="additive", MASK_ACCESS="aligned", QUERIES=512, SCALED=True)
CASES = {
    "256": case(256),
    "512": case(512),
    "2048": case(2048),
    "2048 fp32": case(2048, dtype="fp32"),
    "8192 bf16": case(8192, dtype="bf16"),
    "16384": case(16384),
    "32768": case(32768),
    "32768 fp32": case(32768, dtype="fp32"),
    "1000": case(1000),
    "1185": case(1185, access="shifted"),
    "12289": case(12289, access="shifted"),
    "1024 causal": case(1024, mask="causal", **CAUSAL),
    "2048 causal": case(2048, mask="causal", **CAUSAL),
    "2048 additive": case(2048, mask="additive", **MASKED),
    "2048 boolean wide": case(2048, mask="boolean", **(MASKED | dict(MASK="boolean", QUERIES=0, SPLIT="x", WIDE=True))),
    "100 scalar": case(100, access="scalar"),
    "2048 backward": case(2048, "backward"),
    "32768 backward": case(32768, "backward"),
    "16384 fp32 backward": case(16384, "backward", "fp32"),
    "4097 backward causal": case(4097, "backward", mask="causal", access="shifted", **CAUSAL),
    **{
        f"{n} backward": case(n, "backward", access="shifted")
        for n in (1537, 3001, 4097, 6001, 8193, 10001, 12289, 16381)
    },
    "12289 backward bf16": case(12289, "backward", "bf16", access="shifted"),
    **{f"{n} backward fp32": case(n, "backward", "fp32", access="shifted") for n in (8193, 12289, 16381)},
    **{f"{n} scalar backward": case(n, "backward", access="scalar") for n in (2049, 6001, 8193)},
    "8193 scalar backward fp32": case(8193, "backward", "fp32", access="scalar"),
    "two_pass": case(70001, mask="additive", access="shifted", kernel="two_pass", MASK="additive", SAFE=True),
    "two_pass backward": case(65536, "backward", mask="causal", kernel="two_pass", **CAUSAL),
    "65536": long_case(4096, 65536),
    "131072 fp32": long_case(2048, 131072, dtype="fp32"),
    "50257": long_case(2048, 50257, access="shifted"),
    "50257 fp32": long_case(2048, 50257, dtype="fp32", access="shifted"),
    "50257 of few rows": long_case(4, 50257, "partial", access="shifted"),
    "50257 of few rows, results": long_case(4, 50257, "finish", access="shifted"),
    "262144 backward": long_case(1024, 262144, mode="backward"),
    "262144 fp32": long_case(1024, 262144, dtype="fp32"),
    "300001 fp32": long_case(1024, 300001, dtype="fp32", access="shifted"),
    "50257 backward": long_case(2048, 50257, mode="backward", access="shifted"),
    "1048576": long_case(256, 1 << 20),
    "1048576 bf16": long_case(256, 1 << 20, dtype="bf16"),
    "1048576 fp32": long_case(256, 1 << 20, dtype="fp32"),
    "1000000 fp32": long_case(256, 1_000_000, dtype="fp32"),
    "4194304 fp32": long_case(64, 1 << 22, dtype="fp32"),
    "clusters of one row": cluster_case(1, 131072),
    "clusters of one row, fp32 ragged": cluster_case(1, 128256, dtype="fp32"),
    "cluster": cluster_case(16, 131072),
    "cluster of 4": cluster_case(8192, 32768),
    "cluster fp32": cluster_case(2048, 131072, dtype="fp32"),
    "cluster fp32 ragged": cluster_case(2048, 128256, dtype="fp32"),
    "cluster ragged": cluster_case(40, 40000, dtype="bf16"),
    "cluster backward of one row": cluster_case(1, 65536, "backward"),
    "cluster backward": cluster_case(2048, 131072, "backward"),
    "cluster backward fp32": cluster_case(2048, 131072, "backward", "fp32"),
}
MAY_SPILL = {"cluster backward of one row": 2, "12289 backward bf16": 2, "262144 fp32": 1}


@pytest.fixture(scope="module")
def compiled():
    """Counts by case, all compiled in one process."""
    program = os.path.join(os.path.dirname(__file__), "compile_for_hopper.py")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, program, json.dumps(list(CASES.values()))],
        capture_output=True, text=True, env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return dict(zip(CASES, json.loads(run.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_nothing_spills(compiled, name):
    counts = compiled[name]
    assert counts["registers"] > 0
    # `held` is faster with five programs on an SM and a few words in memory, and gradients of a row by 4 warps with 2
    # words than by 8 with none, by 2 %. Triton 3.7 spills a word where 3.6 does not.
    most = 16 if CASES[name][0].startswith("held") else MAY_SPILL.get(name, 0)
    assert counts.get("LDL", 0) <= most and counts.get("STL", 0) <= most


@pytest.mark.parametrize("name", [name for name in CASES if "scalar" not in name])
def test_rows_move_by_vectors(compiled, name):
    counts = compiled[name]
    assert counts["LDG.wide"] > 0 and counts["STG.wide"] > 0
    narrow = counts.get("LDG", 0) + counts.get("STG", 0)
    # Shifted rows move their ends, and read a mask that does not lie as they do, element by element; and so does who
    # helps a long row.
    assert narrow == 0 or "shifted" in str(CASES[name]) or CASES[name][0].startswith(("shared", "held"))
    assert narrow < 60


@pytest.mark.parametrize("name", ["256", "1024 causal"])
def test_rows_of_one_warp_need_no_shared_memory(compiled, name):
    counts = compiled[name]
    assert "LDS" not in counts and "STS" not in counts and "BAR" not in counts


def test_a_mask_that_rows_share_is_read_once(compiled):
    masked, plain = compiled["2048 additive"], case(2048, mask="additive")
    rows, columns, warps = plain[3]["ROWS"], plain[3]["COLS"], plain[2]["num_warps"]
    vectors_a_row = columns // (8 * 32 * warps)
    assert masked["LDG.wide"] == vectors_a_row * (rows + 1)


@pytest.mark.parametrize("name", [name for name in CASES if "cluster" in name])
def test_a_cluster_meets_once_and_sends_one_word_a_warp(compiled, name):
    """The kernel's assembly counts on it: the compiler adds no barrier of the cluster, and doubles nothing."""
    counts = compiled[name]
    assert (counts["UCGABAR_ARV"], counts["UCGABAR_WAIT"], counts["STAS"]) == (1, 1, 1)
    assert not {"BAR", "STS"} & counts.keys(), "the threads of a program need not meet"
