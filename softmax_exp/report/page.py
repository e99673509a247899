"""The report as one HTML file that needs nothing else: no network, no other file.

In: `Results` of one or several sweeps.  Out: the page's text, the same for the same records.
"""

from __future__ import annotations

from collections import Counter

from softmax_exp.ranking import on_device_clock
from softmax_exp.report import distributions, listings, pictures, words
from softmax_exp.report.html import Html, join, tag
from softmax_exp.report.machines import warning
from softmax_exp.report.panels import panels
from softmax_exp.report.style import CSS, SCRIPT
from softmax_exp.results import Results

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(sweeps: list[Results]) -> str:
    """The whole report. ValueError where there is no record at all."""
    if not any(results.records for results in sweeps):
        raise ValueError(f"no records in {', '.join(results.name for results in sweeps)}; there is nothing to report")
    drawn = panels(sweeps)
    on_gpu = any(on_device_clock(record) for results in sweeps for record in results.records)
    host_note = (
        "Figures above 1 (marked): the call returns later than the GPU needs for it, so in a loop the GPU waits for "
        "the host, and what the kernel takes no longer matters."
        if on_gpu
        else "Only the host's clock was used here: launch cost is in every latency and cannot be told apart."
    )
    sections = [
        ("verdict", "Verdict", "", [listings.scoreboard(sweeps), listings.verdicts(sweeps)]),
        (
            "latency",
            "Latency against size",
            "Both axes are logarithmic. Bars are intervals at the sweep's confidence, where they are wider than the "
            "mark. The dashed line is the limit: the best copy of the same bytes, measured in the same rounds.",
            [pictures.latencies(drawn)],
        ),
        (
            "rate",
            "Rate against size",
            "The least bytes that the case must move, by the latency: no count of traffic, but on this scale small "
            "differences show.",
            [pictures.rates(drawn)],
        ),
        ("limit", "How near to the limit", "", [pictures.limits(drawn)]),
        ("speedup", "Speed-up over the baseline", "", [pictures.speedups(drawn)]),
        ("launch", "Where the host decides", host_note, [pictures.launch_costs(drawn)] if on_gpu else []),
        (
            "errors",
            "Error against size",
            "The largest error of an element as a multiple of its own tolerance against a float64 reference; beyond "
            "the dashed line a result is INCORRECT and has no latency.",
            [pictures.errors(drawn)],
        ),
        (
            "samples",
            "Samples",
            "Whiskers: 5 % to 95 % of the samples; box: the middle half; thick line: the median; thin ticks: "
            "samples, where the raw ones are at hand.",
            [distributions.samples(sweeps)],
        ),
        ("failures", "Failures and flags", "", [listings.failures(sweeps), listings.flags(sweeps)]),
        ("figures", "All figures", "", [listings.figures(sweeps)]),
        ("environment", "Machines and software", "", [listings.environments(sweeps)]),
        ("reproduce", "Run it again", "", [listings.reproduce(sweeps)]),
    ]
    links = tag("nav", *(tag("a", title, href=f"#{name}") for name, title, _, _ in sections), aria_label="Sections")
    body = [links, *(_section(name, title, note, content) for name, title, note, content in sections)]
    heading = "Which softmax is fastest?"
    return document(f"{heading} {', '.join(r.name for r in sweeps)}", heading, _lead(sweeps), body)


def document(title: str, heading: str, lead: Html, body: list[Html]) -> str:
    """A whole page around its parts."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(CSS)),
    )
    skip = tag("a", "Skip to the content", href="#main", class_="skip")
    main = tag("main", tag("h1", heading), lead, *body, id="main")
    return (
        "<!doctype html>\n" + tag("html", head, tag("body", skip, main, tag("script", Html(SCRIPT))), lang="en") + "\n"
    )


def _section(name: str, title: str, note: str, content: list[Html]) -> Html:
    about = [tag("p", note, class_="about")] if note else []
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), *about, *content, id=name, aria_labelledby=f"{name}-title"
    )


def _lead(sweeps: list[Results]) -> Html:
    parts = []
    for number, results in enumerate(sweeps):
        name = f"[{number + 1}] " if len(sweeps) > 1 else ""
        parts.append(tag("p", tag("strong", name) if name else None, words.summary(results), class_="lead"))
        counts = Counter(record.status for record in results.records)
        facts = [results.name, str(results.manifest.get("started_at") or ""), *_machines(results)]
        facts.append(", ".join(f"{count} {status}" for status, count in counts.most_common()))
        parts.append(tag("p", " · ".join(fact for fact in facts if fact), class_="about"))
        if mixed := warning(results):
            parts.append(tag("p", mixed, class_="warning"))
    if len({tuple(_machines(results)) for results in sweeps}) > 1:
        told = "These sweeps are of different machines: their figures stand side by side, and do not compare."
        parts.append(tag("p", told, class_="warning"))
    return join(parts)


def _machines(results: Results) -> list[str]:
    names = [(environment.get("device") or {}).get("name") for environment in results.environments.values()]
    return list(dict.fromkeys(str(name) for name in names if name))
