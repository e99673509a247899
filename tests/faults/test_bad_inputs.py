"""Bad configs, damaged records and manifests: each ends in a message and a status, and leaves nothing half written."""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path

import pytest

from softmax_exp import cli, report, sync
from softmax_exp.config import MeasureSettings, Schema, TrackingSettings
from softmax_exp.records import Record
from softmax_exp.sweep import Sweep
from softmax_exp.table import markdown
from tests import made_up
from tests.test_cli import Joint, joint

__all__ = ["joint"]  # a fixture

KEYS = [
    *Schema.__dataclass_fields__,
    "hydra.callbacks",
    "hydra.mode",
    "hydra.launcher",
    "experiment",
    "_target_",
    "x.y",
]
KEYS += [f"measure.{name}" for name in MeasureSettings.__dataclass_fields__]
KEYS += [f"tracking.{name}" for name in TrackingSettings.__dataclass_fields__]
VALUES = [
    "",
    "-1",
    "0",
    "1e99",
    "nan",
    ".inf",
    "null",
    "true",
    "[]",
    "{}",
    "[1,[2]]",
    "{a:1}",
    "a,b",
    "é\u0000",
    "'",
    '"',
    "${",
    "${oc.env:NOWHERE}",
    "${nothing}",
    "${seq}",
    "../../etc/passwd",
    "os.system",
    "{_target_:os.system}",
    "\\",
    "x" * 5000,
    "[[[[",
    "range(3)",
    "choice(1,2)",
    "glob(*)",
    "9" * 400,
    "<b>x</b>",
    "%s%n",
    "\n",
    " ",
]
FLAGS = [
    "--run",
    "--config-name=x",
    "--config-dir=/nowhere",
    "--nonsense",
    "-m",
    "--multirun",
    "---",
    "=",
    "~",
    "+",
    "@x=1",
]


def bad_arguments(dice: random.Random) -> list[str]:
    """A command line in which something is probably wrong."""
    chosen = []
    for _ in range(dice.randint(1, 3)):
        key = dice.choice(KEYS)
        if dice.random() < 0.2:
            key = "".join(dice.choice([letter, letter, letter, dice.choice("xyz._")]) for letter in key)
        chosen.append(dice.choice(["", "", "", "+", "++", "~"]) + key + "=" + dice.choice(VALUES))
    return chosen + ([dice.choice(FLAGS)] if dice.random() < 0.1 else [])


def test_bad_command_lines_are_told_and_write_nothing(joint: Joint, many, figures) -> None:  # S23
    dice, counts = random.Random(3), {"commands": 0, "refused": 0, "ran": 0}
    while counts["commands"] < many(60, 500):
        arguments = bad_arguments(dice)
        out, err = io.StringIO(), io.StringIO()
        before = set(Path().rglob("*"))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = cli.main(["variants=eager", "seq=16", "outputs=out", *arguments])
            except SystemExit as left:  # argparse's own refusal of a flag
                status = left.code
        told = out.getvalue() + err.getvalue()
        counts["commands"] += 1
        assert "Traceback" not in told, (arguments, told)
        if status == 2:
            counts["refused"] += 1
            assert told.strip() and set(Path().rglob("*")) == before, (arguments, told)
        else:  # the values made sense after all
            counts["ran"] += 1
            assert status in (0, 1), (arguments, status)
    figures(**counts)
    assert counts["refused"] > counts["ran"]


def damaged(dice: random.Random, text: str) -> str:
    """The text with bytes lost, changed, doubled or put in."""
    data = bytearray(text.encode())
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        how = dice.randrange(5)
        if how == 0:
            del data[at : at + dice.randint(1, 400)]
        elif how == 1 and at < len(data):
            data[at] = dice.randrange(256)
        elif how == 2:
            data[at:at] = data[at : at + dice.randint(1, 400)]
        elif how == 3:
            data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 40)))
        else:
            data[at:] = b""
    return data.decode(errors="surrogateescape")


WRONG = [
    None,
    True,
    -1,
    1e308,
    "text",
    "../../x",
    [],
    {},
    [None],
    {"a": {"b": []}},
    "\ud800".encode("utf-8", "replace").decode(),
]


def wrong_types(dice: random.Random, line: str) -> str:
    """A record's line with fields of other types."""
    fields = json.loads(line)
    for name in dice.sample(sorted(fields), dice.randint(1, 5)):
        fields[name] = dice.choice(WRONG)
    return json.dumps(fields)


def test_damaged_records_cost_themselves_alone(tmp_path, many, figures) -> None:
    dice, counts = random.Random(4), {"files": 0, "records": 0, "left_out": 0}
    sweep = made_up.sweep(tmp_path, made_up.records("20261101-000000-abcd"))
    whole = sweep.records_path.read_text()
    good = {record.cell: record.to_json() for record in sweep.records()}
    for n in range(many(40, 300)):
        lines = whole.splitlines()
        hit = dice.sample(range(len(lines)), dice.randint(1, 4))
        for at in hit:
            lines[at] = (damaged if n % 2 else wrong_types)(dice, lines[at])
        sweep.records_path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
        records = sweep.records()
        counts["files"] += 1
        counts["records"] += len(lines)
        counts["left_out"] += len(good) - len(records)
        kept = {record.cell: record.to_json() for record in records}
        assert all(kept.get(cell) == line for n, (cell, line) in enumerate(good.items()) if n not in hit)
        markdown(records)
        report.write_for(sweep)
        cli.exit_status(sweep)
    figures(**counts)
    assert counts["left_out"] > 0


def test_damaged_manifests_are_told(joint: Joint, many, figures, capsys) -> None:
    dice, counts = random.Random(5), {"manifests": 0, "refused": 0}
    command = ["variants=eager", "seq=16,32", "outputs=out"]
    assert cli.main(command) == 0
    (folder,) = Path("out/sweeps").iterdir()
    path, whole = folder / "manifest.json", (folder / "manifest.json").read_text()
    for _ in range(many(30, 200)):
        path.write_bytes(damaged(dice, whole).encode(errors="surrogateescape"))
        status = cli.main([*command, f"resume={folder.name}"])
        told = "".join(capsys.readouterr())
        counts["manifests"] += 1
        counts["refused"] += status == 2
        assert status in (0, 2) and "Traceback" not in told
        assert told.strip()
        with contextlib.suppress(ValueError):
            sync.settings_of(Sweep(folder), Path("out"))
    figures(**counts)
    assert counts["refused"] > 0


@pytest.mark.parametrize(
    "line", ['{"format": 1}', "[" * 100_000, '{"format": 1, "job": "../.."}', "\ufeff{}", "0" * 10**6]
)
def test_no_line_is_more_than_no_record(line) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Record.from_json(line)
