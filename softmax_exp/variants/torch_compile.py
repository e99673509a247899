"""The eager softmax through `torch.compile`: one whole graph, static shapes, compiled anew for each case."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softmax_exp.cases import Case
from softmax_exp.variants import eager

NAME = "torch.compile"
SOURCES = ("variants/eager.py",)


def build(case: Case, **options: str | int | bool) -> Callable[..., torch.Tensor]:
    """The compiled softmax; `options` are Inductor's. The measuring process has reset Dynamo before the case."""
    return torch.compile(eager.build(case), fullgraph=True, dynamic=False, options={**options} or None)
