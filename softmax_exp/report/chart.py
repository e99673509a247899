"""Drawing in SVG: lines over logarithmic axes with intervals, and boxes of samples.

In: points, labels.  Out: `Html` with an accessible name; colours come from the page's style (`s0` to `s7`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from softmax_exp.report.html import Html, join, tag

N_STYLES = 8
_WIDTH, _HEIGHT = 420, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 12, 46
_MARKERS = (  # eight shapes, so that colour is never the only difference
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8 4.4 3.4H-4.4z",
    "M0-5 5 0 0 5-5 0z",
    "M0 4.8 4.4-3.4H-4.4z",
    "M-4.5-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
    "M-4.4-4.4h1.6v8.8h-1.6zM2.8-4.4h1.6v8.8h-1.6zM-2.8-1.2h5.6v2.4h-5.6z",
    "M-4-4 0-1 4-4 1 0 4 4 0 1-4 4-1 0z",
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
class Line:
    """The points of one series; `number` gives colour and shape, None a dashed line without marks."""

    label: str
    number: int | None
    points: list[Point] = field(default_factory=list)


def style_class(number: int) -> str:
    """The class of a series: its colour, and dashes from the ninth on."""
    return f"s{number % N_STYLES}" + (" again" if number >= N_STYLES else "")


def swatch(number: int | None) -> Html:
    """The mark of a series as it stands in a legend."""
    if number is None:
        drawn = tag("path", d="M-9 0h18", class_="limit")
    else:
        drawn = tag("path", d=_MARKERS[number % N_STYLES], class_=f"mark {style_class(number)}")
    return tag("svg", drawn, viewBox="-10 -7 20 14", class_="swatch", aria_hidden="true")


def legend(lines: Iterable[tuple[str, int | None]]) -> Html:
    """The names of lines beside their marks."""
    return tag("ul", *(tag("li", swatch(number), label) for label, number in lines), class_="legend")


def log_chart(title: str, lines: Sequence[Line], x_label: str, y_label: str, description: str) -> Html:
    """Lines over two logarithmic axes. `title` and `description` are what a screen reader is told.

    Points that are not above zero cannot be drawn and are left out.
    """
    drawn = [Line(line.label, line.number, [p for p in line.points if p.x > 0 and p.y > 0]) for line in lines]
    points = [point for line in drawn for point in line.points]
    if not points:
        return tag("p", "nothing to draw", class_="note")
    xs = sorted({point.x for point in points})
    ys = [value for p in points for value in (p.y, p.low, p.high) if value is not None and value > 0]
    x_at = _log_scale(xs, _LEFT + 14, _WIDTH - _RIGHT - 14)
    y_at = _log_scale(ys, _HEIGHT - _BOTTOM - 8, _TOP + 8)
    parts = [tag("title", title), tag("desc", description), _grid(xs, ys, x_at, y_at)]
    bottom = _HEIGHT - 6
    parts.append(tag("text", x_label, x=(_LEFT + _WIDTH - _RIGHT) // 2, y=bottom, class_="axis", text_anchor="middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) // 2
    parts.append(tag("text", y_label, transform=f"translate(12 {middle})rotate(-90)", class_="axis mid"))
    parts += [_line(line, x_at, y_at) for line in drawn]
    return tag("svg", *parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", class_="chart", aria_label=title)


def boxes(title: str, rows: Sequence[tuple[str, int, Sequence[float], Sequence[float]]], x_label: str) -> Html:
    """A box a row: (label, number, [p05, p25, median, p75, p95], samples), all in the unit of `x_label`."""
    values = [value for _, _, quantiles, _ in rows for value in quantiles]
    low, high = min([*values, 0.0]), max([*values, 0.0])
    margin = 0.06 * (high - low) or 1.0
    low, high = low - margin, high + margin
    row, top = 34, 8
    height = top + row * len(rows) + 44
    left, right = 12, _WIDTH - 12

    def at(value: float) -> float:
        return left + (right - left) * (min(max(value, low), high) - low) / (high - low)

    parts = [tag("title", title)]
    for mark in _linear_ticks(low, high):
        parts.append(tag("path", d=f"M{at(mark):.1f} {top}V{height - 40}", class_="grid"))
        parts.append(tag("text", f"{mark:g}", x=f"{at(mark):.1f}", y=height - 24, text_anchor="middle"))
    for index, (label, number, (p05, p25, p50, p75, p95), samples) in enumerate(rows):
        y = top + row * index + 24
        inside = sorted(sample for sample in samples if low <= sample <= high)
        style = style_class(number)
        parts.append(tag("text", label, x=left, y=y - 10, class_="name"))
        if inside:
            step = max(1, len(inside) // 80)
            marks = "".join(f"M{at(sample):.1f} {y - 6}v12" for sample in inside[::step])
            parts.append(tag("path", d=marks, class_=f"rug {style}"))
        parts.append(tag("path", d=f"M{at(p05):.1f} {y}H{at(p95):.1f}", class_=f"line {style}"))
        width = max(1.0, at(p75) - at(p25))
        parts.append(tag("rect", x=f"{at(p25):.1f}", y=y - 5, width=f"{width:.1f}", height=10, class_=f"box {style}"))
        parts.append(tag("path", d=f"M{at(p50):.1f} {y - 7}v14", class_="median"))
    parts.append(tag("text", x_label, x=_WIDTH // 2, y=height - 6, class_="axis", text_anchor="middle"))
    return tag("svg", *parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", class_="chart", aria_label=title)


def _line(line: Line, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> Html:
    path = " ".join(f"{x_at(p.x):.1f},{y_at(p.y):.1f}" for p in line.points)
    if line.number is None:
        return tag("polyline", points=path, class_="limit")
    style, shape = style_class(line.number), _MARKERS[line.number % N_STYLES]
    parts: list[Html] = [tag("polyline", points=path)] if len(line.points) > 1 else []
    bars = [
        f"M{x_at(p.x):.1f} {y_at(p.low):.1f}V{y_at(p.high):.1f}"
        for p in line.points
        if p.low is not None and p.high is not None and p.low > 0 and y_at(p.low) - y_at(p.high) > 1.5
    ]
    parts += [tag("path", d="".join(bars), class_="bar")] if bars else []
    for p in line.points:
        told = tag("title", p.told) if p.told else None
        parts.append(tag("path", told, d=shape, transform=f"translate({x_at(p.x):.1f} {y_at(p.y):.1f})", class_="mark"))
    return tag("g", *parts, class_=style)


def _grid(xs: list[float], ys: list[float], x_at: Callable[[float], float], y_at: Callable[[float], float]) -> Html:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [tag("rect", x=_LEFT, y=_TOP, width=right - _LEFT, height=bottom - _TOP, class_="frame")]
    for y in log_ticks(min(ys), max(ys)):
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
    """Three to about nine round marks between two positive figures, and just around them where they are close."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(i / 10 for i in range(10, 100))):
        marks = [float(f"{digit * 10.0**decade:.6g}") for decade in decades for digit in digits]
        inside = [mark for mark in marks if low * 0.9 <= mark <= high * 1.1]
        if len(inside) >= 4:
            return inside[:: max(1, len(inside) // 8)]
    return [float(f"{low:.3g}")] if low == high else [float(f"{low:.3g}"), float(f"{high:.3g}")]


def short(value: float) -> str:
    """A figure for an axis: up to 5 digits as they are, beyond with K and M, small ones with an exponent."""
    if value >= 1e6:
        return f"{value / 1e6:.4g}M"
    if value >= 1e5:
        return f"{value / 1e3:.4g}K"
    return f"{value:g}" if value >= 1e-3 else f"{value:.3g}"


def _log_scale(values: Iterable[float], start: float, end: float) -> Callable[[float], float]:
    logs = [math.log(value) for value in values]
    low, high = min(logs), max(logs)
    if high - low < 0.2:  # a range so small is given room, or noise would look like a cliff
        middle = (low + high) / 2
        low, high = middle - 0.1, middle + 0.1
    return lambda value: start + (end - start) * (math.log(value) - low) / (high - low)


def _linear_ticks(low: float, high: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 6)
    return [float(f"{i * step:.6g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
