"""Backward kernel: dx = scale * y * (dy - sum(dy * y)) over rows, computed in float32.

In: y as the forward wrote it (rows one after the other), dy of any row strides. Out: dx, laid out as y.
A program holds its rows on chip: two reads and one write of each element.
Source: the softmax Jacobian, diag(y) - y y^T. Only y is needed, whatever the mask: masked elements have y = 0.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels.tile import (
    end_columns,
    is_kept,
    keep_packed,
    lane_sum,
    locate_rows,
    row_base,
    row_bounds,
    row_sum,
    store_ends,
    tile_columns,
)

RUNTIME = [
    "dy_ptr",
    "n_rows",
    "n_cols",
    "n_heads",
    "n_queries",
    "dy_lead",
    "dy_stride_b",
    "dy_stride_h",
    "dy_stride_q",
]


@triton.jit
def load_pair(y_ptr, dy_ptr, y_base, dy_base, column, wanted, READS: tl.constexpr, EXACT: tl.constexpr):
    """Columns of y and dy in their own dtype; 0 where `wanted` is false. READS as for `load_x`."""
    if EXACT:
        y = tl.load(y_ptr + y_base + column, eviction_policy=READS)
        return y, tl.load(dy_ptr + dy_base + column, eviction_policy=READS)
    y = tl.load(y_ptr + y_base + column, mask=wanted, other=0.0, eviction_policy=READS)
    return y, tl.load(dy_ptr + dy_base + column, mask=wanted, other=0.0, eviction_policy=READS)


@triton.jit
def product_of(y, dy, column, shift, keep_to, PARTIAL: tl.constexpr):
    """The product y * dy in float32; 0 outside the columns that are kept (PARTIAL as for `logits_of`)."""
    product = y.to(tl.float32) * dy.to(tl.float32)
    if PARTIAL != "none":
        product = tl.where(is_kept(column, shift, keep_to, PARTIAL), product, 0.0)
    return product


@triton.jit
def gradient(y, dy, product, scale, column, keep_to, CAUSAL: tl.constexpr):
    """Columns of dx; 0 where a causal mask hides them, even in rows of NaN."""
    dx = y.to(tl.float32) * (dy.to(tl.float32) - product) * scale
    if CAUSAL:
        dx = tl.where(column < keep_to, dx, 0.0)
    return dx


@triton.jit(do_not_specialize=RUNTIME)
def tile_backward(
    dy_ptr,
    dx_ptr,
    y_ptr,
    n_rows,
    n_cols,
    n_heads,
    n_queries,
    dy_lead,
    dy_stride_b,
    dy_stride_h,
    dy_stride_q,
    scale,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    REST: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
    PACKED: tl.constexpr,
    ROTATED: tl.constexpr,
    READS: tl.constexpr,
    WIDE: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: ROWS rows of dx, each held whole in COLS (and REST) columns and its two ends."""
    dy_ptr = tl.multiple_of(dy_ptr - dy_lead, 16) if ACCESS != "scalar" else dy_ptr - dy_lead
    row, row_ok, query, dy_offset, _ = locate_rows(
        n_rows, n_heads, n_queries, dy_stride_b, dy_stride_h, dy_stride_q, 0, 0, 0, ROWS, WIDE, SPLIT, 0
    )
    dy_base = row_base(dy_offset + dy_lead, VECTOR, ACCESS)
    y_base = row * COLS if EXACT else row_base(row * n_cols, VECTOR, ACCESS)
    shift, n_whole, keep_to = row_bounds(dy_offset + dy_lead, dy_base, query, n_cols, n_queries, VECTOR, ACCESS, CAUSAL)
    read_to = tl.minimum(n_whole, keep_to) if CAUSAL else n_whole
    READ_ALL: tl.constexpr = EXACT and not CAUSAL
    PARTIAL: tl.constexpr = "after" if CAUSAL else "none"
    column = tile_columns(row, COLS, LANES, ROTATED)
    wanted = row_ok & (column // VECTOR * VECTOR < read_to)
    y, dy = load_pair(y_ptr, dy_ptr, y_base, dy_base, column, wanted, READS, READ_ALL)
    product = lane_sum(product_of(y, dy, column, shift, keep_to, PARTIAL))
    if REST > 0:
        rest_column = COLS + tile_columns(row, REST, LANES, False)
        rest_wanted = row_ok & (rest_column // VECTOR * VECTOR < read_to)
        rest_y, rest_dy = load_pair(y_ptr, dy_ptr, y_base, dy_base, rest_column, rest_wanted, READS, False)
        product += lane_sum(product_of(rest_y, rest_dy, rest_column, shift, keep_to, PARTIAL))
    product = row_sum(product)
    if ACCESS == "shifted":
        end_column = end_columns(n_whole, VECTOR)
        end_wanted = row_ok & is_kept(end_column, shift, keep_to, "around")
        end_y, end_dy = load_pair(y_ptr, dy_ptr, y_base, dy_base, end_column, end_wanted, READS, False)
        product += row_sum(product_of(end_y, end_dy, end_column, shift, keep_to, "around"))

    if PACKED:
        y, dy = keep_packed(y), keep_packed(dy)
        if REST > 0:
            rest_y, rest_dy = keep_packed(rest_y), keep_packed(rest_dy)
    dx = gradient(y, dy, product, scale, column, keep_to, CAUSAL).to(dx_ptr.dtype.element_ty)
    if EXACT:
        tl.store(dx_ptr + y_base + column, dx)
    else:
        tl.store(dx_ptr + y_base + column, dx, mask=row_ok & (column // VECTOR * VECTOR < n_whole))
    if REST > 0:
        rest_dx = gradient(rest_y, rest_dy, product, scale, rest_column, keep_to, CAUSAL).to(dx_ptr.dtype.element_ty)
        inside = row_ok & (rest_column // VECTOR * VECTOR < n_whole)
        tl.store(dx_ptr + y_base + rest_column, rest_dx, mask=inside)
    if ACCESS == "shifted":
        end_dx = gradient(end_y, end_dy, product, scale, end_column, keep_to, CAUSAL)
        store_ends(dx_ptr, y_base, end_column, end_dx, row_ok, shift, n_cols)
