"""Which ptxas assembles Triton kernels: the same one for all variants, whatever ran before.

Triton brings one; a torch built for CUDA brings another, often newer, and makes it that of its process, by the variable
TRITON_PTXAS_PATH, when something is first compiled by torch.compile. A kernel compiled after that may take other
registers than before: float32 rows of 262,144 columns spilled 8 words, and took 3 % more time (H200, 12.8 and 13.0).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "TRITON_PTXAS_PATH"


def settle(torch_folder: Path, variables: MutableMapping[str, str] = os.environ) -> None:
    """Make torch's ptxas, where it has one, that of this process from its start; a path that is set already stays."""
    ours = torch_folder / "bin" / "ptxas"
    if os.access(ours, os.X_OK):
        variables.setdefault(VARIABLE, str(ours))


def version(capability: tuple[int, int]) -> str | None:
    """The version of the ptxas that Triton uses for GPUs of this compute capability; None where it does not tell."""
    try:
        from triton import knobs

        return (knobs.nvidia.ptxas_blackwell if capability >= (10, 0) else knobs.nvidia.ptxas).version
    except (ImportError, AttributeError, RuntimeError):
        return None
