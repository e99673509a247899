"""Device functions that the forward and backward kernels share: where rows lie, what of them is read, exp.

In and out: Triton tensors of shape [CHUNKS, ROWS, LANES] (columns) or [1, ROWS, 1] (one value a row).
Columns count from the row's `base`, the first 16-byte boundary in it: a row that begins `shift` (<= 0) columns before
has whole vectors from 0 to `n_whole`, and two ends of less than a vector, which only `shifted` access has.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LOG2_E = tl.constexpr(1.4426950408889634)
# log2(e) as two float32, the first so low that its product with a scale, rounded, leaves a positive rest.
LOG2_E_LOW = tl.constexpr(1.4426949024200439)
LOG2_E_REST = tl.constexpr(1.3846891945e-07)
# A float32 so large that adding to it rounds to whole numbers, which are then its lowest bits: 0 as 127, as exponents.
COUNTER = tl.constexpr(12582912.0 + 127.0)


@triton.jit
def locate_rows(
    n_rows,
    n_heads,
    n_queries,
    x_stride_b,
    x_stride_h,
    x_stride_q,
    mask_stride_b,
    mask_stride_h,
    mask_stride_q,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    SPLIT: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """The program's rows: index, whether it exists, its query, and the offsets of x and the mask, all [1, ROWS, 1].

    A row is (b * n_heads + h) * n_queries + q. SPLIT: `x`: x has a stride for each of b, h and q, else one stride leads
    from row to row; `mask`: the mask has, and x has not; `query`: only q is needed; `none`: not even that.
    QUERIES: 0: a program's rows are neighbours. Else the mask depends on q alone, and a program takes rows of one q,
    so that it reads their mask once; programs go over QUERIES neighbouring queries of all b and h before the next
    ones (QUERIES divides n_queries).
    Rows and offsets are counted in 32 bits, in which arithmetic is cheap, unless the tensors are too large (WIDE).
    """
    program = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    lane = tl.arange(0, ROWS)[None, :, None]
    if QUERIES > 0:
        n_groups = n_rows // n_queries
        n_together = tl.cdiv(n_groups, ROWS) * QUERIES
        query = program // n_together * QUERIES + program % QUERIES + tl.zeros([1, 1, 1], tl.int32)
        group = program % n_together // QUERIES * ROWS + lane
        row = group * n_queries + query
        row_ok = group < n_groups
    else:
        row = program * ROWS + lane
        row_ok = row < n_rows
        query = row if SPLIT == "none" else row % n_queries
        group = row if SPLIT == "none" else row // n_queries
    mask_offset = query * mask_stride_q
    if SPLIT == "x":
        x_offset = group // n_heads * x_stride_b + group % n_heads * x_stride_h + query * x_stride_q
    else:
        x_offset = row * x_stride_q
    if QUERIES == 0 and (SPLIT == "x" or SPLIT == "mask"):
        mask_offset += group // n_heads * mask_stride_b + group % n_heads * mask_stride_h
    return row, row_ok, query, x_offset, mask_offset


@triton.jit
def tile_columns(row, COLS: tl.constexpr, LANES: tl.constexpr, ROTATED: tl.constexpr):
    """Column numbers [CHUNKS, 1, LANES]; if ROTATED [CHUNKS, ROWS, LANES], where row r begins with its chunk r.

    Rows whose length is a power of two begin in the same channels of the memory; rotated, they are read evenly.
    """
    CHUNKS: tl.constexpr = COLS // LANES
    chunk = tl.arange(0, CHUNKS)[:, None, None]
    if ROTATED:
        chunk = (chunk + row.to(tl.int32)) % CHUNKS
    return chunk * LANES + tl.arange(0, LANES)[None, None, :]


@triton.jit
def row_base(start, VECTOR: tl.constexpr, ACCESS: tl.constexpr):
    """The first 16-byte boundary at or after element `start`, in a form that shows the compiler that it is one."""
    if ACCESS == "aligned":
        return start // VECTOR * VECTOR
    return (start + (VECTOR - 1)) // VECTOR * VECTOR


@triton.jit
def row_bounds(start, base, query, n_cols, n_queries, VECTOR: tl.constexpr, ACCESS: tl.constexpr, CAUSAL: tl.constexpr):
    """Of rows that start at element `start`: shift, n_whole, and the column up to which elements take part."""
    shift = (start - base).to(tl.int32) if ACCESS == "shifted" else 0
    n_whole = tl.maximum(shift + n_cols, 0) // VECTOR * VECTOR if ACCESS == "shifted" else n_cols
    if CAUSAL:
        # The diagonal ends in the last column of the last query.
        n_kept = tl.cast(tl.minimum(tl.maximum(query + (n_cols - n_queries + 1), 0), n_cols), tl.int32)
    else:
        n_kept = n_cols
    return shift, n_whole, shift + n_kept


@triton.jit
def end_columns(n_whole, VECTOR: tl.constexpr):
    """The columns of the vectors before and after a row's whole ones, [1, ROWS, 2 * VECTOR]: its ends lie in them.

    They are read and written an element at a time, since a tensor's allocation may end with its last element; by a
    thread each, because backwards, as here, the compiler finds no vectors in them.
    """
    place = 2 * VECTOR - 1 - tl.arange(0, 2 * VECTOR)[None, None, :]
    return place - VECTOR + place // VECTOR * n_whole


@triton.jit
def load_x(pointers, wanted, READS: tl.constexpr, EXACT: tl.constexpr):
    """Load columns of x, -inf where `wanted` is false. READS: the eviction policy (see `Plan`)."""
    if EXACT:
        return tl.load(pointers, eviction_policy=READS)
    return tl.load(pointers, mask=wanted, other=float("-inf"), eviction_policy=READS)


@triton.jit
def is_kept(column, shift, keep_to, PARTIAL: tl.constexpr):
    """Whether a column takes part; only those `around` the row can lie before it."""
    return (column >= shift) & (column < keep_to) if PARTIAL == "around" else column < keep_to


@triton.jit
def keep_packed(x):
    """The 16-bit elements x, hidden from the compiler, which would rather keep them converted, twice as big."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@triton.jit
