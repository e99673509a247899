"""Drawing in SVG: lines over logarithmic axes with intervals, and boxes of samples.

In: points, labels.  Out: `Html` with an accessible name; colours come from the page's style (`s0` to `s7`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from softmax_exp.report.html import Html, join, tag

N_STYLES = 8
N_PATTERNS = 3
_WIDTH, _HEIGHT = 420, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 10, 12, 46
_MARKERS = (  # eight shapes, so that colour is never the only difference
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8 4.4 3.4H-4.4z",
    "M0-5 5 0 0 5-5 0z",
    "M0 4.8 4.4-3.4H-4.4z",
    "M-4.5-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
    "M0-2.1 2.8-4.9 4.9-2.8 2.1 0 4.9 2.8 2.8 4.9 0 2.1-2.8 4.9-4.9 2.8-2.1 0-4.9-2.8-2.8-4.9z",
    "M0-5.2 1.3-1.7 5-1.6 2.1.7 3.1 4.3 0 2.2-3.1 4.3-2.1.7-5-1.6-1.3-1.7z",
)


@dataclass(frozen=True)
class Point:
    """One figure: y at x, its interval where it is known, and what a pointer resting on it is told."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    told: str = ""


@dataclass(frozen=True)
class Style:
    """How a series is drawn: colour and shape by its variant's number, filled and dashed by its sweep's."""

    number: int
    sweep: int = 0

    @property
    def css(self) -> str:
        """Its classes."""
        return f"s{self.number % N_STYLES} p{(self.sweep + self.number // N_STYLES) % N_PATTERNS}"

    @property
    def shape(self) -> str:
        """The path of its mark around the origin."""
        return _MARKERS[self.number % N_STYLES]


@dataclass(frozen=True)
class Line:
    """The points of one series; without a style it is a dashed line without marks."""

    label: str
    style: Style | None
    points: list[Point] = field(default_factory=list)


def legend(lines: Iterable[Line]) -> Html:
    """The names of lines beside their marks."""
    items = []
    for line in lines:
        drawn = [tag("path", d="M-10 0h20", class_="limit" if line.style is None else "line")]
        drawn += [tag("path", d=line.style.shape, class_="mark")] if line.style else []
        group = tag("g", *drawn, class_=line.style.css if line.style else None)
        items.append(
            tag("li", tag("svg", group, viewBox="-11 -7 22 14", class_="swatch", aria_hidden="true"), line.label)
        )
    return tag("ul", *items, class_="legend")


