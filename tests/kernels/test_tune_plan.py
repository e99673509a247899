"""scripts/tune_plan.py: the best arguments of each shape, and what the plan loses by its own."""

import subprocess
import sys
from pathlib import Path

from softmax_exp.records import Record, Status

SCRIPT = Path(__file__).parents[2] / "scripts" / "tune_plan.py"


def record(num_warps, device_ms, n_cols=2048, status=Status.PASSED):
    """A measured cell of 1000 rows in float16; for 2048 columns the plan takes 4 warps, for 1185 one."""
    return Record(
        sweep_id="s", job=0, variant="triton", shape=[1000, n_cols], n_rows=1000, n_cols=n_cols, dtype="float16",
        mode="forward", variant_args={"num_warps": num_warps}, status=status, device_ms=device_ms,
    )  # fmt: skip


def test_table(tmp_path):
    records = [
        record(2, 0.0100),
        record(4, 0.0102),
        record(8, 0.0001, status=Status.INCORRECT),
        record(2, 0.02, n_cols=1185),
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(one.to_json() + "\n" for one in records))
    out = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=True).stdout
    lines = out.splitlines()[2:]
    assert lines[0].endswith("| 1000 x 1185 | num_warps=2 | 20.00 | num_warps=1 | - |")
    assert lines[1].endswith("| 1000 x 2048 | num_warps=2 | 10.00 | num_warps=4 | 2.0 |")
    assert len(lines) == 2
