"""The reference that every result is compared with: the softmax from its definition, in float64.

In: rows of a case's x and mask.  Out: float64 (rows, n_cols). It does not rely on `torch.softmax`, which is a variant,
and is itself checked whenever it is used.
"""

from __future__ import annotations

import torch

from softmax_exp.cases import Case

ROW_SUM_ERROR = 1e-9  # far above what rounding does to a sum of millions in float64, far below any error that matters


def take(tensor: torch.Tensor, case: Case, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor of the case's shape as float64 (rows, n_cols), through its own strides: no copy of the whole."""
    if tensor.dim() <= 1:
        return tensor.reshape(1, -1).double()
    index = torch.unravel_index(rows, tensor.shape[:-1])
    return tensor[index].double()


def logits(case: Case, x: torch.Tensor, mask: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    """What the softmax is taken of: rows of x, scaled and masked, as float64 (rows, n_cols)."""
    z = take(x, case, rows)
    if case.scale is not None:
        z = z * case.scale
    if mask is not None:
        mask_rows = take(mask.expand(case.shape), case, rows) if mask.dtype != torch.bool else None
        if mask_rows is not None:
            return z + mask_rows
        keep = mask.expand(case.shape)[torch.unravel_index(rows, case.shape[:-1])]
        return z.masked_fill(~keep, float("-inf"))
    if case.mask == "causal":
        n_queries, n_cols = case.shape[-2:]
        last_seen = rows % n_queries + (n_cols - n_queries)
        return z.masked_fill(torch.arange(n_cols, device=z.device) > last_seen[:, None], float("-inf"))
    return z


def softmax_reference(z: torch.Tensor) -> torch.Tensor:
    """Softmax of float64 (rows, n_cols) over the last dimension from its definition; NaN as in `torch.softmax`."""
    shifted = (z - z.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def verify(y: torch.Tensor) -> None:
    """RuntimeError unless the rows of a reference, (rows, n_cols), sum to 1 or are NaN throughout.

    Every second column is summed by itself: a fault of the reduction that made y (one was seen in float64 on CUDA at
    odd widths, in the kernel of `torch.softmax`) would hide from the same reduction. No matrix product: the workspace
    of cuBLAS would stay behind in the memory of the case, and keep all of it.
    """
    sums = y[..., ::2].sum(-1) + y[..., 1::2].sum(-1)
    is_nan = y.isnan()
    sound = ((sums - 1).abs() < ROW_SUM_ERROR) | is_nan.all(-1)
    if not bool(sound.all()):
        row = int((~sound).nonzero()[0])
        raise RuntimeError(f"the float64 reference is wrong on {y.device}: its row {row} sums to {float(sums[row])!r}")
