"""The command `python -m softmax_exp.sync [SWEEP]`: send a sweep to MLflow, again or for the first time.

In: a sweep's folder or id (default: the newest), an address.  Out: its runs, links to them; exit status 1 where the
store fails.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from softmax_exp.compose import CHECKOUT
from softmax_exp.config import TrackingSettings
from softmax_exp.redaction import redact
from softmax_exp.sweep import Sweep


def main(arguments: list[str] | None = None) -> int:
    """Run the command; what is in MLflow already is left as it is."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.sync", description="Send a sweep to MLflow.")
    parser.add_argument("sweep", nargs="?", help="folder or id of a sweep; default: the newest")
    parser.add_argument(
        "--outputs", type=Path, default=default_outputs(), help="where sweeps are (default: %(default)s)"
    )
    parser.add_argument("--uri", help="address of the store; default: MLFLOW_TRACKING_URI, else beside the sweeps")
    parser.add_argument("--experiment", help="MLflow experiment; default: the one that the sweep was configured with")
    given = parser.parse_args(arguments)
    from softmax_exp import report, tracking  # report reads sweeps by the functions below

    try:
        sweep = find_sweep(given.sweep, given.outputs)
        settings = settings_of(sweep, given.outputs, given.uri, given.experiment)
        store = tracking.open_store(settings, outputs_of(sweep, given.outputs))
        written = tracking.finish(sweep, store, report.write_for(sweep))
        found = tracking.links(store, sweep)
    except (ValueError, tracking.StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sweep.sweep_id}: {written} runs written, {len(sweep.records())} cells are in MLflow")
    for label, target in found:
        print(f"{label}: {target}")
    return 0


def default_outputs() -> Path:
    """`outputs` of the checkout, or of the working directory where the package is installed."""
    return (CHECKOUT or Path.cwd()) / "outputs"


def find_sweep(named: str | None, outputs: Path) -> Sweep:
    """The sweep of that folder or id, or the newest. ValueError where there is none."""
    sweeps = outputs / "sweeps"
    if named is not None:
        for folder in (Path(named), sweeps / named):
            if (folder / "manifest.json").is_file():
                return Sweep(folder.absolute())
        raise ValueError(f"{named} is neither a sweep's folder nor the id of one under {sweeps}")
    folders = sorted(path.parent for path in sweeps.glob("*/manifest.json"))
    if not folders:
        raise ValueError(f"no sweep is under {sweeps}; run one by `python -m softmax_exp`")
    return Sweep(folders[-1].absolute())


def outputs_of(sweep: Sweep, otherwise: Path) -> Path:
    """The outputs folder that a sweep lies in, which holds its store as well."""
    return sweep.folder.parents[1] if sweep.folder.parent.name == "sweeps" else otherwise


def settings_of(
    sweep: Sweep, otherwise: Path, uri: str | None = None, experiment: str | None = None
) -> TrackingSettings:
    """Where a sweep goes: to `uri`, else to MLFLOW_TRACKING_URI, else to the SQLite store of its outputs.

    The address in its manifest is followed only where one of these is the same: whoever made the folder may have
    written any address there, and a store is sent the user's password for it. ValueError where it is another.
    """
    jobs = sweep.manifest()["jobs"]
    configured = (jobs[0].get("config") or {}).get("tracking") or {} if jobs else {}
    named = str(configured.get("uri") or "")
    local = f"sqlite:///{outputs_of(sweep, otherwise).absolute() / 'mlflow.db'}"
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if named.startswith("${oc.env:MLFLOW_TRACKING_URI"):
        named = ""
    if not chosen and not named and configured.get("kind") == "server":
        raise ValueError(
            f"{sweep.folder} was to be sent to the server of MLFLOW_TRACKING_URI, which is not set: set it, or name a "
            f"store by --uri (the one on this machine: --uri {local})"
        )
    if not uri and named not in ("", redact(chosen or local)):
        raise ValueError(
            f"{sweep.folder} was to be sent to {named}. Sweeps from elsewhere may name any address, so it is used only "
            f"where you name it too: --uri {shlex.quote(named)} (or, for the store on this machine, --uri {local})"
        )
    experiment = experiment or str(configured.get("experiment") or TrackingSettings.experiment)
    if "${" in experiment:  # as it was written, since what it stood for may have been a secret
        raise ValueError(f"the MLflow experiment of {sweep.folder} was {experiment}; name it by --experiment")
    return TrackingSettings(uri=chosen or local, experiment=experiment)


if __name__ == "__main__":
    sys.exit(main())
