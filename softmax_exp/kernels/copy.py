"""The kernel behind the limit: it reads so many words of one buffer and writes so many of another, and does no more.

In: two int32 buffers.  Out: the second, filled. One read per write is a copy, two are the traffic of a softmax's
backward, fewer than one that of a causal mask, where the untouched rest is written as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class CopyForm:
    """How the work is cut: words a program moves at a time, warps, and programs per SM (0: one program a tile).

    reads: the eviction policy of what is read, as of `Plan`.
    """

    block: int
    num_warps: int
    per_sm: int = 0
    reads: str = ""

    @property
    def name(self) -> str:
        """For example `triton 2048x4`; `triton 2048x4 p8` if persistent; `triton 512x4 evict_last` with that policy."""
        name = f"triton {self.block}x{self.num_warps}" + (f" p{self.per_sm}" if self.per_sm else "")
        return name + (f" {self.reads}" if self.reads else "")


# the best of twenty tried on an H200 in at least one of: 6 MB to 1.6 GB moved, forward, backward, causal, both clocks
FORMS = (
    CopyForm(512, 4),
    CopyForm(1024, 4),
    CopyForm(1024, 8),
    CopyForm(4096, 4),
    CopyForm(1024, 4, per_sm=8),
    CopyForm(512, 4, reads="evict_last"),
    CopyForm(1024, 4, reads="evict_last"),
)


@triton.jit
def _move_tile(
    src, dst, tile, n_src, n_dst, tiles_src, tiles_dst,
    N_READS: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr, READS: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    if EVEN:
        start = tile * N_READS
        stop = start + N_READS
    else:
        start = tile * tiles_src // tiles_dst  # tile is int64: the product may pass 2^31
        stop = (tile + 1) * tiles_src // tiles_dst
    words = tl.zeros([BLOCK], dtype=tl.int32)
    for k in tl.static_range(N_READS):
        index = (start + k) * BLOCK + offsets
        words += tl.load(src + index, mask=(start + k < stop) & (index < n_src), other=0, eviction_policy=READS)
    index = tile * BLOCK + offsets
    tl.store(dst + index, words, mask=index < n_dst)


@triton.jit
def _move(
    src,
    dst,
    n_src,
    n_dst,
    tiles_src,
    tiles_dst,
    N_READS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    READS: tl.constexpr,
    LOOP: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    if LOOP:
        while tile < tiles_dst:
            _move_tile(src, dst, tile, n_src, n_dst, tiles_src, tiles_dst, N_READS, EVEN, BLOCK, READS)
            tile += tl.num_programs(0)
    else:
        _move_tile(src, dst, tile, n_src, n_dst, tiles_src, tiles_dst, N_READS, EVEN, BLOCK, READS)


def move(src: torch.Tensor, dst: torch.Tensor, form: CopyForm, n_sms: int) -> torch.Tensor:
    """Read every word of `src` once and write every word of `dst` once; both 1-D int32 and contiguous. Returns `dst`.

    Tile t of `dst` gets the sum of its share of the tiles of `src`: that tile itself where both are of one length.
    """
    tiles_src, tiles_dst = triton.cdiv(src.numel(), form.block), triton.cdiv(dst.numel(), form.block)
    grid = min(tiles_dst, form.per_sm * n_sms) if form.per_sm else tiles_dst
    n_reads = triton.cdiv(tiles_src, tiles_dst)
    _move[(grid,)](
        src,
        dst,
        src.numel(),
        dst.numel(),
        tiles_src,
        tiles_dst,
        N_READS=n_reads,
        EVEN=tiles_src == n_reads * tiles_dst,
        BLOCK=form.block,
        READS=form.reads,
        LOOP=form.per_sm > 0,
        num_warps=form.num_warps,  # pyright: ignore[reportCallIssue]
    )
    return dst
