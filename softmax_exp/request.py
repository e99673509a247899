"""What the measuring process is asked for: a case, variants, and how to measure them. Known without torch.

In: plain JSON values, as they come over a pipe.  Out: a `Request`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings


@dataclass
class Request:
    """What to measure. `variant_args` are keyword arguments of each variant's `build`, by variant."""

    case: Case
    variants: Sequence[str]
    settings: MeasureSettings = MeasureSettings()
    variant_args: dict[str, dict[str, Any]] = field(default_factory=dict)
    baseline: str | None = "eager"
    interpreted: bool = False
    """Whether Triton's interpreter runs the Triton variants on the CPU: checked then, never timed."""

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Request:
        """The request that `to_json` described, for this process."""
        case, settings = Case.from_dict(fields["case"]), MeasureSettings(**fields["settings"])
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return Request(**fields | {"case": case, "settings": settings}, interpreted=interpreted)


def to_json(case: Case, variants: Sequence[str], settings: MeasureSettings, **more: Any) -> dict[str, Any]:
    """A request as JSON values, for `Worker.measure`."""
    return {"case": case.to_dict(), "variants": list(variants), "settings": dataclasses.asdict(settings), **more}
