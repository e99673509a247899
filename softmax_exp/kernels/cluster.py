"""Rows in Gluon that are held by the programs of a thread-block cluster each, which the GPU runs together.

In: pointers to aligned rows, sizes, strides in elements. Out: y or dx, one read and one write of each element, in one
kernel. The programs send their sums to each other's shared memory: there is nothing to clear, and nobody to wait for
who may not be running. Needs Hopper or later.
"""

# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from softmax_exp.kernels.cluster_plan import MOST_PROGRAMS
from softmax_exp.kernels.long_rows_shared import pack_product
from softmax_exp.kernels.long_rows_tiles import NEG_INF, held, reference_of
from softmax_exp.kernels.long_rows_words import pack, unpack
from softmax_exp.kernels.tile import divide, exp_of_difference, exponent_of, power, reciprocal_of

# The words of the cluster, and a barrier that counts their bytes ($2): declared outside braces, since `EXCHANGE` and
# `RECEIVE` name them too. Others may write here once all programs have begun, for which `EXCHANGE` waits.
PREPARE = gl.constexpr(f"""
.shared .align 8 .b64 words_of_cluster[{MOST_PROGRAMS}];
.shared .align 8 .b64 words_are_here;
{{
.reg .b32 thread, barrier;
.reg .pred first;
mov.u32 thread, %tid.x;
mov.u32 barrier, words_are_here;
setp.eq.u32 first, thread, 0;
@first mbarrier.init.shared::cta.b64 [barrier], 1;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], $2;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
mov.b32 $0, $1;
}}""")
# Thread t of the first $2 sends this program's word, which all threads hold, to program t. Then all wait for all words.
EXCHANGE = gl.constexpr("""{
.reg .b32 thread, word, barrier, there;
.reg .pred sends, done;
mov.u32 thread, %tid.x;
mov.u32 there, %cluster_ctarank;
mov.u32 word, words_of_cluster;
mad.lo.u32 word, there, 8, word;
mov.u32 barrier, words_are_here;
setp.lt.u32 sends, thread, $2;
barrier.cluster.wait.aligned;
@sends mapa.shared::cluster.u32 word, word, thread;
@sends mapa.shared::cluster.u32 there, barrier, thread;
@sends st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [word], $1, [there];
again:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [barrier], 0;
@!done bra again;
mov.b64 $0, $1;
}""")
RECEIVE = gl.constexpr("""{
.reg .b32 word;
mov.u32 word, words_of_cluster;
mad.lo.u32 word, $1, 8, word;
ld.shared.b64 $0, [word];
}""")
SIZES = ["x_stride", "dy_stride", "n_cols"]


def layout_of(programs: int, vector: int, num_warps: int) -> gl.BlockedLayout:
    """How a row, seen as [programs, columns], lies in a cluster: a program each, vectors side by side in its threads.

    Built on the host: Triton 3.6 cannot build it inside a kernel.
    """
    each_program = [[1 << bit, 0] for bit in range(programs.bit_length() - 1)]
    return gl.BlockedLayout([1, vector], [1, 32], [1, num_warps], [1, 0], each_program)


@gluon.jit
def prepare_exchange(value, PROGRAMS: gl.constexpr):
    """Returns `value`; to be called once, before `exchange`, the earlier the better."""
    operands = [value, value * 0 + 8 * PROGRAMS]
    return gl.inline_asm_elementwise(PREPARE, "=r,r,r", operands, dtype=value.dtype, is_pure=False, pack=1)


