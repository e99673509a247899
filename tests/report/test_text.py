"""Markdown and CSV: right figures, and no name that becomes markup, a link or a formula."""

import csv
import io

import pytest

from softmax_exp.records import Status
from softmax_exp.report.text import escape, markdown, spreadsheet, table
from softmax_exp.results import Results
from tests import made_up


def test_the_markdown_has_verdict_table_and_failures():
    text = markdown([Results("s", made_up.records(), environments={"": made_up.ENVIRONMENT})])
    assert text.startswith("### softmax\\_exp s\n\nFastest: triton in 3".replace("softmax\\_exp", "softmax_exp"))
    assert "NVIDIA H200, torch 2.11.0, triton 3.6.0" in text
    assert "| 8x12x512x512 float16 forward | triton | 27.26 us | 40.06 us | 1.54 | 98.5 | PASSED |" in text
    assert "- INCORRECT triton-simple, 8x12x2048x2048 float16 forward: error 0.25 &gt; 1.2e-04" in text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("[x](http://e.vil)", "\\[x\\](http:\u2060//e.vil)"),
        ("**b** `c` _d_", r"\*\*b\*\* \`c\` \_d\_"),
        ("a\n\n# b\r- c", r"a \# b - c"),
        ("@all &amp; \\|", "@\u2060all &amp;amp; \\\\\\|"),
    ],
)
def test_markdown_shows_text_as_it_stands(hostile, shown):
    assert escape(hostile) == shown


def test_a_table_keeps_its_columns():
    text = table(("a", "b"), [("x | y", "line\nbreak")])
    assert [line.replace("\\|", "").count("|") for line in text.splitlines()] == [3, 3, 3]


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n=1"])
def test_text_that_would_be_a_formula_is_text(formula):
    cell = made_up.failed(0, formula, 128, Status.ERROR, formula)
    [row] = csv.DictReader(io.StringIO(spreadsheet([Results("s", [cell])]), newline=""))
    assert row["variant"] == "'" + formula and row["message"] == "'" + formula


def test_the_spreadsheet_has_every_field_and_numbers_stay_numbers():
    cells = made_up.records()
    cells[2].tolerance = -1.5
    rows = list(csv.DictReader(io.StringIO(spreadsheet([Results("s", cells)]), newline="")))
    assert len(rows) == 12 and float(rows[2]["device_ms"]) == cells[2].device_ms and rows[2]["tolerance"] == "-1.5"
    assert rows[0]["shape"] == "[8, 12, 128, 128]" and rows[0]["flags"] == '["noisy"]' and rows[1]["device_ms"] == ""
