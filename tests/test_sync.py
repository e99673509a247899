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


@pytest.mark.parametrize(
    "configured, expected",
    [
        ({}, TrackingSettings()),
        ({"kind": "off"}, TrackingSettings(kind="local")),
        ({"kind": "server", "uri": "http://x", "experiment": "e"}, TrackingSettings("server", "http://x", "e")),
    ],
)
def test_the_settings_of_a_sweep_are_kept_but_off_is_overridden(tmp_path, configured, expected):
    sweep = made_up.sweep(tmp_path, [made_up.passed(0, "eager", 128)], config={"tracking": configured})
    assert sync.settings_of(sweep) == expected


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
