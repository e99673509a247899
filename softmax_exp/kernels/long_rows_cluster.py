"""Few long rows in Gluon: a row shared by the 16 programs of a thread-block cluster, which the GPU runs together.

In: as `shared_forward`, for `aligned` rows alone. Out: y, one read and one write of each element, in one kernel. The
programs send their words to each other's shared memory: there is nothing to clear, and nobody to wait for who may not
be running. Needs Hopper or later.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from softmax_exp.kernels.long_rows_plan import CLUSTER
from softmax_exp.kernels.long_rows_shared import SIZES
from softmax_exp.kernels.long_rows_tiles import (
    NEG_INF,
    reference_of,
)
from softmax_exp.kernels.long_rows_words import (
    pack,
    unpack,
)
from softmax_exp.kernels.tile import divide, exp_of_difference, exponent_of, power, reciprocal_of

PROGRAMS = gl.constexpr(CLUSTER)
# The words of the cluster, and a barrier that counts their bytes: declared outside braces, since `EXCHANGE` and
# `RECEIVE` name them too. Others may write here once all programs have begun, for which `EXCHANGE` waits.
PREPARE = gl.constexpr(f"""
.shared .align 8 .b64 words_of_cluster[{CLUSTER}];
.shared .align 8 .b64 words_are_here;
{{
.reg .b32 thread, barrier;
.reg .pred first;
mov.u32 thread, %tid.x;
mov.u32 barrier, words_are_here;
setp.eq.u32 first, thread, 0;
@first mbarrier.init.shared::cta.b64 [barrier], 1;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], {8 * CLUSTER};
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
mov.b32 $0, $1;
}}""")
# Thread t sends this program's word, which all its threads hold, to program t. Then all wait for all words.
EXCHANGE = gl.constexpr(f"""{{
.reg .b32 thread, word, barrier, there;
.reg .pred sends, done;
mov.u32 thread, %tid.x;
mov.u32 there, %cluster_ctarank;
mov.u32 word, words_of_cluster;
mad.lo.u32 word, there, 8, word;
mov.u32 barrier, words_are_here;
setp.lt.u32 sends, thread, {CLUSTER};
barrier.cluster.wait.aligned;
@sends mapa.shared::cluster.u32 word, word, thread;
@sends mapa.shared::cluster.u32 there, barrier, thread;
@sends st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [word], $1, [there];
again:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [barrier], 0;
@!done bra again;
mov.b64 $0, $1;
}}""")
RECEIVE = gl.constexpr("""{
.reg .b32 word;
mov.u32 word, words_of_cluster;
mad.lo.u32 word, $1, 8, word;
ld.shared.b64 $0, [word];
}""")


def layout_of(vector: int, num_warps: int) -> gl.BlockedLayout:
    """How a row, seen as [PROGRAMS, columns], lies in a cluster: a program each, vectors side by side in its threads.

    Built on the host: Triton 3.6 cannot build it inside a kernel.
    """
    each_program = [[1 << bit, 0] for bit in range(CLUSTER.bit_length() - 1)]
    return gl.BlockedLayout([1, vector], [1, 32], [1, num_warps], [1, 0], each_program)


@gluon.jit
def prepare_exchange(value):
    """Returns `value`; to be called once, before `exchange`, the earlier the better."""
    return gl.inline_asm_elementwise(PREPARE, "=r,r", [value], dtype=value.dtype, is_pure=False, pack=1)


@gluon.jit
def exchange(word, j):
    """The words (int64) of programs j of the cluster. `word`: this program's; to be called once."""
    gl.inline_asm_elementwise(EXCHANGE, "=l,l", [word], dtype=gl.int64, is_pure=False, pack=1)
    return gl.inline_asm_elementwise(RECEIVE, "=l,r", [j], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit(do_not_specialize=SIZES)
def cluster_forward(
    x_ptr, y_ptr, x_stride, y_stride, n_cols, scale,
    CHUNK: gl.constexpr, VECTOR: gl.constexpr, EXACT: gl.constexpr, SAFE: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """One cluster: one row, a chunk of it in each of its programs' registers."""
    layout: gl.constexpr = LAYOUT
    FORM: gl.constexpr = "plain" if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    row = prepare_exchange(gl.program_id(0))
    x = gl.multiple_of(x_ptr + row.to(gl.int64) * x_stride, 16)
    y = gl.multiple_of(y_ptr + row.to(gl.int64) * y_stride, 16)
    k = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(1, layout))
    column = k[:, None] * CHUNK + gl.arange(0, CHUNK, layout=gl.SliceLayout(0, layout))[None, :]
    if EXACT:
        values = gl.load(x + column)
    else:
        values = gl.load(x + column, mask=column // VECTOR * VECTOR < n_cols, other=NEG_INF)
    logits = values.to(gl.float32)
    largest = gl.max(logits, axis=1)
    slope, origin = exponent_of(reference_of(largest), scale, FORM)
    powers = power(logits, slope, origin[:, None], scale, FORM)

    j = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(0, layout))
    word = exchange(pack(largest, gl.sum(powers, axis=1)), j[None, :] + k[:, None] * 0)
    maxima, totals = unpack(word)
    reference = reference_of(gl.max(maxima, axis=1))
    total = gl.sum(totals * exp_of_difference(maxima, reference[:, None], scale), axis=1)
    if SAFE:
        total = gl.where(total == 0.0, 1.0, total)
    factor, factor_rest = reciprocal_of(total[:, None], FORM)
    slope, origin = exponent_of(reference, scale, FORM)
    powers *= power(largest, slope, origin, scale, FORM)[:, None]
    results = divide(powers, factor, factor_rest, FORM).to(y_ptr.dtype.element_ty)
    if EXACT:
        gl.store(y + column, results)
    else:
        gl.store(y + column, results, mask=column // VECTOR * VECTOR < n_cols)
