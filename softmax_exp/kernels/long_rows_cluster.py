"""Few long rows in Gluon: a row shared by the programs of a thread-block cluster, which the GPU runs together.

In: as `shared_forward`, for `aligned` rows alone. Out: y, one read and one write of each element, in one kernel: words
need no clearing, since a barrier of the cluster stands between their writing and their reading. Needs Hopper or later.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from softmax_exp.kernels.long_rows_shared import SIZES
from softmax_exp.kernels.long_rows_tiles import NEG_INF, pack, reference_of, unpack
from softmax_exp.kernels.tile import divide, exp_of_difference, exponent_of, power, reciprocal_of


def layout_of(vector: int, num_warps: int, n_programs: int) -> gl.BlockedLayout:
    """How a row, seen as [n_programs, columns], lies in a cluster: a program each, vectors side by side in its threads.

    Built outside the kernel, where Triton 3.6 could not build it.
    """
    each_program = [[1 << bit, 0] for bit in range(n_programs.bit_length() - 1)]
    return gl.BlockedLayout([1, vector], [1, 32], [1, num_warps], [1, 0], each_program)


@gluon.jit
def wait_for_cluster(value):
    """Returns `value`, once all threads of the cluster are here and what they wrote before can be read."""
    return gl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1;",
        "=r,r", [value], dtype=value.dtype, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit(do_not_specialize=SIZES)
def cluster_forward(
    x_ptr, y_ptr, words_ptr, x_stride, y_stride, n_cols, n_chunks, scale,
    CHUNK: gl.constexpr, VECTOR: gl.constexpr, EXACT: gl.constexpr, SAFE: gl.constexpr, PROGRAMS: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """One cluster of PROGRAMS (= n_chunks) programs: one row, a chunk of it each."""
    layout: gl.constexpr = LAYOUT
    FORM: gl.constexpr = "plain" if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    row = gl.program_id(0)
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
    gl.store(words_ptr + row * PROGRAMS + k, pack(largest, gl.sum(powers, axis=1)))

    j = gl.arange(0, PROGRAMS, layout=gl.SliceLayout(0, layout))
    words = words_ptr + wait_for_cluster(row) * PROGRAMS
    word = gl.load(words + j[None, :] + k[:, None] * 0, volatile=True)
    tops, totals = unpack(word)
    reference = reference_of(gl.max(tops, axis=1))
    total = gl.sum(totals * exp_of_difference(tops, reference[:, None], scale), axis=1)
    if SAFE:
        total = gl.where(total == 0.0, 1.0, total)
    factor, factor_rest = reciprocal_of(total, FORM)
    slope, origin = exponent_of(reference, scale, FORM)
    powers *= power(largest, slope, origin, scale, FORM)[:, None]
    results = divide(powers, factor[:, None], factor_rest[:, None] if FORM == "exact" else 0.0, FORM)
    if EXACT:
        gl.store(y + column, results.to(y_ptr.dtype.element_ty))
    else:
        gl.store(y + column, results.to(y_ptr.dtype.element_ty), mask=column // VECTOR * VECTOR < n_cols)
