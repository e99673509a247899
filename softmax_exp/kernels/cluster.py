"""Rows in Gluon that are held by the programs of a thread-block cluster each, which the GPU runs together.

In: pointers to aligned rows, sizes, strides in elements. Out: y or dx, one write of each element, and one read by each
cluster of its row (most have one), in one kernel. Warps send their sums to each other's shared memory: there is nothing
to clear, and nobody to wait for who may not be running. Each of several clusters of a row writes a part. Needs Hopper
or later.
"""

# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from softmax_exp.kernels.cluster_plan import MOST_PROGRAMS, MOST_WARPS
from softmax_exp.kernels.long_rows_shared import pack_product
from softmax_exp.kernels.long_rows_tiles import NEG_INF, held, reference_of
from softmax_exp.kernels.long_rows_words import pack, unpack
from softmax_exp.kernels.tile import divide, exponent_of, power, reciprocal_of, share_of

# Returns the cluster's number, by a shift ($2) of the program's. (`program_id` is found by a product in
# float32, later, and exact only below 2^24 programs.) The words of the cluster, and a barrier that counts their bytes
# ($1): declared outside braces, since `EXCHANGE` and `RECEIVE` name them too. Others may write here once all programs
# have begun, for which `EXCHANGE` waits.
PREPARE = gl.constexpr(f"""
.shared .align 8 .b64 words_of_cluster[{MOST_PROGRAMS * MOST_WARPS}];
.shared .align 8 .b64 words_are_here;
{{
.reg .b32 thread, barrier;
.reg .pred first;
mov.u32 thread, %tid.x;
mov.u32 barrier, words_are_here;
setp.eq.u32 first, thread, 0;
@first mbarrier.init.shared::cta.b64 [barrier], 1;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], $1;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
mov.u32 $0, %ctaid.x;
shr.b32 $0, $0, $2;
}}""")
# Lane t of the first $2 of each warp sends the warp's word, which all its threads hold, to program t, to the place of
# the warp ($3 a program). Then all wait for all words. A word a warp, so that the threads of a program need not meet.
EXCHANGE = gl.constexpr("""{
.reg .b32 lane, warp, rank, word, barrier, there;
.reg .pred sends, done;
mov.u32 lane, %tid.x;
shr.u32 warp, lane, 5;
and.b32 lane, lane, 31;
mov.u32 rank, %cluster_ctarank;
mad.lo.u32 warp, rank, $3, warp;
mov.u32 word, words_of_cluster;
mad.lo.u32 word, warp, 8, word;
mov.u32 barrier, words_are_here;
setp.lt.u32 sends, lane, $2;
barrier.cluster.wait.aligned;
@sends mapa.shared::cluster.u32 word, word, lane;
@sends mapa.shared::cluster.u32 there, barrier, lane;
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


def layouts_of(programs: int, vector: int, num_warps: int) -> tuple[gl.BlockedLayout, gl.BlockedLayout]:
    """How a row lies in a cluster, seen as [warps of all programs, columns], and how [warps, words] do.

    A warp has columns of its own, vectors side by side in its threads, and all words. Built on the host: Triton 3.6
    cannot build layouts inside a kernel.
    """
    each_program = [[1 << bit, 0] for bit in range(programs.bit_length() - 1)]

    def layout(in_a_thread: int) -> gl.BlockedLayout:
        return gl.BlockedLayout([1, in_a_thread], [1, 32], [num_warps, 1], [1, 0], each_program)

    return layout(vector), layout(max(1, programs * num_warps // 32))


@gluon.jit
def prepare_exchange(PROGRAMS: gl.constexpr, WARPS: gl.constexpr):
    """Returns the cluster's number; to be called once, before `exchange`, the earlier the better."""
    SHIFT: gl.constexpr = (PROGRAMS > 1) + (PROGRAMS > 2) + (PROGRAMS > 4) + (PROGRAMS > 8)
    operands = [8 * PROGRAMS * WARPS, SHIFT]
    return gl.inline_asm_elementwise(PREPARE, "=&r,r,r", operands, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def exchange(word, w, WORDS: gl.constexpr, PROGRAMS: gl.constexpr, WARPS: gl.constexpr):
    """The words (int64), [v, j]: that of warp j of the cluster, as warp v has it. To be called once.

    word: of warps w, this program's.
    """
    operands = [word, w * 0 + PROGRAMS, w * 0 + WARPS]
    gl.inline_asm_elementwise(EXCHANGE, "=l,l,r,r", operands, dtype=gl.int64, is_pure=False, pack=1)
    v = gl.arange(0, PROGRAMS * WARPS, layout=gl.SliceLayout(1, WORDS))
    j = gl.arange(0, PROGRAMS * WARPS, layout=gl.SliceLayout(0, WORDS))[None, :] + v[:, None] * 0
    return gl.inline_asm_elementwise(RECEIVE, "=l,r", [j], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit
def ordered(bits):
    """The bits (int32) of float32 values as int32 in the same order, and back; a NaN comes first or last by its sign.

    Its row's sum is NaN anyway.
    """
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@gluon.jit
def largest_of(values, LAYOUT: gl.constexpr):
    """The maximum of each line of float32 values [lines, columns], as one layout of lines has it.

    Among the threads of a warp as integers, for which there is an instruction: by shuffles it took 60 ns more.
    """
    largest = gl.max(ordered(values.to(gl.int32, bitcast=True)), axis=1)
    return gl.convert_layout(ordered(largest).to(gl.float32, bitcast=True), gl.SliceLayout(1, LAYOUT))


@gluon.jit
def lane_largest(values, VECTOR: gl.constexpr):
    """The maximum of each thread's values: [warps, columns] -> [warps, 32]; NaN does not count."""
    vectors = values.reshape([values.shape[0], values.shape[1] // (32 * VECTOR), 32, VECTOR])
    return gl.max(gl.max(vectors, axis=3), axis=1)


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
    READS: gl.constexpr, SAFE: gl.constexpr, CLUSTERS: gl.constexpr, WARPS: gl.constexpr, LAYOUT: gl.constexpr,
    WORDS: gl.constexpr,
):  # fmt: skip
    """One cluster: one row, COLS columns in each of its programs' registers. PACKED: as they were read, as in Plan.

    CLUSTERS: of a row; each writes a part of what each of its warps has read. Float32 powers are exact in that part
    alone: sums are of powers whose exponents are rounded, which moves the results of a row together.
    """
    FORM: gl.constexpr = "plain" if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    SUM_FORM: gl.constexpr = FORM if CLUSTERS == 1 else "plain"
    cluster = prepare_exchange(PROGRAMS, WARPS)
    row = cluster // CLUSTERS
    x = gl.multiple_of(x_ptr + row.to(gl.int64) * x_stride, 16)
    y = gl.multiple_of(y_ptr + row.to(gl.int64) * n_cols, 16)
    EACH: gl.constexpr = COLS // WARPS
    w = gl.arange(0, PROGRAMS * WARPS, layout=gl.SliceLayout(1, LAYOUT))
    column = w[:, None] * EACH + gl.arange(0, EACH, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    values = load_chunk(x, column, n_cols, NEG_INF, VECTOR, EXACT, READS)
    logits = values.to(gl.float32)
    if CLUSTERS > 1:
        PART: gl.constexpr = EACH // CLUSTERS
        part = gl.arange(0, PART, layout=gl.SliceLayout(0, LAYOUT))[None, :]
        column = w[:, None] * EACH + (cluster % CLUSTERS * PART + part)
        values = load_chunk(x, column, n_cols, NEG_INF, VECTOR, EXACT, "")  # from the L1
    largest = largest_of(lane_largest(logits, VECTOR), LAYOUT)
    if PACKED and CLUSTERS == 1:
        logits = held(values).to(gl.float32)
    slope, origin = exponent_of(reference_of(largest), scale, SUM_FORM)
    powers = power(logits, slope, origin[:, None], scale, SUM_FORM)
    total = gl.sum(powers, axis=1)
    if CLUSTERS > 1:
        slope, origin = exponent_of(reference_of(largest), scale, FORM)
        powers = power(values.to(gl.float32), slope, origin[:, None], scale, FORM)

    maxima, totals = unpack(exchange(pack(largest, total), w, WORDS, PROGRAMS, WARPS))
    reference = reference_of(largest_of(maxima, WORDS))
    slope, origin = exponent_of(reference, scale, SUM_FORM)
    total = gl.sum(totals * power(maxima, slope, origin[:, None], scale, SUM_FORM), axis=1)
    if SAFE:
        total = gl.where(total == 0.0, 1.0, total)
    reference = gl.convert_layout(reference, gl.SliceLayout(1, LAYOUT))
    total = gl.convert_layout(total, gl.SliceLayout(1, LAYOUT))
    factor, factor_rest = reciprocal_of(total[:, None], FORM)
    slope, origin = exponent_of(reference, scale, FORM)
    if PACKED:
        powers = power(held(values).to(gl.float32), slope, origin[:, None], scale, FORM)
    else:
        share = power(largest, slope, origin, scale, FORM)[:, None]
        factor, factor_rest = share_of(share, factor, factor_rest, FORM)
    store_chunk(y, column, divide(powers, factor, factor_rest, FORM), n_cols, VECTOR, EXACT)


@gluon.jit(do_not_specialize=SIZES)
def cluster_backward(
    dy_ptr, dx_ptr, y_ptr, dy_stride, n_cols, scale,
    PROGRAMS: gl.constexpr, COLS: gl.constexpr, VECTOR: gl.constexpr, EXACT: gl.constexpr, PACKED: gl.constexpr,
    READS: gl.constexpr, WARPS: gl.constexpr, LAYOUT: gl.constexpr, WORDS: gl.constexpr,
):  # fmt: skip
    """One cluster: dx of one row; see `cluster_forward`."""
    row = prepare_exchange(PROGRAMS, WARPS)
    dy_row = gl.multiple_of(dy_ptr + row.to(gl.int64) * dy_stride, 16)
    y_row = gl.multiple_of(y_ptr + row.to(gl.int64) * n_cols, 16)
    dx_row = gl.multiple_of(dx_ptr + row.to(gl.int64) * n_cols, 16)
    EACH: gl.constexpr = COLS // WARPS
    w = gl.arange(0, PROGRAMS * WARPS, layout=gl.SliceLayout(1, LAYOUT))
    column = w[:, None] * EACH + gl.arange(0, EACH, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    dy = load_chunk(dy_row, column, n_cols, 0.0, VECTOR, EXACT, READS)
    y = load_chunk(y_row, column, n_cols, 0.0, VECTOR, EXACT, READS)
    word = pack_product(gl.sum(dy.to(gl.float32) * y.to(gl.float32), axis=1))
    _, products = unpack(exchange(word, w, WORDS, PROGRAMS, WARPS))
    product = gl.convert_layout(gl.sum(products, axis=1), gl.SliceLayout(1, LAYOUT))[:, None]
    if PACKED:
        dy, y = held(dy), held(y)
    store_chunk(dx_row, column, y.to(gl.float32) * (dy.to(gl.float32) - product) * scale, n_cols, VECTOR, EXACT)
