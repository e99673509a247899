import json
import math
import os
import subprocess
import sys

import pytest

from softmax_exp.files import append_line, write_whole
from softmax_exp.records import Record, Status, read_records
from softmax_exp.sweep import Sweep


def record(job: int = 0, variant: str = "eager", **fields) -> Record:
    about = {"sweep_id": "s", "shape": [2, 3], "n_rows": 2, "n_cols": 3, "dtype": "float16", "mode": "forward"}
    return Record(job=job, variant=variant, **(about | fields))


def test_a_record_survives_json():
    before = record(status=Status.PASSED, device_ms=0.1, flags=["noisy"], plan={"num_warps": 4}, message="ü <b>")
    assert Record.from_json(before.to_json()) == before


def test_nan_and_infinity_become_null_at_every_depth():  # S5
    line = record(max_abs_error=math.nan, device_ms=math.inf, machine={"power": [math.nan, 1.0]}).to_json()
    fields = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert fields["max_abs_error"] is None and fields["device_ms"] is None
    assert fields["machine"] == {"power": [None, 1.0]}


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "sweep_id": "s"}', "null"])
def test_a_damaged_line_is_no_record(line):
    with pytest.raises(ValueError, match=r".*"):
        Record.from_json(line)


def test_damaged_and_unfinished_lines_are_left_out_and_the_next_line_is_whole(tmp_path):
    path = tmp_path / "records.jsonl"
    append_line(path, record(0).to_json())
    with path.open("a") as file:
        file.write(record(1).to_json()[:40])  # what a kill in mid-write leaves
    append_line(path, record(2).to_json())
    assert [r.job for r in read_records(path)] == [0, 2]


def test_the_last_record_of_a_cell_counts_and_the_order_is_the_manifests(tmp_path):
    jobs = [{"job": 0, "variants": ["triton", "eager"]}, {"job": 1, "variants": ["eager"]}]
    sweep = Sweep.create(tmp_path / "sweep", jobs, {})
    for each in (
        record(1),
        record(0, "eager"),
        record(0, "triton", message="first"),
        record(0, "triton", message="2nd"),
    ):
        sweep.append(each)
    assert [(r.job, r.variant, r.message) for r in sweep.records()] == [
        (0, "triton", "2nd"),
        (0, "eager", ""),
        (1, "eager", ""),
    ]
    assert list(sweep.expected_cells()) == [(0, "triton"), (0, "eager"), (1, "eager")]


def test_a_sweep_never_takes_over_a_folder(tmp_path):
    Sweep.create(tmp_path / "sweep", [], {})
    with pytest.raises(FileExistsError):
        Sweep.create(tmp_path / "sweep", [], {})


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    code = (
        "import sys; from pathlib import Path; from softmax_exp.files import append_line\n"
        "for i in range(50): append_line(Path(sys.argv[1]), f'{sys.argv[2]}-{i}-' + 'x' * 5000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n)]) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    lines = path.read_text().splitlines()
    assert len(lines) == 200 and len(set(lines)) == 200 and all(line.endswith("x" * 5000) for line in lines)


def test_a_full_disk_leaves_whole_lines_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    append_line(path, "first")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(OSError, match="is it full"):
        append_line(path, "second")
    monkeypatch.undo()
    assert path.read_text() == "first\n"


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "old")
    write_whole(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("status", Status)
def test_which_statuses_fail_a_sweep(status):
    assert status.failed == (status not in ("PASSED", "SKIPPED", "UNSUPPORTED"))
