"""The faults of a config, found before anything is started.

In: a config as plain values, and the schema's dataclasses with their bounds.  Out: one line a fault, with the dotted
key, its value, what is allowed and the fix.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import typing
from collections.abc import Collection, Iterator
from typing import Any

from softmax_exp import memory
from softmax_exp.cases import Case

OURS = ("sweep_id", "job", "remaining", "jobs")  # keys that the program sets
SIZES = ("batch", "heads", "seq", "seq_q", "rows", "cols")
USUAL_SIZES = {"batch": 8, "heads": 12, "seq": 512}  # what conf/workload/attention.yaml sets by itself
SMALL_BYTES = 1 << 28  # a case that needs less than this fits everywhere; saves asking NVML
LARGEST = 1 << 48  # elements; more than any machine holds


class ConfigError(ValueError):
    """A config that cannot be run; each line of the text is one fault and its fix."""


def nearest(name: str, names: Collection[str]) -> str:
    """`did you mean …?` and the names allowed."""
    near = difflib.get_close_matches(name, names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"Allowed: {', '.join(names)}"


@functools.cache
def _types(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def unknown_keys(fields: dict[Any, Any], schema: type, path: str = "", root: type | None = None) -> Iterator[str]:
    """Faults for keys that the schema lacks, at every level."""
    types = _types(schema)
    for name, value in fields.items():
        if name not in types:
            yield unknown_key(f"{path}{name}", root or schema)
        elif dataclasses.is_dataclass(types[name]) and isinstance(value, dict):
            yield from unknown_keys(value, typing.cast(type, types[name]), f"{path}{name}.", root or schema)


def unknown_key(dotted: str, schema: type) -> str:
    """The fault of one unknown key: the nearest one of its level, or of its name elsewhere, or all of its level."""
    parent, _, name = dotted.rpartition(".")
    keys = _dotted_keys(schema)
    siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == parent and key not in OURS]
    prefix = f"{parent}." if parent else ""
    near = [prefix + sibling for sibling in difflib.get_close_matches(name, siblings, n=1)]
    near += [key for key in keys if difflib.get_close_matches(name, [key.rpartition(".")[2]], cutoff=0.8)]
    if near:
        return f"unknown key {dotted}; did you mean {near[0]}?"
    if siblings:
        return f"unknown key {dotted}; the keys {f'of {parent} ' if parent else ''}are {', '.join(siblings)}"
    return f"unknown key {dotted}; {parent} has no keys of its own"


def _dotted_keys(schema: type, path: str = "") -> list[str]:
    found = []
    for name, kind in _types(schema).items():
        found.append(f"{path}{name}")
        found += _dotted_keys(typing.cast(type, kind), f"{path}{name}.") if dataclasses.is_dataclass(kind) else []
    return found


def out_of_bounds(fields: dict[str, Any], schema: type, path: str = "") -> Iterator[str]:
    """Faults for values outside the bounds that their fields declare, and for those that nothing would read."""
    types = _types(schema)
    for declared in dataclasses.fields(schema):
        name, value, limits = declared.name, fields.get(declared.name), declared.metadata
        if dataclasses.is_dataclass(types[name]):
            assert isinstance(value, dict)
            yield from out_of_bounds(value, typing.cast(type, types[name]), f"{path}{name}.")
        elif name not in fields:
            yield f"{path}{name} is missing; it cannot be taken away, set it instead"
        elif value is not None and (limit := _broken_limit(value, limits)):
            advice = f"; {limits['advice']}" if limits["advice"] else ""
            yield f"{path}{name} ({value}) must be {limit}{advice}"
        elif limits.get("only") and value != declared.default and fields[limits["only"][0]] != limits["only"][1]:
            other, needed = limits["only"]
            beside = f"{path}{other}={fields[other]}"
            yield f"{path}{name} ({value}) would be ignored with {beside}; set {path}{other}={needed}"


def _broken_limit(value: Any, limits: typing.Mapping[str, Any]) -> str | None:
    """What the value must be, in words, where it is not."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    bounds = [("ge", ">="), ("gt", ">"), ("lt", "<")]
    given = [(name, sign) for name, sign in bounds if limits.get(name) is not None]
    holds = {"ge": lambda a, b: a >= b, "gt": lambda a, b: a > b, "lt": lambda a, b: a < b}
    if any(not holds[name](value, limits[name]) for name, _ in given):
        return " and ".join(f"{sign} {limits[name]}" for name, sign in given)
    if limits.get("allowed") and value not in limits["allowed"]:
        near = difflib.get_close_matches(str(value), limits["allowed"], n=1)
        return f"one of {', '.join(limits['allowed'])}" + (f"; did you mean {near[0]}?" if near else "")
    if limits.get("pattern") and not re.fullmatch(limits["pattern"][0], str(value)):
        return limits["pattern"][1]
    return None


