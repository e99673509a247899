"""Which ptxas the measuring process uses."""

import re

from softmax_exp import ptxas


def test_torch_s_own_is_taken_from_the_start_unless_the_user_chose_one(tmp_path):
    variables: dict[str, str] = {}
    ptxas.settle(tmp_path, variables)
    assert variables == {}, "torch brings none: Triton's"
    tool = tmp_path / "bin" / "ptxas"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    ptxas.settle(tmp_path, variables)
    assert variables == {}, "not one that can be run"
    tool.chmod(0o755)
    ptxas.settle(tmp_path, variables)
    assert variables == {"TRITON_PTXAS_PATH": str(tool)}
    variables = {"TRITON_PTXAS_PATH": "/usr/bin/ptxas"}
    ptxas.settle(tmp_path, variables)
    assert variables == {"TRITON_PTXAS_PATH": "/usr/bin/ptxas"}


def test_its_version_is_known():
    assert re.fullmatch(r"\d+\.\d+", ptxas.version((9, 0)) or "")


def test_the_version_is_of_the_one_that_is_set(tmp_path, monkeypatch):
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 98.7, V98.7.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    assert ptxas.version((9, 0)) == "98.7"
