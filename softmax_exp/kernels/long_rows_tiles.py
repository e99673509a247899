"""Device functions of the long-row kernels: where a row lies, its chunks as tiles, and sums over them.

A row is cut into chunks, one a program; a chunk is held as tiles. Forward and backward kernels build on this, in
Triton and in Gluon.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels.tile import INTERPRETED, exponent_of, fused_multiply_add, power

NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
def row_span(x_ptr, row, stride, n_cols, VECTOR: tl.constexpr, ACCESS: tl.constexpr):
    """Where a row lies: pointer to the 16-byte boundary at or before it, and the range of columns from there.

    For `aligned` rows the boundary is the row's start; `scalar` rows are taken from their start, aligned or not.
    """
    start = x_ptr + row.to(tl.int64) * stride
    if ACCESS == "scalar":
        return start, 0, n_cols
    if ACCESS == "aligned":
        return tl.multiple_of(start, 16), 0, n_cols
    lead = (start.to(tl.int64) % 16 // (16 // VECTOR)).to(tl.int32)
    return tl.multiple_of(start - lead, 16), lead, lead + n_cols


@triton.jit
def load_tile(
    p, first, low, high, fill, TILE: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr, EXACT: tl.constexpr,
    READS: tl.constexpr,
):  # fmt: skip
    """Columns first to first + TILE, `fill` outside low to high. EXACT: no tile of any row has such columns.

    Of `shifted` rows, only whole vectors: see `row_ends` for the others. READS: the eviction policy (see `Plan`).
    """
    i = tl.arange(0, TILE)
    q = p + first
    if EXACT:
        v = tl.load(q + i, eviction_policy=READS)
    # Written so that the compiler sees that whole vectors are in or out.
    elif ACCESS == "aligned":
        v = tl.load(q + i, mask=(first + i) // VECTOR * VECTOR < high, other=fill, eviction_policy=READS)
    elif ACCESS == "shifted":
        begin = (first + i) // VECTOR * VECTOR
        v = tl.load(q + i, mask=(begin >= low) & (begin + VECTOR <= high), other=fill, eviction_policy=READS)
    else:
        if (first >= low) & (first + TILE <= high):
            v = tl.load(q + i, eviction_policy=READS)
        else:
            inside = (first + i >= low) & (first + i < high)
            v = tl.load(q + i, mask=inside, other=fill, eviction_policy=READS)
    return v


@triton.jit
def store_tile(
    p, v, first, low, high, TILE: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr, EXACT: tl.constexpr
):
    """The counterpart of `load_tile`."""
    i = tl.arange(0, TILE)
    q = p + first
    v = v.to(p.dtype.element_ty)
    if EXACT:
        tl.store(q + i, v)
    elif ACCESS == "aligned":
        tl.store(q + i, v, mask=(first + i) // VECTOR * VECTOR < high)
    elif ACCESS == "shifted":
        begin = (first + i) // VECTOR * VECTOR
        tl.store(q + i, v, mask=(begin >= low) & (begin + VECTOR <= high))
    else:
        if (first >= low) & (first + TILE <= high):
            tl.store(q + i, v)
        else:
            tl.store(q + i, v, mask=(first + i >= low) & (first + i < high))


@triton.jit
def row_ends(k, low, high, CHUNK: tl.constexpr, VECTOR: tl.constexpr):
    """Columns [2 * VECTOR] of the vectors at a shifted row's ends, and which of them `load_tile` leaves out of chunk k.

    They are moved an element at a time: backwards, as here, the compiler finds no vectors in them.
    """
    place = 2 * VECTOR - 1 - tl.arange(0, 2 * VECTOR)
    last = high // VECTOR * VECTOR
    column = tl.where(place < VECTOR, place, last + place - VECTOR)
    here = tl.where(place < VECTOR, (k == 0) & (low > 0), k == last // CHUNK)
    return column, here & (column >= low) & (column < high)


@triton.jit
def load_ends(p, k, low, high, fill, CHUNK: tl.constexpr, VECTOR: tl.constexpr):
    """The elements that `row_ends` gives, in float32, `fill` where it gives none."""
    column, here = row_ends(k, low, high, CHUNK, VECTOR)
    return tl.load(p + column, mask=here, other=fill).to(tl.float32)


@triton.jit
def store_ends(p, v, k, low, high, CHUNK: tl.constexpr, VECTOR: tl.constexpr):
    """The counterpart of `load_ends`."""
    column, here = row_ends(k, low, high, CHUNK, VECTOR)
    tl.store(p + column, v.to(p.dtype.element_ty), mask=here)


@triton.jit
def load_tiles(
    p, first, low, high, fill, CHUNK: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr,
    EXACT: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """The chunk that begins at column `first`, as a tuple of tiles."""
    tiles = ()
    for t in tl.static_range(CHUNK // TILE):
        tiles = tiles + (load_tile(p, first + t * TILE, low, high, fill, TILE, VECTOR, ACCESS, EXACT, READS),)
    return tiles


@triton.jit
def held(v):
    """Returns v. The compiler must not see that, or it keeps float32 copies of 16-bit tiles, in twice the registers."""
    if INTERPRETED or v.dtype.is_fp32():
        return v
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=v.dtype, is_pure=False, pack=2)


@triton.jit
def reference_of(largest):
    """What to subtract before exp: the maximum, or 0 where there is nothing but -inf (and -inf - -inf would be NaN)."""
    return tl.where(largest == NEG_INF, 0.0, largest)


@triton.jit
def common_factor(reference, slope, origin, FORM: tl.constexpr):
    """1 over what `power` gives at the reference itself, where it should give 1, but its origin is rounded.

    Each chunk has an origin of its own: times this, their powers are of one kind.
    """
    if FORM == "fused":
        factor = tl.exp2(-fused_multiply_add(reference, slope, -origin))
    else:
        factor = 1.0
    return factor


@triton.jit
def chunk_max(tiles, N: tl.constexpr):
    """Maximum of a chunk, float32; NaN does not count."""
    largest = tiles[0]
    for t in tl.static_range(1, N):
        largest = tl.maximum(largest, tiles[t])
    return tl.max(largest, axis=0).to(tl.float32)


@triton.jit
def power_total(tiles, slope, origin, scale, FORM: tl.constexpr, N: tl.constexpr):
    """Sum of the powers of the tiles, element by element."""
    total = power(held(tiles[0]).to(tl.float32), slope, origin, scale, FORM)
    for t in tl.static_range(1, N):
        total += power(held(tiles[t]).to(tl.float32), slope, origin, scale, FORM)
    return total


@triton.jit
def chunk_sum(tiles, largest, scale, N: tl.constexpr):
    """Sum of exp((x - maximum) * scale) over a chunk. Where only sums are wanted, float32 needs no exact exponents."""
    FORM: tl.constexpr = "fused" if tiles[0].dtype.primitive_bitwidth == 16 else "plain"
    reference = reference_of(largest)
    slope, origin = exponent_of(reference, scale, FORM)
    total = power_total(tiles, slope, origin, scale, FORM, N)
    return tl.sum(total, axis=0) * common_factor(reference, slope, origin, FORM)


@triton.jit
def powers_of(tiles, largest, scale, N: tl.constexpr):
    """exp((x - maximum) * scale) of a chunk's float32 tiles, to be held in their place.

    Two tiles at a time wait for the two before: begun all at once, their numbers do not fit into the registers, by 8
    words of `shared_forward` and 100 of `held_forward`. (0 * NaN is NaN, as is the whole of a row with a NaN.)
    """
    reference = reference_of(largest)
    slope, origin = exponent_of(reference, scale, "exact")
    powers = ()
    for t in tl.static_range(N):
        if t > 0 and t % 2 == 0:
            origin = fused_multiply_add(powers[t - 1], 0.0, reference)
        powers = powers + (power(tiles[t], slope, origin, scale, "exact"),)
    return powers


@triton.jit
def tile_total(tiles, N: tl.constexpr):
    """Sum of the tiles, element by element."""
    total = tiles[0]
    for t in tl.static_range(1, N):
        total += tiles[t]
    return total


@triton.jit
def chunk_share(largest, reference, scale):
    """exp((largest - reference) * scale): what makes a chunk's powers those of its row; 0 for nothing but -inf."""
    slope, origin = exponent_of(reference, scale, "exact")
    return power(largest, slope, origin, scale, "exact")
