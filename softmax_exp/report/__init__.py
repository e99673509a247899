"""The report: what a sweep found, to look at, to paste and to calculate with.

In: `Results` of one or several sweeps, nothing but records.  Out: report.html, report.md and report.csv in a folder.
"""

from __future__ import annotations

from pathlib import Path

from softmax_exp.files import write_whole
from softmax_exp.report.page import page
from softmax_exp.report.text import markdown, spreadsheet
from softmax_exp.results import Results, of_sweep
from softmax_exp.sweep import Sweep

__all__ = ["write", "write_for"]

FILES = {"report.html": page, "report.md": markdown, "report.csv": spreadsheet}


def write(sweeps: list[Results], folder: Path) -> list[Path]:
    """Write the three files and return their paths. ValueError where there is no record."""
    texts = {name: make(sweeps) for name, make in FILES.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text)
    return [folder / name for name in texts]


def write_for(sweep: Sweep) -> list[Path]:
    """Write the report of one sweep into its folder; nothing where it has no record yet."""
    results = of_sweep(sweep)
    return write([results], sweep.folder) if results.records else []