def log_chart(title: str, lines: Sequence[Line], x_label: str, y_label: str, description: str) -> Html:
    """Lines over two logarithmic axes. `title` and `description` are what a screen reader is told.

    Points that are not above zero cannot be drawn and are left out.
    """
    drawn = [Line(line.label, line.style, [p for p in line.points if p.x > 0 and p.y > 0]) for line in lines]
    points = [point for line in drawn for point in line.points]
    if not points:
        return tag("p", "nothing to draw", class_="note")
    xs = sorted({point.x for point in points})
    ys = [value for p in points for value in (p.y, p.low, p.high) if value is not None and value > 0]
    x_at = _log_scale(*_room(xs, 0.05), _LEFT, _WIDTH - _RIGHT)
    y_range = _room(ys, 0.05)
    y_at = _log_scale(*y_range, _HEIGHT - _BOTTOM, _TOP)
    parts = [tag("title", title), tag("desc", description), _grid(xs, y_range, x_at, y_at)]
    bottom = _HEIGHT - 6
    parts.append(tag("text", x_label, x=(_LEFT + _WIDTH - _RIGHT) // 2, y=bottom, class_="axis", text_anchor="middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) // 2
    parts.append(tag("text", y_label, transform=f"translate(12 {middle})rotate(-90)", class_="axis mid"))
    parts += [_line(line, x_at, y_at) for line in drawn]
    return tag("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", class_="chart", aria_label=title)


def boxes(title: str, rows: Sequence[tuple[str, Style, Sequence[float], Sequence[float]]], x_label: str) -> Html:
    """A box a row: (label, style, [p05, p25, median, p75, p95], samples), all in the unit of `x_label`."""
    values = [value for _, _, quantiles, _ in rows for value in quantiles]
    low, high = min([*values, 0.0]), max([*values, 0.0])
    margin = 0.06 * (high - low) or 1.0
    low, high = low - margin, high + margin
    row, top = 38, 8
    height = top + row * len(rows) + 44
    left, right = 12, _WIDTH - 12

    def at(value: float) -> float:
        return left + (right - left) * (min(max(value, low), high) - low) / (high - low)

    parts = [tag("title", title)]
    for mark in _linear_ticks(low, high):
        parts.append(tag("path", d=f"M{at(mark):.1f} {top}V{height - 40}", class_="grid"))
        parts.append(tag("text", f"{mark:g}", x=f"{at(mark):.1f}", y=height - 24, text_anchor="middle"))
    for index, (label, style, (p05, p25, p50, p75, p95), samples) in enumerate(rows):
        y = top + row * index + 27
        inside = sorted(sample for sample in samples if low <= sample <= high)
        parts.append(tag("text", label, x=left, y=y - 12, class_="name"))
        if inside:
            step = max(1, len(inside) // 80)
            marks = "".join(f"M{at(sample):.1f} {y - 6}v12" for sample in inside[::step])
            parts.append(tag("path", d=marks, class_=f"rug {style.css}"))
        parts.append(tag("path", d=f"M{at(p05):.1f} {y}H{at(p95):.1f}", class_=f"line {style.css}"))
        width = max(1.0, at(p75) - at(p25))
        parts.append(
            tag("rect", x=f"{at(p25):.1f}", y=y - 5, width=f"{width:.1f}", height=10, class_=f"box {style.css}")
        )
        parts.append(tag("path", d=f"M{at(p50):.1f} {y - 7}v14", class_="median"))
    parts.append(tag("text", x_label, x=_WIDTH // 2, y=height - 6, class_="axis", text_anchor="middle"))
    return tag("svg", *parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", class_="chart", aria_label=title)


def _line(line: Line, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> Html:
    path = " ".join(f"{x_at(p.x):.1f},{y_at(p.y):.1f}" for p in line.points)
    if line.style is None:
        if len(line.points) == 1:
            path = " ".join(f"{x_at(line.points[0].x) + side:.1f},{y_at(line.points[0].y):.1f}" for side in (-60, 60))
        return tag("polyline", points=path, class_="limit")
    parts: list[Html] = [tag("polyline", points=path)] if len(line.points) > 1 else []
    bars = [
        f"M{x_at(p.x):.1f} {y_at(p.low):.1f}V{y_at(p.high):.1f}"
        for p in line.points
        if p.low is not None and p.high is not None and p.low > 0 and y_at(p.low) - y_at(p.high) > 1.5
    ]
    parts += [tag("path", d="".join(bars), class_="bar")] if bars else []
    for p in line.points:
        told = tag("title", p.told) if p.told else None
        parts.append(
            tag(
                "path", told, d=line.style.shape, transform=f"translate({x_at(p.x):.1f} {y_at(p.y):.1f})", class_="mark"
            )
        )
    return tag("g", *parts, class_=line.style.css)


def _grid(
    xs: list[float], y_range: tuple[float, float], x_at: Callable[[float], float], y_at: Callable[[float], float]
) -> Html:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [tag("rect", x=_LEFT, y=_TOP, width=right - _LEFT, height=bottom - _TOP, class_="frame")]
    for y in log_ticks(*y_range):
        parts.append(tag("path", d=f"M{_LEFT} {y_at(y):.1f}H{right}", class_="grid"))
        parts.append(tag("text", short(y), x=_LEFT - 5, y=f"{y_at(y) + 4:.1f}", text_anchor="end"))
    free = -math.inf
    for x in xs:
        text, at = short(x), x_at(x)
        half = 3.6 * len(text)
        if at - half > free + 4:
            parts.append(tag("text", text, x=f"{at:.1f}", y=bottom + 17, text_anchor="middle"))
            parts.append(tag("path", d=f"M{at:.1f} {bottom}v4", class_="grid"))
            free = at + half
    return join(parts)


def log_ticks(low: float, high: float) -> list[float]:
    """Round marks between two positive figures: powers of ten or parts of them, evenly spaced ones in a small range."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5)):
        marks = [float(f"{digit * 10.0**decade:.6g}") for decade in decades for digit in digits]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) >= 4:
            return inside[:: math.ceil(len(inside) / 9)]
    return [mark for mark in _linear_ticks(low, high) if mark > 0]


def short(value: float) -> str:
    """A figure for an axis: up to 5 digits as they are, beyond with K and M (Ki and Mi for powers of two)."""
    if value >= 1e5 and math.log2(value).is_integer():
        return f"{value / 2**20:g}Mi" if value >= 2**20 else f"{value / 2**10:g}Ki"
    if value >= 1e6:
        return f"{value / 1e6:.4g}M"
    if value >= 1e5:
        return f"{value / 1e3:.4g}K"
    return f"{value:g}" if value >= 1e-3 else f"{value:.3g}"


def _room(values: Iterable[float], part: float) -> tuple[float, float]:
    """The range of positive figures with room around it; at least a factor of 1.2, or noise would look like a cliff."""
    logs = [math.log(value) for value in values]
    missing = max(0.0, math.log(1.2) - (max(logs) - min(logs))) / 2
    low, high = min(logs) - missing, max(logs) + missing
    return math.exp(low - part * (high - low)), math.exp(high + part * (high - low))


def _log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)


def _linear_ticks(low: float, high: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 6)
    return [float(f"{i * step:.6g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
