"""Forward kernels: y = softmax(x * scale + mask) over rows, computed in float32.

In: pointers, sizes and strides in elements, and constants chosen by plan.py. Out: y, rows one after the other.
`tile_forward` holds its rows on chip (one read, one write); `two_pass_forward` reads a row of any length twice.
"""

# pyright: reportGeneralTypeIssues=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels.tile import (
    columns_kept,
    exp_of_difference,
    load_logits,
    locate_rows,
    store_columns,
    tile_columns,
)

# Sizes and strides stay run-time values: alignment is told by ACCESS, and a stride of 1 must not become a constant.
RUNTIME = [
    "x_ptr",
    "out_ptr",
    "mask_ptr",
    "n_rows",
    "n_cols",
    "n_heads",
    "n_queries",
    "x_lead",
    "x_stride_b",
    "x_stride_h",
    "x_stride_q",
    "mask_stride_b",
    "mask_stride_h",
    "mask_stride_q",
]


@triton.jit(do_not_specialize=RUNTIME)
def tile_forward(
    x_ptr,
    out_ptr,
    mask_ptr,
    n_rows,
    n_cols,
    n_heads,
    n_queries,
    x_lead,
    x_stride_b,
    x_stride_h,
    x_stride_q,
    mask_stride_b,
    mask_stride_h,
    mask_stride_q,
    scale,
    exponent_scale,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    MASK_ACCESS: tl.constexpr,
    MASK_SHARED: tl.constexpr,
    SCALED: tl.constexpr,
    SAFE: tl.constexpr,
):
    """One program: the softmax of ROWS rows, each held whole in COLS columns."""
    x_ptr = x_ptr - x_lead
    if ACCESS != "scalar":
        x_ptr, out_ptr = tl.multiple_of(x_ptr, 16), tl.multiple_of(out_ptr, 16)
    row, row_ok, query, x_offset, mask_start = locate_rows(
        n_rows, n_heads, n_queries, x_stride_b, x_stride_h, x_stride_q, mask_stride_b, mask_stride_h, mask_stride_q,
        ROWS, SPLIT, MASK_SHARED,
    )  # fmt: skip
    x_start = x_offset + x_lead
    shift = (x_start % VECTOR).to(tl.int32) if ACCESS == "shifted" else 0
    column = tile_columns(COLS, LANES)
    n_kept = columns_kept(query, n_cols, n_queries, CAUSAL)
    logits = load_logits(
        x_ptr, mask_ptr, x_start, mask_start, shift, column, n_kept, row_ok, scale,
        VECTOR, ACCESS, EXACT and not CAUSAL, MASK, MASK_ACCESS, SCALED,
    )  # fmt: skip
    largest = tl.max(tl.max(logits, axis=0, keep_dims=True), axis=2, keep_dims=True)
    if SAFE:
        largest = tl.where(largest == float("-inf"), 0.0, largest)
    powers = exp_of_difference(logits, largest, exponent_scale)
    total = tl.sum(tl.sum(powers, axis=0, keep_dims=True), axis=2, keep_dims=True)
    if SAFE:
        total = tl.where(total == 0.0, 1.0, total)
    y = (powers * (1.0 / total)).to(out_ptr.dtype.element_ty)
    store_columns(out_ptr, row * n_cols, shift, column, n_cols, row_ok, y, VECTOR, ACCESS, EXACT)


@triton.jit(do_not_specialize=RUNTIME)
def two_pass_forward(
    x_ptr,
    out_ptr,
    mask_ptr,
    n_rows,
    n_cols,
    n_heads,
    n_queries,
    x_lead,
    x_stride_b,
    x_stride_h,
    x_stride_q,
    mask_stride_b,
    mask_stride_h,
    mask_stride_q,
    scale,
    exponent_scale,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    ACCESS: tl.constexpr,
    EXACT: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    MASK_ACCESS: tl.constexpr,
    MASK_SHARED: tl.constexpr,
    SCALED: tl.constexpr,
    SAFE: tl.constexpr,
):
    """One program: one row of any length, COLS at a time: its maximum and sum lane by lane, then y."""
    x_ptr = x_ptr - x_lead
    if ACCESS != "scalar":
        x_ptr, out_ptr = tl.multiple_of(x_ptr, 16), tl.multiple_of(out_ptr, 16)
    row, row_ok, query, x_offset, mask_start = locate_rows(
        n_rows, n_heads, n_queries, x_stride_b, x_stride_h, x_stride_q, mask_stride_b, mask_stride_h, mask_stride_q,
        ROWS, SPLIT, MASK_SHARED,
    )  # fmt: skip
    x_start = x_offset + x_lead
    shift = (x_start % VECTOR).to(tl.int32) if ACCESS == "shifted" else 0
    tile = tile_columns(COLS, LANES)
    n_kept = columns_kept(query, n_cols, n_queries, CAUSAL)
    end = n_cols + VECTOR if ACCESS == "shifted" else n_cols
    largest = tl.full([1, 1, COLS], float("-inf"), tl.float32)
    total = tl.zeros([1, 1, COLS], tl.float32)
    for first in range(0, end, COLS):
        logits = load_logits(
            x_ptr, mask_ptr, x_start, mask_start, shift, tile + first, n_kept, row_ok, scale,
            VECTOR, ACCESS, EXACT and not CAUSAL, MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        new_largest = tl.maximum(largest, logits)
        # A lane that has seen nothing but -inf must not turn its sum into NaN yet: -inf - -inf.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * exp_of_difference(largest, reference, exponent_scale)
        total += exp_of_difference(logits, reference, exponent_scale)
        largest = new_largest
    row_largest = tl.max(largest, axis=2, keep_dims=True)
    reference = tl.where(row_largest == float("-inf"), 0.0, row_largest)
    row_total = tl.sum(total * exp_of_difference(largest, reference, exponent_scale), axis=2, keep_dims=True)
    if SAFE:
        row_largest = reference
        row_total = tl.where(row_total == 0.0, 1.0, row_total)
    for first in range(0, end, COLS):
        column = tile + first
        logits = load_logits(
            x_ptr, mask_ptr, x_start, mask_start, shift, column, n_kept, row_ok, scale,
            VECTOR, ACCESS, EXACT and not CAUSAL, MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        powers = exp_of_difference(logits, row_largest, exponent_scale)
        y = (powers * (1.0 / row_total)).to(out_ptr.dtype.element_ty)
        store_columns(out_ptr, row * n_cols, shift, column, n_cols, row_ok, y, VECTOR, ACCESS, EXACT)
