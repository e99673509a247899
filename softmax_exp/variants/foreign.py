"""Variants from outside the package: a function in a user's file, or one that an installed package offers.

In: `path/to/file.py:function`, or a name in the entry-point group `softmax_exp.variants`.  Out: where it stands and the
faults of its signature, found without running it; and its `build`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from softmax_exp.cases import Case
from softmax_exp.variants.contract import Unsupported, constant, tree_of

GROUP = "softmax_exp.variants"
FORMS = "softmax(x), softmax(x, mask) or a factory softmax(case, **args) that returns one"


@dataclass(frozen=True)
class Place:
    """Where a foreign function is defined. `module` is empty for a file that is named by its path.

    `package` is the distribution that offers it, with its version; empty for a file.
    """

    path: Path
    function: str
    module: str = ""
    package: str = ""


def find(name: str) -> Place | None:
    """Where the function of that name is, whether it exists or not; None for what is no foreign name."""
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        return Place(Path(path).resolve(), function)
    return offered().get(name)


@functools.cache
def offered() -> dict[str, Place]:
    """What installed packages offer in the entry-point group, read from their metadata: none of them is imported."""
    found = {}
    for entry in metadata.entry_points(group=GROUP):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
        found[entry.name] = Place(_source_of(entry.module), entry.attr, entry.module, package)
    return found


def _source_of(module: str) -> Path:
    """The file of a module that is not to be imported; only what is above its top-level package is looked up."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return Path(*module.split(".")).with_suffix(".py")  # is not there; `faults` says so
    if not rest:
        return Path(spec.origin)
    place = Path(spec.origin).parent.joinpath(*rest)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def faults(name: str, place: Place) -> Iterator[str]:
    """What is wrong with a foreign variant by its source: one line each. SyntaxError where it is no Python."""
    if not place.path.is_file():
        if place.module:
            yield f"{place.package} offers {name}, but its module {place.module} is not there"
        else:
            yield f"no file {name.rpartition(':')[0]}; a variant of your own is path/to/file.py:function"
        return
    tree = tree_of(place.path)
    function = _definition(tree, place.function)
    if function is None:
        names = _defined(tree)
        if place.function not in names:
            yield f"{place.path} defines no {place.function!r}; it defines {', '.join(names) or 'nothing'}"
        return
    if isinstance(function, ast.AsyncFunctionDef):
        yield f"{place.function} is async; it must be {FORMS}"
    if any("jit" in ast.unparse(decorator) for decorator in function.decorator_list):
        yield f"{place.function} is a kernel; name the Python function that launches it: {FORMS}"
        return
    first, *rest = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)] or [""]
    if not first and function.args.vararg is None:
        yield f"{place.function} takes no arguments; it must be {FORMS}"
    if "case" in rest:
        yield f"{place.function} takes case after {first}; case must come first, and makes it a factory"


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    return None


def _defined(tree: ast.Module) -> list[str]:
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    imported = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    return names + [alias.asname or alias.name for n in imported for alias in n.names if "." not in alias.name]


def parameters(path: Path, function: str) -> tuple[list[str], list[str]] | None:
    """The arguments of a function beside x, mask or case: those that it needs, and those that it may have.

    None where it takes any, or where its source does not tell.
    """
    node = _definition(tree_of(path), function)
    if node is None or node.args.kwarg is not None:
        return None
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    needed = [a.arg for a in positional[: len(positional) - len(args.defaults)]]
    needed += [a.arg for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    names = [a.arg for a in (*positional, *args.kwonlyargs)]
    ours = names[:1] if names[:1] == ["case"] else [*names[:1], "mask"]
    needed, names = ([name for name in some if name not in ours] for some in (needed, names))
    return needed, [name for name in names if name not in needed]


def needs_cuda(path: Path) -> bool:
    """Whether a file says so by NEEDS_CUDA; else whether it imports Triton, whose kernels run on GPUs only."""
    said = constant(path, "NEEDS_CUDA")
    if said is not None:
        return bool(said)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "triton" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton":
            return True
    return False


def builder(name: str, place: Place) -> Callable[..., Callable[..., Any]]:
    """Import a foreign function and make it `build(case, **args)`: itself, if its first parameter is called `case`."""
    target = getattr(importlib.import_module(place.module) if place.module else _run(place.path), place.function)
    taken = _parameters(target)
    if taken[:1] == ["case"]:
        return functools.partial(_build_by_factory, name, target)

    def build(case: Case, **args: Any) -> Callable[..., Any]:
        if case.mask == "causal" or case.scale is not None or (case.mask != "none" and "mask" not in taken):
            raise Unsupported("a plain softmax(x) does no mask or scale; write a factory build(case) for that")
        return functools.partial(target, **args) if args else target

    return build


def _run(path: Path) -> ModuleType:
    """Run a user's file as a module. Files beside it can be imported, as when Python runs it as a program."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"softmax_exp_foreign_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _parameters(target: Any) -> list[str]:
    try:
        return list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a builtin, or a class from C: it does not tell
        return ["x"]


def _build_by_factory(name: str, factory: Callable[..., Any], case: Case, **args: Any) -> Callable[..., Any]:
    """Call a factory and see that what it returned can be called as it will be, before anything is launched."""
    function = factory(case, **args)
    if not callable(function):
        raise ValueError(
            f"{name} returned a {type(function).__name__} instead of the function to measure: "
            "with a first parameter called case it is a factory, which must return f(x)"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function
    if _takes(signature, 1 if case.mask_shape is None else 2):
        return function
    if case.mask_shape is not None and _takes(signature, 1):
        raise Unsupported("the function that its factory returned takes no mask")
    wanted = "x" if case.mask_shape is None else "x and mask"
    raise ValueError(f"{name} returned a function that takes {signature} instead of {wanted}")


def _takes(signature: inspect.Signature, n: int) -> bool:
    try:
        signature.bind(*range(n))
    except TypeError:
        return False
    return True
