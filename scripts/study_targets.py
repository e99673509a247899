"""What is asked of our kernels, and whether a study's records show it: a line for each case and dtype.

    python scripts/study_targets.py docs/results/study/records.jsonl

In: records of sweeps whose baseline is `triton`, so that each variant's speed-up and verdict are paired with ours.
Out: text. `must` has to hold, `goal` is tried for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from softmax_exp.records import Record, Status, read_records

OURS = "triton"
PEERS = {
    "eager": "e", "torch.compile": "c", "triton-simple": "s", "liger": "l", "flag_gems": "f", "quack": "q"
}  # fmt: skip
MARKS = {
    "slower": "",
    "same": "=",
    "not faster": "+",
    "unclear": "?",
    "faster": "!",
}  # by the verdict on the peer, ours being the baseline
OURS_IS = {
    "slower": "faster", "same": "level", "not faster": "faster or level", "unclear": "unclear", "faster": "slower"
}  # fmt: skip
MARGIN = 1.01  # of `same`, as in measure.margin_pct
MODES = {"forward": "fwd", "backward": "bwd", "full": "full"}
SHORT = {"float16": "f16", "bfloat16": "b16", "float32": "f32"}
HEAD = (
    "Per case: % of the limit, or times (x) the limit's or the unmasked time; [must goal], then goal or MISS if the\n"
    "goal or must is missed; and how many times as fast as e(ager), torch.c(ompile), triton-s(imple), l(iger),\n"
    "f(lag_gems), q(uack) triton is: = level, + faster or level, ? unclear, ! slower than that peer. best: the faster\n"
    "of e and c."
)


@dataclass(frozen=True)
class Target:
    """What is asked of one case: `must` and `goal` are for float16 and bfloat16, `must_f32` for float32."""

    shape: tuple[int, ...]
    must: float
    goal: float
    mode: str = "forward"
    mask: str = "none"
    kind: str = "% of limit"
    must_f32: float | None = None
    must_best: float | None = None
    goal_best: float | None = None
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")


def _rows(must: float, goal: float, *shapes: tuple[int, ...], **more) -> list[Target]:
    return [Target(shape, must, goal, **more) for shape in shapes]


S512, S2048, S32768 = (16, 12, 512, 512), (8, 12, 2048, 2048), (8192, 32768)
LONG = {"must_best": 1.4, "goal_best": 1.7}
TARGETS = [
    *_rows(97, 99, S512, (8, 12, 1024, 1024), S2048, (8, 12, 4096, 4096), (32768, 8192), (16384, 16384)),
    *_rows(96, 98, S32768),
    *_rows(95, 99, (262144, 1000)),
    *_rows(90, 97, (221184, 1185), (65536, 4097), (21845, 12289)),
    *_rows(88, 95, (8, 12, 128, 128), (8, 12, 256, 256)),
    *_rows(95, 99, S512, S2048, S32768, mode="backward"),
    *_rows(95, 99, S512, S2048, S32768, mode="full"),
    *_rows(0.82, 0.76, S2048, mask="causal", kind="x unmasked"),
    *_rows(1.06, 1.01, S2048, mask="additive", kind="x unmasked", dtypes=("float16",)),
    Target((4096, 65536), 95, 98, must_f32=95, **LONG),
    Target((2048, 131072), 93, 98, must_f32=94, **LONG),
    Target((1024, 262144), 88, 96, must_f32=93, **LONG),
    Target((256, 1048576), 80, 92, must_f32=85, **LONG),
    Target((64, 4194304), 75, 90, must_f32=75, **LONG),
    *_rows(85, 95, (4096, 65536), (2048, 131072), (1024, 262144), mode="backward"),
    *_rows(2.0, 1.3, *((n, cols) for cols in (131072, 1048576) for n in (1, 4, 16)), kind="x limit"),
]

Case = tuple[tuple[int, ...], str, str, str]
Cells = dict[tuple[Case, str], dict[str, Record]]


def cells_of(records: Iterable[Record]) -> Cells:
    """Records by variant, of each case and sweep; under the sweep "" of the one that measured most of a case."""
    found: Cells = {}
    for r in records:
        found.setdefault(((tuple(r.shape), r.dtype, r.mode, r.mask), r.sweep_id), {})[r.variant] = r
    for (case, _), variants in list(found.items()):
        if _weight(variants) > _weight(found.get((case, ""), {})):
            found[case, ""] = variants
    return found


def _weight(variants: dict[str, Record]) -> tuple[bool, int]:
    return _ms(variants) is not None, len(variants)


def _ms(variants: dict[str, Record]) -> float | None:
    ours = variants.get(OURS)
    return ours.device_ms if ours is not None and ours.status is Status.PASSED else None


def figure_of(target: Target, dtype: str, cells: Cells) -> float | None:
    """The figure that a target is about; None where it was not measured."""
    variants = cells.get(((target.shape, dtype, target.mode, target.mask), ""), {})
    ms = _ms(variants)
    if ms is None:
        return None
    if target.kind == "x unmasked":
        sweep = variants[OURS].sweep_id
        unmasked = _ms(cells.get(((target.shape, dtype, target.mode, "none"), sweep), {}))
        return ms / unmasked if unmasked else None
    pct = variants[OURS].pct_of_limit
    return pct if pct is None or target.kind == "% of limit" else 100 / pct


def against(variants: dict[str, Record]) -> dict[str, tuple[float, str]]:
    """By peer: how many times as fast ours is, from paired rounds, and the verdict on the peer.

    `not faster`: an unclear verdict whose interval lies wholly within slower and same.
    """
    found = {}
    for name in PEERS:
        peer = variants.get(name)
        if peer is not None and peer.baseline == OURS and peer.speedup and peer.verdict:
            not_faster = peer.verdict == "unclear" and (peer.speedup_ci_high or math.inf) <= MARGIN
            found[name] = 1 / peer.speedup, "not faster" if not_faster else peer.verdict
    return found


def peers_of(case: Case, cells: Cells) -> dict[str, tuple[float, str]]:
    """As `against`, from all sweeps that measured the case; where two had a peer, from the one with more variants."""
    sweeps = [variants for (each, _), variants in cells.items() if each == case]
    found = {}
    for variants in sorted(sweeps, key=_weight):
        found |= against(variants)
    return found


def lines(records: Iterable[Record]) -> Iterator[str]:
    """The table and its counts."""
    cells = cells_of(records)
    yield HEAD
    n = n_must = n_goal = n_missing = 0
    verdicts = dict.fromkeys(MARKS, 0)
    for target in TARGETS:
        for dtype in target.dtypes:
            variants = cells.get(((target.shape, dtype, target.mode, target.mask), ""), {})
            title = f"{'x'.join(map(str, target.shape))} {SHORT[dtype]} {MODES[target.mode]}"
            title += f" {target.mask}" if target.mask != "none" else ""
            figure = figure_of(target, dtype, cells)
            if figure is None:
                n_missing += 1
                yield f"{title:30} not measured {_why(variants)}".rstrip()
                continue
            n += 1
            must = target.must_f32 if dtype == "float32" and target.must_f32 is not None else target.must
            sign = 1 if target.kind == "% of limit" else -1
            peers = peers_of((target.shape, dtype, target.mode, target.mask), cells)
            best = min((peers[name][0] for name in ("eager", "torch.compile") if name in peers), default=None)
            holds = [sign * figure >= sign * wanted for wanted in (must, target.goal)]
            if target.must_best is not None and target.goal_best is not None:
                holds = [ok and best is not None and best >= wanted
                         for ok, wanted in zip(holds, (target.must_best, target.goal_best), strict=True)]  # fmt: skip
            n_must, n_goal = n_must + holds[0], n_goal + holds[1]
            for _, verdict in peers.values():
                verdicts[verdict] += 1
            mark = "" if holds[1] else "goal" if holds[0] else "MISS"
            shown = f"{figure:.1f}" if sign > 0 else f"{figure:.2f}x"
            compared = " ".join(f"{PEERS[name]}{ratio:.2f}{MARKS[word]}" for name, (ratio, word) in peers.items())
            best_text = (
                f" best {best:.2f} [{target.must_best:g} {target.goal_best:g}]" if target.must_best and best else ""
            )
            yield f"{title:30} {shown:>5} [{must:g} {target.goal:g}] {mark:4} {compared}{best_text}".rstrip()
    yield f"{n} measured, {n_missing} not: must holds in {n_must}, goal in {n_goal}."
    counts = ", ".join(f"{word} {verdicts[verdict]}" for verdict, word in OURS_IS.items())
    yield f"Against peers, {sum(verdicts.values())} pairs: triton is {counts}."


def _why(variants: dict[str, Record]) -> str:
    ours = variants.get(OURS)
    return f"({ours.status})" if ours is not None and ours.status is not Status.PASSED else ""


def main() -> None:
    """Print the table of a file of records."""
    for line in lines([r for path in sys.argv[1:] for r in read_records(Path(path))]):
        print(line)


if __name__ == "__main__":
    main()
