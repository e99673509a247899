"""The published study: committed sweeps one after the other, their records joined, a report, a picture, the targets.

    python scripts/study.py FOLDER [--parts forward,long] [--limit-s 540]   on a GPU; about 9 minutes in all
    python scripts/study.py FOLDER --join FOLDER1 FOLDER2                   from what earlier runs left
    python scripts/study.py FOLDER --dry                                    tiny sizes on a CPU, to try the script

Out: in FOLDER records.jsonl, environment.json, report.html, report.md, study.svg, targets.txt, log.txt. A sweep that
fails or runs out of time leaves what it has, and the others go on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import study_picture
import study_targets

from softmax_exp.files import write_whole
from softmax_exp.records import Record, read_records
from softmax_exp.report import FILES
from softmax_exp.results import Results, find

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "softmax_exp"]
ALL = "eager,torch.compile,triton-simple,triton,liger,flag_gems"
COMMON = [f"variants=[{ALL}]", "baseline=triton", "tracking=off", "measure.budget_s=0.8"]
COMMON += ["measure.first_call_deadline_s=40", "measure.measure_deadline_s=60"]
FORWARD_ONLY = "variants=[eager,torch.compile,triton,liger,flag_gems]"
PARTS = {  # in the order of their weight, should the time end
    "forward": ["experiment=rows"],
    "long": ["experiment=long_rows", FORWARD_ONLY, "measure.graph_below_us=50"],
    "gradients": ["experiment=gradients", FORWARD_ONLY, "measure.budget_s=1.5"],
    "long-gradients": [
        "experiment=long_rows", FORWARD_ONLY, "mode=backward", "shape=[4096,65536],[2048,131072],[1024,262144]"
    ],
    "masks": ["experiment=masks", FORWARD_ONLY],
    "vocabulary": ["experiment=vocabulary", "cols=32000,50257,128256,151936", "dtype=bfloat16,float32"],
    "decode": ["experiment=decode", "dtype=float16,bfloat16"],
    "few": [
        "experiment=rows", FORWARD_ONLY, "dtype=float16,float32",
        "shape=[1,8192],[64,8192],[1,32000],[64,32000],[64,128256]",
    ],
    "unaligned-gradients": [
        "experiment=rows", FORWARD_ONLY, "mode=backward", "shape=[221184,1185],[65536,4097],[32768,8193],[21845,12289]"
    ],
    # QuACK compiles for seconds a case, so it is not in all sweeps.
    "quack": [
        "experiment=rows", "variants=[triton,quack]", "dtype=float16,float32",
        "shape=[16,12,512,512],[8,12,2048,2048],[32768,8192],[8192,32768],[4096,65536],[2048,131072],[1024,262144]",
    ],
    "quack-gradients": [
        "experiment=gradients", "variants=[triton,quack]", "dtype=float16,float32",
        "shape=[16,12,512,512],[8,12,2048,2048],[8192,32768]",
    ],
}  # fmt: skip
DRY = ["device=cpu", "measure=quick", "measure.budget_s=0.05", "measure.min_rounds=6", "variants=[eager,triton,liger]"]
DRY_SIZES = {
    "masks": ["seq=8", "batch=1", "heads=2"],
    "vocabulary": ["rows=3", "cols=16,33"],
    "decode": ["batch=2", "heads=2", "seq=16,40"],
}
STOP_S = 25.0  # for a sweep that was told to stop, and for the report


def run(parts: list[str], work: Path, log: Path, deadline: float, dry: bool) -> list[Path]:
    """Run the sweeps until the deadline, a time of `time.monotonic`. The files of records that they left."""
    found = []
    for part in parts:
        overrides = [*COMMON, *PARTS[part]]
        if dry:
            overrides += [*DRY, *DRY_SIZES.get(part, ["shape=[1,2,8,8],[3,40]"]), "dtype=float32"]
        last = {override.split("=", 1)[0]: override for override in overrides}  # a key may be given once
        started, left = time.monotonic(), deadline - time.monotonic()
        if left <= 0:
            tell(log, f"== {part}: not run, the time is over")
            continue
        with log.open("a") as out:
            process = subprocess.Popen(
                [*COMMAND, *last.values(), f"outputs={work / part}"],
                cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                status = process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                status = wait_or_kill(process)
        records = sorted((work / part).glob("sweeps/*/records.jsonl"))
        n = sum(1 for path in records for _ in read_records(path))
        tell(log, f"== {part}: exit status {status}, {n} cells, {time.monotonic() - started:.0f} s")
        found += records
    return found


def wait_or_kill(process: subprocess.Popen) -> int:
    """The exit status of a process that was told to stop."""
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def tell(log: Path, line: str) -> None:
    """Print a line, and keep it in the log."""
    print(line, flush=True)
    with log.open("a") as out:
        out.write(line + "\n")


def join(paths: list[Path]) -> Results:
    """The records of several files as one sweep's, with jobs numbered through and floats to six digits."""
    records: list[Record] = []
    environments = {}
    for path in paths:
        part = find(str(path), path.parent)
        first = max((record.job for record in records), default=-1) + 1
        records += [dataclasses.replace(record, job=record.job + first) for record in part.records]
        environments |= part.environments
    return Results("study", records, environments=environments)


def write(results: Results, folder: Path) -> None:
    """The files of a study, but for its log."""
    lines = []
    for record in results.records:
        fields = json.loads(record.to_json())
        lines.append(json.dumps({name: _short(value) for name, value in fields.items()}, ensure_ascii=False) + "\n")
    write_whole(folder / "records.jsonl", "".join(lines))
    for number, environment in enumerate(results.environments.values()):
        name = f"environment{number + 1 if number else ''}.json"
        write_whole(folder / name, json.dumps(environment, indent=1) + "\n")
    for name, make in FILES.items():
        if not name.endswith(".csv"):
            write_whole(folder / name, make([results]))
    write_whole(folder / "targets.txt", "\n".join(study_targets.lines(results.records)) + "\n")
    drawn = study_picture.picture(results.records)
    if drawn:
        write_whole(folder / "study.svg", drawn)


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    """Run or join, write the files, print the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help="%(default)s")
    parser.add_argument("--limit-s", type=float, default=540.0, help="s; for all sweeps (%(default)s)")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FOLDER", help="folders of earlier runs")
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"unknown parts: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    folder, work = given.folder.absolute(), Path(tempfile.mkdtemp(prefix="study"))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    deadline = time.monotonic() + given.limit_s - STOP_S
    if given.join:
        paths = [path / "records.jsonl" for path in given.join]
        write_whole(log, "".join((path / "log.txt").read_text() for path in given.join))
    else:
        write_whole(log, "")
        paths = run(parts, work, log, deadline, given.dry)
    results = join(paths)
    write(results, folder)
    shutil.rmtree(work)
    print((folder / "targets.txt").read_text(), end="")
    print(f"{len(results.records)} cells; files in {folder}")


if __name__ == "__main__":
    main()
