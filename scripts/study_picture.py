"""The README's picture: rate against row length, a chart for each dtype and mode, as an SVG file of its own.

    python scripts/study_picture.py docs/results/study/records.jsonl docs/study.svg

In: records.  Out: an SVG with its own colours, light and dark; the charts are the report's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from softmax_exp.records import Record, Status, read_records
from softmax_exp.report.chart import Line, Point, Style, log_chart
from softmax_exp.report.html import Html, join, tag
from softmax_exp.report.style import CSS

CHARTS = (("float16", "forward"), ("float32", "forward"), ("float16", "backward"), ("float16", "full"))
VARIANTS = ("triton", "torch.compile", "eager", "triton-simple", "liger", "flag_gems", "quack")
MIN_BYTES = 1 << 20  # below, a launch decides and no rate
WIDTH, HEIGHT, HEAD = 430, 320, 26
_MORE = "text{font-family:system-ui,sans-serif}.paper{fill:var(--paper)}"


def picture(records: Iterable[Record]) -> str:
    """The picture; empty where nothing of it was measured."""
    found = list(records)
    charts = [chart for kind in CHARTS if (chart := _chart(found, *kind)) is not None]
    if not charts:
        return ""
    n_columns = min(2, len(charts))
    width, n_rows = n_columns * WIDTH, -(-len(charts) // n_columns)
    shown = [name for name in VARIANTS if any(name in names for _, names in charts)]
    parts = [tag("rect", width=width, height=n_rows * HEIGHT + HEAD, class_="paper")]
    for number, (drawn, _) in enumerate(charts):
        x, y = number % n_columns * WIDTH, number // n_columns * HEIGHT + HEAD
        parts.append(tag("g", drawn, transform=f"translate({x} {y})"))
    return tag(
        "svg",
        tag("title", "Rate of softmax against row length"),
        tag("style", Html(CSS + _MORE)),
        *parts,
        _legend(shown, width),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {n_rows * HEIGHT + HEAD}",
        role="img",
    ) + "\n"  # fmt: skip


def _chart(records: list[Record], dtype: str, mode: str) -> tuple[Html, list[str]] | None:
    """One chart and the variants in it; of cases with one row length the one that moves the most bytes.

    Powers of two alone: a line through the lengths beside them would fall and rise again.
    """
    plain = [
        r for r in records
        if (r.dtype, r.mode, r.mask, r.layout, r.distribution) == (dtype, mode, "none", "contiguous", "normal")
        and r.status is Status.PASSED and r.gbps and (r.least_bytes or 0) >= MIN_BYTES and r.seq_q != 1
        and r.n_cols & (r.n_cols - 1) == 0
    ]  # fmt: skip
    largest = {r.n_cols: max(o.least_bytes or 0 for o in plain if o.n_cols == r.n_cols) for r in plain}
    chosen = {(r.variant, r.n_cols): r for r in plain if r.least_bytes == largest[r.n_cols]}
    lines = []
    limits = {r.n_cols: r.limit_gbps for r in chosen.values() if r.limit_gbps}
    if limits:
        lines.append(Line("limit", None, [Point(x, y) for x, y in sorted(limits.items())]))
    for number, name in reversed([*enumerate(VARIANTS)]):  # the first on top
        points = [Point(n, r.gbps or 0.0) for (variant, n), r in sorted(chosen.items()) if variant == name]
        if points:
            lines.append(Line(name, Style(number), points))
    names = [line.label for line in lines if line.style is not None]
    if not names:
        return None
    title = f"{mode}, {dtype}"
    drawn = log_chart(title, lines, "row length (columns; powers of two)", "GB/s", "")
    drawn = Html(drawn.replace("<svg ", f'<svg width="{WIDTH - 10}" height="{HEIGHT - 30}" y="22" ', 1))
    return join([tag("text", title, x=60, y=16, class_="name"), drawn]), names


def _legend(names: list[str], width: int) -> Html:
    room = [30 + 7 * len(name) for name in (*names, "limit")]
    gap = (width - 20 - sum(room)) / len(room)
    items = []
    for place, name in enumerate([*names, "limit"]):
        style = None if name == "limit" else Style(VARIANTS.index(name))
        marks = [tag("path", d="M-11 0h22", class_="limit" if style is None else "line")]
        marks += [tag("path", d=style.shape, class_="mark")] if style else []
        text, x = tag("text", name, x=16, y=4), 20 + sum(room[:place]) + place * gap
        items.append(tag("g", *marks, text, class_=style and style.css, transform=f"translate({x:.0f} 14)"))
    return join(items)


def main() -> None:
    """Draw a file of records."""
    source, target = map(Path, sys.argv[1:])
    drawn = picture(read_records(source))
    if not drawn:
        sys.exit(f"{source} holds nothing that this picture shows")
    target.write_text(drawn)


if __name__ == "__main__":
    main()
