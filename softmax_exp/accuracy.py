"""Whether a variant's result is right: every element against a float64 reference, within a bound of its own.

In: a case, its inputs and what the variant returned.  Out: `Accuracy`, error figures and a verdict with its reason.
The bound follows from rounding: of the result to its dtype, of float32 arithmetic, and of what the mode reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from softmax_exp.cases import Case
from softmax_exp.reference import logits, softmax_reference, take, verify

CHUNK_ELEMENTS = 1 << 23  # of float64, so that about ten temporaries stay below 1 GB
CPU_ELEMENTS = 1 << 22  # checked on a CPU, where all of (8, 12, 2048, 2048) would take 15 s a variant
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
# Results below the smallest normal number may be flushed to zero in float32's range, as GPUs' exp2 does. float16's
# subnormal numbers are normal in float32 and keep their spacing, 2^-24, half of which is what rounding costs: zero is
# wrong for 1/n of fewer than 2^25 equal columns, and right from there.
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
EPS_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
MIN_EXPONENT = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}


@dataclass
class Accuracy:
    """Errors over the elements that were checked; `reason` is empty exactly if the result is right.

    `error_over_tolerance` is the largest error as a multiple of its element's own bound; `tolerance` the relative
    bound of an unmasked, unscaled element. `max_rel_error` leaves out results in the subnormal range.
    """

    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    max_ulp_error: float = 0.0
    max_row_sum_error: float = 0.0
    nonfinite_mismatch: int = 0
    error_over_tolerance: float = 0.0
    tolerance: float = 0.0
    n_rows_checked: int = 0
    reason: str = field(default="", metadata={"record": False})

    def figures(self) -> dict[str, Any]:
        """The figures that a record keeps."""
        return {name: value for name, value in asdict(self).items() if name != "reason"}


def relative_tolerance(case: Case) -> float:
    """Relative bound of a forward result: one unit in the last place, and float32 arithmetic over a row.

    Float32: 2 u (8 + sqrt(n_cols)); exp to two units in the last place, and a sum whose rounding grows as sqrt(n)
    when taken in order (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019).
    """
    unit = UNIT_ROUNDOFF["float64" if case.dtype == "float64" else "float32"]
    return 2 * UNIT_ROUNDOFF[case.dtype] + 2 * unit * (8 + math.sqrt(case.n_cols))


def check(
    case: Case,
    x: torch.Tensor,
    mask: torch.Tensor | None,
    grad: torch.Tensor | None,
    result: Any,
) -> Accuracy:
    """Compare `result` with the reference.

    `result` is y in forward mode, dx in backward mode and (y, dx) in full mode, each of x's shape and dtype; `grad` is
    dL/dy. On a GPU all rows are checked, on a CPU the first, the last and random ones.
    """
    wanted = {"forward": ("y",), "backward": ("dx",), "full": ("y", "dx")}[case.mode]
    tensors = result if isinstance(result, tuple) else (result,)
    accuracy = Accuracy(tolerance=relative_tolerance(case))
    if len(tensors) != len(wanted):
        accuracy.reason = f"returned {len(tensors)} tensors instead of {len(wanted)}"
        return accuracy
    for name, tensor in zip(wanted, tensors, strict=True):
        accuracy.reason = accuracy.reason or _form_error(name, tensor, x)
    if accuracy.reason or case.numel == 0:
        return accuracy
    with torch.no_grad():
        for rows in _chunks(case, x.device):
            _check_rows(case, accuracy, rows, x, mask, grad, dict(zip(wanted, tensors, strict=True)))
    return accuracy


def _form_error(name: str, tensor: Any, x: torch.Tensor) -> str:
    if not isinstance(tensor, torch.Tensor):
        hint = "; to be a factory its first parameter must be called case" if callable(tensor) else ""
        return f"{name} is a {type(tensor).__name__}, not a tensor{hint}"
    for what in ("shape", "dtype", "device"):
        have, want = getattr(tensor, what), getattr(x, what)
        if have != want:
            return f"{name} has {what} {_plain(have)} instead of {_plain(want)}"
    if tensor.numel() and tensor.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        return f"{name} shares its memory with the input"
    return ""


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, torch.Size) else value


def _chunks(case: Case, device: torch.device) -> Iterator[torch.Tensor]:
    """Row indices, in chunks that fit in memory as float64."""
    per_chunk = max(1, CHUNK_ELEMENTS // case.n_cols)
    if device.type == "cpu" and case.numel > CPU_ELEMENTS:
        n_checked = max(3, CPU_ELEMENTS // case.n_cols)
        generator = torch.Generator().manual_seed(case.seed)
        rows = torch.randint(0, case.n_rows, (n_checked,), generator=generator)
        rows = torch.cat([rows, torch.tensor([0, case.n_rows - 1])]).unique()
    else:
        rows = torch.arange(case.n_rows, device=device)
    yield from rows.split(per_chunk)


def _check_rows(
    case: Case,
    accuracy: Accuracy,
    rows: torch.Tensor,
    x: torch.Tensor,
    mask: torch.Tensor | None,
    grad: torch.Tensor | None,
    results: dict[str, torch.Tensor],
) -> None:
    z = logits(case, x, mask, rows)
    y = softmax_reference(z)
    verify(y)
    y_relative = _forward_bound(case, z)
    smallest = SMALLEST[case.dtype]
    accuracy.n_rows_checked += len(rows)
    if "y" in results:
        have = take(results["y"], case, rows)
        _compare(case, accuracy, "y", have, y, y_relative * y + smallest, rows)
        row_sums = have.sum(-1)
        sound = row_sums.isfinite() & y.isfinite().all(-1)
        if sound.any():
            error = float((row_sums[sound] - 1).abs().max())
            accuracy.max_row_sum_error = max(accuracy.max_row_sum_error, error)
    if "dx" in results:
        assert grad is not None
        dy = take(grad, case, rows)
        scale = 1.0 if case.scale is None else case.scale
        dot = (dy * y).sum(-1, keepdim=True)
        dx = scale * y * (dy - dot)
        # A gradient inherits the rounding of the y that was saved, in itself and in the row's dot product.
        saved = y_relative + 2 * UNIT_ROUNDOFF[case.dtype]
        dot_error = (saved * (dy.abs() * y)).sum(-1, keepdim=True) + smallest * dy.abs().sum(-1, keepdim=True)
        y_error = saved * y + smallest
        bound = abs(scale) * (y_error * (dy - dot).abs() + (y + smallest) * dot_error)
        bound = bound + 2 * UNIT_ROUNDOFF[case.dtype] * dx.abs() + smallest
        # On CUDA eager rounds dy * y to the dtype before it subtracts.
        bound = bound + abs(scale) * (UNIT_ROUNDOFF[case.dtype] * (dy * y).abs() + smallest)
        if case.scale is not None:  # eager rounds the gradient once before the scale and once after it
            bound = bound + abs(scale) * smallest
        have = take(results["dx"], case, rows)
        if case.mask in ("causal", "boolean"):
            # What is masked off in a NaN row: eager's gradient is 0 there, a fused kernel's NaN; neither means a thing.
            blind = (z == float("-inf")) & y.isnan()
            have, dx = have.masked_fill(blind & ((have == 0) | have.isnan()), 0.0), dx.masked_fill(blind, 0.0)
            bound = bound.masked_fill(blind, smallest)
        _compare(case, accuracy, "dx", have, dx, bound, rows)


def _forward_bound(case: Case, z: torch.Tensor) -> torch.Tensor:
    """Relative bound of each y, (rows, n_cols): that of the case, and the rounding of the exponent.

    The exponent z - max is rounded in float32. Where a scale or an additive mask is applied first, eager rounds z
    itself to the dtype; that shifts this element's exponent and, through the sum, the others'.
    """
    top = z.amax(-1, keepdim=True)
    distance = (top - z).clamp(max=200).nan_to_num(0.0, 0.0, 0.0)  # beyond 200 the result is 0 in every dtype
    unit = UNIT_ROUNDOFF["float64" if case.dtype == "float64" else "float32"]
    bound = relative_tolerance(case) + 2 * unit * distance
    if case.scale is not None or case.mask == "additive":
        relevant = z.abs().nan_to_num(0.0, 0.0, 0.0).where(distance < 110, 0.0)
        steps = (case.scale is not None) + (case.mask == "additive")
        shift = 2 * steps * UNIT_ROUNDOFF[case.dtype] * (relevant + relevant.amax(-1, keepdim=True))
        bound = bound + shift.clamp(max=100).expm1()
    return bound


def _compare(
    case: Case,
    accuracy: Accuracy,
    name: str,
    have: torch.Tensor,
    want: torch.Tensor,
    bound: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    finite = have.isfinite() & want.isfinite()
    agree = finite | (have.isnan() & want.isnan()) | (have == want)
    n_mismatch = int((~agree).sum())
    accuracy.nonfinite_mismatch += n_mismatch
    error = (have - want).abs().where(finite, 0.0)
    excess = (error / bound).where(finite, 0.0)
    size = want.abs().where(finite, 0.0)
    exponent = size.clamp(min=2.0 ** MIN_EXPONENT[case.dtype]).log2().floor()
    normal = size >= 2.0 ** MIN_EXPONENT[case.dtype]
    accuracy.max_abs_error = max(accuracy.max_abs_error, float(error.max()))
    accuracy.max_rel_error = max(accuracy.max_rel_error, float((error / size).where(normal, 0.0).max()))
    ulp = (error / torch.exp2(exponent - EPS_BITS[case.dtype])).where(normal, 0.0)
    accuracy.max_ulp_error = max(accuracy.max_ulp_error, float(ulp.max()))
    worst, at = excess.flatten().max(0)
    accuracy.error_over_tolerance = max(accuracy.error_over_tolerance, float(worst))
    if accuracy.reason:
        return
    if n_mismatch:
        row, col = (int(i) for i in (~agree).nonzero()[0])
        what = f"{n_mismatch} elements of {name} differ in being finite, first"
    elif worst > 1:
        row, col = divmod(int(at), case.n_cols)
        what = f"{name} is off by {float(worst):.3g} times its tolerance, worst"
    else:
        return
    accuracy.reason = (
        f"{what} at row {int(rows[row])}, column {col}: {float(have[row, col]):.6g} "
        f"instead of {float(want[row, col]):.6g}"
    )