@gluon.jit
def exchange(word, k, LAYOUT: gl.constexpr, PROGRAMS: gl.constexpr):
    """The words (int64) of all programs, [k, j]: those that program k has of programs j. To be called once."""
    gl.inline_asm_elementwise(EXCHANGE, "=l,l,r", [word, k * 0 + PROGRAMS], dtype=gl.int64, is_pure=False, pack=1)
    j = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(0, LAYOUT))[None, :] + k[:, None] * 0
    return gl.inline_asm_elementwise(RECEIVE, "=l,r", [j], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit
def load_chunk(p, column, n_cols, other, VECTOR: gl.constexpr, EXACT: gl.constexpr, READS: gl.constexpr):
    """The elements at p + column, by whole vectors; `other` beyond the row. EXACT: nothing is beyond it."""
    if EXACT:
        return gl.load(p + column, eviction_policy=READS)
    return gl.load(p + column, mask=column // VECTOR * VECTOR < n_cols, other=other, eviction_policy=READS)


@gluon.jit
def store_chunk(p, column, results, n_cols, VECTOR: gl.constexpr, EXACT: gl.constexpr):
    """The counterpart of `load_chunk`."""
    results = results.to(p.dtype.element_ty)
    if EXACT:
        gl.store(p + column, results)
    else:
        gl.store(p + column, results, mask=column // VECTOR * VECTOR < n_cols)


@gluon.jit(do_not_specialize=SIZES)
def cluster_forward(
    x_ptr, y_ptr, mask_ptr, x_stride, n_cols, scale,
    PROGRAMS: gl.constexpr, COLS: gl.constexpr, VECTOR: gl.constexpr, EXACT: gl.constexpr, PACKED: gl.constexpr,
    READS: gl.constexpr, SAFE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """One cluster: one row, COLS columns in each of its programs' registers. PACKED: as they were read, as in Plan."""
    FORM: gl.constexpr = "plain" if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    row = prepare_exchange(gl.program_id(0), PROGRAMS)
    x = gl.multiple_of(x_ptr + row.to(gl.int64) * x_stride, 16)
    y = gl.multiple_of(y_ptr + row.to(gl.int64) * n_cols, 16)
    k = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(1, LAYOUT))
    column = k[:, None] * COLS + gl.arange(0, COLS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    values = load_chunk(x, column, n_cols, NEG_INF, VECTOR, EXACT, READS)
    logits = values.to(gl.float32)
    largest = gl.max(logits, axis=1)
    slope, origin = exponent_of(reference_of(largest), scale, FORM)
    if PACKED:
        logits = held(values).to(gl.float32)
    powers = power(logits, slope, origin[:, None], scale, FORM)

    maxima, totals = unpack(exchange(pack(largest, gl.sum(powers, axis=1)), k, LAYOUT, PROGRAMS))
    reference = reference_of(gl.max(maxima, axis=1))
    total = gl.sum(totals * exp_of_difference(maxima, reference[:, None], scale), axis=1)
    if SAFE:
        total = gl.where(total == 0.0, 1.0, total)
    factor, factor_rest = reciprocal_of(total[:, None], FORM)
    slope, origin = exponent_of(reference, scale, FORM)
    if PACKED:
        powers = power(held(values).to(gl.float32), slope, origin[:, None], scale, FORM)
    else:
        powers *= power(largest, slope, origin, scale, FORM)[:, None]
    store_chunk(y, column, divide(powers, factor, factor_rest, FORM), n_cols, VECTOR, EXACT)


@gluon.jit(do_not_specialize=SIZES)
def cluster_backward(
    dy_ptr, dx_ptr, y_ptr, dy_stride, n_cols, scale,
    PROGRAMS: gl.constexpr, COLS: gl.constexpr, VECTOR: gl.constexpr, EXACT: gl.constexpr, PACKED: gl.constexpr,
    READS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """One cluster: dx of one row; see `cluster_forward`."""
    row = prepare_exchange(gl.program_id(0), PROGRAMS)
    dy_row = gl.multiple_of(dy_ptr + row.to(gl.int64) * dy_stride, 16)
    y_row = gl.multiple_of(y_ptr + row.to(gl.int64) * n_cols, 16)
    dx_row = gl.multiple_of(dx_ptr + row.to(gl.int64) * n_cols, 16)
    k = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(1, LAYOUT))
    column = k[:, None] * COLS + gl.arange(0, COLS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    dy = load_chunk(dy_row, column, n_cols, 0.0, VECTOR, EXACT, READS)
    y = load_chunk(y_row, column, n_cols, 0.0, VECTOR, EXACT, READS)
    word = pack_product(gl.sum(dy.to(gl.float32) * y.to(gl.float32), axis=1))
    _, products = unpack(exchange(word, k, LAYOUT, PROGRAMS))
    product = gl.sum(products, axis=1)[:, None]
    if PACKED:
        dy, y = held(dy), held(y)
    store_chunk(dx_row, column, y.to(gl.float32) * (dy.to(gl.float32) - product) * scale, n_cols, VECTOR, EXACT)
