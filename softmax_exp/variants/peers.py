"""Other people's softmax, run where it is installed: imported, never copied.

In: the name of a distribution and of its module.  Out: the module, or `Skipped` with the command that installs it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from importlib import metadata
from types import ModuleType

from softmax_exp.variants.contract import Skipped


def version(package: str | None) -> str:
    """A distribution and its installed version, e.g. `liger-kernel 0.8.5`, without importing it; empty without one."""
    try:
        return f"{package} {metadata.version(package)}" if package else ""
    except metadata.PackageNotFoundError:
        return ""


def imported(package: str, module: str, command: str) -> ModuleType:
    """Import a peer's module. Skipped where it is not installed, or does not import on this machine."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise Skipped(f"{package} is not installed; to measure it: {command}")
    found = _import(module)
    if isinstance(found, str):
        raise Skipped(f"it cannot be imported ({found}); installed by: {command}")
    return found


@functools.cache
def _import(module: str) -> ModuleType | str:
    """The module, or why it is none: asked once, since a second try would trip over what the first has left behind."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a dependency or a driver that is missing, told by each package in its own way
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
