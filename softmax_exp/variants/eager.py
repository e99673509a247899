"""`torch.softmax`, and for masks and scale what people write around it: softmax(x * scale + mask)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softmax_exp.cases import Case

NAME = "eager"


def build(case: Case) -> Callable[..., torch.Tensor]:
    """The eager softmax of a case over the last dimension."""
    scale = case.scale

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x if scale is None else x * scale

    if case.mask == "none":
        if scale is None:
            return lambda x: torch.softmax(x, dim=-1)
        return lambda x: torch.softmax(scaled(x), dim=-1)
    if case.mask == "additive":
        return lambda x, mask: torch.softmax(scaled(x) + mask, dim=-1)
    if case.mask == "boolean":
        return lambda x, mask: torch.softmax(scaled(x).masked_fill(~mask, float("-inf")), dim=-1)

    n_queries, n_cols = case.shape[-2:]

    def causal(x: torch.Tensor) -> torch.Tensor:
        ahead = torch.ones(n_queries, n_cols, dtype=torch.bool, device=x.device).triu(n_cols - n_queries + 1)
        return torch.softmax(scaled(x).masked_fill(ahead, float("-inf")), dim=-1)

    return causal