def logits_of(
    x,
    mask_ptr,
    mask_start,
    column,
    wanted,
    shift,
    keep_to,
    scale,
    PARTIAL: tl.constexpr,
    MASK: tl.constexpr,
    MASK_ACCESS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Logits, x * scale + mask, in float32; -inf where a boolean mask is false and outside the columns that are kept.

    PARTIAL: whether columns may lie outside: `none`; `after` the kept ones; `around` them, before and after.
    """
    logits = x.to(tl.float32)
    if SCALED:
        logits = logits * scale
    if MASK != "none":
        if MASK_ACCESS == "aligned":
            bias = tl.load(mask_ptr + mask_start + column, mask=wanted, other=0)
        else:
            in_row = (column >= shift) & (column < keep_to)
            bias = tl.load(mask_ptr + (mask_start - shift) + column, mask=wanted & in_row, other=0)
        if MASK == "boolean":
            logits = tl.where(bias != 0, logits, float("-inf"))
        else:
            logits = logits + bias.to(tl.float32)
    if PARTIAL != "none":
        logits = tl.where(is_kept(column, shift, keep_to, PARTIAL), logits, float("-inf"))
    return logits


@triton.jit
def lane_max(values):
    """Maximum over the chunks [CHUNKS, ROWS, LANES] -> [1, ROWS, LANES], in each thread alone; NaN does not count."""
    return tl.max(values, axis=0, keep_dims=True)


@triton.jit
def lane_sum(values):
    """Sum over the chunks [CHUNKS, ROWS, LANES] -> [1, ROWS, LANES], in each thread alone."""
    return tl.sum(values, axis=0, keep_dims=True)


@triton.jit
def row_max(values):
    """Maximum over the columns of each row: [1, ROWS, 1]; NaN does not count."""
    return tl.max(lane_max(values), axis=2, keep_dims=True)


@triton.jit
def row_sum(values):
    """Sum over the columns of each row: [1, ROWS, 1]."""
    return tl.sum(lane_sum(values), axis=2, keep_dims=True)


@triton.jit
def exp_of_difference(logits, largest, scale):
    """exp((logits - largest) * scale), for sums: its rounding, 2^-24 of the exponent, counts less the smaller it is.

    The difference comes first: with log2(e) folded into both terms, the largest float32 would overflow.
    """
    return tl.exp2((logits - largest) * (scale * LOG2_E))


@triton.jit
def exponent_of(largest, scale, FORM: tl.constexpr):
    """(slope, origin) of a row, with which `power` gives exp((x - largest) * scale), up to a factor common to the row.

    FORM `exact`: for float32 results. `plain`: as `exp_of_difference`. `fused`: for x of 16 bits, whose conversions and
    powers, not the memory, would else set the pace: one multiply-add instead of a subtraction and a product. It rounds
    once, so that origin's own rounding is the row's common factor; |origin| is kept below 2^26, where that factor is
    near 1. A row with larger values has powers of nothing but 1 and 0, since 16-bit numbers differ by a 2^-11th part at
    least, and with a lesser slope it still has.
    """
    slope = tl.cast(scale, tl.float32) * (LOG2_E_LOW if FORM == "exact" else LOG2_E)
    if FORM == "fused":
        slope = tl.minimum(slope, 67108864.0 / tl.abs(largest))
        origin = largest * slope
    else:
        origin = largest
    return slope, origin


@triton.jit
def power(logits, slope, origin, scale, FORM: tl.constexpr):
    """The exponential by what `exponent_of` returned."""
    if FORM == "fused":
        result = tl.exp2(fused_multiply_add(logits, slope, -origin))
    elif FORM == "plain":
        result = tl.exp2((logits - origin) * slope)
    else:
        # The exponent's whole part goes to the result's exponent, and the fraction is found with the rest of log2(e):
        # with the exponent rounded, results of 1e-28 would be wrong by 40 units in the last place. Below 2^-126 the
        # last product makes a denormal number or 0. The rest of the slope is positive, so that -inf stays what it is.
        slope_rest = fused_multiply_add(tl.cast(scale, tl.float32), LOG2_E_LOW, -slope) + scale * LOG2_E_REST
        difference = logits - origin
        counter = tl.maximum(fused_multiply_add(difference, slope, COUNTER), COUNTER - 126.0)
        fraction = fused_multiply_add(difference, slope, COUNTER - counter)
        fraction = fused_multiply_add(difference, slope_rest, fraction)
        result = tl.exp2(fraction) * (counter.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return result


@triton.jit
def reciprocal_of(total, FORM: tl.constexpr):
    """1 / total as (factor, rest); the rest is 0 unless results are float32."""
    factor = 1.0 / total
    if FORM == "exact":
        rest = fused_multiply_add(-total, factor, 1.0) * factor
    else:
        rest = 0.0
    return factor, rest


@triton.jit
def share_of(power, factor, factor_rest, FORM: tl.constexpr):
    """What `divide` needs to multiply by `power` too: as (factor, rest), without a rounding of its own."""
    product = power * factor
    if FORM == "exact":
        factor_rest = fused_multiply_add(power, factor, -product) + power * factor_rest
    return product, factor_rest


@triton.jit
def divide(powers, factor, factor_rest, FORM: tl.constexpr):
    """The powers times what `reciprocal_of` returned, rounded once."""
    if FORM == "exact":
        result = fused_multiply_add(powers, factor, powers * factor_rest)
    else:
        result = powers * factor
    return result


@triton.jit
def fused_multiply_add(a, b, c):
    """Returns a * b + c, rounded once."""
    if INTERPRETED:
        result = (a.to(tl.float64) * b + c).to(tl.float32)
    else:
        result = tl.fma(a, b, c)
    return result


@triton.jit
def store_ends(out_ptr, out_base, column, values, row_ok, shift, n_cols):
    """Store those elements of the end vectors that belong to the row."""
    in_row = (column >= shift) & (column < shift + n_cols)
    tl.store(out_ptr + out_base + column, values.to(out_ptr.dtype.element_ty), mask=row_ok & in_row)
