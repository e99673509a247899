"""Device functions that the forward and backward kernels share: where rows lie, what of them is read, exp.

In and out: Triton tensors of shape [CHUNKS, ROWS, LANES] (columns) or [1, ROWS, 1] (one value a row).
Columns count from the row's `base`, the first 16-byte boundary in it: a row that begins `shift` (<= 0) columns before
has whole vectors from 0 to `n_whole`, and two ends of less than a vector, which only `shifted` access has.
"""

import triton
import triton.language as tl


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
    MASK_SHARED: tl.constexpr,
):
    """The program's rows: index, whether it exists, its query, and the offsets of x and the mask, all [1, ROWS, 1].

    A row is (b * n_heads + h) * n_queries + q. With a mask that depends on q alone (MASK_SHARED), a program takes
    rows of one q, so that it reads their mask once; otherwise its rows are neighbours. Rows are counted in 32 bits,
    in which the divisions are cheap, unless they are too many (WIDE); offsets in 64.
    """
    program = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    lane = tl.arange(0, ROWS)[None, :, None]
    if MASK_SHARED:
        n_groups = n_rows // n_queries
        n_blocks = tl.cdiv(n_groups, ROWS)
        query = program // n_blocks
        group = program % n_blocks * ROWS + lane
        row = group * n_queries + query
        row_ok = group < n_groups
    else:
        row = program * ROWS + lane
        row_ok = row < n_rows
        query = row % n_queries if SPLIT else row
        group = row // n_queries if SPLIT else 0
    wide_query = tl.cast(query, tl.int64)
    x_offset = wide_query * x_stride_q
    mask_offset = wide_query * mask_stride_q
    if SPLIT:
        b, h = tl.cast(group // n_heads, tl.int64), tl.cast(group % n_heads, tl.int64)
        x_offset += b * x_stride_b + h * x_stride_h
        if not MASK_SHARED:
            mask_offset += b * mask_stride_b + h * mask_stride_h
    row = tl.cast(row, tl.int64)
    return row, row_ok, query, x_offset, mask_offset


@triton.jit
def tile_columns(COLS: tl.constexpr, LANES: tl.constexpr):
    """Column numbers [COLS / LANES, 1, LANES]. Warps are laid along the middle axis (rows) where LANES fills a warp."""
    chunk = tl.arange(0, COLS // LANES)[:, None, None]
    return chunk * LANES + tl.arange(0, LANES)[None, None, :]


@triton.jit
def row_bounds(start, query, n_cols, n_queries, VECTOR: tl.constexpr, CAUSAL: tl.constexpr):
    """Of rows that start at element `start`: base, shift, n_whole, and the column up to which elements take part."""
    base = (start + (VECTOR - 1)) // VECTOR * VECTOR
    shift = (start - base).to(tl.int32)
    n_whole = tl.maximum(shift + n_cols, 0) // VECTOR * VECTOR
    if CAUSAL:
        # The diagonal ends in the last column of the last query.
        n_kept = tl.minimum(tl.maximum(query + (n_cols - n_queries + 1), 0), n_cols).to(tl.int32)
    else:
        n_kept = n_cols
    return base, shift, n_whole, shift + n_kept


@triton.jit
def end_columns(n_whole, VECTOR: tl.constexpr):
    """The columns of the vectors before and after a row's whole ones, and the first of each: its ends lie in them."""
    first = tl.arange(0, 2)[:, None, None] * (n_whole + VECTOR) - VECTOR
    return first, first + tl.arange(0, VECTOR)[None, None, :]


@triton.jit
def load_x(pointers, wanted, EXACT: tl.constexpr):
    """Load columns of x, -inf where `wanted` is false.

    `wanted` is true for whole vectors: never more is read than the 16 bytes around an element of the row.
    """
    if EXACT:
        return tl.load(pointers)
    return tl.load(pointers, mask=wanted, other=float("-inf"))


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
    VECTOR: tl.constexpr,
    PARTIAL: tl.constexpr,
    MASK: tl.constexpr,
    MASK_ACCESS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Logits, x * scale + mask, in float32; -inf where a boolean mask is false and, if PARTIAL, beyond what is kept."""
    logits = x.to(tl.float32)
    if SCALED:
        logits = logits * scale
    if MASK != "none":
        if MASK_ACCESS == "aligned":
            bias = tl.load(mask_ptr + mask_start // VECTOR * VECTOR + column, mask=wanted, other=0)
        else:
            in_row = (column >= shift) & (column < keep_to)
            bias = tl.load(mask_ptr + (mask_start - shift) + column, mask=wanted & in_row, other=0)
        if MASK == "boolean":
            logits = tl.where(bias != 0, logits, float("-inf"))
        else:
            logits = logits + bias.to(tl.float32)
    if PARTIAL:
        logits = tl.where((column >= shift) & (column < keep_to), logits, float("-inf"))
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
def exp_of_difference(logits, largest, exponent_scale):
    """exp((logits - largest) * scale), with exponent_scale = scale * log2(e).

    The difference comes first: with log2(e) folded into both terms, the largest float32 would overflow.
    """
    return tl.exp2((logits - largest) * exponent_scale)


@triton.jit
def store_ends(out_ptr, out_base, column, values, row_ok, shift, n_cols):
    """Store those elements of the end vectors that belong to the row."""
    in_row = (column >= shift) & (column < shift + n_cols)
    tl.store(out_ptr + out_base + column, values.to(out_ptr.dtype.element_ty), mask=row_ok & in_row)
