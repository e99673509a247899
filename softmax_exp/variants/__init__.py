"""Variants: the softmax implementations that are measured, one file each, found by name without importing them.

In: a name of a file in this folder, or `path/to/file.py:function`.  Out: a `Variant`, whose `build(case, **args)`
returns the function to measure. See docs/adding_a_variant.md.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_exp.cases import Case

FOLDER = Path(__file__).parent


class Unsupported(Exception):
    """Raised by a variant, while building or when called, for a case that it cannot do; the text is the reason."""


class Skipped(Exception):
    """Raised by a variant that cannot run on this machine; the text is the reason."""


@dataclass(frozen=True)
class Variant:
    """An implementation by name.

    `build(case, **args)` is called once a case, outside every timing, and returns `f(x)`, or `f(x, mask)` where the
    case has a mask tensor: x of the case's shape, dtype and layout on its device; the result is the softmax over the
    last dimension, newly allocated. Gradients, where the mode asks for them, flow through autograd. An attribute
    `describe(x[, mask])` of that function may tell the plan that ran: a dict for the record.
    `needs_cuda` variants are skipped without a GPU. `sources` are the files whose content makes `kernel_hash`.
    """

    name: str
    build: Callable[..., Callable[..., Any]]
    needs_cuda: bool
    sources: tuple[Path, ...]

    @property
    def kernel_hash(self) -> str:
        """16 hexadecimal digits that change with the content of the declared source files."""
        return _hash(self.sources)


@functools.cache
def names() -> dict[str, Path]:
    """The names of all built-in variants and their files, read without importing any of them."""
    paths = sorted(FOLDER.glob("[a-z]*.py"))  # the package's own file begins with an underscore
    return {name: path for path in paths if (name := _constant(path, "NAME")) is not None}


def check(name: str) -> None:
    """ValueError unless `name` is a built-in variant or names an existing file and a function in it."""
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise ValueError(f"no file {path}; a variant of your own is path/to/file.py:function")
        tree = ast.parse(Path(path).read_text(), filename=path)
        defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        defined += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
        if function not in defined:
            raise ValueError(f"{path} defines no {function!r}; it defines {', '.join(defined) or 'nothing'}")
    elif name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        raise ValueError(
            f"unknown variant {name!r}{f'; did you mean {near[0]!r}?' if near else ''} "
            f"Allowed: {', '.join(names())}, or path/to/file.py:function"
        )


def kernel_hash(name: str) -> str:
    """The `kernel_hash` of a variant without importing it. ValueError as `check`."""
    check(name)
    return _hash(_sources(names()[name]) if name in names() else (Path(name.rpartition(":")[0]).resolve(),))


def load(name: str) -> Variant:
    """The variant of that name, importing its file. ValueError as `check`."""
    check(name)
    if name in names():
        path = names()[name]
        module = importlib.import_module(f"{__name__}.{path.stem}")
        return Variant(name, module.build, getattr(module, "NEEDS_CUDA", False), _sources(path))
    path, _, function = name.rpartition(":")
    return _foreign(name, Path(path).resolve(), function)


def _sources(path: Path) -> tuple[Path, ...]:
    """The file of a built-in variant, and those that it declares in SOURCES."""
    found = [path]
    for source in _constant(path, "SOURCES") or ():
        place = FOLDER.parent / source
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return tuple(found)


def _constant(path: Path, name: str) -> Any:
    """The literal that a file assigns to a name at its top level, read without importing it; None where it does not."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    return None


def _hash(sources: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _foreign(name: str, path: Path, function: str) -> Variant:
    """A user's own function: `f(x)` itself, or a factory if its first parameter is called `case`."""
    spec = importlib.util.spec_from_file_location(f"softmax_exp_foreign_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = getattr(module, function)
    try:
        parameters = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        parameters = ["x"]
    if not parameters:
        raise ValueError(f"{name} takes no arguments; it must be softmax(x) or a factory build(case, **args)")
    if parameters[0] == "case":
        return Variant(name, target, False, (path,))

    def build(case: Case, **args: Any) -> Callable[..., Any]:
        if case.mask == "causal" or case.scale is not None or (case.mask != "none" and "mask" not in parameters):
            raise Unsupported("a plain softmax(x) does no mask or scale; write a factory build(case) for that")
        return functools.partial(target, **args) if args else target

    return Variant(name, build, False, (path,))
