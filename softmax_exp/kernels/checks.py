"""What a call of the softmax may ask for.

In: the tensors and options of a call. Out: nothing, or a ValueError that names what is not supported.
"""

from __future__ import annotations

import math

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Scales that kernels may apply in the exponent, where float32 holds their product with log2(e) and its rest.
LEAST_SCALE, LARGEST_SCALE = 2.0**-90, 2.0**90


def check_options(x: torch.Tensor, dim: int, scale: float | None, mask: torch.Tensor | None, causal: bool) -> None:
    """ValueError, naming what is not supported, for a call that cannot be."""
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be float16, bfloat16, float32 or float64, not {x.dtype}")
    n_dims = max(x.dim(), 1)
    if not -n_dims <= dim < n_dims:
        raise ValueError(f"dim ({dim}) is out of range for a tensor of {x.dim()} dimensions")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale ({scale}) must be finite")
    if causal and (x.dim() < 2 or dim % n_dims != n_dims - 1):
        raise ValueError("causal needs at least two dimensions and the softmax over the last of them")
    if mask is not None:
        _check_mask(mask, x)


def _check_mask(mask: torch.Tensor, x: torch.Tensor) -> None:
    if mask.device != x.device:
        raise ValueError(f"mask is on {mask.device}, x on {x.device}")
    if mask.dtype != torch.bool and mask.dtype not in DTYPES:
        raise ValueError(f"mask must be boolean or floating point, not {mask.dtype}")
    try:
        broadcast = torch.broadcast_shapes(mask.shape, x.shape)
    except RuntimeError:
        broadcast = None
    if broadcast != x.shape:
        raise ValueError(f"mask of shape {tuple(mask.shape)} does not broadcast to x's {tuple(x.shape)}")
