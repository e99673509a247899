"""Other people's softmax, run where it is installed: imported, never copied.

In: the name of a distribution and of its module.  Out: the module, or `Skipped` with the command that installs it.
"""

from __future__ import annotations

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
    """Import a peer's module. Skipped where it, or something that it needs, is not installed."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise Skipped(f"{package} is not installed; to measure it: {command}")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Skipped(f"{version(package) or package} cannot be imported: {error}; {command}") from error
