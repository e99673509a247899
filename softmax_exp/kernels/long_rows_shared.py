"""Long rows in Triton: a row shared by programs that keep their chunks in registers, and the same in two kernels.

In: pointers, sizes, strides in elements, constants of long_rows.py. Out: y or dx, one read and one write of each
element (`shared_…`), or words first and then, in a second kernel that reads once more, the result (`partial_…`,
`finish_…`). A `shared_…` program waits for its row's other programs, but not for ever: see `help_row`.
"""

# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from softmax_exp.kernels.long_rows_tiles import (
    NEG_INF,
    chunk_max,
    chunk_share,
    chunk_sum,
    common_factor,
    held,
    load_ends,
    load_tiles,
    powers_of,
    row_span,
    store_ends,
    store_tile,
    tile_total,
)
from softmax_exp.kernels.long_rows_words import (
    combine,
    count_missing,
    help_row,
    pack,
    pick_missing,
    poll,
    poll_again,
    publish,
    unpack,
)
from softmax_exp.kernels.tile import exponent_of, power

SIZES = ["x_stride", "y_stride", "dy_stride", "dx_stride", "n_cols", "n_chunks", "n_words", "spins"]
# Columns read at a time by a program that helps: few, so that they cost no registers where nobody does.
LANES = tl.constexpr(512)


