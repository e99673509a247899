"""Where to look: shared views of the MLflow UI, links to a sweep's table, chart and summary, and the UI's command.

In: a `Store` and a `Sweep`.  Out: tags of the experiment that hold columns and charts; addresses and a shell command.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from softmax_exp.sweep import Sweep
from softmax_exp.tracking.store import Store, explained, quieten

DEFAULT_PORT = 5000
_COLUMNS = ("n_cols", "device_ms", "median_latency_ms", "speedup", "pct_of_limit", "max_abs_error", "n_rows")
_VARYING = ("dtype", "mode", "mask", "distribution", "layout", "scale", "device")
_VIEW = "mlflow.sharedViewState."
_PREFIX = "softmax_exp."
_KEPT_SWEEPS = 50  # every page of the experiment loads all views, 3 KB a sweep
_CHARTS = ("device_ms", "pct_of_limit", "speedup", "host_ms")


def set_views(store: Store, sweep: Sweep) -> None:
    """Write the views that the links of a sweep name, and forget those of all but the newest sweeps."""
    for name, state in (("table", _table_view(sweep)), ("chart", _chart_view(sweep))):
        store.client.set_experiment_tag(store.experiment_id, _VIEW + _key(sweep, name), json.dumps(state))
    tags = store.client.get_experiment(store.experiment_id).tags
    mine = sorted((key for key in tags if key.startswith(_VIEW + _PREFIX)), reverse=True)
    for key in mine[2 * _KEPT_SWEEPS :]:
        store.client.delete_experiment_tag(store.experiment_id, key)


def links(store: Store | None, sweep: Sweep, base: str | None = None) -> list[tuple[str, str]]:
    """Labels with the command that starts the UI (local stores) and the addresses of table, chart and summary.

    `base` is the address of the UI; by default the server, or 127.0.0.1:5000 for a database.
    """
    if store is None:
        return []
    found = []
    is_server = store.uri.startswith("http")
    if base is None and not is_server:
        found.append(("open the UI with", ui_command(store)))
    base = base or (store.address if is_server else f"http://127.0.0.1:{DEFAULT_PORT}")
    found.append(("table", _runs_link(store, sweep, base, "table")))
    with explained(store.address):
        kinds = _kinds(store, sweep)
    if "curve" in kinds:
        found.append(("chart", _runs_link(store, sweep, base, "chart", compareRunsMode="CHART")))
    if "summary" in kinds:
        address = f"{base.rstrip('/')}/#/experiments/{store.experiment_id}/runs/{kinds['summary']}"
        found.append(("summary", f"{address}?workflowType=machine_learning"))
    return found


def newest(database: Path) -> tuple[Store, Sweep] | None:
    """The sweep that was measured last among all experiments of an SQLite store; None where it holds none."""
    quieten()
    from mlflow import MlflowClient

    uri = f"sqlite:///{database}"
    with explained(uri):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        names = {experiment.experiment_id: experiment.name for experiment in client.search_experiments()}
        runs = client.search_runs(
            [*names], "tags.kind = 'cell'", max_results=1, order_by=["attributes.start_time DESC"]
        )
    if not runs:
        return None
    experiment_id = runs[0].info.experiment_id
    store = Store(client, uri, uri, names[experiment_id], experiment_id, database)
    return store, Sweep(database.parent / "sweeps" / runs[0].data.tags["sweep_id"])


def ui_command(store: Store) -> str:
    """The command that starts the UI for a database; right in a shell in any directory."""
    if store.database is None:
        # The address may hold a password, which is not printed.
        return f'MLFLOW_BACKEND_STORE_URI="$MLFLOW_TRACKING_URI" {shlex.quote(sys.executable)} -m mlflow server'
    command = shlex.join([sys.executable, "-m", "softmax_exp.ui", str(store.database)])
    try:
        distribution("softmax_exp")
    except PackageNotFoundError:
        return f"PYTHONPATH={shlex.quote(str(Path(__file__).parents[2]))} {command}"
    return command


def _kinds(store: Store, sweep: Sweep) -> dict[str, str]:
    """A run of each kind that there is, cells aside."""
    found = {}
    for kind in ("curve", "summary"):
        for run in store.client.search_runs([store.experiment_id], _filter(sweep, kind), max_results=1):
            found[kind] = run.info.run_id
    return found


def _key(sweep: Sweep, name: str) -> str:
    return f"{_PREFIX}{sweep.sweep_id}.{name}"


def _runs_link(store: Store, sweep: Sweep, base: str, name: str, **more: str) -> str:
    # The filter and the order stand in the view: MLflow ignores a view where the address has any of them.
    query = {"workflowType": "machine_learning", "viewStateShareKey": _key(sweep, name)} | more
    return f"{base.rstrip('/')}/#/experiments/{store.experiment_id}/runs?{urlencode(query)}"


def _filter(sweep: Sweep, kind: str) -> str:
    return f"tags.sweep_id = '{sweep.sweep_id}' and tags.kind = '{kind}'"


def _table_view(sweep: Sweep) -> dict[str, Any]:
    records = sweep.records()
    varying = [name for name in _VARYING if len({getattr(record, name) for record in records}) > 1]
    columns = ["tags.`status`", *(f"params.`{name}`" for name in ("variant", *varying))]
    columns += [f"metrics.`{name}`" for name in _COLUMNS]
    return {
        "searchFilter": _filter(sweep, "cell"),
        "orderByKey": "metrics.`n_cols`",
        "orderByAsc": True,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: max(90 if "metrics" in column else 120, 8 * len(column) - 56) for column in columns},
    }


def _chart_view(sweep: Sweep) -> dict[str, Any]:
    section = "softmax_exp"
    cards = [
        {
            "uuid": f"{section}.{metric}",
            "type": "LINE",
            "metricSectionId": section,
            "metricKey": metric,
            "selectedMetricKeys": [metric],
            "displayName": f"{metric} against n_cols",
            "deleted": False,
            "isGenerated": False,
            "xAxisKey": "step",
            "useGlobalXaxisKey": False,
            "xAxisScaleType": "log",
            "scaleType": "log" if metric.endswith("_ms") else "linear",
            "yAxisKey": "metric",
            "lineSmoothness": 0,
            "useGlobalLineSmoothing": False,
            "displayPoints": True,
            "range": {},
        }
        for metric in _CHARTS
    ]
    named = {"uuid": section, "name": "latency against n_cols", "display": True, "isReordered": False}
    return {
        "searchFilter": _filter(sweep, "curve"),
        "compareRunCharts": cards,
        "compareRunSections": [named],
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
    }
