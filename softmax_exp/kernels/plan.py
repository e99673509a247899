"""The plan: which kernel, tile and number of warps for a shape. Pure: no torch, no GPU, no search.

In: the shape, element size, mode, mask kind and alignment of a call, and the GPU's properties. Out: a `Plan`.
Overrides by keyword (`num_warps=8`) replace single fields; they are the config keys `variant_args.triton.…`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

MAX_COLUMNS = 2**30
KERNELS = ("tile", "two_pass")


@dataclass(frozen=True)
class Gpu:
    """What the plan needs to know of a GPU; the defaults are an H200's."""

    n_sms: int = 132
    capability: tuple[int, int] = (9, 0)
    l2_bytes: int = 60 * 2**20
    registers_per_sm: int = 65536


@dataclass(frozen=True)
class Plan:
    """How a call is computed.

    kernel: `tile` holds whole rows on chip; `two_pass` reads a row of any length twice.
    rows, cols: the tile, rows a program and columns held (or read at a time) by it, powers of two.
    lanes: columns laid along one warp before the next row's; equal to cols where a row is spread over all warps.
    access: `aligned`, `shifted` or `scalar`, as in tile.py.
    """

    kernel: str
    rows: int
    cols: int
    lanes: int
    num_warps: int
    num_stages: int
    access: str


OVERRIDES = ("kernel", "rows", "cols", "lanes", "num_warps", "num_stages")


def plan(
    n_rows: int,
    n_cols: int,
    itemsize: int,
    mode: str = "forward",
    mask: str = "none",
    access: str = "aligned",
    gpu: Gpu = Gpu(),
    **overrides: int | str,
) -> Plan:
    """The plan for n_rows rows of n_cols elements of `itemsize` bytes (2 or 4).

    mode: `forward` or `backward`. mask: `none`, `causal`, `additive` or `boolean`. access: see `Plan`.
    ValueError for rows too long and for an override that is unknown or out of range.
    """
    if not 1 <= n_cols <= MAX_COLUMNS:
        raise ValueError(f"rows must have 1 to {MAX_COLUMNS:,} elements, not {n_cols:,}")
    vector = 16 // itemsize
    # A shifted row begins up to vector - 1 elements into the tile.
    cols = _next_power_of_2(n_cols + (vector - 1 if access == "shifted" else 0))
    cols = max(cols, 1 if access == "scalar" else vector)
    if cols > (32768 if mode == "forward" else 16384):
        chosen = Plan("two_pass", 1, 4096, 4096, 8, 2, access)
    elif cols <= 2048:
        lanes = min(cols, 32 * vector)
        rows = max(1, 4096 // cols)
        chosen = Plan("tile", rows, cols, lanes, 4, 2, access)
    else:
        chosen = Plan("tile", 1, cols, cols, min(32, max(4, cols // 1024)), 2, access)
    return _with_overrides(chosen, overrides, n_cols)


def _with_overrides(chosen: Plan, overrides: dict[str, int | str], n_cols: int) -> Plan:
    unknown = sorted(set(overrides) - set(OVERRIDES))
    if unknown:
        raise ValueError(f"unknown plan key {unknown[0]!r}; allowed: {', '.join(OVERRIDES)}")
    if overrides.get("kernel", chosen.kernel) not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, not {overrides['kernel']!r}")
    for key, value in overrides.items():
        if key != "kernel" and not (isinstance(value, int) and value >= 1 and value & (value - 1) == 0):
            if key == "num_stages" and isinstance(value, int) and 1 <= value <= 8:
                continue
            raise ValueError(f"{key} ({value!r}) must be a power of two")
    changed = dataclasses.replace(chosen, **overrides)  # type: ignore[arg-type]
    if changed.num_warps > 32:
        raise ValueError(f"num_warps ({changed.num_warps}) must be 1, 2, 4, 8, 16 or 32")
    if changed.kernel == "two_pass":
        changed = dataclasses.replace(changed, rows=1, lanes=changed.cols)
    elif chosen.kernel == "tile" and changed.cols < chosen.cols:
        raise ValueError(f"cols ({changed.cols}) must be at least {chosen.cols} to hold a row of {n_cols}")
    if "lanes" not in overrides and changed.cols != chosen.cols:
        changed = dataclasses.replace(changed, lanes=changed.cols)
    if changed.lanes > changed.cols:
        raise ValueError(f"lanes ({changed.lanes}) must not exceed cols ({changed.cols})")
    if changed.kernel == "tile" and changed.rows * changed.cols > 2**20:
        raise ValueError(f"rows x cols ({changed.rows} x {changed.cols}) must not exceed 1,048,576")
    return changed


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
