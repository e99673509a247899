"""Errors beside eager's: in which cases a variant is right, and yet more than twice as far off as `torch.softmax`.

In: records of one sweep; the cells of one case belong together.  Out: for each variant and mode how many cells were
compared, and those that are worse. Both errors are against the same float64 reference, of the same input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from softmax_exp.records import Record, Status

EAGER = "eager"
FACTOR = 2.0
HALF_AN_ULP = 0.5 + 1e-6  # nobody can be nearer than the nearest number; the rest is the reference's own rounding
CASE = ("shape", "dtype", "mode", "mask", "scale", "distribution", "layout", "seed", "device")


@dataclass
class Beside:
    """The cells of one variant and mode that were compared with eager's, and the `worse` ones with eager's record."""

    variant: str
    mode: str
    n_compared: int = 0
    n_incorrect: int = 0
    worse: list[tuple[Record, Record]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        found = f"{len(self.worse)} with more than {FACTOR:g} x eager's largest error"
        wrong = f", {self.n_incorrect} INCORRECT" if self.n_incorrect else ""
        return f"{self.variant}, {self.mode}: {self.n_compared} cells beside eager's, {found}{wrong}."


def beside_eager(records: list[Record]) -> list[Beside]:
    """What each variant's errors are beside eager's, by mode. Only cells where eager PASSED are compared."""
    cases: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        cases[repr([getattr(record, name) for name in CASE])][record.variant] = record
    found: dict[tuple[str, str], Beside] = {}
    for cells in cases.values():
        eager = cells.get(EAGER)
        if eager is None or eager.status is not Status.PASSED:
            continue
        for variant, record in cells.items():
            if variant != EAGER and record.status in (Status.PASSED, Status.INCORRECT):
                of_mode = found.setdefault((variant, record.mode), Beside(variant, record.mode))
                of_mode.n_compared += 1
                of_mode.n_incorrect += record.status is Status.INCORRECT
                if is_worse(record, eager):
                    of_mode.worse.append((record, eager))
    return list(found.values())


def is_worse(record: Record, eager: Record) -> bool:
    """Whether a largest error is more than twice eager's, unless all results are the nearest numbers of the dtype."""
    if record.max_abs_error is None or eager.max_abs_error is None:
        return True  # its result was of the wrong form
    nearest = record.max_ulp_error is not None and record.max_ulp_error <= HALF_AN_ULP
    return record.max_abs_error > FACTOR * eager.max_abs_error and not (nearest and record.status is Status.PASSED)


def told(found: list[Beside], most: int = 10) -> Iterator[tuple[str, list[str]]]:
    """Each finding as a sentence, and its cells that are right and yet worse, the worst first."""
    for each in found:
        right = [pair for pair in each.worse if pair[0].status is Status.PASSED]
        right.sort(key=lambda pair: -(pair[0].error_over_tolerance or 0.0))
        cells = [
            f"{record.title} {record.distribution} {record.layout}: "
            f"{record.max_abs_error:.3g} against {eager.max_abs_error:.3g}"
            for record, eager in right[:most]
        ]
        yield each.text, cells + ([f"and {len(right) - most} more"] if len(right) > most else [])
