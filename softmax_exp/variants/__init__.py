"""Variants: the softmax implementations that are measured, one file each, found by name without importing them.

In: a name of a file in this folder, `path/to/file.py:function`, or a name that an installed package offers.
Out: a `Variant`, whose `build(case, **args)` returns the function to measure. See docs/adding_a_variant.md.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from pathlib import Path

from softmax_exp.variants import foreign, peers
from softmax_exp.variants.contract import Skipped, Unsupported, Variant, constant, hash_of, sources_of

__all__ = ["Skipped", "Unsupported", "Variant", "check", "kernel_hash", "load", "names", "parameters"]

FOLDER = Path(__file__).parent


@functools.cache
def names() -> dict[str, Path]:
    """The names of all built-in variants and their files, read without importing any of them."""
    paths = sorted(FOLDER.glob("[a-z]*.py"))  # the package's own file begins with an underscore
    return {name: path for path in paths if (name := constant(path, "NAME")) is not None}


def check(name: str) -> None:
    """ValueError unless `name` is a variant: a built-in one, or a function fit to be one that exists by its source."""
    if name in names():
        return
    place = foreign.find(name)
    if place is None:
        known = [*names(), *foreign.offered()]
        near = difflib.get_close_matches(name, known, n=1)
        raise ValueError(
            f"unknown variant {name!r}{f'; did you mean {near[0]!r}?' if near else ''} "
            f"Allowed: {', '.join(known)}, or path/to/file.py:function"
        )
    for fault in foreign.faults(name, place):
        raise ValueError(fault)


def parameters(name: str) -> tuple[list[str], list[str]] | None:
    """The arguments that a variant needs, and those that it may have, by its source; None where that does not tell.

    ValueError as `check`.
    """
    check(name)
    place = foreign.find(name)
    if name in names() or place is None:
        return foreign.parameters(names()[name], "build")
    return foreign.parameters(place.path, place.function)


def kernel_hash(name: str) -> str:
    """The `kernel_hash` of a variant without importing it. ValueError as `check`."""
    return hash_of(*_made_of(name))


def _made_of(name: str) -> tuple[tuple[Path, ...], str]:
    """The files whose content makes a variant, and the package whose code it runs. ValueError as `check`."""
    check(name)
    if name in names():
        path = names()[name]
        return sources_of(path, FOLDER.parent), peers.version(constant(path, "PACKAGE"))
    place = foreign.find(name)
    assert place is not None
    return sources_of(place.path, place.path.parent), place.package


def load(name: str) -> Variant:
    """The variant of that name, importing its file. ValueError as `check`."""
    made_of = _made_of(name)
    if name in names():
        module = importlib.import_module(f"{__name__}.{names()[name].stem}")
        return Variant(name, module.build, getattr(module, "NEEDS_CUDA", False), *made_of)
    place = foreign.find(name)
    assert place is not None
    return Variant(name, foreign.builder(name, place), foreign.needs_cuda(place.path), *made_of)
