"""The plan for rows that a thread-block cluster holds: how many programs, which of its shapes. Pure: no torch, no GPU.

In: the shape, element size and mode of a call whose rows are aligned and not masked. Out: a `Cluster`. Numbers from
sweeps on an H200: docs/results/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from softmax_exp.kernels.gpu import next_power_of_2

MOST_PROGRAMS, MOST_WARPS, MOST_CLUSTERS = 16, 16, 4
# A launch has fewer than 2^31 programs.
MOST_ROWS = 2**31 // (MOST_PROGRAMS * MOST_CLUSTERS) - 1
_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True)
class Cluster:
    """programs: those that hold a row, each cols of its columns; both powers of two. packed, clusters: as of `Plan`."""

    programs: int
    cols: int
    num_warps: int
    packed: bool
    clusters: int


def cluster_of(n_rows: int, n_cols: int, itemsize: int, mode: str, programs: int = 0) -> Cluster:
    """The best cluster for n_rows rows of n_cols elements; whether it is the best kernel, tells `suits_cluster`.

    programs: so many, or the best number: 0.
    """
    row_bytes = n_cols * itemsize
    n_bytes = n_rows * row_bytes
    # Few rows want many programs, so that their reads take less time; many rows want few, each with more on its way.
    most = 16 * _KIB if mode == "forward" else 8 * _KIB
    a_program = 4 * _KIB if n_bytes <= 2 * _MIB else 8 * _KIB if n_bytes <= 8 * _MIB else most
    # Clusters of 16 find room on the GPU later than those of 8.
    most_programs = 8 if n_rows > 8 and row_bytes <= 128 * _KIB else MOST_PROGRAMS
    programs = programs or min(most_programs, max(2, next_power_of_2(-(-row_bytes // a_program))))
    cols = next_power_of_2(-(-n_cols // programs))
    packed = itemsize == 2 and n_bytes > (32 if mode == "forward" else 8) * _MIB
    warps = _warps(n_rows, n_bytes, programs, cols * itemsize, itemsize, mode, packed)
    clusters = 1
    if mode == "forward" and cols * itemsize > 4 * _KIB and not packed:
        # One to four rows: more clusters, while all their warps are few and each has 512 bytes to write.
        most = min(MOST_CLUSTERS, 512 // (max(1, n_rows) * programs * warps), cols * itemsize // (512 * warps))
        clusters = next_power_of_2(max(1, most) + 1) // 2  # rounded down
    return Cluster(programs, cols, warps, packed, clusters)


def _warps(n_rows: int, n_bytes: int, programs: int, held: int, itemsize: int, mode: str, packed: bool) -> int:
    """held: bytes of a row in a program. The fewer, the more programs of clusters of 16 find room on an SM."""
    if held <= 8 * _KIB:
        return 4 if held <= 4 * _KIB or n_rows <= 8 or programs == 16 else 8
    if held <= 16 * _KIB and programs == 16:
        many = itemsize == 4 if mode == "backward" else n_bytes > 8 * _MIB
        return 4 if many else 8
    # As gradients two tensors are held.
    return 16 if mode == "backward" and packed and held <= 16 * _KIB else 8


def suits_cluster(chosen: Cluster, n_rows: int, n_cols: int, itemsize: int, mode: str, reads: str) -> bool:
    """Whether a cluster a row is faster than the other kernels. reads: as of `Plan`."""
    row_bytes, held = n_cols * itemsize, chosen.cols * itemsize
    if row_bytes <= 8 * _KIB or held > 32 * _KIB:
        return False
    if held > 16 * _KIB and (itemsize, mode) == (2, "backward"):
        # Two programs an SM: on one card 96 % of the limit, on another, with other numbers of SMs side by side, 79.
        return False
    if n_rows * row_bytes <= (8 if row_bytes <= 64 * _KIB else 24) * _MIB:
        return True
    if held > 16 * _KIB and itemsize == 2:
        return False  # converted twice: half of an SM must not wait for a cluster meanwhile
    if mode == "forward":
        least_bytes, least_filled = (32 if reads else 16) * _KIB, 5 / 8
    else:
        least_bytes, least_filled = (16 if itemsize == 4 else 32) * _KIB, 3 / 4
    # Registers that a row does not fill are held for nothing.
    filled = n_cols / (chosen.programs * chosen.cols)
    return row_bytes > least_bytes and filled >= (least_filled if chosen.cols <= 4096 else 15 / 16)
