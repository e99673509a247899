"""The page as a whole: what it holds, and that nothing in a record can become more than text."""

import dataclasses
import json
from html.parser import HTMLParser

import pytest

from softmax_exp import report, results
from softmax_exp.records import Status
from softmax_exp.report.page import page
from softmax_exp.report.text import markdown, spreadsheet
from softmax_exp.results import Results
from tests import made_up
from tests.report import many

HOSTILE = "<b>x</b>\"'`|&[y](http://e.vil)</script><script>alert(1)</script><!-- =1+1 @all"


class Elements(HTMLParser):
    """Every element with its attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def hostile() -> Results:
    """A sweep in which every text that a user can choose is hostile."""
    good = made_up.passed(0, HOSTILE, 128, variant_args={HOSTILE: HOSTILE}, flags=[HOSTILE], baseline=HOSTILE)
    bad = made_up.failed(0, HOSTILE + "2", 128, Status.ERROR, HOSTILE, traceback=HOSTILE, distribution=HOSTILE)
    bad = dataclasses.replace(bad, dtype=HOSTILE, layout=HOSTILE, mask=HOSTILE)
    for cell in (good, bad):
        cell.environment_hash = "e"
    environment = {
        "host": {"cpu": HOSTILE, "git": {"package": {"commit": HOSTILE, "dirty": True}}},
        "device": {"name": HOSTILE},
    }
    manifest = {"command": HOSTILE, "started_at": HOSTILE, "jobs": [{"job": 0, "variants": [HOSTILE + "3"]}]}
    return Results(HOSTILE, [good, bad], manifest, {"e": environment})


def test_names_and_messages_cannot_become_markup():  # S29
    plain, bad = Elements(page([Results("s", made_up.records())])), Elements(page([hostile(), hostile()]))
    assert {name for name, _ in bad.elements} <= {name for name, _ in plain.elements} | {
        "pre",
        "details",
        "summary",
        "h3",
        "span",
    }
    assert sum(name == "script" for name, _ in bad.elements) == 1
    assert not [
        attrs for _, attrs in bad.elements if any(key.startswith("on") or key in ("src", "srcset") for key in attrs)
    ]
    assert all(attrs["href"].startswith("#") for name, attrs in bad.elements if name == "a")
    assert HOSTILE in bad.texts


def test_the_page_needs_nothing_else():
    text = page([Results("s", made_up.records())])
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text
    assert "default-src &#x27;none&#x27;" in text


def test_it_is_the_same_for_the_same_records():
    sweeps = [Results("s", made_up.records())]
    assert page(sweeps) == page(sweeps) and markdown(sweeps) == markdown(sweeps)


def test_every_part_is_there_and_linked():
    text = page([Results("s", made_up.records(), environments={"": made_up.ENVIRONMENT})])
    parsed = Elements(text)
    ids = {attrs["id"] for _, attrs in parsed.elements if "id" in attrs}
    targets = [attrs["href"][1:] for name, attrs in parsed.elements if name == "a"]
    assert {*targets} <= ids and len(targets) == 13
    assert len([1 for name, attrs in parsed.elements if name == "svg" and attrs.get("role") == "img"]) == 2
    for piece in (
        "NVIDIA H200",
        "TIMEOUT torch.compile",
        "the first call took over 300 s",
        "noisy",
        "580.1",
        "0123456789ab",
    ):
        assert any(piece in data for data in parsed.texts), piece


def test_tables_and_figures_can_be_read_aloud_and_reached_by_keyboard():
    parsed = Elements(page([Results("s", made_up.records())]))
    tables = sum(name == "table" for name, _ in parsed.elements)
    assert tables and sum(name == "caption" for name, _ in parsed.elements) == tables
    scrolled = [attrs for _, attrs in parsed.elements if attrs.get("class") == "scroll"]
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "region" and attrs["aria-label"] for attrs in scrolled)
    assert all("scope" in attrs for name, attrs in parsed.elements if name == "th")
    assert ("html", {"lang": "en"}) in parsed.elements


def test_sweeps_of_two_machines_are_told_not_to_compare():
    other = {"host": {}, "device": {"name": "NVIDIA H100"}}
    one, two = (
        Results(name, made_up.records(name), environments={name: environment})
        for name, environment in (("a", made_up.ENVIRONMENT), ("b", other))
    )
    assert "of different machines" in page([one, two]) and "of different machines" not in page([one, one])
    assert "(differs)" in page([one, two])


def test_no_records_are_no_report(tmp_path):
    with pytest.raises(ValueError, match="there is nothing to report"):
        page([Results("empty", [])])


def test_1000_records_are_below_2_mb_and_a_comment_holds_the_markdown():
    sweeps = [Results("many", many.records(1000))]
    assert len(page(sweeps).encode()) < 2_000_000
    text = markdown(sweeps)
    assert len(text) < 65_536 and "of 1000 cells; all are in the CSV file" in text
    assert spreadsheet(sweeps).count("\n") == 1001


def test_a_sweep_of_nothing_but_failures_is_reported(tmp_path):
    made = made_up.sweep(tmp_path, [made_up.failed(0, "all", 128, Status.SKIPPED, "skipped: requires a CUDA GPU")])
    paths = report.write_for(made)
    assert [path.name for path in paths] == ["report.html", "report.md", "report.csv"]
    assert "Nothing was timed in 1 case." in paths[1].read_text()


def test_secrets_of_this_process_are_not_in_it(tmp_path, monkeypatch):  # S29
    monkeypatch.setenv("SOME_TOKEN", "hunter2hunter2")
    cell = made_up.failed(
        0, "eager", 128, Status.ERROR, "GET http://me:pass@host/ hunter2hunter2", traceback="hunter2hunter2"
    )
    made = made_up.sweep(tmp_path, [cell], config={"note": "hunter2hunter2"})
    found = results.of_sweep(made)
    for text in (page([found]), markdown([found]), spreadsheet([found]), json.dumps(found.manifest)):
        assert "hunter2" not in text and "me:pass" not in text
