"""Backward kernels: dx = scale * y * (dy - sum(dy * y)) over rows, computed in float32.

In: y as the forward wrote it (rows one after the other), dy of any row strides. Out: dx, laid out as y.
`tile_backward` holds its rows on chip (two reads, one write); `two_pass_backward` reads a row of any length twice.
Source: the softmax Jacobian, diag(y) - y y^T. Only y is needed, whatever the mask: masked elements have y = 0.
"""

# pyright: reportGeneralTypeIssues=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels.tile import columns_kept, load_columns, locate_rows, store_columns, tile_columns

RUNTIME = [
    "dy_ptr",
    "dx_ptr",
    "y_ptr",
    "n_rows",
    "n_cols",
    "n_heads",
    "n_queries",
    "dy_lead",
    "dy_stride_b",
    "dy_stride_h",
    "dy_stride_q",
]


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
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: ROWS rows of dx, each held whole in COLS columns."""
    dy_ptr = dy_ptr - dy_lead
    if ACCESS != "scalar":
        dy_ptr, dx_ptr, y_ptr = tl.multiple_of(dy_ptr, 16), tl.multiple_of(dx_ptr, 16), tl.multiple_of(y_ptr, 16)
    row, row_ok, query, dy_offset, _ = locate_rows(
        n_rows, n_heads, n_queries, dy_stride_b, dy_stride_h, dy_stride_q, 0, 0, 0, ROWS, SPLIT, False
    )
    dy_start = dy_offset + dy_lead
    y_start = row * n_cols
    shift = (dy_start % VECTOR).to(tl.int32) if ACCESS == "shifted" else 0
    column = tile_columns(COLS, LANES)
    n_kept = columns_kept(query, n_cols, n_queries, CAUSAL)
    y = load_columns(y_ptr, y_start, shift, column, n_kept, row_ok, 0.0, VECTOR, ACCESS, EXACT and not CAUSAL)
    dy = load_columns(dy_ptr, dy_start, shift, column, n_kept, row_ok, 0.0, VECTOR, ACCESS, EXACT and not CAUSAL)
    y, dy = y.to(tl.float32), dy.to(tl.float32)
    if not EXACT or CAUSAL:
        in_row = (column >= shift) & (column < shift + n_kept)
        y, dy = tl.where(in_row, y, 0.0), tl.where(in_row, dy, 0.0)
    product = tl.sum(tl.sum(y * dy, axis=0, keep_dims=True), axis=2, keep_dims=True)
    dx = y * (dy - product) * scale
    if CAUSAL:
        dx = tl.where(in_row, dx, 0.0)
    dx = dx.to(dx_ptr.dtype.element_ty)
    store_columns(dx_ptr, y_start, shift, column, n_cols, row_ok, dx, VECTOR, ACCESS, EXACT)


@triton.jit(do_not_specialize=RUNTIME)
def two_pass_backward(
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
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: one row of any length, COLS at a time: its product with dy, then dx."""
    dy_ptr = dy_ptr - dy_lead
    if ACCESS != "scalar":
        dy_ptr, dx_ptr, y_ptr = tl.multiple_of(dy_ptr, 16), tl.multiple_of(dx_ptr, 16), tl.multiple_of(y_ptr, 16)
    row, row_ok, query, dy_offset, _ = locate_rows(
        n_rows, n_heads, n_queries, dy_stride_b, dy_stride_h, dy_stride_q, 0, 0, 0, ROWS, SPLIT, False
    )
    dy_start = dy_offset + dy_lead
    y_start = row * n_cols
    shift = (dy_start % VECTOR).to(tl.int32) if ACCESS == "shifted" else 0
    tile = tile_columns(COLS, LANES)
    n_kept = columns_kept(query, n_cols, n_queries, CAUSAL)
    end = n_cols + VECTOR if ACCESS == "shifted" else n_cols
    products = tl.zeros([1, 1, COLS], tl.float32)
    for first in range(0, end, COLS):
        column = tile + first
        y = load_columns(y_ptr, y_start, shift, column, n_kept, row_ok, 0.0, VECTOR, ACCESS, False)
        dy = load_columns(dy_ptr, dy_start, shift, column, n_kept, row_ok, 0.0, VECTOR, ACCESS, False)
        in_row = (column >= shift) & (column < shift + n_kept)
        products += tl.where(in_row, y.to(tl.float32) * dy.to(tl.float32), 0.0)
    product = tl.sum(products, axis=2, keep_dims=True)
    for first in range(0, end, COLS):
        column = tile + first
        y = load_columns(y_ptr, y_start, shift, column, n_kept, row_ok, 0.0, VECTOR, ACCESS, False).to(tl.float32)
        dy = load_columns(dy_ptr, dy_start, shift, column, n_kept, row_ok, 0.0, VECTOR, ACCESS, False).to(tl.float32)
        dx = y * (dy - product) * scale
        if CAUSAL:
            dx = tl.where(column < shift + n_kept, dx, 0.0)
        store_columns(
            dx_ptr, y_start, shift, column, n_cols, row_ok, dx.to(dx_ptr.dtype.element_ty), VECTOR, ACCESS, EXACT
        )
