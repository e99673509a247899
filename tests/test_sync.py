import re

import pytest

from softmax_exp import sync, tracking
from softmax_exp.config import TrackingSettings
from tests import made_up


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def outputs(tmp_path):
    for name in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
        made_up.sweep(tmp_path, [made_up.passed(0, v, 128, name) for v in ("eager", "triton")])
    return tmp_path


def test_the_newest_sweep_is_sent_once_and_its_links_are_printed(outputs, capsys):
    assert sync.main(["--outputs", str(outputs)]) == 0
    first = capsys.readouterr().out
    assert first.startswith("20260102-000000-bbbb: 3 runs written, 2 cells are in MLflow\nopen the UI with: ")
    assert "\nsummary: http://127.0.0.1:5000/" in first
    assert sync.main(["--outputs", str(outputs)]) == 0
    assert capsys.readouterr().out.startswith("20260102-000000-bbbb: 0 runs written")
    store = tracking.open_store(TrackingSettings(), outputs)
    assert store is not None and tracking.newest(outputs / "mlflow.db")[1].sweep_id == "20260102-000000-bbbb"


@pytest.mark.parametrize("named", ["20260101-000000-aaaa", "{}/sweeps/20260101-000000-aaaa"])
def test_a_sweep_may_be_named_by_id_or_folder(outputs, named):
    assert sync.find_sweep(named.format(outputs), outputs).folder == outputs / "sweeps" / "20260101-000000-aaaa"


def test_a_sweep_goes_to_the_store_of_its_own_outputs(outputs, tmp_path_factory):
    sweep = sync.find_sweep(None, outputs)
    assert sync.outputs_of(sweep, tmp_path_factory.mktemp("elsewhere")) == outputs


FROM_ENVIRONMENT = "${oc.env:MLFLOW_TRACKING_URI,null}"
LOCAL, TEAM, FOREIGN = "sqlite:///{}/mlflow.db", "http://team:5000", "http://10.6.6.6:5000"


@pytest.mark.parametrize(
    "configured, environment, given, expected",
    [
        ({}, "", None, LOCAL),
        ({"kind": "local", "uri": FROM_ENVIRONMENT}, "", None, LOCAL),
        ({"kind": "off"}, "", None, LOCAL),
        ({"kind": "local", "uri": LOCAL}, "", None, LOCAL),
        ({"kind": "server", "uri": FROM_ENVIRONMENT}, TEAM, None, TEAM),
        ({"kind": "local", "uri": FROM_ENVIRONMENT}, TEAM, None, TEAM),
        ({"kind": "server", "uri": "http://***@team:5000"}, "http://me:passw@team:5000", None, "http://me:passw@team:5000"),
        ({"kind": "server", "uri": TEAM}, "", TEAM, TEAM),
        ({"kind": "server", "uri": FOREIGN}, TEAM, LOCAL, LOCAL),
    ],
)  # fmt: skip
def test_a_sweep_goes_where_its_owner_says(tmp_path, monkeypatch, configured, environment, given, expected):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", environment)
    configured = {name: value.replace("{}", str(tmp_path)) for name, value in configured.items()}
    sweep = made_up.sweep(tmp_path, [made_up.passed(0, "eager", 128)], config={"tracking": configured})
    settings = sync.settings_of(sweep, tmp_path, given and given.format(tmp_path), None)
    assert (settings.kind, settings.uri, settings.experiment) == ("local", expected.format(tmp_path), "softmax_exp")


@pytest.mark.parametrize(
    "configured, environment, complaint",
    [
        ({"kind": "server", "uri": FOREIGN}, "", f"was to be sent to {FOREIGN}.*--uri {FOREIGN}.*--uri sqlite:///"),
        ({"kind": "server", "uri": FOREIGN}, TEAM, f"was to be sent to {FOREIGN}"),
        ({"kind": "local", "uri": "sqlite:////etc/passwd"}, "", "was to be sent to sqlite:////etc/passwd"),
        ({"kind": "local", "uri": "http://x/${oc.env:MY_TOKEN}"}, "", r"was to be sent to http://x/\$\{oc.env:MY_TOKEN}"),
        ({"kind": "server", "uri": FROM_ENVIRONMENT}, "", "MLFLOW_TRACKING_URI, which is not set"),
        ({"kind": "local", "experiment": "${oc.env:MY_TOKEN}"}, "", "name it by --experiment"),
    ],
)  # fmt: skip
def test_a_strangers_sweep_chooses_no_address(tmp_path, monkeypatch, capsys, configured, environment, complaint):
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", environment)
    monkeypatch.setattr(tracking, "open_store", lambda *_: pytest.fail("a store was opened"))
    sweep = made_up.sweep(tmp_path, [made_up.passed(0, "eager", 128)], config={"tracking": configured})
    assert sync.main([str(sweep.folder)]) == 1
    told = capsys.readouterr().err
    assert re.search(complaint, told) and "hunter2" not in told


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "no sweep is under {}/sweeps; run one by"),
        (["nothing"], "nothing is neither a sweep's folder nor the id of one under {}/sweeps"),
    ],
)
def test_what_cannot_be_sent_is_told(tmp_path, capsys, arguments, complaint):
    assert sync.main([*arguments, "--outputs", str(tmp_path)]) == 1
    assert complaint.format(tmp_path) in capsys.readouterr().err


def test_a_store_that_cannot_be_used_is_told(outputs, capsys):
    assert sync.main(["--outputs", str(outputs), "--uri", "./mlruns"]) == 1
    assert "must be an address" in capsys.readouterr().err
