"""Device functions of the long-row kernels: the words by which the programs of a row exchange their chunks' sums.

A chunk's (maximum, sum) is one 64-bit word, written and read whole, so that no fence is needed; 0 means not written yet
and no chunk has it (its sum is 0 only if its maximum is -inf). A program that waits for a word in vain computes it.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# (Calls between Triton functions: pyright reads their bodies as Python and finds that they never return.)
import triton
import triton.language as tl

from softmax_exp.kernels.long_rows_tiles import NEG_INF, reference_of
from softmax_exp.kernels.tile import INTERPRETED, exp_of_difference, fused_multiply_add

# Polls one word until it is not 0, at most $2 times more. In assembly: a loop in Triton would have a barrier each turn.
POLL = tl.constexpr("""{
.reg .pred p;
.reg .u32 n;
mov.u32 n, 0;
again:
ld.relaxed.gpu.global.b64 $0, [$1];
setp.ne.b64 p, $0, 0;
@p bra done;
add.u32 n, n, 1;
setp.le.u32 p, n, $2;
@p bra again;
done:
}""")


@triton.jit
def pack(largest, total):
    """(maximum, sum), float32 each, as one int64."""
    high = largest.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return high | (total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def unpack(word):
    """The inverse of `pack`."""
    return (word >> 32).to(tl.int32).to(tl.float32, bitcast=True), word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def publish(words, k, word):
    """Write the word of chunk k for the row's other programs."""
    tl.atomic_xchg(words + k, word, sem="relaxed")


@triton.jit
def poll(words, j, n_chunks, spins):
    """Words j of a row, waiting for the missing ones, but not for ever: 0 where `spins` further polls were in vain.

    As many words as the program has threads, or more: each is then polled by one thread (see `long_rows._prepare`).
    """
    p = words + tl.minimum(j, n_chunks - 1)
    if INTERPRETED:
        return tl.load(p)
    return tl.inline_asm_elementwise(
        POLL, "=&l,l,r", [p.to(tl.int64), j * 0 + spins], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def poll_again(words, word, j, n_chunks):
    """Returns `word`, and where it is missing what stands in memory now.

    By `poll`: a load would want a layout of its own, and to get `word` into it the compiler would poll once more.
    """
    return tl.where(word == 0, poll(words, j, n_chunks, 0), word)


@triton.jit
def count_missing(word, j, n_chunks):
    """How many of the row's words are not there."""
    return tl.sum(((word == 0) & (j < n_chunks)).to(tl.int32), axis=0)


@triton.jit
def pick_missing(word, j, k, n_chunks):
    """A missing chunk; programs (k) that help the same row begin with different ones, by a hash."""
    order = ((j + k * 40503) * 2654435) & 0x7FFFF
    return tl.min(tl.where((word == 0) & (j < n_chunks), (order << 11) | j, 0x7FFFFFFF), axis=0) & 0x7FF


@triton.jit
def combine(word, j, n_chunks, scale, SAFE: tl.constexpr):
    """From all words of a row: what to subtract before exp, and what to multiply by after it."""
    largest, total = unpack(word)
    largest = tl.where(j < n_chunks, largest, NEG_INF)
    total = tl.where(j < n_chunks, total, 0.0)
    reference = reference_of(tl.max(largest, axis=0))
    total = tl.sum(total * exp_of_difference(largest, reference, scale), axis=0)
    if SAFE:
        total = tl.where(total == 0.0, 1.0, total)
    factor = 1.0 / total
    return reference, fused_multiply_add(fused_multiply_add(-total, factor, 1.0), factor, factor)


@triton.jit
def help_row(word, words, j, k, n_chunks, p, low, high, scale, lane, CHUNK: tl.constexpr,
             LANES: tl.constexpr):  # fmt: skip
    """Fill in missing words by reading those chunks: progress never hangs on a program that may not be running.

    lane: 0 to LANES - 1. Who owns the chunk may write its word later: the same up to rounding.
    """
    missing = count_missing(word, j, n_chunks)
    while missing > 0:
        chunk = pick_missing(word, j, k, n_chunks)
        column = tl.maximum(chunk * CHUNK, low)
        end = tl.minimum((chunk + 1) * CHUNK, high)
        # Lane by lane, so that a turn of the loop costs no more than its load.
        lane_largest = (lane * 0).to(tl.float32) + NEG_INF
        lane_total = (lane * 0).to(tl.float32)
        while column < end:
            x = tl.load(p + column + lane, mask=column + lane < end, other=NEG_INF).to(tl.float32)
            new_largest = tl.maximum(lane_largest, x)
            reference = reference_of(new_largest)
            lane_total = lane_total * exp_of_difference(lane_largest, reference, scale)
            lane_total += exp_of_difference(x, reference, scale)
            lane_largest = new_largest
            column += LANES
        largest = tl.max(lane_largest, axis=0)
        total = tl.sum(lane_total * exp_of_difference(lane_largest, reference_of(largest), scale), axis=0)
        helped = pack(largest, total)
        publish(words, chunk, helped)
        word = poll_again(words, tl.where(j == chunk, helped, word), j, n_chunks)
        missing = count_missing(word, j, n_chunks)
    return word
