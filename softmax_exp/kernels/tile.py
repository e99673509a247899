"""Device functions that the forward and backward kernels share: where rows lie, wide loads and stores, exp.

In and out: Triton tensors of shape [CHUNKS, ROWS, LANES] (columns) or [1, ROWS, 1] (one value a row).
A row starts at an element `start`; wide access begins `shift` elements before it, at a 16-byte boundary (`aligned`:
shift 0 and whole vectors; `shifted`: any start, a row's first and last elements stored one by one; `scalar`: neither).
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
    SPLIT: tl.constexpr,
    MASK_SHARED: tl.constexpr,
):
    """The program's rows: index, whether it exists, its query, and the offsets of x and the mask, all [1, ROWS, 1].

    A row is (b * n_heads + h) * n_queries + q. With a mask that depends on q alone (MASK_SHARED), a program takes
    rows of one q, so that it reads their mask once; otherwise its rows are neighbours.
    """
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, ROWS)[None, :, None]
    if MASK_SHARED:
        n_groups = n_rows // n_queries
        n_blocks = tl.cdiv(n_groups, ROWS)
        query = program // n_blocks
        group = program % n_blocks * ROWS + lane
        row = group * n_queries + query
        row_ok = group < n_groups
        x_offset = group // n_heads * x_stride_b + group % n_heads * x_stride_h + query * x_stride_q
        mask_offset = query * mask_stride_q
    else:
        row = program * ROWS + lane
        row_ok = row < n_rows
        if SPLIT:
            query = row % n_queries
            group = row // n_queries
            x_offset = group // n_heads * x_stride_b + group % n_heads * x_stride_h + query * x_stride_q
            mask_offset = group // n_heads * mask_stride_b + group % n_heads * mask_stride_h + query * mask_stride_q
        else:
            query = row
            x_offset = row * x_stride_q
            mask_offset = row * mask_stride_q
    return row, row_ok, query, x_offset, mask_offset


@triton.jit
def tile_columns(COLS: tl.constexpr, LANES: tl.constexpr):
    """Column numbers [COLS / LANES, 1, LANES]. Warps are laid along the middle axis (rows) where LANES fills a warp."""
    chunk = tl.arange(0, COLS // LANES)[:, None, None]
    return chunk * LANES + tl.arange(0, LANES)[None, None, :]


@triton.jit
def columns_kept(query, n_cols, n_queries, CAUSAL: tl.constexpr):
    """How many columns of a row take part: all, or up to the diagonal that ends in the last query's last column."""
    if CAUSAL:
        kept = query + (n_cols - n_queries + 1)
        kept = tl.minimum(tl.maximum(kept, 0), n_cols).to(tl.int32)
    else:
        kept = n_cols
    return kept


@triton.jit
def load_columns(
    pointer,
    start,
    shift,
    column,
    n_kept,
    row_ok,
    other: tl.constexpr,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Load columns of rows in their own dtype, `other` where nothing is read.

    Whole vectors are read if any of their elements is wanted: up to VECTOR - 1 neighbours on either side come along,
    never beyond the 16 bytes that hold a wanted element, so never from outside the allocation.
    """
    if ACCESS == "scalar":
        wanted = row_ok & (column < n_kept)
        pointers = pointer + start + column
    else:
        wanted = row_ok & (column // VECTOR * VECTOR < shift + n_kept)
        pointers = pointer + start // VECTOR * VECTOR + column
    if EXACT:
        return tl.load(pointers)
    return tl.load(pointers, mask=wanted, other=other)


@triton.jit
def store_columns(
    pointer,
    start,
    shift,
    column,
    n_cols,
    row_ok,
    values,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Store columns of rows: vectors that lie inside the row at once, those at its ends element by element."""
    if EXACT:
        tl.store(pointer + start // VECTOR * VECTOR + column, values)
    elif ACCESS == "scalar":
        tl.store(pointer + start + column, values, mask=row_ok & (column < n_cols))
    else:
        first = column // VECTOR * VECTOR
        pointers = pointer + start // VECTOR * VECTOR + column
        if ACCESS == "aligned":
            tl.store(pointers, values, mask=row_ok & (first < n_cols))
        else:
            inner = (first >= shift) & (first + VECTOR <= shift + n_cols)
            in_row = (column >= shift) & (column < shift + n_cols)
            tl.store(pointers, values, mask=row_ok & inner)
            tl.store(pointers, values, mask=row_ok & in_row & (inner == 0))


@triton.jit
def load_logits(
    x_ptr,
    mask_ptr,
    x_start,
    mask_start,
    shift,
    column,
    n_kept,
    row_ok,
    scale,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
    MASK: tl.constexpr,
    MASK_ACCESS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Logits, x * scale + mask, in float32, -inf outside the row and where a boolean mask is false."""
    x = load_columns(x_ptr, x_start, shift, column, n_kept, row_ok, float("-inf"), VECTOR, ACCESS, EXACT)
    logits = x.to(tl.float32)
    if SCALED:
        logits = logits * scale
    if MASK != "none":
        if MASK_ACCESS == "aligned":
            pointers = tl.multiple_of(mask_ptr, 16) + mask_start // VECTOR * VECTOR + column
            bias = tl.load(pointers, mask=row_ok & (column // VECTOR * VECTOR < n_kept), other=0)
        else:
            wanted = row_ok & (column >= shift) & (column < shift + n_kept)
            bias = tl.load(mask_ptr + (mask_start - shift) + column, mask=wanted, other=0)
        if MASK == "boolean":
            logits = tl.where(bias != 0, logits, float("-inf"))
        else:
            logits = logits + bias.to(tl.float32)
    if not EXACT:
        logits = tl.where((column >= shift) & (column < shift + n_kept), logits, float("-inf"))
    return logits


@triton.jit
def exp_of_difference(logits, largest, exponent_scale):
    """exp((logits - largest) * scale), with exponent_scale = scale * log2(e).

    The difference comes first: folding log2(e) into both terms would round logits of size 1e4 to 1e-3, and overflow.
    """
    return tl.exp2((logits - largest) * exponent_scale)
