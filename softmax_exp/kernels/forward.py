"""Forward kernel: y = softmax(x * scale + mask) over rows, computed in float32.

In: pointers, sizes and strides in elements, and constants chosen by plan.py. Out: y, rows one after the other.
A program holds its rows on chip: one read and one write of each element.
"""

# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels.tile import (
    divide,
    end_columns,
    exponent_of,
    is_kept,
    keep_packed,
    lane_max,
    lane_sum,
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

# Sizes and strides stay run-time values: alignment is told by ACCESS, and a stride of 1 must not become a constant.
RUNTIME = [
    "x_ptr",
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
    """One program: the softmax of ROWS rows, each held whole in COLS (and REST) columns and its two ends."""
    x_ptr = tl.multiple_of(x_ptr - x_lead, 16) if ACCESS != "scalar" else x_ptr - x_lead
    row, row_ok, query, x_offset, mask_start = locate_rows(
        n_rows, n_heads, n_queries, x_stride_b, x_stride_h, x_stride_q, mask_stride_b, mask_stride_h, mask_stride_q,
        ROWS, WIDE, SPLIT, QUERIES,
    )  # fmt: skip
    x_base = row_base(x_offset + x_lead, VECTOR, ACCESS)
    out_base = row * COLS if EXACT else row_base(row * n_cols, VECTOR, ACCESS)
    shift, n_whole, keep_to = row_bounds(x_offset + x_lead, x_base, query, n_cols, n_queries, VECTOR, ACCESS, CAUSAL)
    if MASK_ACCESS == "aligned":
        mask_start = row_base(mask_start, VECTOR, "aligned")
    read_to = tl.minimum(n_whole, keep_to) if CAUSAL else n_whole
    READ_ALL: tl.constexpr = EXACT and not CAUSAL
    FORM_16: tl.constexpr = "fused" if MASK == "none" and not SCALED else "plain"
    FORM: tl.constexpr = FORM_16 if x_ptr.dtype.element_ty.primitive_bitwidth == 16 else "exact"
    # -inf, which stands for what is not read, survives anything but a multiplication by a scale <= 0.
    PARTIAL: tl.constexpr = "after" if CAUSAL or (SCALED and not EXACT) else "none"
    column = tile_columns(row, COLS, LANES, ROTATED)
    wanted = row_ok & (column // VECTOR * VECTOR < read_to)
    bias_wanted = wanted
    if QUERIES > 0 and MASK_ACCESS == "aligned":
        # One row of the mask for all rows of the tile: loaded as one.
        bias_wanted = column // VECTOR * VECTOR < n_cols
    x = load_x(x_ptr + x_base + column, wanted, READS, READ_ALL)
    logits = logits_of(
        x, mask_ptr, mask_start, column, bias_wanted, shift, read_to, scale,
        PARTIAL, MASK, MASK_ACCESS, SCALED,
    )  # fmt: skip
    largest = lane_max(logits)
    if REST > 0:
        rest_column = COLS + tile_columns(row, REST, LANES, False)
        rest_wanted = row_ok & (rest_column // VECTOR * VECTOR < read_to)
        rest_bias_wanted = rest_wanted
        if QUERIES > 0 and MASK_ACCESS == "aligned":
            rest_bias_wanted = rest_column // VECTOR * VECTOR < n_cols
        rest_x = load_x(x_ptr + x_base + rest_column, rest_wanted, READS, False)
        rest_logits = logits_of(
            rest_x, mask_ptr, mask_start, rest_column, rest_bias_wanted, shift, read_to, scale,
            PARTIAL, MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        largest = tl.maximum(largest, lane_max(rest_logits))
    largest = row_max(largest)
    if ACCESS == "shifted":
        end_column = end_columns(n_whole, VECTOR)
        end_wanted = row_ok & is_kept(end_column, shift, keep_to, "around")
        end_x = load_x(x_ptr + x_base + end_column, end_wanted, READS, False)
        end_logits = logits_of(
            end_x, mask_ptr, mask_start, end_column, end_wanted, shift, keep_to, scale,
            "around", MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        largest = tl.maximum(largest, row_max(end_logits))
    if SAFE:
        largest = tl.where(largest == float("-inf"), 0.0, largest)
    slope, origin = exponent_of(largest, power_scale, FORM)

    if PACKED:
        x = keep_packed(x)
        logits = logits_of(
            x, mask_ptr, mask_start, column, bias_wanted, shift, read_to, scale, PARTIAL, MASK, MASK_ACCESS, SCALED
        )  # fmt: skip
    powers = power(logits, slope, origin, power_scale, FORM)
    total = lane_sum(powers)
    if REST > 0:
        if PACKED:
            rest_x = keep_packed(rest_x)
            rest_logits = logits_of(
                rest_x, mask_ptr, mask_start, rest_column, rest_bias_wanted, shift, read_to, scale,
                PARTIAL, MASK, MASK_ACCESS, SCALED,
            )  # fmt: skip
        rest_powers = power(rest_logits, slope, origin, power_scale, FORM)
        total += lane_sum(rest_powers)
    total = row_sum(total)
    if ACCESS == "shifted":
        end_powers = power(end_logits, slope, origin, power_scale, FORM)
        total += row_sum(end_powers)
    if SAFE:
        total = tl.where(total == 0.0, 1.0, total)

    factor, factor_rest = reciprocal_of(total, FORM)
    if PACKED:
        logits = logits_of(
            keep_packed(x), mask_ptr, mask_start, column, bias_wanted, shift, read_to, scale,
            PARTIAL, MASK, MASK_ACCESS, SCALED,
        )  # fmt: skip
        powers = power(logits, slope, origin, power_scale, FORM)
    y = divide(powers, factor, factor_rest, FORM).to(out_ptr.dtype.element_ty)
    if EXACT:
        tl.store(out_ptr + out_base + column, y)
    else:
        tl.store(out_ptr + out_base + column, y, mask=row_ok & (column // VECTOR * VECTOR < n_whole))
    if REST > 0:
        if PACKED:
            rest_logits = logits_of(
                keep_packed(rest_x), mask_ptr, mask_start, rest_column, rest_bias_wanted, shift, read_to, scale,
                PARTIAL, MASK, MASK_ACCESS, SCALED,
            )  # fmt: skip
            rest_powers = power(rest_logits, slope, origin, power_scale, FORM)
        rest_y = divide(rest_powers, factor, factor_rest, FORM).to(out_ptr.dtype.element_ty)
        inside = row_ok & (rest_column // VECTOR * VECTOR < n_whole)
        tl.store(out_ptr + out_base + rest_column, rest_y, mask=inside)
    if ACCESS == "shifted":
        store_ends(out_ptr, out_base, end_column, divide(end_powers, factor, factor_rest, FORM), row_ok, shift, n_cols)
