"""The plan: which kernel, tile and number of warps for a shape. Pure: no torch, no GPU, no search.

In: the shape, element size, mode, mask kind and alignment of a call, and the GPU's properties. Out: a `Plan`.
Overrides by keyword (`num_warps=8`) replace single fields (plan_overrides.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from softmax_exp.kernels.cluster_plan import MOST_PROGRAMS, MOST_ROWS, cluster_of, suits_cluster
from softmax_exp.kernels.gpu import H200, Gpu, next_power_of_2, reads_of
from softmax_exp.kernels.plan_overrides import check_overrides, with_overrides

MAX_COLUMNS = 2**30
_KIB = 2**10


@dataclass(frozen=True)
class Plan:
    """How a call is computed.

    kernel: `tile` holds whole rows on chip; `cluster` does so by several programs that run together; `two_pass` reads a
    row of any length twice; `long_rows` spreads a row over many programs, by a plan of its own (long_rows_plan.py), and
    the other fields do not apply.
    rows, cols: the tile, rows a program and columns held (or read at a time) by it, powers of two.
    rest: columns of a second, smaller tile beside the first, for widths little above a power of two; 0 for none.
    packed: whether 16-bit rows are held as they were read, and converted again where they are used again.
    max_registers: a thread's, so that enough programs share an SM; 0: as many as the compiler wants.
    rotated: whether row r is read from its r-th part on, so that rows of a power of two do not all begin alike.
    queries: 0: a program's rows are neighbours. Else, if a mask is the same for all batches and heads, a program takes
    rows of one query, and programs go over so many neighbouring queries of all batches and heads before the next ones.
    access: `aligned`: rows begin and end at 16-byte boundaries; `shifted`: they do not, but those of all tensors
    alike, so that all but their ends can be moved 16 bytes at a time; `scalar`: neither.
    reads: the eviction policy of what is read: `evict_last`, or "" for the usual one.
    programs: those that hold a row together: 2 to 16 in a `cluster`, else 1.
    clusters: those of a row: 1, or 2 or 4 that read it all each and write a part, for one to four rows; gradients and
    other kernels: 1.
    """

    kernel: str
    rows: int
    cols: int
    rest: int
    num_warps: int
    num_stages: int
    packed: bool
    max_registers: int
    rotated: bool
    queries: int
    access: str
    reads: str
    programs: int = 1
    clusters: int = 1

    def lanes(self, itemsize: int) -> int:
        """Columns that the program's threads hold side by side, a 16-byte vector each, before their next ones."""
        vector = 1 if self.access == "scalar" else 16 // itemsize
        return min(self.cols, 32 * vector * self.num_warps)


