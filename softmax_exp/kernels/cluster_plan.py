"""The plan for rows that a thread-block cluster holds: how many programs, which of its shapes. Pure: no torch, no GPU.

In: the shape, element size and mode of a call whose rows are aligned and not masked. Out: a `Cluster`. Numbers from
sweeps on an H200: docs/results/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from softmax_exp.kernels.gpu import next_power_of_2

MOST_PROGRAMS = 16
# A cluster's number is found from its program's by a product in float32, which is exact below 2^24 programs.
MOST_ROWS = 2**24 // MOST_PROGRAMS
_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True)
class Cluster:
    """programs: of one row, each with cols of its columns; both powers of two. packed: as of `Plan`."""

    programs: int
    cols: int
    num_warps: int
    packed: bool


def cluster_of(n_rows: int, n_cols: int, itemsize: int, mode: str, programs: int = 0) -> Cluster:
    """The best cluster for n_rows rows of n_cols elements; whether it is the best kernel, tells `suits_cluster`.

    programs: so many, or the best number: 0.
    """
    row_bytes = n_cols * itemsize
    n_bytes = n_rows * row_bytes
    # Few rows want many programs, so that their reads take less time; many rows want few, each with more on its way.
    most = 16 * _KIB if mode == "forward" else 8 * _KIB
    a_program = 4 * _KIB if n_bytes <= 2 * _MIB else 8 * _KIB if n_bytes <= 8 * _MIB else most
    programs = programs or min(MOST_PROGRAMS, max(2, next_power_of_2(-(-row_bytes // a_program))))
    cols = next_power_of_2(-(-n_cols // programs))
    held = cols * itemsize
    ragged = n_cols < programs * cols
    if mode == "forward":
        # Ragged parts of 32 KiB cost a thread 80 registers instead of 64: three programs of 8 warps an SM, four of 4,
        # and 91.7 and 99.2 % of the limit at 128,256 columns of float32.
        few = (4 if held <= 16 * _KIB else 24) * _MIB
        warps = 8 if held > 8 * _KIB and (n_bytes <= few or (held > 16 * _KIB and not ragged)) else 4
    else:
        warps = 8 if held > 8 * _KIB or (itemsize == 4 and n_bytes > 8 * _MIB) else 4
    return Cluster(programs, cols, warps, itemsize == 2 and n_bytes > 8 * _MIB)


def suits_cluster(chosen: Cluster, n_rows: int, n_cols: int, itemsize: int, mode: str, reads: str) -> bool:
    """Whether a cluster a row is faster than the other kernels. reads: as of `Plan`."""
    row_bytes, held = n_cols * itemsize, chosen.cols * itemsize
    if row_bytes <= 8 * _KIB or held > 32 * _KIB:
        return False
    if n_rows < 4 and held > (16 if mode == "forward" else 8) * _KIB:
        return False  # two kernels read as much with more programs
    if n_rows * row_bytes <= (8 if row_bytes <= 64 * _KIB else 24) * _MIB:
        return True
    if mode == "forward":
        least_bytes, least_filled = (32 if reads else 16) * _KIB, 5 / 8
        # 16-bit elements are converted twice: half of an SM must not wait for a cluster meanwhile.
        if itemsize == 2 and (held > 16 * _KIB or (chosen.programs > 8 and reads)):
            return False
    elif held > 16 * _KIB and (itemsize == 2 or n_cols < chosen.programs * chosen.cols):
        # Two programs an SM: on one card 99 % of the limit, on another, with other numbers of SMs side by side, 79.
        return False
    else:
        least_bytes, least_filled = (16 if itemsize == 4 else 32) * _KIB, 3 / 4
    # Registers that a row does not fill are held for nothing.
    filled = n_cols / (chosen.programs * chosen.cols)
    return row_bytes > least_bytes and filled >= (least_filled if chosen.cols <= 4096 else 15 / 16)
