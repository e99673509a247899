"""The command `python -m softmax_exp.sync [SWEEP]`: send a sweep to MLflow, again or for the first time.

In: a sweep's folder or id (default: the newest).  Out: its runs, links to them; exit status 1 where the store fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from softmax_exp.compose import CHECKOUT
from softmax_exp.config import TrackingSettings
from softmax_exp.records import Sweep


def main(arguments: list[str] | None = None) -> int:
    """Run the command; what is in MLflow already is left as it is."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.sync", description="Send a sweep to MLflow.")
    parser.add_argument("sweep", nargs="?", help="folder or id of a sweep; default: the newest")
    parser.add_argument(
        "--outputs", type=Path, default=default_outputs(), help="where sweeps are (default: %(default)s)"
    )
    parser.add_argument("--uri", help="address of the store; default: the one that the sweep was configured with")
    parser.add_argument("--experiment", help="MLflow experiment; default: the one that the sweep was configured with")
    given = parser.parse_args(arguments)
    from softmax_exp import report, tracking  # report reads sweeps by the functions below

    try:
        sweep = find_sweep(given.sweep, given.outputs)
        settings = settings_of(sweep, given.uri, given.experiment)
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


def settings_of(sweep: Sweep, uri: str | None = None, experiment: str | None = None) -> TrackingSettings:
    """The tracking settings of a sweep's manifest; local where it was off, since someone asks for it now."""
    jobs = sweep.manifest()["jobs"]
    configured = (jobs[0].get("config") or {}).get("tracking") or {} if jobs else {}
    kind = configured.get("kind", "local")
    return TrackingSettings(
        kind="local" if kind == "off" else kind,
        uri=uri or configured.get("uri"),
        experiment=experiment or configured.get("experiment", "softmax_exp"),
    )


if __name__ == "__main__":
    sys.exit(main())
