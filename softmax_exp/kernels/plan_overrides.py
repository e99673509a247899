"""What replaces single fields of a plan: the config keys `variant_args.triton.…`, checked.

In: a plan and overrides by keyword. Out: the plan with them, or a ValueError that says what is allowed. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from softmax_exp.kernels.cluster_plan import MOST_WARPS
from softmax_exp.kernels.gpu import Gpu

if TYPE_CHECKING:
    from softmax_exp.kernels.plan import Plan

KERNELS = ("tile", "cluster", "two_pass", "long_rows")
OVERRIDES = (
    "kernel", "rows", "cols", "rest", "num_warps", "num_stages", "packed", "max_registers", "rotated", "queries",
    "reads", "programs", "clusters",
)  # fmt: skip


def check_overrides(overrides: Mapping[str, int | str]) -> None:
    """ValueError for a key that is unknown, or a value that it cannot have in any plan."""
    for key, value in overrides.items():
        if key not in OVERRIDES:
            raise ValueError(f"unknown plan key {key!r}; allowed: {', '.join(OVERRIDES)}")
        allowed, fits = _ALLOWED[key]
        if not fits(value):
            raise ValueError(f"{key} must be {allowed}, not {value!r}")


def with_overrides(
    chosen: Plan, overrides: Mapping[str, int | str], width: int, itemsize: int, mode: str, gpu: Gpu
) -> Plan:
    """The plan with the overrides, which `check_overrides` has seen; width: of a row, in columns that are held.

    ValueError for what the kernel could not be, or would not heed.
    """
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
