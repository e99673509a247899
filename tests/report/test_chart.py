"""What charts draw, read back from their SVG."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from softmax_exp.report.chart import Line, Point, Style, boxes, legend, log_chart, log_ticks, short


def parsed(svg):
    return ET.fromstring(svg)


def lines_of(svg):
    """The vertices of every polyline, as numbers."""
    return [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in parsed(svg).iter("polyline")
    ]


def test_axes_are_logarithmic():
    points = [Point(128, 0.01), Point(512, 0.1), Point(2048, 1.0)]
    [line] = lines_of(log_chart("t", [Line("a", Style(0), points)], "x", "y", "d"))
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(line)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2) and steps[0][0] > 0 > steps[0][1]


def test_everything_drawn_lies_inside_the_picture():
    points = [Point(n, 0.04 + n / 1e6, 0.03, 0.09) for n in (64, 100, 8192, 262144)]
    svg = log_chart("t", [Line("limit", None, points[:1]), Line("a", Style(9), points)], "x", "y", "d")
    ys = [y for line in lines_of(svg) for _, y in line] + [
        float(t.get("y")) for t in parsed(svg).iter("text") if t.get("y")
    ]
    ys += [float(y) for y in re.findall(r"V([\d.]+)", svg)]
    assert all(0 <= y <= 290 for y in ys) and len(ys) > 10


def test_a_screen_reader_is_told_title_and_description():
    svg = parsed(
        log_chart("Latency & more", [Line("a", Style(0), [Point(1, 1, told="a: 1 ms")])], "x", "y", "from 1 to 2")
    )
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "Latency & more")
    assert [e.text for e in svg.iter("title")] == ["Latency & more", "a: 1 ms"] and svg.find(
        "desc"
    ).text == "from 1 to 2"


def test_intervals_are_drawn_where_they_are_wider_than_a_mark_is_high():
    wide, narrow = Point(1, 1.0, 0.5, 2.0), Point(2, 1.0, 0.9999, 1.0001)
    svg = log_chart("t", [Line("a", Style(0), [wide, narrow])], "x", "y", "d")
    [bars] = [e.get("d") for e in parsed(svg).iter("path") if e.get("class") == "bar"]
    assert bars.count("M") == 1


def test_figures_that_a_logarithm_cannot_show_are_left_out():
    svg = log_chart("t", [Line("a", Style(0), [Point(1, 0.0), Point(2, 1.0)])], "x", "y", "d")
    assert sum(e.get("class") == "mark" for e in parsed(svg).iter("path")) == 1
    assert "nothing to draw" in log_chart("t", [Line("a", Style(0), [Point(1, 0.0)])], "x", "y", "d")


@pytest.mark.parametrize(
    ("low", "high"), [(0.001, 1000.0), (0.5, 1.1), (3650.0, 4700.0), (0.0943, 0.0999), (1e-5, 2e-5), (7.0, 93.0)]
)
def test_ticks_are_few_round_and_within_the_range(low, high):
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 9 and ticks == sorted(set(ticks)) and low <= ticks[0] and ticks[-1] <= high
    assert all(len(f"{tick:.6e}".split("e")[0].rstrip("0.").replace(".", "")) <= 4 for tick in ticks)


def test_styles_of_series_differ_to_the_24th_and_by_sweep():
    assert len({(Style(n).css, Style(n).shape) for n in range(24)}) == 24
    assert Style(3, 0).css != Style(3, 1).css and Style(3, 0).shape == Style(3, 1).shape
    assert len({Style(n).shape for n in range(8)}) == 8


def test_a_legend_names_every_line():
    items = parsed(legend([Line("a <b>", Style(0)), Line("limit", None)])).findall("li")
    assert ["".join(item.itertext()) for item in items] == ["a <b>", "limit"]


def test_boxes_keep_order_and_outliers_inside():
    svg = parsed(boxes("t", [("a", Style(0), [-2.0, -1.0, 0.0, 1.0, 4.0], [0.0, 1.0, 900.0])], "%"))
    [box] = svg.iter("rect")
    left, width = float(box.get("x")), float(box.get("width"))
    [median] = [e for e in svg.iter("path") if e.get("class") == "median"]
    [rug] = [e for e in svg.iter("path") if (e.get("class") or "").startswith("rug")]
    assert left < float(re.search(r"M([\d.]+)", median.get("d"))[1]) < left + width
    assert rug.get("d").count("M") == 2  # the sample far beyond is not squeezed onto the edge


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (512, "512"),
        (65536, "65536"),
        (262144, "256Ki"),
        (1048576, "1Mi"),
        (151936, "151.9K"),
        (2e6, "2M"),
        (0.05, "0.05"),
    ],
)
def test_sizes_are_short(value, text):
    assert short(value) == text
