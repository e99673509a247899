"""The report in a real browser: what a person sees, on a wide screen and a phone, light and dark, by keyboard."""

import base64
import os
import signal
import subprocess
import sys
import time

import pytest

from softmax_exp import report, tracking
from softmax_exp.config import TrackingSettings
from softmax_exp.results import Results
from softmax_exp.tracking import server
from tests import made_up
from tests.report import many
from tests.report.test_page import hostile
from tests.test_ui import browser, needs_browser, opened

__all__ = ["browser"]  # the fixture
pytestmark = [pytest.mark.browser, needs_browser]
SCREENS = [(width, scheme) for width in (1400, 400) for scheme in ("light", "dark")]
# WCAG 2.2, 1.4.3: the ratio of the relative luminances of a text and of what is behind it.
CONTRAST = """
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgb = colour => { probe.clearRect(0, 0, 1, 1); probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data] };
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c[3] > 250) return c } return [255, 255, 255] };
let worst = [99, ''];
for (const e of document.querySelectorAll('p, li, td, th, a, h1, h2, summary, caption, figcaption, svg text, label')) {
  if (!e.textContent.trim() || !e.getClientRects().length) continue;
  const style = getComputedStyle(e), text = rgb(e.tagName === 'text' ? style.fill : style.color);
  const [a, b] = [light(text), light(behind(e))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < worst[0]) worst = [ratio, e.tagName + ' ' + e.textContent.slice(0, 40)];
}
return worst;
"""
HIDDEN_BY_WIDTH = """
return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') &&
  e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 90));
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Addresses of a small report, a large one, and one of hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    sweeps = {"small": made_up.records(), "large": many.records(1000)}
    found = {name: Results(name, cells, environments={"": made_up.ENVIRONMENT}) for name, cells in sweeps.items()}
    return {
        name: report.write([results], folder / name)[0].as_uri()
        for name, results in (found | {"hostile": hostile()}).items()
    }


def show(browser, address, width, scheme):
    """Open a page on a screen of that width and colour scheme; the height of the page in pixels."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(address)
    return browser.execute_script("return document.documentElement.scrollHeight")


def photograph(browser, path, width, height):
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", ["small", "large", "hostile"])
def test_it_fits_and_can_be_read_on_any_screen(browser, pages, tmp_path, name, width, scheme):
    height = show(browser, pages[name], width, scheme)
    photograph(browser, tmp_path / f"{name}-{width}-{scheme}.png", width, height)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(HIDDEN_BY_WIDTH) == []
    ratio, where = browser.execute_script(CONTRAST)
    assert ratio >= 4.5, where
    sizes = "return [...document.querySelectorAll('svg.chart text')].map(e => e.getBoundingClientRect().height)"
    assert min(browser.execute_script(sizes) or [99]) >= 10
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert browser.get_log("browser") == []  # nothing that its own security policy refuses, no script error


def test_a_person_sees_the_verdict_first_then_pictures_of_every_variant(browser, pages):
    show(browser, pages["small"], 1400, "light")
    text = browser.execute_script("return document.body.innerText")
    assert text.index("Fastest: triton in 3 of 3 cases") < text.index("Latency against size")
    assert "8x12x512x512 float16 forward triton is fastest: 27.26 us (27.18 to 27.34), 1.54x as fast as eager" in text
    labels = browser.execute_script(
        "return [...document.querySelectorAll('#latency .legend li')].map(e => e.innerText)"
    )
    assert labels == [*made_up.VARIANTS, "limit"]
    marks = "return [...document.querySelectorAll('#latency g')].map(g => [...g.querySelectorAll('.mark')].length)"
    assert [n for n in browser.execute_script(marks) if n > 1] == [3, 2, 2, 3]  # one timed out, one is INCORRECT
    heat = "return [...document.querySelectorAll('#limit td')].map(e => e.innerText)"
    assert browser.execute_script(heat) == "64 64 64 timeout 97 97 70 70 wrong 98 98 98".split()
    # the marks of four variants are of four shapes and four colours
    looks = """return [...document.querySelectorAll('#latency .legend .mark')].map(
        e => [e.getAttribute('d'), getComputedStyle(e).fill])"""
    shapes, colours = zip(*browser.execute_script(looks), strict=True)
    assert len({*shapes}) == len({*colours}) == 4


def test_the_keyboard_reaches_everything(browser, pages):
    from selenium.webdriver.common.keys import Keys

    show(browser, pages["small"], 1400, "light")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    ring = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(ring) == "solid"
    seen = []
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(
            browser.execute_script("const e = document.activeElement; return e.id || e.tagName + '.' + e.className")
        )
    assert {"filter", "A.", "SUMMARY.", "DIV.scroll"} <= {*seen}


def test_typing_filters_the_table(browser, pages):
    show(browser, pages["small"], 1400, "light")
    box = browser.find_element("id", "filter")
    box.send_keys("triton 2048")
    rows = "return [...document.querySelectorAll('#all tbody tr')].filter(e => e.offsetParent).map(e => e.innerText)"
    shown = browser.execute_script(rows)
    assert len(shown) == 2 and all("2048" in row and "triton" in row for row in shown)
    assert browser.find_element("css selector", "output").text == "2 of 12 rows"


def test_hostile_names_are_shown_as_they_are(browser, pages):
    from selenium.common.exceptions import NoAlertPresentException

    show(browser, pages["hostile"], 1400, "light")
    assert "</script><script>alert(1)</script>" in browser.execute_script(
        "return document.querySelector('#all').innerText"
    )
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text


def test_the_page_of_the_summary_run_shows_it_in_mlflow(browser, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = tracking.open_store(TrackingSettings(), tmp_path)
    assert store is not None and store.database is not None
    sweep = made_up.sweep(tmp_path, made_up.records())
    tracking.finish(sweep, store, report.write_for(sweep))
    command = [sys.executable, "-m", "softmax_exp.ui", str(store.database), "--port", str(server.free_port(5400))]
    log = tmp_path / "ui.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 150
        while "summary: " not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        links = dict(line.split(": ", 1) for line in log.read_text().splitlines() if ": " in line)
        address = links["summary"].replace("?", "/artifacts/report.html?")
        opened(browser, address, "return document.querySelectorAll('iframe').length", bool)
        browser.switch_to.frame(browser.find_element("tag name", "iframe"))
        text = browser.execute_script("return document.body.innerText")
        browser.switch_to.default_content()
        browser.save_screenshot(str(tmp_path / "artifact.png"))
        assert "Which softmax is fastest?" in text and "Fastest: triton in 3 of 3 cases" in text
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
