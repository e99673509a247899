"""The pictures of a report: latency, rate and error as charts; limit, speed-up and launch cost as heat maps.

In: panels.  Out: sections of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from softmax_exp.ranking import ms_of, on_device_clock
from softmax_exp.records import Record, Status
from softmax_exp.report.chart import Line, Point, Style, legend, log_chart, short
from softmax_exp.report.html import Html, tag
from softmax_exp.report.panels import Panel
from softmax_exp.report.words import figure, latency

MAX_PANELS = 36  # pictures of one kind; the rest stands in the tables
_OPEN_PANELS = 9
_SHORT_STATUS = {"UNSUPPORTED": "unsup.", "INCORRECT": "wrong"}


def latencies(panels: list[Panel]) -> Html:
    """Latency against size, a chart a panel."""

    def draw(panel: Panel) -> Html:
        lines = _lines(panel, _ms, lambda r: (r.device_ms_ci_low, r.device_ms_ci_high), latency)
        limits = {r.n_cols: r.limit_ms for r in panel.records if r.limit_ms is not None}
        if limits:
            lines.insert(0, Line("limit", None, [Point(x, y) for x, y in sorted(limits.items())]))
        clock = "GPU" if any(on_device_clock(record) for record in panel.records) else "host"
        title = f"Latency against row length, {panel.title}"
        return _figure(panel, lines, log_chart(title, lines, "row length (n_cols)", f"{clock} ms", _spoken(lines)))

    return _grid(panels, lambda panel: any(_ms(r) is not None for r in panel.records), draw)


def rates(panels: list[Panel]) -> Html:
    """The least bytes by the latency against size, where differences show that are small on the scale of latencies."""

    def draw(panel: Panel) -> Html:
        lines = _lines(panel, _gbps, lambda r: (None, None), lambda y: f"{y:.0f} GB/s")
        limits = {r.n_cols: r.limit_gbps for r in panel.records if r.limit_gbps is not None}
        if limits:
            lines.insert(0, Line("limit", None, [Point(x, y) for x, y in sorted(limits.items())]))
        title = f"Rate against row length, {panel.title}"
        return _figure(panel, lines, log_chart(title, lines, "row length (n_cols)", "GB/s", _spoken(lines)))

    return _grid(panels, lambda panel: any(_gbps(r) is not None for r in panel.records), draw)


def errors(panels: list[Panel]) -> Html:
    """The largest error as a multiple of its tolerance, against size."""

    def draw(panel: Panel) -> Html:
        lines = _lines(panel, _excess, lambda r: (None, None), lambda y: f"{y:.3g} x tolerance")
        lines.insert(0, Line("tolerance", None, [Point(x, 1.0) for x in panel.sizes]))
        title = f"Error against row length, {panel.title}"
        return _figure(
            panel, lines, log_chart(title, lines, "row length (n_cols)", "error / tolerance", _spoken(lines))
        )

    return _grid(panels, lambda panel: any(_excess(r) for r in panel.records), draw)


def limits(panels: list[Panel]) -> Html:
    """Heat maps of the percentage of the limit."""
    return _heat_maps(
        panels, "% of the limit", lambda r: r.pct_of_limit, lambda v: f"{v:.0f}", lambda v: ("good", min(v, 100.0))
    )


def speedups(panels: list[Panel]) -> Html:
    """Heat maps of the speed-up over the baseline; factors of four and more have the full colour."""

    def colour(value: float) -> tuple[str, float]:
        return "good" if value >= 1 else "bad", min(100.0, 50 * abs(math.log2(value)))

    return _heat_maps(
        panels, "speed-up", lambda r: r.speedup or None, lambda v: f"{v:.2f}" if v < 9.995 else f"{v:.1f}", colour
    )


def launch_costs(panels: list[Panel]) -> Html:
    """Heat maps of the host's time until a call returns, as a multiple of the GPU's time for it."""

    def ratio(record: Record) -> float | None:
        if not on_device_clock(record) or not record.device_ms or not record.host_return_us:
            return None
        return record.host_return_us / (1e3 * record.device_ms)

    def colour(value: float) -> tuple[str, float]:
        return ("bad", min(100.0, 20 + 30 * math.log10(value))) if value > 1 else ("good", 0.0)

    return _heat_maps(panels, "host / GPU time", ratio, lambda v: f"{v:.2g}" if v < 100 else f"{v:.0f}", colour)


def _lines(
    panel: Panel,
    value: Callable[[Record], float | None],
    interval: Callable[[Record], tuple[float | None, float | None]],
    told: Callable[[float], str],
) -> list[Line]:
    lines = []
    for series in panel.series:
        points = []
        for record in series.records:
            y = value(record)
            if y is not None:
                text = f"{series.label}, {record.n_cols} columns: {told(y)}"
                points.append(Point(record.n_cols, y, *interval(record), told=text))
        if points:
            lines.append(Line(series.label, Style(series.number, series.sweep), points))
    return lines


def _ms(record: Record) -> float | None:
    return ms_of(record) if record.status is Status.PASSED else None


def _gbps(record: Record) -> float | None:
    return record.gbps if record.status is Status.PASSED else None


def _excess(record: Record) -> float | None:
    return record.error_over_tolerance


def _spoken(lines: list[Line]) -> str:
    """What a chart shows, for those who do not see it."""
    parts = []
    for line in lines:
        if line.points:
            ends = [line.points[0], line.points[-1]] if len(line.points) > 1 else line.points
            parts.append(f"{line.label}: " + " to ".join(f"{figure(p.y, 3)} at {short(p.x)}" for p in ends))
    return "; ".join(parts)


def _figure(panel: Panel, lines: list[Line], drawn: Html) -> Html:
    ordered = sorted(lines, key=lambda line: line.style is None)
    return tag("figure", tag("figcaption", panel.title), drawn, legend(ordered))


def _grid(panels: list[Panel], has: Callable[[Panel], bool], draw: Callable[[Panel], Html]) -> Html:
    worth = [panel for panel in panels if has(panel)]
    if not worth:
        return tag("p", "Nothing of this was measured.", class_="note")
    parts = [tag("div", *(draw(panel) for panel in worth[:_OPEN_PANELS]), class_="grid-of-figures")]
    more = worth[_OPEN_PANELS:MAX_PANELS]
    if more:
        drawn = tag("div", *(draw(panel) for panel in more), class_="grid-of-figures")
        parts.append(tag("details", tag("summary", f"{len(more)} more groups of cases"), drawn))
    if len(worth) > MAX_PANELS:
        rest = f"{len(worth) - MAX_PANELS} smaller groups of cases are not drawn; their figures are in the CSV file."
        parts.append(tag("p", rest, class_="note"))
    return tag("div", *parts)


def _heat_maps(
    panels: list[Panel],
    name: str,
    value: Callable[[Record], float | None],
    written: Callable[[float], str],
    colour: Callable[[float], tuple[str, float]],
) -> Html:
    def cell(record: Record | None) -> Html:
        if record is None:
            return tag("td")
        if record.status is not Status.PASSED:
            word = _SHORT_STATUS.get(record.status, record.status.lower())
            return tag("td", word, class_="off")
        figure_ = value(record)
        if figure_ is None:
            return tag("td", "-", class_="off")
        kind, percent = colour(figure_)
        return tag("td", written(figure_), class_=kind, style=f"--p:{percent:.0f}%")

    def draw(panel: Panel) -> Html:
        sizes = panel.sizes
        head = tag("tr", tag("th", name, scope="col"), *(tag("th", short(n), scope="col") for n in sizes))
        rows = []
        for series in panel.series:
            at = {record.n_cols: record for record in series.records}
            rows.append(tag("tr", tag("th", series.label, scope="row"), *(cell(at.get(n)) for n in sizes)))
        caption = f"{panel.title}: {name} by row length"
        table = tag("table", tag("caption", panel.title), tag("thead", head), tag("tbody", *rows), class_="heat")
        return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)

    return _grid(panels, lambda panel: any(value(r) is not None for r in panel.records), draw)
