"""Forward and backward for rows of any length, with any mask: a program reads its row twice, a chunk at a time.

In and out: as for the kernels of forward.py and backward.py, whose arguments these take.
"""

# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels import backward, forward
from softmax_exp.kernels.backward import gradient, load_pair, product_of
from softmax_exp.kernels.tile import (
    divide,
    end_columns,
    exp_of_difference,
    exponent_of,
    is_kept,
    load_x,
    locate_rows,
    logits_of,
    power,
    reciprocal_of,
    row_base,
    row_bounds,
    row_max,
    row_sum,
    store_ends,
    tile_columns,
)


@triton.jit(do_not_specialize=forward.RUNTIME)
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
    power_scale,
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
    MASK: tl.constexpr,
    MASK_ACCESS: tl.constexpr,
    QUERIES: tl.constexpr,
    SCALED: tl.constexpr,
    SAFE: tl.constexpr,
):
    """One program: one row of any length, COLS at a time: its maximum and sum lane by lane, then y."""
    x_ptr = tl.multiple_of(x_ptr - x_lead, 16) if ACCESS != "scalar" else x_ptr - x_lead
    row, row_ok, query, x_offset, mask_start = locate_rows(
        n_rows, n_heads, n_queries, x_stride_b, x_stride_h, x_stride_q, mask_stride_b, mask_stride_h, mask_stride_q,
        ROWS, WIDE, SPLIT, QUERIES,
    )  # fmt: skip
    x_base = row_base(x_offset + x_lead, VECTOR, ACCESS)
    out_base = row_base(row * n_cols, VECTOR, ACCESS)
    shift, n_whole, keep_to = row_bounds(x_offset + x_lead, x_base, query, n_cols, n_queries, VECTOR, ACCESS, CAUSAL)
    if MASK_ACCESS == "aligned":
        mask_start = row_base(mask_start, VECTOR, "aligned")
    read_to = tl.minimum(n_whole, keep_to) if CAUSAL else n_whole
    READ_ALL: tl.constexpr = EXACT and not CAUSAL
    # -inf, which stands for what is not read, survives anything but a multiplication by a scale <= 0.
    PARTIAL: tl.constexpr = "after" if CAUSAL or (SCALED and not EXACT) else "none"
    FORM: tl.constexpr = "exact" if x_ptr.dtype.element_ty.primitive_bitwidth == 32 else "plain"
    tile = tile_columns(row, COLS, LANES, False)
    largest = tl.full([1, 1, COLS], float("-inf"), tl.float32)
    total = tl.zeros([1, 1, COLS], tl.float32)
    for first in range(0, n_cols, COLS):
        column = tile + first
        wanted = row_ok & (column // VECTOR * VECTOR < read_to)
        x = load_x(x_ptr + x_base + column, wanted, READS, READ_ALL)
        logits = logits_of(
            x, mask_ptr, mask_start, column, wanted, shift, read_to, scale,
            PARTIAL, MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        new_largest = tl.maximum(largest, logits)
        # A lane that has seen nothing but -inf must not turn its sum into NaN yet: -inf - -inf.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * exp_of_difference(largest, reference, power_scale)
        total += exp_of_difference(logits, reference, power_scale)
        largest = new_largest
    row_largest = row_max(largest)
    if ACCESS == "shifted":
        end_column = end_columns(n_whole, VECTOR)
        end_wanted = row_ok & is_kept(end_column, shift, keep_to, "around")
        end_x = load_x(x_ptr + x_base + end_column, end_wanted, READS, False)
        end_logits = logits_of(
            end_x, mask_ptr, mask_start, end_column, end_wanted, shift, keep_to, scale,
            "around", MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        row_largest = tl.maximum(row_largest, row_max(end_logits))
    reference = tl.where(row_largest == float("-inf"), 0.0, row_largest)
    row_total = row_sum(total * exp_of_difference(largest, reference, power_scale))
    if ACCESS == "shifted":
        row_total += row_sum(exp_of_difference(end_logits, reference, power_scale))
    if SAFE:
        row_largest = reference
        row_total = tl.where(row_total == 0.0, 1.0, row_total)

    slope, origin = exponent_of(row_largest, power_scale, FORM)
    factor, factor_rest = reciprocal_of(row_total, FORM)
    for first in range(0, n_cols, COLS):
        column = tile + first
        wanted = row_ok & (column // VECTOR * VECTOR < read_to)
        x = load_x(x_ptr + x_base + column, wanted, READS, READ_ALL)
        logits = logits_of(
            x, mask_ptr, mask_start, column, wanted, shift, read_to, scale,
            PARTIAL, MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        y = divide(power(logits, slope, origin, power_scale, FORM), factor, factor_rest, FORM)
        y = y.to(out_ptr.dtype.element_ty)
        if EXACT:
            tl.store(out_ptr + out_base + column, y)
        else:
            tl.store(out_ptr + out_base + column, y, mask=row_ok & (column // VECTOR * VECTOR < n_whole))
    if ACCESS == "shifted":
        end_y = divide(power(end_logits, slope, origin, power_scale, FORM), factor, factor_rest, FORM)
        store_ends(out_ptr, out_base, end_column, end_y, row_ok, shift, n_cols)


@triton.jit(do_not_specialize=backward.RUNTIME)
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
    """One program: one row of any length, COLS at a time: its product with dy, then dx."""
    dy_ptr = tl.multiple_of(dy_ptr - dy_lead, 16) if ACCESS != "scalar" else dy_ptr - dy_lead
    row, row_ok, query, dy_offset, _ = locate_rows(
        n_rows, n_heads, n_queries, dy_stride_b, dy_stride_h, dy_stride_q, 0, 0, 0, ROWS, WIDE, SPLIT, 0
    )
    dy_base = row_base(dy_offset + dy_lead, VECTOR, ACCESS)
    y_base = row_base(row * n_cols, VECTOR, ACCESS)
    shift, n_whole, keep_to = row_bounds(dy_offset + dy_lead, dy_base, query, n_cols, n_queries, VECTOR, ACCESS, CAUSAL)
    read_to = tl.minimum(n_whole, keep_to) if CAUSAL else n_whole
    READ_ALL: tl.constexpr = EXACT and not CAUSAL
    PARTIAL: tl.constexpr = "after" if CAUSAL else "none"
    tile = tile_columns(row, COLS, LANES, False)
    products = tl.zeros([1, 1, COLS], tl.float32)
    for first in range(0, n_cols, COLS):
        column = tile + first
        wanted = row_ok & (column // VECTOR * VECTOR < read_to)
        y, dy = load_pair(y_ptr, dy_ptr, y_base, dy_base, column, wanted, READS, READ_ALL)
        products += product_of(y, dy, column, shift, keep_to, PARTIAL)
    product = row_sum(products)
    if ACCESS == "shifted":
        end_column = end_columns(n_whole, VECTOR)
        end_wanted = row_ok & is_kept(end_column, shift, keep_to, "around")
        end_y, end_dy = load_pair(y_ptr, dy_ptr, y_base, dy_base, end_column, end_wanted, READS, False)
        product += row_sum(product_of(end_y, end_dy, end_column, shift, keep_to, "around"))

    for first in range(0, n_cols, COLS):
        column = tile + first
        wanted = row_ok & (column // VECTOR * VECTOR < read_to)
        y, dy = load_pair(y_ptr, dy_ptr, y_base, dy_base, column, wanted, READS, READ_ALL)
        dx = gradient(y, dy, product, scale, column, keep_to, CAUSAL).to(dx_ptr.dtype.element_ty)
        if EXACT:
            tl.store(dx_ptr + y_base + column, dx)
        else:
            tl.store(dx_ptr + y_base + column, dx, mask=row_ok & (column // VECTOR * VECTOR < n_whole))
    if ACCESS == "shifted":
        end_dx = gradient(end_y, end_dy, product, scale, end_column, keep_to, CAUSAL)
        store_ends(dx_ptr, y_base, end_column, end_dx, row_ok, shift, n_cols)
