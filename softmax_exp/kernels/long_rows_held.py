"""Long rows in Gluon: as `shared_forward`, with half of each chunk in shared memory, for rows too long for registers.

READS holds for the half in registers: Triton takes an eviction policy for copies to shared memory, and drops it.

In: as shared_forward, for `aligned` rows alone. Out: y. Registers and shared memory of an H200 hold 42 to 50 MB of x
at once: several rows of a million columns, so that some are read while others wait and are written.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_wait

from softmax_exp.kernels.long_rows_shared import LANES, SIZES
from softmax_exp.kernels.long_rows_tiles import (
    NEG_INF,
    chunk_share,
    common_factor,
    held,
    power_total,
    powers_of,
    reference_of,
    tile_total,
)
from softmax_exp.kernels.long_rows_words import (
    combine,
    help_row,
    pack,
    poll,
    publish,
)
from softmax_exp.kernels.tile import exponent_of, power


@gluon.jit(do_not_specialize=SIZES)
def held_forward(
    x_ptr, y_ptr, words_ptr, x_stride, y_stride, n_cols, n_chunks, spins, scale,
    CHUNK: gl.constexpr, TILE: gl.constexpr, WORDS: gl.constexpr, VECTOR: gl.constexpr, ACCESS: gl.constexpr,
    EXACT: gl.constexpr, SAFE: gl.constexpr, OVERLAP: gl.constexpr, READS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One program: one chunk of one row, its first half in shared memory, its second in registers."""
    gl.static_assert(ACCESS == "aligned")
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [WARPS], [0])
    narrow: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    HALF: gl.constexpr = CHUNK // 2
    N: gl.constexpr = HALF // TILE
    FORM: gl.constexpr = "fused" if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    SUM_FORM: gl.constexpr = "fused" if FORM == "fused" else "plain"
    POWERS: gl.constexpr = FORM == "exact"
    buffer = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [N, TILE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    program = gl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    x = gl.multiple_of(x_ptr + row.to(gl.int64) * x_stride, 16)
    y = gl.multiple_of(y_ptr + row.to(gl.int64) * y_stride, 16)
    words = words_ptr + row.to(gl.int64) * n_chunks
    i = gl.arange(0, TILE, layout=layout)
    first = k * CHUNK
    for t in range(N):
        column = first + t * TILE + i
        if EXACT:
            async_copy.async_copy_global_to_shared(buffer.index(t), x + column, eviction_policy=READS)
        else:
            if first + (t + 1) * TILE <= n_cols:
                async_copy.async_copy_global_to_shared(buffer.index(t), x + column, eviction_policy=READS)
            else:
                buffer.index(t).store(gl.load(x + column, mask=column // VECTOR * VECTOR < n_cols, other=NEG_INF))
    async_copy.commit_group()
    tiles = ()
    for t in gl.static_range(N):
        column = first + HALF + t * TILE + i
        if EXACT:
            tiles = tiles + (gl.load(x + column, eviction_policy=READS),)
        else:
            tiles = tiles + (
                gl.load(x + column, mask=column // VECTOR * VECTOR < n_cols, other=NEG_INF, eviction_policy=READS),
            )

    largest = tiles[0]
    for t in gl.static_range(1, N):
        largest = gl.maximum(largest, tiles[t])
    async_copy.wait_group(0)
    for t in range(N):
        largest = gl.maximum(largest, buffer.index(t).load(layout))
    largest = gl.max(largest, axis=0).to(gl.float32)
    reference = reference_of(largest)
    slope, origin = exponent_of(reference, scale, SUM_FORM)
    if POWERS:
        tiles = powers_of(tiles, largest, scale, N, True)
        total = tile_total(tiles, N)
    else:
        total = power_total(tiles, slope, origin, scale, SUM_FORM, N)
    for t in range(N):
        total += power(buffer.index(t).load(layout).to(gl.float32), slope, origin, scale, SUM_FORM)
    total = gl.sum(total, axis=0) * common_factor(reference, slope, origin, SUM_FORM)

    if OVERLAP:
        gdc_wait()
    publish(words, k, pack(largest, total))
    j = gl.arange(0, WORDS, layout=narrow)
    word = poll(words, j, n_chunks, spins)
    lane = gl.arange(0, LANES, layout=narrow)
    word = help_row(word, words, j, k, n_chunks, x, 0, n_cols, scale, lane, CHUNK, LANES)
    reference, factor = combine(word, j, n_chunks, scale, SAFE)
    slope, origin = exponent_of(reference, scale, FORM)
    share = chunk_share(largest, reference, scale, True) * factor
    factor *= common_factor(reference, slope, origin, FORM)

    for t in range(N):
        results = power(buffer.index(t).load(layout).to(gl.float32), slope, origin, scale, FORM) * factor
        column = first + t * TILE + i
        if EXACT:
            gl.store(y + column, results.to(y_ptr.dtype.element_ty))
        else:
            gl.store(y + column, results.to(y_ptr.dtype.element_ty), mask=column // VECTOR * VECTOR < n_cols)
    for t in gl.static_range(N):
        if POWERS:
            results = tiles[t] * share
        else:
            results = power(held(tiles[t]).to(gl.float32), slope, origin, scale, FORM) * factor
        column = first + HALF + t * TILE + i
        if EXACT:
            gl.store(y + column, results.to(y_ptr.dtype.element_ty))
        else:
            gl.store(y + column, results.to(y_ptr.dtype.element_ty), mask=column // VECTOR * VECTOR < n_cols)