@triton.jit(do_not_specialize=["n_words"])
def clear_words(words, n_words, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Zero n_words words. OVERLAP: the kernel that needs them may start now, and waits for this one itself."""
    if OVERLAP:
        gdc_launch_dependents()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(words + i, tl.zeros([BLOCK], tl.int64), mask=i < n_words)


@triton.jit
def write_softmax(y, tiles, reference, factor, first, low, high, scale, N: tl.constexpr,
                  TILE: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Store exp((x - reference) * scale) * factor."""
    FORM: tl.constexpr = "fused" if tiles[0].dtype.primitive_bitwidth == 16 else "exact"
    slope, origin = exponent_of(reference, scale, FORM)
    factor *= common_factor(reference, slope, origin, FORM)
    for t in tl.static_range(N):
        powers = power(held(tiles[t]).to(tl.float32), slope, origin, scale, FORM)
        store_tile(y, powers * factor, first + t * TILE, low, high, TILE, VECTOR, ACCESS, EXACT)


@triton.jit
def softmax_of(x, reference, factor, scale):
    """exp((x - reference) * scale) * factor of a few float32 elements."""
    slope, origin = exponent_of(reference, scale, "exact")
    return power(x, slope, origin, scale, "exact") * factor


@triton.jit(do_not_specialize=SIZES)
def shared_forward(
    x_ptr, y_ptr, words_ptr, x_stride, y_stride, n_cols, n_chunks, spins, scale,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr,
    EXACT: tl.constexpr, SAFE: tl.constexpr, OVERLAP: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """One program: one chunk of one row."""
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    x, low, high = row_span(x_ptr, row, x_stride, n_cols, VECTOR, ACCESS)
    y, _, _ = row_span(y_ptr, row, y_stride, n_cols, VECTOR, ACCESS)
    words = words_ptr + row.to(tl.int64) * n_chunks
    j = tl.arange(0, WORDS)
    N: tl.constexpr = CHUNK // TILE
    tiles = load_tiles(x, k * CHUNK, low, high, NEG_INF, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    # While others wait, float32 tiles can become powers, which are then only multiplied; 16 bits could not hold them.
    POWERS: tl.constexpr = x_ptr.dtype.element_ty.is_fp32()
    largest = chunk_max(tiles, N)
    if ACCESS == "shifted":
        ends = load_ends(x, k, low, high, NEG_INF, CHUNK, VECTOR)
        largest = tl.maximum(largest, tl.max(ends, axis=0))
    if POWERS:
        tiles = powers_of(tiles, largest, scale, N)
        total = tl.sum(tile_total(tiles, N), axis=0)
    else:
        total = chunk_sum(tiles, largest, scale, N)
    if ACCESS == "shifted":
        total += chunk_sum((ends,), largest, scale, 1)
    if OVERLAP:
        gdc_wait()
    publish(words, k, pack(largest, total))
    word = poll(words, j, n_chunks, spins)
    word = help_row(word, words, j, k, n_chunks, x, low, high, scale, tl.arange(0, LANES), CHUNK, LANES)
    reference, factor = combine(word, j, n_chunks, scale, SAFE)
    if ACCESS == "shifted":
        store_ends(y, softmax_of(ends, reference, factor, scale), k, low, high, CHUNK, VECTOR)
    if POWERS:
        factor *= chunk_share(largest, reference, scale)
        for t in tl.static_range(N):
            store_tile(y, tiles[t] * factor, k * CHUNK + t * TILE, low, high, TILE, VECTOR, ACCESS, EXACT)
    else:
        write_softmax(y, tiles, reference, factor, k * CHUNK, low, high, scale, N, TILE, VECTOR, ACCESS, EXACT)


@triton.jit(do_not_specialize=SIZES)
def partial_forward(
    x_ptr, words_ptr, x_stride, n_cols, n_chunks, scale,
    CHUNK: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr,
    EXACT: tl.constexpr, OVERLAP: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """One program: the word of one chunk."""
    if OVERLAP:
        gdc_launch_dependents()
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    x, low, high = row_span(x_ptr, row, x_stride, n_cols, VECTOR, ACCESS)
    tiles = load_tiles(x, k * CHUNK, low, high, NEG_INF, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    largest = chunk_max(tiles, CHUNK // TILE)
    if ACCESS == "shifted":
        ends = load_ends(x, k, low, high, NEG_INF, CHUNK, VECTOR)
        largest = tl.maximum(largest, tl.max(ends, axis=0))
    total = chunk_sum(tiles, largest, scale, CHUNK // TILE)
    if ACCESS == "shifted":
        total += chunk_sum((ends,), largest, scale, 1)
    tl.store(words_ptr + program, pack(largest, total))


@triton.jit(do_not_specialize=SIZES)
def finish_forward(
    x_ptr, y_ptr, words_ptr, x_stride, y_stride, n_cols, n_chunks, scale,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr,
    EXACT: tl.constexpr, SAFE: tl.constexpr, OVERLAP: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """One program: the softmax of one chunk, read while the words may still be on their way."""
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    first = k * CHUNK
    x, low, high = row_span(x_ptr, row, x_stride, n_cols, VECTOR, ACCESS)
    y, _, _ = row_span(y_ptr, row, y_stride, n_cols, VECTOR, ACCESS)
    tiles = load_tiles(x, first, low, high, NEG_INF, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    if ACCESS == "shifted":
        ends = load_ends(x, k, low, high, NEG_INF, CHUNK, VECTOR)
    if OVERLAP:
        gdc_wait()
    j = tl.arange(0, WORDS)
    word = tl.load(words_ptr + row.to(tl.int64) * n_chunks + tl.minimum(j, n_chunks - 1), volatile=True)
    reference, factor = combine(word, j, n_chunks, scale, SAFE)
    if ACCESS == "shifted":
        store_ends(y, softmax_of(ends, reference, factor, scale), k, low, high, CHUNK, VECTOR)
    write_softmax(y, tiles, reference, factor, first, low, high, scale, CHUNK // TILE, TILE, VECTOR, ACCESS, EXACT)


@triton.jit
def tiles_product(dy_tiles, y_tiles, N: tl.constexpr):
    """Sum of dy * y over a chunk."""
    total = dy_tiles[0].to(tl.float32) * y_tiles[0].to(tl.float32)
    for t in tl.static_range(1, N):
        total += dy_tiles[t].to(tl.float32) * y_tiles[t].to(tl.float32)
    return tl.sum(total, axis=0)


@triton.jit
def pack_product(product):
    """A word of the backward: a 1 beside the sum, which may be 0."""
    return (product.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | (1 << 32)


@triton.jit
def row_product(word, j, n_chunks):
    """From all words of a row: its sum of dy * y."""
    _, product = unpack(word)
    return tl.sum(tl.where(j < n_chunks, product, 0.0), axis=0)


@triton.jit
def write_gradient(dx, dy_tiles, y_tiles, product, first, low, high, scale, N: tl.constexpr, TILE: tl.constexpr,
                   VECTOR: tl.constexpr, ACCESS: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Store y * (dy - product) * scale."""
    for t in tl.static_range(N):
        gradient = held(y_tiles[t]).to(tl.float32) * (held(dy_tiles[t]).to(tl.float32) - product) * scale
        store_tile(dx, gradient, first + t * TILE, low, high, TILE, VECTOR, ACCESS, EXACT)


@triton.jit(do_not_specialize=SIZES)
def shared_backward(
    dy_ptr, y_ptr, dx_ptr, words_ptr, dy_stride, y_stride, dx_stride, n_cols, n_chunks, spins, scale,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr,
    EXACT: tl.constexpr, OVERLAP: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """One program: dx of one chunk of one row."""
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    dy, low, high = row_span(dy_ptr, row, dy_stride, n_cols, VECTOR, ACCESS)
    y, _, _ = row_span(y_ptr, row, y_stride, n_cols, VECTOR, ACCESS)
    dx, _, _ = row_span(dx_ptr, row, dx_stride, n_cols, VECTOR, ACCESS)
    words = words_ptr + row.to(tl.int64) * n_chunks
    N: tl.constexpr = CHUNK // TILE
    dy_tiles = load_tiles(dy, k * CHUNK, low, high, 0.0, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    y_tiles = load_tiles(y, k * CHUNK, low, high, 0.0, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    product = tiles_product(dy_tiles, y_tiles, N)
    if ACCESS == "shifted":
        dy_ends = load_ends(dy, k, low, high, 0.0, CHUNK, VECTOR)
        y_ends = load_ends(y, k, low, high, 0.0, CHUNK, VECTOR)
        product += tl.sum(dy_ends * y_ends, axis=0)
    if OVERLAP:
        gdc_wait()
    publish(words, k, pack_product(product))
    j = tl.arange(0, WORDS)
    word = poll(words, j, n_chunks, spins)
    missing = count_missing(word, j, n_chunks)
    lane = tl.arange(0, LANES)
    while missing > 0:
        chunk = pick_missing(word, j, k, n_chunks)
        column = tl.maximum(chunk * CHUNK, low)
        end = tl.minimum((chunk + 1) * CHUNK, high)
        lane_product = (lane * 0).to(tl.float32)
        while column < end:
            g = tl.load(dy + column + lane, mask=column + lane < end, other=0.0).to(tl.float32)
            lane_product += g * tl.load(y + column + lane, mask=column + lane < end, other=0.0).to(tl.float32)
            column += LANES
        product = tl.sum(lane_product, axis=0)
        helped = pack_product(product)
        publish(words, chunk, helped)
        word = poll_again(words, tl.where(j == chunk, helped, word), j, n_chunks)
        missing = count_missing(word, j, n_chunks)
    product = row_product(word, j, n_chunks)
    if ACCESS == "shifted":
        store_ends(dx, y_ends * (dy_ends - product) * scale, k, low, high, CHUNK, VECTOR)
    write_gradient(dx, dy_tiles, y_tiles, product, k * CHUNK, low, high, scale, N, TILE, VECTOR, ACCESS, EXACT)


@triton.jit(do_not_specialize=SIZES)
def partial_backward(
    dy_ptr, y_ptr, words_ptr, dy_stride, y_stride, n_cols, n_chunks,
    CHUNK: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr, EXACT: tl.constexpr,
    OVERLAP: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """One program: the word of one chunk."""
    if OVERLAP:
        gdc_launch_dependents()
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    dy, low, high = row_span(dy_ptr, row, dy_stride, n_cols, VECTOR, ACCESS)
    y, _, _ = row_span(y_ptr, row, y_stride, n_cols, VECTOR, ACCESS)
    dy_tiles = load_tiles(dy, k * CHUNK, low, high, 0.0, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    y_tiles = load_tiles(y, k * CHUNK, low, high, 0.0, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    product = tiles_product(dy_tiles, y_tiles, CHUNK // TILE)
    if ACCESS == "shifted":
        dy_ends = load_ends(dy, k, low, high, 0.0, CHUNK, VECTOR)
        product += tl.sum(dy_ends * load_ends(y, k, low, high, 0.0, CHUNK, VECTOR), axis=0)
    tl.store(words_ptr + program, pack_product(product))


@triton.jit(do_not_specialize=SIZES)
def finish_backward(
    dy_ptr, y_ptr, dx_ptr, words_ptr, dy_stride, y_stride, dx_stride, n_cols, n_chunks, scale,
    CHUNK: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr, ACCESS: tl.constexpr,
    EXACT: tl.constexpr, OVERLAP: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    """One program: dx of one chunk."""
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    first = k * CHUNK
    dy, low, high = row_span(dy_ptr, row, dy_stride, n_cols, VECTOR, ACCESS)
    y, _, _ = row_span(y_ptr, row, y_stride, n_cols, VECTOR, ACCESS)
    dx, _, _ = row_span(dx_ptr, row, dx_stride, n_cols, VECTOR, ACCESS)
    dy_tiles = load_tiles(dy, first, low, high, 0.0, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    y_tiles = load_tiles(y, first, low, high, 0.0, CHUNK, TILE, VECTOR, ACCESS, EXACT, READS)
    if ACCESS == "shifted":
        dy_ends = load_ends(dy, k, low, high, 0.0, CHUNK, VECTOR)
        y_ends = load_ends(y, k, low, high, 0.0, CHUNK, VECTOR)
    if OVERLAP:
        gdc_wait()
    j = tl.arange(0, WORDS)
    word = tl.load(words_ptr + row.to(tl.int64) * n_chunks + tl.minimum(j, n_chunks - 1), volatile=True)
    product = row_product(word, j, n_chunks)
    if ACCESS == "shifted":
        store_ends(dx, y_ends * (dy_ends - product) * scale, k, low, high, CHUNK, VECTOR)
    write_gradient(dx, dy_tiles, y_tiles, product, first, low, high, scale, CHUNK // TILE, TILE, VECTOR, ACCESS, EXACT)
