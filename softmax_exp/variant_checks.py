"""The faults in a config's choice of variants and their arguments, found without importing any of them.

In: the list of names and the tree under `variant_args`.  Out: one line a fault; the arguments by variant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from softmax_exp import variants


def variant_faults(names: Any, baseline: str | None) -> Iterator[str]:
    """Faults of the list of variants; none of them is imported."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield f"variants ({names}) must be a list of names, e.g. variants=[eager,triton]"
        return
    if not names:
        yield "variants ([]) must name at least one variant, e.g. variants=[eager,triton]"
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"variants ({name}) is there twice; name each variant once"
        try:
            variants.check(name)
        except (ValueError, OSError, SyntaxError) as error:
            yield f"variants ({name}): {error}"
    if baseline not in (None, "eager", *names):
        yield f"baseline ({baseline}) must be one of the variants: {', '.join(names)}; or null"


def arguments_by_variant(nested: dict[str, Any], names: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The arguments under each variant's name, and the faults.

    `torch.compile` may be written with its dot as a level, and a variant of a file by the name of its function.
    """
    known = {name: name for name in names} | {name.rpartition(":")[2]: name for name in names}
    found: dict[str, dict[str, Any]] = {}
    faults = []

    def walk(fields: dict[Any, Any], path: str) -> None:
        for part, value in fields.items():
            dotted = f"{path}.{part}" if path else str(part)
            longer = any(name.startswith(f"{dotted}.") for name in known)
            if dotted in known and isinstance(value, dict):
                plain = {argument: item for argument, item in value.items() if not (longer and isinstance(item, dict))}
                if plain or not longer:
                    found.setdefault(known[dotted], {}).update(plain)
                walk({argument: item for argument, item in value.items() if argument not in plain}, dotted)
            elif longer and isinstance(value, dict):
                walk(value, dotted)
            elif dotted in known:
                faults.append(
                    f"variant_args.{dotted} ({value}) must hold arguments, e.g. variant_args.{dotted}.num_warps=4"
                )
            else:
                faults.append(
                    f"variant_args.{dotted} would be ignored; it must name one of the variants: {', '.join(names)}"
                )

    walk(nested, "")
    for name in names:
        faults += _argument_faults(name, found.get(name, {}))
    return found, faults


def _argument_faults(name: str, arguments: dict[str, Any]) -> Iterator[str]:
    taken = variants.parameters(name)
    needed, optional = taken or ([], [])
    known = [*needed, *optional]
    for argument, value in arguments.items():
        if not str(argument).isidentifier() or str(argument).startswith("_"):
            yield f"variant_args.{name}.{argument} is no name of an argument"
        elif isinstance(value, dict):
            yield f"variant_args.{name}.{argument} ({value}) must be a number, text, true, false or a list"
        elif taken is not None and argument not in known:
            near = difflib.get_close_matches(argument, known, n=1)
            fix = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'no arguments'}"
            yield f"unknown argument variant_args.{name}.{argument}; {fix}"
    for argument in needed:
        if argument not in arguments:
            function = name.rpartition(":")[2]
            yield f"variants ({name}) needs {argument}; set variant_args.{function}.{argument}, or give it a default"
