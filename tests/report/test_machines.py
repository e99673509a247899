"""A sweep of several kinds of machines: told apart in the report, compared like with like."""

from __future__ import annotations

import copy
from pathlib import Path

from softmax_exp.environment import keep_environment
from softmax_exp.pairing import pair
from softmax_exp.records import Record
from softmax_exp.report.machines import kinds, places, warning
from softmax_exp.report.page import page
from softmax_exp.report.panels import panels
from softmax_exp.report.text import markdown
from softmax_exp.results import Results, of_sweep
from tests import made_up


def cluster(outputs: Path, sweep_id: str, slow: str = "NVIDIA A100", **device: object) -> Results:
    """Three cases: two on H200s of two hosts, the last on another kind of GPU."""
    cells = made_up.records(sweep_id)
    made = made_up.sweep(outputs, cells)
    other = copy.deepcopy(made_up.ENVIRONMENT)
    other["device"] |= {"name": slow, **device}
    (made.folder / "records.jsonl").unlink()
    for record in cells:
        record.placement = {"host": f"node{record.job}", "gpu_uuid": f"GPU-{record.job}", "launcher": "ray"}
        if record.job == 2:
            record.environment_hash = keep_environment(made.folder, other)
        made.append(record)
    return of_sweep(made)


def test_kinds_of_machines_are_told_apart_in_words_pictures_and_rows(tmp_path: Path) -> None:
    results = cluster(tmp_path, "a")
    h200, a100 = (results.records[n].environment_hash for n in (0, -1))
    assert kinds(results) == {h200: "NVIDIA H200", a100: "NVIDIA A100"}
    assert warning(results).startswith(
        "Measured on 2 kinds of machines (8 cells on NVIDIA H200, 4 cells on NVIDIA A100)"
    )
    assert [panel.title.rpartition(", ")[2] for panel in panels([results])] == ["NVIDIA H200", "NVIDIA A100"]
    assert warning(results) in page([results]) and "kinds of machines" in markdown([results])
    assert "8x12x2048x2048 float16 forward, NVIDIA A100" in page([results])
    assert places(results, h200, "gpu_uuid") == "GPU-0 (4 cells), GPU-1 (4 cells)" and places(results, a100, "host")


def test_one_model_with_another_power_limit_is_another_kind(tmp_path: Path) -> None:
    both = cluster(tmp_path, "a", "NVIDIA H200", power_limit_w=500), cluster(tmp_path, "b", "NVIDIA H200")
    assert kinds(both[1]) == {} and warning(both[1]) == "", "a fact that is not known does not differ"
    limits = {hash_: env["device"].setdefault("power_limit_w", 700) for hash_, env in both[0].environments.items()}
    names = {limits[hash_]: name for hash_, name in kinds(both[0]).items()}
    assert sorted(names.values()) == ["NVIDIA H200 (1)", "NVIDIA H200 (2)"] and names[500] != names[700]


def test_a_mixed_cluster_compares_with_itself_cell_by_cell(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, "a"), cluster(tmp_path, "b")
    same = pair(first, second)
    assert len(same.pairs) == 12 and not same.refused and not any(each.refused for each in same.pairs)
    third = cluster(tmp_path, "c", "NVIDIA B200")
    mixed = pair(first, third)
    reasons = {each.candidate.job: each.refused for each in mixed.pairs}
    assert reasons == {0: [], 1: [], 2: ["name: NVIDIA A100 against NVIDIA B200"]} and not mixed.refused
    forced = pair(first, third, force=True)
    assert "name: NVIDIA A100 against NVIDIA B200" in forced.told and not any(each.refused for each in forced.pairs)


def test_a_case_that_two_kinds_measured_pairs_like_with_like(tmp_path: Path) -> None:
    first = cluster(tmp_path, "a")
    h200, a100 = (first.records[n].environment_hash for n in (0, -1))

    def twice(*hashes: str) -> Results:
        cells = [Record("x", job, "eager", [2, 2], 2, 2, "float16", "forward") for job in range(2)]
        for cell, name in zip(cells, hashes, strict=True):
            cell.environment_hash = name
        return Results("x", cells, {}, first.environments)

    paired = pair(twice(h200, a100), twice(a100, h200)).pairs
    assert all(each.baseline.environment_hash == each.candidate.environment_hash for each in paired)