def ignored_sizes(raw: dict[str, Any], plain: dict[str, Any], given: Collection[str]) -> Iterator[str]:
    """Faults for sizes that the shape does not use: `seq` with `workload=matrix`, or beside a shape given directly."""
    written = " ".join(map(str, raw["shape"])) if isinstance(raw["shape"], list) else str(raw["shape"])
    used = {name for name in SIZES if f"${{{name}}}" in written}
    if "seq_q" in used and "${seq}" in str(raw["seq_q"]):
        used.add("seq")
    for name in SIZES:
        value = plain[name]
        set_in_a_file = not str(raw[name]).startswith("${") and value not in (None, USUAL_SIZES.get(name))
        if name in used or not (name in given or set_in_a_file):
            continue
        if used:
            fix = f"its sizes are {', '.join(size for size in SIZES if size in used)}"
            yield f"{name} ({value}) would be ignored with workload={plain['workload']}; {fix}"
        else:
            yield f"{name} ({value}) would be ignored beside shape={plain['shape']}; set one or the other"


def shape_faults(plain: dict[str, Any]) -> Iterator[str]:
    """Faults of the shape and of what needs a certain shape."""
    shape = plain["shape"]
    if not shape:
        yield "shape ([]) must have at least one dimension, e.g. shape=[8,12,512,512]"
    elif any(size is None for size in shape):
        yield f"shape ({shape}) must be whole numbers; a size is null"
    elif any(not isinstance(size, int) for size in shape):  # `${…}` may stand for anything
        yield f"shape ({shape}) must be whole numbers"
    elif any(size < 1 for size in shape) and not any((plain[name] is not None and plain[name] < 1) for name in SIZES):
        yield f"shape ({shape}) must be >= 1 in every dimension"
    elif math.prod(shape) > LARGEST:
        yield f"shape ({shape}) has {math.prod(shape):.3g} elements, more than any machine holds; make it smaller"
    if plain["mask"] != "none" and len(shape) < 2:
        yield f"mask ({plain['mask']}) needs a shape of two dimensions or more, not {shape}"


def measure_faults(measure: dict[str, Any]) -> Iterator[str]:
    """Faults between keys under `measure`."""
    fewest, most = measure["min_rounds"], measure["max_rounds"]
    if most < fewest:
        yield f"measure.max_rounds ({most}) must be >= measure.min_rounds ({fewest}); set measure.min_rounds={most} too"


def tracking_faults(tracking: dict[str, Any]) -> Iterator[str]:
    """Faults of the keys under `tracking`."""
    if tracking["kind"] == "server" and not tracking["uri"]:
        yield (
            "tracking.uri (null) must be set with tracking=server; "
            "set tracking.uri=http://host:5000 or the environment variable MLFLOW_TRACKING_URI"
        )
    if not tracking["experiment"]:
        yield "tracking.experiment ('') must be a name"


def placement_faults(placement: dict[str, Any], device: str) -> Iterator[str]:
    """Faults of the keys under `placement`."""
    if placement["gpu_model"] is not None and not placement["gpu_model"].strip():
        yield "placement.gpu_model ('') must be a part of a GPU's name, e.g. H200, or null"
    elif placement["gpu_model"] is not None and device == "cpu":
        yield f"placement.gpu_model ({placement['gpu_model']}) would be ignored with device=cpu; set device=auto"


def too_large(case: Case) -> Iterator[str]:
    """A fault where the machine cannot hold the case: x and its like, 4 times for forward and 7 times otherwise."""
    needed = (4 if case.mode == "forward" else 7) * case.tensor_bytes
    if needed < SMALL_BYTES or (known := memory.total_bytes(case.device)) is None:
        return
    total, whose = known
    if needed > total:
        shape = "x".join(map(str, case.shape))
        yield (
            f"shape ({shape} {case.dtype} {case.mode}) must fit in memory: it needs {_size(needed)} at least, "
            f"and {whose} has {_size(total)}; make a size smaller"
        )


def _size(n_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1024  # pyright: ignore[reportAssignmentType]
    return f"{n_bytes:,.1f} TiB"
