"""Turn the records of a tuning sweep into a table: the best arguments of `triton` for each shape, and the plan's.

In: records.jsonl of sweeps over `variant_args.triton.…` (experiment=tune, or any other). Out: a Markdown table on
standard output, one line a shape: the best arguments, those that the plan chooses, and what the plan loses by them.

    python scripts/tune_plan.py outputs/*/records.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

from softmax_exp.cases import ITEMSIZE
from softmax_exp.kernels.plan import plan
from softmax_exp.records import Record, Status, read_records

Shape = tuple[str, str, str, int, int]


def by_shape(records: list[Record]) -> dict[Shape, list[tuple[float, dict[str, Any]]]]:
    """Times in ms and arguments of every measured cell of `triton`, by (mode, mask, dtype, n_rows, n_cols)."""
    times: dict[Shape, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for record in records:
        if record.variant == "triton" and record.status is Status.PASSED and record.device_ms is not None:
            shape = (record.mode, record.mask, record.dtype, record.n_rows, record.n_cols)
            times[shape].append((record.device_ms, record.variant_args))
    return dict(times)


def planned(shape: Shape) -> dict[str, Any]:
    """The plan's fields for contiguous tensors of that shape; backward's for `full`, which runs both."""
    mode, mask, dtype, n_rows, n_cols = shape
    itemsize = ITEMSIZE[dtype]
    access = "aligned" if n_cols * itemsize % 16 == 0 else "shifted"
    mode = "backward" if mode == "full" else mode
    return dataclasses.asdict(plan(n_rows, n_cols, itemsize, mode, mask, access))


def line(shape: Shape, cells: list[tuple[float, dict[str, Any]]]) -> str:
    """One line of the table; a dash where the plan's own choice was not among the cells."""
    mode, mask, dtype, n_rows, n_cols = shape
    fields = planned(shape)
    best_ms, best = min(cells, key=lambda cell: cell[0])
    of_plan = [ms for ms, args in cells if all(fields[key] == value for key, value in args.items())]
    swept = {key: fields[key] for key in sorted({key for _, args in cells for key in args})}
    lost = f"{100 * (min(of_plan) / best_ms - 1):.1f}" if of_plan else "-"
    return (
        f"| {mode} | {mask} | {dtype} | {n_rows} x {n_cols} | {words(best)} | {1000 * best_ms:.2f} "
        f"| {words(swept)} | {lost} |"
    )


def words(args: dict[str, Any]) -> str:
    """Arguments as on the command line; `default` for none."""
    return " ".join(f"{key}={value}" for key, value in sorted(args.items())) or "default"


def main() -> None:
    """Print the table for the files of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, help="records.jsonl of one or more sweeps")
    times = by_shape([record for path in parser.parse_args().records for record in read_records(path)])
    print("| mode | mask | dtype | shape | best | us | the plan's | % lost |")
    print("|---|---|---|---|---|---|---|---|")
    for shape, cells in sorted(times.items()):
        print(line(shape, cells))


if __name__ == "__main__":
    main()
