"""The plan: which kernel, tile and number of warps for a shape. Pure: no torch, no GPU, no search.

In: the shape, element size, mode, mask kind and alignment of a call, and the GPU's properties. Out: a `Plan`.
Overrides by keyword (`num_warps=8`) replace single fields; they are the config keys `variant_args.triton.…`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from softmax_exp.kernels.cluster_plan import MOST_PROGRAMS, MOST_ROWS, MOST_WARPS, cluster_of, suits_cluster
from softmax_exp.kernels.gpu import H200, Gpu, next_power_of_2, reads_of

MAX_COLUMNS = 2**30
KERNELS = ("tile", "cluster", "two_pass", "long_rows")
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


OVERRIDES = (
    "kernel", "rows", "cols", "rest", "num_warps", "num_stages", "packed", "max_registers", "rotated", "queries",
    "reads", "programs", "clusters",
)  # fmt: skip


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
    _check_overrides(overrides)
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
        if (mode, access, itemsize, warps) == ("backward", "shifted", 2, 4):
            registers = 96  # as 5 programs on an SM may have; the compiler would take 107
        columns = next_power_of_2(width)
        chosen = Plan("tile", rows, columns, 0, warps, 1, packed, registers, rotated, queries, access, reads)
        chosen = _with_rest(chosen, width, itemsize)
    return _with_overrides(chosen, overrides, width, itemsize, mode, gpu)


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


def _with_rest(chosen: Plan, width: int, itemsize: int) -> Plan:
    """Replace the tile by one of half its columns and a second, smaller one, if those hold the row."""
    half, lanes = chosen.cols // 2, chosen.lanes(itemsize)
    rest = max(lanes, next_power_of_2(max(1, width - half)))
    return dataclasses.replace(chosen, cols=half, rest=rest) if rest < half else chosen


def _check_overrides(overrides: Mapping[str, int | str]) -> None:
    for key, value in overrides.items():
        if key not in OVERRIDES:
            raise ValueError(f"unknown plan key {key!r}; allowed: {', '.join(OVERRIDES)}")
        allowed, fits = _ALLOWED[key]
        if not fits(value):
            raise ValueError(f"{key} must be {allowed}, not {value!r}")


def _with_overrides(
    chosen: Plan, overrides: Mapping[str, int | str], width: int, itemsize: int, mode: str, gpu: Gpu
) -> Plan:
    # What is chosen for the plan's own tile and warps does not go with others.
    same = {key for key, value in overrides.items() if getattr(chosen, key) == value}
    others = overrides.keys() - same
    rest = 0 if "cols" in others else chosen.rest
    clusters = 1 if others & {"cols", "num_warps", "packed"} else chosen.clusters
    fields: dict[str, int | str] = {"rest": rest, "clusters": clusters, **overrides}
    if mode == "backward":
        fields["clusters"] = 1  # so that one set of overrides does for forward and its gradients
    changed = dataclasses.replace(chosen, **fields)  # type: ignore[arg-type]
    if changed.kernel == "cluster":
        _check_cluster(changed, itemsize)
    elif changed.programs * changed.clusters > 1:
        raise ValueError("programs and clusters are 1 for kernels other than kernel=cluster; leave them out")
    if changed.kernel == "two_pass":
        return dataclasses.replace(changed, rows=1, rest=0, packed=False, cols=max(changed.cols, 16 // itemsize))
    if changed.kernel == "long_rows":
        return changed
    if changed.programs * changed.cols + changed.rest < width:
        held = "cols + rest" if changed.programs == 1 else f"{changed.programs} programs of cols"
        raise ValueError(f"{held} ({changed.programs * changed.cols + changed.rest}) must hold a row of {width}")
    if changed.rest % changed.lanes(itemsize):
        lanes = f"{changed.num_warps} warps hold side by side ({changed.lanes(itemsize)})"
        raise ValueError(f"rest ({changed.rest}) must be a multiple of the columns that {lanes}")
    if changed.rows * changed.cols * changed.programs > 2**20:
        factors = f"{changed.rows} x {changed.cols}" + f" x {changed.programs}" * (changed.programs > 1)
        raise ValueError(f"rows x cols, and x programs of a cluster, ({factors}) must not exceed 1,048,576")
    most = gpu.registers_per_sm // (32 * changed.num_warps)
    if changed.max_registers > most:
        raise ValueError(
            f"max_registers must be at most {most} for {changed.num_warps} warps, which share an SM's registers"
        )
    if changed.packed and itemsize != 2:
        raise ValueError("packed is for elements of 2 bytes")
    return changed


def _check_cluster(chosen: Plan, itemsize: int) -> None:
    """ValueError for what a cluster would not heed, or cannot be."""
    if chosen.programs == 1:
        raise ValueError("programs is 2, 4, 8 or 16 for kernel=cluster, not 1")
    if chosen.rotated or chosen.queries or chosen.num_stages != 1:
        raise ValueError("rotated, queries and num_stages are not for clusters, which have no loop; leave them out")
    if chosen.clusters > 1 and chosen.packed:
        raise ValueError("several clusters of a row are for packed=false; leave out clusters, or packed")
    least = 32 * chosen.num_warps * chosen.clusters * 16 // itemsize
    if chosen.rows > 1 or chosen.rest or chosen.num_warps > MOST_WARPS or chosen.cols < least:
        raise ValueError(
            f"a program of a cluster has rows=1, rest=0 and at most {MOST_WARPS} warps, not {chosen.rows}, "
            f"{chosen.rest} and {chosen.num_warps}, and at least the columns that its warps write side by side, "
            f"{least} of a row of {chosen.clusters} clusters, not {chosen.cols}"
        )


def _is_power(value: object) -> bool:
    return isinstance(value, int) and value >= 1 and value & (value - 1) == 0


_ALLOWED = {
    "kernel": (f"one of {', '.join(KERNELS)}", lambda value: value in KERNELS),
    "rows": ("a power of two", _is_power),
    "cols": ("a power of two", _is_power),
    "rest": ("0 or a power of two", lambda value: value == 0 or _is_power(value)),
    "num_warps": ("1, 2, 4, 8, 16 or 32", lambda value: value in (1, 2, 4, 8, 16, 32)),
    "num_stages": ("1 to 8", lambda value: value in range(1, 9)),
    "packed": ("true or false", lambda value: value in (False, True)),
    "rotated": ("true or false", lambda value: value in (False, True)),
    "queries": ("0 or a power of two", lambda value: value == 0 or _is_power(value)),
    "programs": ("1, 2, 4, 8 or 16", lambda value: value in (1, 2, 4, 8, 16)),
    "clusters": ("1, 2 or 4", lambda value: value in (1, 2, 4)),
    "reads": ('"" or evict_last', lambda value: value in ("", "evict_last")),
    "max_registers": ("0 or 24 to 255", lambda value: value == 0 or value in range(24, 256)),
}