def plan(
    n_rows: int,
    n_cols: int,
    itemsize: int,
    mode: str = "forward",
    mask: str = "none",
    access: str = "aligned",
    gpu: Gpu = H200,
    clusterable: bool = True,
    **overrides: int | str,
) -> Plan:
    """The plan for n_rows rows of n_cols elements of `itemsize` bytes (2 or 4).

    mode: `forward` or `backward`. mask: `none`, `causal`, `additive`, `boolean`, or `causal+additive` and the like.
    access: see `Plan`. clusterable: whether the call is one for clusters: rows one stride apart, and a scale that may
    be applied in the exponent. Overrides are of a `tile` where it could be one or a `cluster`, unless they name the
    kernel, programs or clusters. ValueError for rows too long and for an override that is unknown or out of range.
    """
    if not 1 <= n_cols <= MAX_COLUMNS:
        raise ValueError(f"rows must have 1 to {MAX_COLUMNS:,} elements, not {n_cols:,}")
    check_overrides(overrides)
    vector = 1 if access == "scalar" else 16 // itemsize
    # The tile holds whole vectors; the ends of shifted rows are beside it.
    width = max(n_cols // vector if access == "shifted" else -(-n_cols // vector), 1) * vector
    queries = 512 if mask not in ("none", "causal") else 0
    reads = str(overrides.get("reads", reads_of(n_rows * n_cols * itemsize, mode, gpu)))
    cluster = cluster_of(n_rows, n_cols, itemsize, mode, int(overrides.get("programs", 0)))
    possible = clusterable and (mask, access) == ("none", "aligned")
    possible = possible and gpu.cluster >= MOST_PROGRAMS and n_rows <= MOST_ROWS
    if "kernel" in overrides:
        kernel = overrides["kernel"]
    elif "programs" in overrides or "clusters" in overrides:
        kernel = "cluster"
    elif possible and overrides.keys() <= {"reads"} and suits_cluster(cluster, n_rows, n_cols, itemsize, mode, reads):
        kernel = "cluster"
    else:
        kernel = _kernel(width * itemsize, itemsize, mode, mask, gpu)
    if kernel == "cluster":
        if not possible:
            raise ValueError(
                f"clusters are for up to {MOST_ROWS:,} rows, one stride apart, that begin and end at 16-byte "
                "boundaries, without a mask, with a scale from 2^-90 to 2^90 (forward), on GPUs of compute capability "
                f"9.0 with 100 SMs and more; not for {n_rows:,} {access} rows, mask {mask}, {gpu}. Leave out kernel, "
                "programs and clusters"
            )
        chosen = Plan(
            "cluster", 1, cluster.cols, 0, cluster.num_warps, 1, cluster.packed, 0, False, 0, access, reads,
            cluster.programs, cluster.clusters,
        )  # fmt: skip
    elif kernel == "two_pass":
        chosen = Plan("two_pass", 1, 4096, 0, 8, 2, False, 0, False, queries, access, "")
    elif kernel == "long_rows":
        chosen = Plan("long_rows", 1, 0, 0, 4, 1, False, 0, False, 0, access, "")
    else:
        small = 2 * n_rows * n_cols * itemsize <= gpu.l2_bytes
        rows, warps, packed = _tile(width * itemsize, itemsize, mode, mask, access, reads, small)
        warps = int(overrides.get("num_warps", warps))
        # Rows of 32 KiB of 16-bit elements gained a point by it; shorter and longer ones, and float32, nothing.
        rotated = packed and (mode, mask) == ("forward", "none") and width * itemsize == 32 * _KIB
        # bfloat16 would take 66, and only one program would fit on an SM: 77 % of the limit instead of 97.
        registers = 64 if packed and mode == "forward" and warps == 16 else 0
        columns = next_power_of_2(width)
        chosen = Plan("tile", rows, columns, 0, warps, 1, packed, registers, rotated, queries, access, reads)
        chosen = _with_rest(chosen, width, itemsize)
        if mode == "backward" and access != "aligned" and warps <= 8:
            chosen = dataclasses.replace(chosen, max_registers=_registers(chosen, itemsize))
    return with_overrides(chosen, overrides, width, itemsize, mode, gpu)


def _kernel(row_bytes: int, itemsize: int, mode: str, mask: str, gpu: Gpu) -> str:
    """A row is held by one program while it fits half of an SM's registers: in float32, or as y and dy in backward.

    Longer ones are spread over several programs if they are not masked.
    """
    held = row_bytes * (4 // itemsize if mode == "forward" else 2)
    if held <= gpu.registers_per_sm * 4 // 2:
        return "tile"
    return "long_rows" if mask == "none" else "two_pass"


def _tile(
    row_bytes: int, itemsize: int, mode: str, mask: str, access: str, reads: str, small: bool
) -> tuple[int, int, bool]:
    """(rows a program, warps, packed) for rows held whole. small: reads and writes fit into the L2."""
    size = next_power_of_2(row_bytes)
    biased = mask not in ("none", "causal")
    packed = itemsize == 2 and size >= 32 * _KIB and not biased
    if size < _KIB:
        if (size, itemsize) == (512, 4):
            return (4, 1, False) if mode == "forward" else (16, 4, False)
        return 4096 // size, 8 if small and (mode, itemsize) == ("backward", 2) else 4, False
    if mode == "backward" and access != "aligned" and row_bytes > 2 * _KIB:
        for most, warps in _UNALIGNED_GRADIENTS[access, itemsize]:
            if row_bytes <= most * _KIB:
                return 1, warps, itemsize == 2
    if access == "shifted":
        # Every warp of a row computes its ends: 2 to 4 KiB of a row a warp, so that they are few.
        most = 16 if itemsize == 4 or size > 32 * _KIB else 4
        rows = 2 if size <= _KIB else 1
        return rows, max(1, min(most, next_power_of_2(row_bytes // (2 * _KIB) + 1) // 2)), packed
    kind = "backward" if mode == "backward" else "forward"
    kind += " masked" if biased else " causal" if mask == "causal" else ""
    if reads and (kind, itemsize) == ("forward", 2) and size in (8 * _KIB, 32 * _KIB):
        return 1, 8, packed  # instead of (2, 16), by 1.5 %, and of (1, 4), by 0.7
    if kind == "forward" and not reads and size in (8 * _KIB, 16 * _KIB):
        # Few rows in flight want small programs: 1 to 14 % faster than those of the table.
        if size == 8 * _KIB:
            return 1, 4, packed
        if small:
            return 1, 8, packed
    swept = _ROWS_AND_WARPS[kind]
    rows, warps = swept[min(size // _KIB, max(swept))][itemsize // 4]  # longer ones are tiles by an override alone
    return rows, warps, packed


# Rows a program and warps for elements of (2, 4) bytes, by the KiB of a row. The best of sweeps on an H200 for forward,
# backward, and 4 and 8 KiB of the others. At 8 and 16 KiB, programs of 512 threads that move 16 KiB, four to an SM, won
# by one to two points; longer rows need as many warps as let two programs and more share an SM. Causal and masked rows
# cost more to compute, and want more of a row in a thread; the rest of theirs follows from that, not swept.
_ROWS_AND_WARPS: dict[str, dict[int, tuple[tuple[int, int], tuple[int, int]]]] = {
    "forward": {
        1: ((4, 2), (4, 1)), 2: ((1, 2), (2, 2)), 4: ((1, 4), (1, 4)), 8: ((2, 16), (2, 16)), 16: ((1, 16), (1, 16)),
        32: ((1, 4), (1, 16)), 64: ((1, 16), (1, 32)), 128: ((1, 32), (1, 32)),
    },
    "forward causal": {
        1: ((2, 1), (2, 1)), 2: ((1, 1), (1, 1)), 4: ((1, 2), (1, 1)), 8: ((1, 2), (1, 4)), 16: ((1, 4), (1, 4)),
        32: ((1, 4), (1, 16)), 64: ((1, 16), (1, 32)), 128: ((1, 32), (1, 32)),
    },
    "forward masked": {
        1: ((2, 1), (2, 1)), 2: ((2, 2), (2, 2)), 4: ((1, 4), (1, 4)), 8: ((1, 4), (1, 4)), 16: ((1, 8), (1, 8)),
        32: ((1, 16), (1, 16)), 64: ((1, 32), (1, 32)), 128: ((1, 32), (1, 32)),
    },
    "backward": {
        1: ((2, 4), (2, 2)), 2: ((1, 2), (2, 4)), 4: ((2, 16), (1, 8)), 8: ((1, 16), (2, 32)), 16: ((1, 16), (1, 16)),
        32: ((1, 16), (1, 16)), 64: ((1, 32), (1, 32)),
    },
    "backward causal": {
        1: ((2, 1), (2, 1)), 2: ((1, 1), (1, 1)), 4: ((1, 4), (1, 4)), 8: ((1, 4), (1, 4)), 16: ((1, 8), (1, 8)),
        32: ((1, 16), (1, 16)), 64: ((1, 32), (1, 32)),
    },
}  # fmt: skip


# Gradients of unaligned rows of more than 2 KiB, by access and bytes an element: (KiB of a row at most, warps), swept.
_UNALIGNED_GRADIENTS = {
    ("shifted", 2): ((3, 1), (8, 2), (24, 4), (32, 8)),
    ("shifted", 4): ((4, 2), (8, 4), (64, 8)),
    ("scalar", 2): ((5, 2), (17, 4)),
    ("scalar", 4): ((8, 4), (33, 8), (64, 16)),
}


def _registers(chosen: Plan, itemsize: int) -> int:
    """Registers a thread of gradients of unaligned rows: as few as hold its words of y and dy and the ends of rows.

    With fewer, words are spilled: 100 of them make rows of 16 KiB take 2.4 times as long. 0: the compiler's choice.
    """
    words = 2 * chosen.rows * (chosen.cols + chosen.rest) * itemsize // (4 * 32 * chosen.num_warps)
    if itemsize == 4:
        return 0 if words < 64 else 128 if words <= 96 else 168
    if not chosen.packed:
        return 0
    if words <= 48:
        return 96 if words <= 40 else 112
    return 128 if words <= 72 and chosen.access == "shifted" else 168


def _with_rest(chosen: Plan, width: int, itemsize: int) -> Plan:
    """Replace the tile by one of half its columns and a second, smaller one, if those hold the row."""
    half, lanes = chosen.cols // 2, chosen.lanes(itemsize)
    rest = max(lanes, next_power_of_2(max(1, width - half)))
    return dataclasses.replace(chosen, cols=half, rest=rest) if rest < half else chosen
