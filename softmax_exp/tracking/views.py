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
from urllib.parse import quote, urlencode

from softmax_exp.records import Sweep
from softmax_exp.tracking.store import Store, explained, quieten

DEFAULT_PORT = 5000
_TABLE = [
    ("tags", "status"),
    ("params", "variant"),
    ("params", "dtype"),
    ("params", "mode"),
    *(
        ("metrics", name)
        for name in ("n_cols", "device_ms", "median_latency_ms", "speedup", "pct_of_limit", "max_abs_error", "n_rows")
    ),
]
_CHARTS = ("device_ms", "pct_of_limit", "speedup", "host_ms")


def set_views(store: Store) -> None:
    """Write the views that the links of `links` name; they are the same for every sweep."""
    for key, state in (("softmax_exp.table", _table_view()), ("softmax_exp.chart", _chart_view())):
        store.client.set_experiment_tag(store.experiment_id, f"mlflow.sharedViewState.{key}", json.dumps(state))


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
    found.append(("table", _table_link(store, sweep, base)))
    with explained(store.address):
        kinds = _kinds(store, sweep)
    if "curve" in kinds:
        found.append(("chart", _chart_link(store, sweep, base)))
    if "summary" in kinds:
        address = f"{base.rstrip('/')}/#/experiments/{store.experiment_id}/runs/{kinds['summary']}"
        found.append(("summary", address))
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
        return f'{shlex.quote(sys.executable)} -m mlflow server --backend-store-uri "$MLFLOW_TRACKING_URI"'
    command = shlex.join([sys.executable, "-m", "softmax_exp.ui", str(store.database)])
    try:
        distribution("softmax_exp")
    except PackageNotFoundError:
        return f"PYTHONPATH={shlex.quote(str(Path(__file__).parents[2]))} {command}"
    return command


def _kinds(store: Store, sweep: Sweep) -> dict[str, str]:
    condition = f"tags.sweep_id = '{sweep.sweep_id}' and tags.kind != 'cell'"
    runs = store.client.search_runs([store.experiment_id], condition, max_results=1000)
    return {run.data.tags["kind"]: run.info.run_id for run in runs}


def _table_link(store: Store, sweep: Sweep, base: str) -> str:
    query = {
        "viewStateShareKey": "softmax_exp.table",
        "searchFilter": f"tags.sweep_id = '{sweep.sweep_id}' and tags.kind = 'cell'",
        "orderByKey": "metrics.`n_cols`",
        "orderByAsc": "true",
    }
    return _runs_link(store, base, query)


def _chart_link(store: Store, sweep: Sweep, base: str) -> str:
    query = {
        "viewStateShareKey": "softmax_exp.chart",
        "searchFilter": f"tags.sweep_id = '{sweep.sweep_id}' and tags.kind = 'curve'",
        "compareRunsMode": "CHART",
    }
    return _runs_link(store, base, query)


def _runs_link(store: Store, base: str, query: dict[str, str]) -> str:
    encoded = urlencode({"workflowType": "machine_learning"} | query, quote_via=quote)
    return f"{base.rstrip('/')}/#/experiments/{store.experiment_id}/runs?{encoded}"


def _table_view() -> dict[str, Any]:
    columns = [f"{kind}.`{name}`" for kind, name in _TABLE]
    return {"selectedColumns": columns, "columnOrder": columns, "orderByKey": "metrics.`n_cols`", "orderByAsc": True}


def _chart_view() -> dict[str, Any]:
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
        "compareRunCharts": cards,
        "compareRunSections": [named],
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "orderByKey": "attributes.run_name",
        "orderByAsc": True,
    }
