"""Long rows in Gluon: as `shared_forward`, with half of each chunk in shared memory, for rows too long for registers.

In: as shared_forward, for `aligned` rows alone. Out: y. Registers and shared memory of an H200 hold 42 to 50 MB of x
at once: several rows of a million columns, so that some are read while others wait and are written.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
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

# Triton takes an eviction policy for copies to shared memory, and drops it: float32 halves of up to so many bytes are
# copied by instructions of our own, to memory of our own, of which a program may have 48 KiB. (16-bit ones are 3 to 5 %
# slower so, by the words that they spill.)
MOST_BYTES = gl.constexpr(32 * 1024)
# Returns the address of the thread's first vector. Each thread asks itself for it, so that ptxas does not know that the
# memory lies at a constant: of that it made (13.0) copies that the GPU refuses as illegal instructions.
RESERVE = gl.constexpr(f"""
.shared .align 16 .b8 half_of_chunk[{MOST_BYTES.value}];
{{
.reg .b32 address, thread, lane;
mov.u32 address, half_of_chunk;
mov.u32 thread, %tid.x;
mad.lo.u32 address, thread, 16, address;
mov.u32 lane, %laneid;
shfl.sync.idx.b32 $0, address, lane, 31, 0xffffffff;
}}""")
EVICT_LAST = gl.constexpr("createpolicy.fractional.L2::evict_last.b64 $0, 1.0;")
EVICT_NORMAL = gl.constexpr("createpolicy.fractional.L2::evict_normal.b64 $0, 1.0;")
# Four columns, from $2 to $1 by the policy $3, or $6 if their first, $4, is beyond the last, $5.
COPY = gl.constexpr("""{
.reg .pred inside;
setp.lt.s32 inside, $4, $5;
@inside cp.async.cg.shared.global.L2::cache_hint [$1], [$2], 16, $3;
@!inside st.shared.v4.b32 [$1], {$6, $6, $6, $6};
mov.b32 $0, 0;
}""")
MINUS_INF = gl.constexpr(-0x800000)  # its bits
# A thread reads nothing but what it copied. The barrier keeps the compiler from reading it before the maximum of the
# other half is found, which would take 40 registers more.
WAIT = gl.constexpr("cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
LOAD = gl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")


def reserved_bytes(itemsize: int, half_bytes: int) -> int:
    """Shared memory that a program has beside Triton's, for a half of a chunk of so many bytes."""
    return MOST_BYTES.value if itemsize == 4 and half_bytes <= MOST_BYTES.value else 0


@gluon.jit
def copy_half(
    half, x, n_cols, N: gl.constexpr, TILE: gl.constexpr, READS: gl.constexpr, THREADS: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Begin to copy N tiles of x to the shared memory at `half`, -inf beyond its n_cols columns. READS as of `Plan`.

    Vector i, of four columns, is of thread i % THREADS, here and in `load_half`.
    """
    POLICY: gl.constexpr = EVICT_LAST if READS == "evict_last" else EVICT_NORMAL
    policy = gl.inline_asm_elementwise(POLICY, "=l,r", [n_cols], dtype=gl.int64, is_pure=False, pack=1)
    i = gl.arange(0, TILE // 4, layout=LAYOUT)
    for t in range(N):
        column = t * TILE + i * 4
        address = half + (t * (TILE // 4) + i // THREADS * THREADS) * 16
        operands = [address, x + column, policy, column, n_cols, MINUS_INF]
        gl.inline_asm_elementwise(COPY, "=r,r,l,l,r,r,r", operands, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_half(half, t, i, TILE: gl.constexpr, THREADS: gl.constexpr, OURS: gl.constexpr):
    """Columns i of tile t from the half in shared memory."""
    if OURS:
        address = half + (t * TILE + i // (THREADS * 4) * (THREADS * 4)) * 4
        v = gl.inline_asm_elementwise(LOAD, "=r,=r,=r,=r,r,r,r,r", [address], dtype=gl.float32, is_pure=False, pack=4)
    else:
        v = half.index(t).load(i.type.layout)
    return v


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
    THREADS: gl.constexpr = 32 * WARPS
    FORM: gl.constexpr = "fused" if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    SUM_FORM: gl.constexpr = "fused" if FORM == "fused" else "plain"
    POWERS: gl.constexpr = FORM == "exact"
    OURS: gl.constexpr = POWERS and HALF * 4 <= MOST_BYTES
    program = gl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    x = gl.multiple_of(x_ptr + row.to(gl.int64) * x_stride, 16)
    y = gl.multiple_of(y_ptr + row.to(gl.int64) * y_stride, 16)
    words = words_ptr + row.to(gl.int64) * n_chunks
    i = gl.arange(0, TILE, layout=layout)
    first = k * CHUNK
    if OURS:
        half = gl.inline_asm_elementwise(RESERVE, "=r,r", [program], dtype=gl.int32, is_pure=False, pack=1)
        copy_half(half, x + first, n_cols - first, N, TILE, READS, THREADS, narrow)
    else:
        half = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [N, TILE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        for t in range(N):
            column = first + t * TILE + i
            if EXACT:
                async_copy.async_copy_global_to_shared(half.index(t), x + column)
            else:
                if first + (t + 1) * TILE <= n_cols:
                    async_copy.async_copy_global_to_shared(half.index(t), x + column)
                else:
                    half.index(t).store(gl.load(x + column, mask=column // VECTOR * VECTOR < n_cols, other=NEG_INF))
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
    if OURS:
        half = gl.inline_asm_elementwise(WAIT, "=r,r", [half], dtype=gl.int32, is_pure=False, pack=1)
        for t in gl.static_range(N):
            largest = gl.maximum(largest, load_half(half, t, i, TILE, THREADS, OURS))
    else:
        async_copy.wait_group(0)
        for t in range(N):
            largest = gl.maximum(largest, load_half(half, t, i, TILE, THREADS, OURS))
    largest = gl.max(largest, axis=0).to(gl.float32)
    reference = reference_of(largest)
    slope, origin = exponent_of(reference, scale, SUM_FORM)
    if POWERS:
        tiles = powers_of(tiles, largest, scale, N)
        total = tile_total(tiles, N)
    else:
        total = power_total(tiles, slope, origin, scale, SUM_FORM, N)
    for t in range(N):
        v = load_half(half, t, i, TILE, THREADS, OURS)
        total += power(v.to(gl.float32), slope, origin, scale, SUM_FORM)
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
    share = chunk_share(largest, reference, scale) * factor
    factor *= common_factor(reference, slope, origin, FORM)

    for t in range(N):
        v = load_half(half, t, i, TILE, THREADS, OURS)
        results = power(v.to(gl.float32), slope, origin, scale, FORM) * factor
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
