"""The command `python -m softmax_exp.report SWEEP...`: write the report of one sweep, or of several together.

In: folders or ids of sweeps, or MLflow run ids.  Out: the paths of HTML, Markdown and CSV; exit status 2 where a name
leads to nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from softmax_exp import report, results
from softmax_exp.sync import default_outputs


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.report", description="Write the report of sweeps.")
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP", help="folder or id of a sweep, or MLflow run ids (a,b)")
    parser.add_argument("--out", type=Path, help="folder for the files; default: the sweep's, or one under outputs")
    add_places(parser)
    given = parser.parse_args(arguments)
    try:
        found = [results.find(name, given.outputs, given.uri) for name in given.sweeps]
        folder = given.out or _folder(found, given.outputs)
        for path in report.write(found, folder):
            print(path)
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def add_places(parser: argparse.ArgumentParser) -> None:
    """The options that say where names are looked up."""
    parser.add_argument("--outputs", type=Path, default=default_outputs(), help="where sweeps are (%(default)s)")
    parser.add_argument("--uri", help="address of the MLflow store for run ids; default: the local one under outputs")


def _folder(found: list[results.Results], outputs: Path) -> Path:
    first = found[0]
    if len(found) == 1 and first.folder is not None:
        return first.folder
    name = first.name[:40] + (f"+{len(found) - 1}" if len(found) > 1 else "")
    return outputs / "reports" / name.replace("/", "_").replace(",", "_")


if __name__ == "__main__":
    sys.exit(main())
