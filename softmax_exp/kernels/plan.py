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
    rest: columns of a second, smaller tile beside the first, for widths little above a power of two; 0 for none.
    lanes: columns laid along one warp before the next row's; equal to cols where a row is spread over all warps.
    access: `aligned`, `shifted` or `scalar`, as in tile.py.
    """

    kernel: str
    rows: int
    cols: int
    rest: int
    lanes: int
    num_warps: int
    num_stages: int
    access: str


OVERRIDES = ("kernel", "rows", "cols", "rest", "lanes", "num_warps", "num_stages")


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
    vector = 1 if access == "scalar" else 16 // itemsize
    # The tile holds whole vectors; the ends of shifted rows are beside it.
    width = max(n_cols // vector if access == "shifted" else -(-n_cols // vector), 1) * vector
    if width > (32768 if mode == "forward" else 16384):
        chosen = Plan("two_pass", 1, 4096, 0, 4096, 8, 2, access)
    elif width <= 2048:
        cols = _next_power_of_2(width)
        chosen = _with_rest(Plan("tile", max(4, 4096 // cols), cols, 0, min(cols, 32 * vector), 4, 2, access), width)
    else:
        cols = _next_power_of_2(width)
        warps = min(32, max(4, cols // 1024))
        chosen = _with_rest(Plan("tile", 1, cols, 0, min(cols, 32 * vector * warps), warps, 2, access), width)
    return _with_overrides(chosen, overrides, n_cols)


def _with_rest(chosen: Plan, width: int) -> Plan:
    """Replace the tile by one of half its columns and a second one, if that leaves a quarter of it or more unused."""
    half = chosen.cols // 2
    if half < chosen.lanes or width > chosen.cols * 3 // 4:
        return chosen
    return dataclasses.replace(chosen, cols=half, rest=max(chosen.lanes, _next_power_of_2(width - half)))


def _with_overrides(chosen: Plan, overrides: dict[str, int | str], n_cols: int) -> Plan:
    for key, value in overrides.items():
        if key not in OVERRIDES:
            raise ValueError(f"unknown plan key {key!r}; allowed: {', '.join(OVERRIDES)}")
        if key == "kernel":
            if value not in KERNELS:
                raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, not {value!r}")
        elif not isinstance(value, int) or not _fits(key, value):
            raise ValueError(f"{key} must be {_ALLOWED[key]}, not {value!r}")
    kernel = overrides.get("kernel", chosen.kernel)
    cols = int(overrides.get("cols", 4096 if kernel != chosen.kernel else chosen.cols))
    rest = chosen.rest if cols == chosen.cols else 0
    warps = int(overrides.get("num_warps", chosen.num_warps))
    # Where a row is spread over all warps, it stays so.
    lanes = min(cols, chosen.lanes * warps // chosen.num_warps if chosen.rows == 1 else chosen.lanes)
    fields: dict[str, int | str] = {"cols": cols, "rest": rest, "lanes": lanes, **overrides}
    changed = dataclasses.replace(chosen, **fields)  # type: ignore[arg-type]
    if changed.kernel == "two_pass":
        return dataclasses.replace(changed, rows=1, rest=0, lanes=changed.cols)
    held, needed = changed.cols + changed.rest, n_cols - (7 if chosen.access == "shifted" else 0)
    if held < needed:
        raise ValueError(f"cols + rest ({held}) must hold a row of {n_cols}")
    if changed.lanes > changed.cols or changed.rest % changed.lanes:
        raise ValueError(f"lanes ({changed.lanes}) must divide cols ({changed.cols}) and rest ({changed.rest})")
    if changed.rows * changed.cols > 2**20:
        raise ValueError(f"rows x cols ({changed.rows} x {changed.cols}) must not exceed 1,048,576")
    return changed


_ALLOWED = {
    **dict.fromkeys(("rows", "cols", "lanes"), "a power of two"),
    "rest": "0 or a power of two",
    "num_warps": "1, 2, 4, 8, 16 or 32",
    "num_stages": "1 to 8",
}


def _fits(key: str, value: int) -> bool:
    if key == "num_stages":
        return 1 <= value <= 8
    power = value >= 1 and value & (value - 1) == 0
    return power and value <= 32 if key == "num_warps" else power or (key == "rest" and value == 0)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
