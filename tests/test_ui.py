"""The UI in a real browser: what the printed links show. Screenshots are left in the test's folder."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softmax_exp import tracking, ui
from softmax_exp.config import TrackingSettings
from softmax_exp.tracking import server
from tests import made_up

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium and chromedriver (Debian: apt install chromium chromium-driver)"
)
# Cells of the grid are absolutely positioned: what a person reads is their order on the screen, not in the document.
GRID = """
const place = e => { const r = e.getBoundingClientRect(); return [Math.round(r.top), r.left, e] };
const ordered = all => [...all].map(place).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
const named = document.querySelectorAll('.ag-header-cell[col-id]');
const heads = ordered(named).map(([top, left, e]) => e.getAttribute('col-id'));
const rows = {};
for (const [top, left, e] of ordered(document.querySelectorAll('.ag-cell[col-id]')))
  (rows[top] ??= {})[e.getAttribute('col-id')] = e.innerText;
return [heads, Object.entries(rows).sort((a, b) => a[0] - b[0]).map(r => r[1])];
"""
PLOTS = """
return [...document.querySelectorAll('.js-plotly-plot')].map(
  e => [e.layout.xaxis.type, Object.fromEntries(e.data.map(t => [t.name, [t.x, t.y]]))]);
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ui") / "out puts"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        store = tracking.open_store(TrackingSettings(), folder)
        older = made_up.sweep(folder, [made_up.passed(0, "eager", 128, "older", started_at="2026-10-01T10:00:00Z")])
        newer = made_up.sweep(folder, made_up.records("newer"))
        for sweep in (newer, older):
            tracking.finish(sweep, store)
        (folder / "command").write_text(dict(tracking.links(store, newer))["open the UI with"])
    return folder


@pytest.fixture(scope="module")
def served(outputs, tmp_path_factory):
    """The links that the UI prints, started in a shell in another directory by the command that a sweep prints."""
    command = f"exec {(outputs / 'command').read_text()} --port {server.free_port(5100)}"
    command = command.replace("exec PYTHONPATH=", "PYTHONPATH=")
    log = tmp_path_factory.mktemp("log") / "ui.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, shell=True, cwd="/", stdout=file, stderr=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 150
        while "summary: " not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield dict(line.split(": ", 1) for line in log.read_text().splitlines() if ": " in line)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (in the extra dev)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=2400,1200"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser, address, ask, satisfied, seconds=60):
    """What a script finds on a page once it satisfies, or at the last moment."""
    browser.get("about:blank")
    browser.get(address)
    deadline = time.monotonic() + seconds
    while True:
        found = None
        with contextlib.suppress(Exception):  # a page that is still being built
            found = browser.execute_script(ask)
        if (found and satisfied(found)) or time.monotonic() > deadline:
            return found
        time.sleep(0.3)


@pytest.mark.browser
@needs_browser
def test_the_table_has_the_right_columns_in_numeric_order(browser, served, tmp_path):
    heads, rows = opened(browser, served["table"], GRID, lambda found: len(found[1]) >= 12 and len(found[0]) > 8)
    browser.save_screenshot(str(tmp_path / "table.png"))
    shown = [head.strip("`").split(".`")[-1] for head in heads if ".`" in head]
    expected = ["status", "variant", "n_cols", "device_ms", "median_latency_ms", "speedup", "pct_of_limit"]
    assert shown[shown.index("status") :][:7] == expected
    rows = [row for row in rows if "metrics.`n_cols`" in row]
    assert [int(row["metrics.`n_cols`"]) for row in rows] == [128] * 4 + [512] * 4 + [2048] * 4
    found = {(row["params.`variant`"], row["metrics.`n_cols`"]): row for row in rows}
    assert found["triton", "512"]["metrics.`device_ms`"] == "0.027263"
    assert found["triton-simple", "2048"]["tags.`status`"] == "INCORRECT"
    assert found["torch.compile", "128"]["metrics.`device_ms`"] == "-"


@pytest.mark.browser
@needs_browser
def test_the_chart_draws_latency_against_size(browser, served, tmp_path):
    plots = opened(
        browser, served["chart"], PLOTS, lambda found: len(found) >= 3 and all(len(p[1]) == 4 for p in found)
    )
    browser.save_screenshot(str(tmp_path / "chart.png"))
    scale, lines = plots[0]
    assert scale == "log"
    assert lines["triton float16 forward"] == [[128, 512, 2048], [0.0017039, 0.027263, 0.43621]]
    assert lines["triton-simple float16 forward"][0] == [128, 512]
    assert set(lines) == {f"{variant} float16 forward" for variant in made_up.VARIANTS}


@pytest.mark.browser
@needs_browser
def test_the_summary_shows_its_table_and_plot(browser, served, tmp_path):
    ask = "return document.body.innerText"
    text = opened(browser, served["summary"], ask, lambda text: "of 12 cells" in text and "Description" in text)
    browser.save_screenshot(str(tmp_path / "summary.png"))
    assert "summary newer" in text and "10 PASSED, 1 TIMEOUT, 1 INCORRECT of 12 cells" in text
    assert "fastest by the device clock triton, by the host clock eager" in text
    address = served["summary"].replace("?", "/artifacts/latency.svg?")
    ask = "return [...document.querySelectorAll('img')].map(e => [e.src, e.naturalWidth]).filter(e => e[1] == 900)"
    assert opened(browser, address, ask, len)
    browser.save_screenshot(str(tmp_path / "plot.png"))


def test_a_sweep_can_be_sent_to_a_server(served, tmp_path):
    address = served["MLflow UI"].split()[0]
    store = tracking.open_store(TrackingSettings(kind="server", uri=address, experiment="over http"), tmp_path)
    assert store is not None and store.database is None
    sweep = made_up.sweep(tmp_path, made_up.records("sent"))
    assert tracking.finish(sweep, store) == 12 + 4 + 1
    assert tracking.finish(sweep, store) == 0
    found = dict(tracking.links(store, sweep))
    assert list(found) == ["table", "chart", "summary"] and all(link.startswith(address) for link in found.values())
    run_id = found["summary"].split("/runs/")[1].split("?")[0]
    assert {file.path for file in store.client.list_artifacts(run_id)} > {"records.jsonl", "latency.svg"}


def test_no_store_is_told_politely(tmp_path, capsys):
    assert ui.main([str(tmp_path)]) == 1
    assert f"no MLflow store is at {tmp_path / 'mlflow.db'}; run a sweep first" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["{}", "{}/mlflow.db", "sqlite:///{}/mlflow.db"])
def test_a_store_may_be_named_by_folder_file_or_address(tmp_path, named):
    (tmp_path / "mlflow.db").touch()
    assert ui.find_database(named.format(tmp_path)) == tmp_path / "mlflow.db"


def test_a_busy_port_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert server.free_port(port) > port


def test_a_server_that_does_not_start_is_told_with_its_own_words(tmp_path, monkeypatch, capsys):
    (tmp_path / "mlflow.db").touch()
    code = "import sys; sys.exit('the port is mine')"
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(server, "start", lambda *_: subprocess.Popen(command, stderr=_[-1], start_new_session=True))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert ui.main([str(tmp_path)]) == 1
    assert "the port is mine" in capsys.readouterr().err


def test_the_server_ends_with_the_command(outputs):
    code = f"import sys; from softmax_exp import ui; sys.exit(ui.main([{str(outputs)!r}, '--port', '5300']))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # the server was started
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()
    assert children and not any(Path("/proc", child).exists() for child in children)
