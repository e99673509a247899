"""Try to make the long-row kernels hang or err: many launches of few very long rows, contending for the GPU.

    python scripts/stress_long_rows.py [--launches 10000] [--cols 4194304] [--rows 8] [--seconds 60]

Runs the planned kernel on two streams of different priority, in two graphs replayed at once, and both beside matrix
products that fill the GPU; every output is checked on the GPU. Then the naive form, which waits for its neighbours and
never helps: its waits are bounded here, and each that expires would have hung. Exit status 1 if anything was wrong,
or if the naive form was not caught.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import sys
import time

import torch
import triton
import triton.language as tl

from softmax_exp.kernels import long_rows
from softmax_exp.kernels.long_rows_plan import choose
from softmax_exp.kernels.long_rows_tiles import (
    NEG_INF,
    chunk_max,
    chunk_sum,
    load_tiles,
    row_span,
)
from softmax_exp.kernels.long_rows_words import (
    combine,
    count_missing,
    pack,
    poll,
    publish,
)

BURST = 4
# 512 programs a row, of 2,048 / 32 / 16 = 4 an SM: an H200 runs 528 at once. One launch alone always has a whole row
# running; two may each have half of one.
NAIVE_CHUNK = 8192
NAIVE_WARPS = 16
# About 10 ms of polling; a launch takes 0.1 ms.
NAIVE_SPINS = 15_000


@triton.jit
def naive_forward(x_ptr, words_ptr, expired_ptr, n_cols, n_chunks, spins, CHUNK: tl.constexpr, WORDS: tl.constexpr):
    """`shared_forward` up to its wait: a chunk's sums, then those of the row's other chunks, however long it takes."""
    program = tl.program_id(0)
    row = program // n_chunks
    k = program % n_chunks
    x, low, high = row_span(x_ptr, row, n_cols, n_cols, 8, "aligned")
    tiles = load_tiles(x, k * CHUNK, low, high, NEG_INF, CHUNK, 1024, 8, "aligned", True, "")
    largest = chunk_max(tiles, CHUNK // 1024)
    total = chunk_sum(tiles, largest, 1.0, CHUNK // 1024)
    words = words_ptr + row.to(tl.int64) * n_chunks
    publish(words, k, pack(largest, total))
    j = tl.arange(0, WORDS)
    word = poll(words, j, n_chunks, spins)
    expired = count_missing(word, j, n_chunks)
    _, factor = combine(word, j, n_chunks, 1.0, False)
    # The factor is used, so that nothing of the wait is optimised away.
    tl.atomic_add(expired_ptr, (expired > 0).to(tl.int32) + (factor < 0).to(tl.int32))


class Side:
    """One contender: input, its reference softmax, poisoned outputs, and a count of elements that were wrong."""

    def __init__(self, rows: int, cols: int, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        self.x = torch.randn(rows, cols, device="cuda", generator=generator).half()
        self.expected = torch.softmax(self.x.float(), 1)
        self.outputs = [torch.empty_like(self.x) for _ in range(BURST)]
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        self.launch = long_rows.prepare_forward(self.x, self.outputs[0], plan=choose(rows, cols, 2))

    def burst(self) -> None:
        """BURST launches one after the other, then their check."""
        for y in self.outputs:
            y.fill_(math.nan)
        for y in self.outputs:
            self.launch(self.x, y)
        for y in self.outputs:
            # Half a step of float16, whose steps are even 2**-24 apart below 2**-14, and float32 roundings.
            self.wrong += (~torch.isclose(y.float(), self.expected, rtol=2**-10, atol=2**-24)).sum()


def contend(name: str, sides: list[Side], works: list, streams: list, n_bursts: int, fill: torch.Tensor | None) -> bool:
    """Run each side's work n_bursts times on its own stream, all at once; print and return whether all was right."""
    for side in sides:
        side.wrong.zero_()
    filler = torch.cuda.Stream()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for n in range(n_bursts):
        for work, stream in zip(works, streams, strict=True):
            with torch.cuda.stream(stream):
                work()
        if fill is not None:
            with torch.cuda.stream(filler):
                torch.mm(fill, fill)
        if n % 50 == 49:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    wrong = sum(int(side.wrong) for side in sides)
    launches = n_bursts * len(sides) * BURST
    print(f"{name}: {launches} launches in {seconds:.1f} s, {wrong} elements wrong", flush=True)
    return wrong == 0


def naive(rows: int, cols: int, streams: list, seconds: float) -> int:
    """How many programs of the naive form gave up waiting, on one stream alone and on two of different priority."""
    sides = [torch.randn(rows, cols, device="cuda").half() for _ in streams]
    n_chunks = cols // NAIVE_CHUNK
    n_expired = []
    for used in (streams[:1], streams):
        expired = torch.zeros((), dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        start, launches = time.perf_counter(), 0
        while time.perf_counter() - start < seconds / 2 and launches < 2000:
            for x, stream in zip(sides, used, strict=False):
                with torch.cuda.stream(stream):
                    for _ in range(BURST):
                        words = torch.zeros(rows * n_chunks, dtype=torch.int64, device="cuda")
                        naive_forward[(rows * n_chunks,)](
                            x,
                            words,
                            expired,
                            cols,
                            n_chunks,
                            NAIVE_SPINS,
                            CHUNK=NAIVE_CHUNK,
                            WORDS=n_chunks,
                            num_warps=NAIVE_WARPS,
                        )
                        launches += 1
            torch.cuda.synchronize()
        n_expired.append(int(expired))
        print(
            f"naive on {len(used)} stream(s): {launches} launches, {n_expired[-1]} programs' waits expired", flush=True
        )
    return n_expired[1]


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=10_000, help="of the planned kernel, in each scenario")
    parser.add_argument("--cols", type=int, default=1 << 22)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60, help="after which a scenario counts as hanging")
    args = parser.parse_args()
    streams = [torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)]
    sides = [Side(args.rows, args.cols, seed) for seed in range(2)]
    print(f"plan: {choose(args.rows, args.cols, 2)}")
    for side in sides:
        side.burst()
    graphs = []
    for side in sides:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            side.burst()
        graphs.append(graph)
    fill = torch.randn(4096, 4096, device="cuda").half()
    n_bursts = -(-args.launches // (2 * BURST))
    ok = True
    for beside, filling in (("alone", None), ("beside products", fill)):
        for kind, works in (
            ("two streams", [side.burst for side in sides]),
            ("two graphs", [graph.replay for graph in graphs]),
        ):
            faulthandler.dump_traceback_later(args.seconds, exit=True)
            ok &= contend(f"{kind}, {beside}", sides, works, streams, n_bursts, filling)
            faulthandler.cancel_dump_traceback_later()
    caught = naive(args.rows, args.cols, streams, 10)
    if not caught:
        print("the naive form was not caught: this machine's load is no test")
    return 0 if ok and caught else 1


if __name__ == "__main__":
    sys.exit(main())
