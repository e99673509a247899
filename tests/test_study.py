"""scripts/study.py and what it uses: the sweeps hold what is asked for, misses are told, records are joined."""

import dataclasses
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from softmax_exp import compose, memory
from softmax_exp.cases import Case
from softmax_exp.records import Record, Status, read_records

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))
import study  # noqa: E402
import study_picture  # noqa: E402
import study_targets  # noqa: E402


def records(slower_than: str = "", unclear_high: float = 0, **changes) -> list[Record]:
    """A study in which all that is asked for holds, or not, as a change says."""
    found = []
    wanted = [(target, dtype) for target in study_targets.TARGETS for dtype in target.dtypes]
    masked = {(t.shape, d) for t, d in wanted if t.mask != "none"}
    for job, (target, dtype) in enumerate(wanted):
        case = Case(target.shape, dtype=dtype, mode=target.mode, mask=target.mask)
        ms = 0.5 if target.mask == "causal" else 1.0
        in_study = "masks" if target.mask != "none" or (target.shape, dtype) in masked else "others"
        for name in study.ALL.split(","):
            peer = {} if name == "triton" else {"speedup": 0.5, "verdict": "slower"}
            peer |= {"speedup": 1.05, "verdict": "faster"} if name == slower_than else {}
            if unclear_high and name == "liger":
                peer = {"speedup": 0.99, "verdict": "unclear", "speedup_ci_low": 0.98, "speedup_ci_high": unclear_high}
            fields = {"status": Status.PASSED, "device_ms": ms, "pct_of_limit": 99.5, "baseline": "triton", "gbps": 4e3,
                      "limit_gbps": 4.1e3, "least_bytes": case.least_bytes, "clock": "events", **peer}  # fmt: skip
            identity = {key: value for key, value in case.to_dict().items() if key != "device"}
            sizes = case.named_sizes
            found.append(
                Record(in_study, job, name, **(identity | sizes | fields | (changes if name == "triton" else {})))
            )
    return found


def test_the_sweeps_hold_every_case_that_something_is_asked_of(monkeypatch):
    monkeypatch.setattr(memory, "total_bytes", lambda device: (139 << 30, "the GPU"))
    cases = {}
    for name, overrides in study.PARTS.items():
        last = {override.split("=", 1)[0]: override for override in [*study.COMMON, *overrides]}
        for job in compose.plan(list(last.values()), "s").jobs:
            case = dataclasses.replace(job.experiment.case, workload="attention")
            cases.setdefault(case, []).append((name, job.experiment.variants))
    for target in study_targets.TARGETS:
        for dtype in target.dtypes:
            assert Case(target.shape, dtype=dtype, mode=target.mode, mask=target.mask) in cases, (target, dtype)
    assert 100 <= len(cases) <= 160  # about four seconds each
    assert {case.mode for case in cases} == {"forward", "backward", "full"}
    assert {case.shape[-1] for case in cases} >= {64, 128, 256, 512, 1024, 2048, 4096, 128256}


def test_what_holds_and_what_does_not_is_told_within_what_a_message_holds():
    text = "\n".join(study_targets.lines(records()))
    assert "0 not: must holds in 103, goal in 103." in text and " MISS " not in text.split("best: the")[1]
    assert len(text) < 11_000
    assert "8x12x2048x2048 f16 fwd causal" in text and "0.50x [0.82 0.76]" in text
    assert "triton is faster 515, level 0, faster or level 0, unclear 0, slower 0." in text
    low = "\n".join(study_targets.lines(records(pct_of_limit=96.5)))
    assert (
        "16x12x512x512 f16 fwd           96.5 [97 99] MISS" in low
        and "8192x32768 f16 fwd              96.5 [96 98] goal" in low
    )
    slower = "\n".join(study_targets.lines(records(slower_than="torch.compile")))
    assert "c0.95!" in slower and "slower 103." in slower
    assert "4096x65536 f16 fwd              99.5 [95 98] MISS" in slower and "best 0.95 [1.4 1.7]" in slower


def test_an_unclear_verdict_that_cannot_be_slower_is_told_from_one_that_can():
    assert "faster or level 103, unclear 0" in "\n".join(study_targets.lines(records(unclear_high=1.009)))
    assert "faster or level 0, unclear 103" in "\n".join(study_targets.lines(records(unclear_high=1.011)))


def test_what_was_not_measured_or_failed_is_no_success():
    gone = "\n".join(study_targets.lines(records(status=Status.INCORRECT, device_ms=None)))
    assert "not measured (INCORRECT)" in gone and "0 measured, 103 not" in gone


def test_the_picture_is_an_image_of_its_own_with_every_variant():
    drawn = study_picture.picture(records())
    texts = [element.text for element in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"triton", "flag_gems", "limit", "forward, float16", "full, float16", "GB/s"} <= set(texts)
    assert study_picture.picture([]) == ""


def test_joined_records_keep_their_cells_apart(tmp_path):
    made = records()[:12]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lines = [dataclasses.replace(record, sweep_id=name).to_json() + "\n" for record in made]
        (tmp_path / name / "records.jsonl").write_text("".join(lines))
    joined = study.join([tmp_path / "a" / "records.jsonl", tmp_path / "b" / "records.jsonl"])
    assert [record.job for record in joined.records] == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    study.write(joined, tmp_path)
    assert [record.cell for record in read_records(tmp_path / "records.jsonl")] == [r.cell for r in joined.records]
    assert {path.name for path in tmp_path.iterdir()} >= {"report.html", "report.md", "targets.txt", "study.svg"}


def test_a_sweep_that_is_late_is_stopped_and_one_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    acts = "import sys, time; time.sleep(100) if sys.argv[1] == 'slow' else sys.exit(3)"
    monkeypatch.setattr(study, "COMMAND", [sys.executable, "-c", acts])
    monkeypatch.setattr(study, "COMMON", [])
    monkeypatch.setattr(study, "PARTS", {"bad": ["bad"], "slow": ["slow"], "never": ["never"]})
    assert study.run([*study.PARTS], tmp_path, tmp_path / "log.txt", time.monotonic() + 3, dry=False) == []
    told = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["== bad: exit status 3", "== slow: exit status -15", "== never: not run"]
    assert "the time is over" in (tmp_path / "log.txt").read_text()
