"""What a variant is, for those who look it up, those who run it and those who write one.

In: nothing.  Out: `Variant`, and the two exceptions by which a variant refuses a case or a machine.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    `needs_cuda` variants are skipped without a GPU. `sources` are the files whose content makes `kernel_hash`;
    `package` names an installed distribution whose code it runs, with its version, and is empty otherwise.
    """

    name: str
    build: Callable[..., Callable[..., Any]]
    needs_cuda: bool
    sources: tuple[Path, ...]
    package: str = ""

    @property
    def kernel_hash(self) -> str:
        """16 hexadecimal digits that change with the declared source files and with the package's version."""
        return hash_of(self.sources, self.package)


def hash_of(sources: tuple[Path, ...], package: str) -> str:
    """`Variant.kernel_hash` without a variant."""
    digest = hashlib.sha256(package.encode())
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def tree_of(path: Path) -> ast.Module:
    """The source of a file, parsed once for each state of the file. SyntaxError where it is no Python."""
    state = path.stat()
    return _parsed(path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, *state: int) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def constant(path: Path, name: str) -> Any:
    """The literal that a file assigns to a name at its top level, read without importing it; None where it does not."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    return None


def sources_of(path: Path, folder: Path) -> tuple[Path, ...]:
    """A variant's file and those that it declares in SOURCES, files or folders below `folder`."""
    found = [path]
    for source in constant(path, "SOURCES") or ():
        place = folder / source
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return tuple(found)
