"""docs/writing_a_kernel.md, followed literally: its files written, its commands run, its promises found."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "writing_a_kernel.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ONLY_WITHOUT_GPU = "export TRITON_INTERPRET=1"


def follow(folder: Path, *, interpreted: bool) -> int:
    """Do what the tutorial says, block by block; how many commands were run."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    python = folder / ".bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = ":".join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    told, n_commands = "", 0
    for kind, block in BLOCKS:
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            assert name is not None, "a listing begins with the name of its file"
            (folder / name[1]).write_text(block)
        elif block.strip() == ONLY_WITHOUT_GPU:
            environment |= {"TRITON_INTERPRET": "1"} if interpreted else {}
        elif kind == "sh":
            done = subprocess.run(
                ["bash", "-c", block], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
            )
            told, n_commands = done.stdout, n_commands + 1
            assert done.returncode in (0, 1), done.stderr
        elif kind == "text":
            for line in block.splitlines():
                assert line in told, f"the tutorial promises {line!r}, and the command says:\n{told}"
    return n_commands


def test_the_tutorial_followed_literally_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert follow(tmp_path, interpreted=True) == 6


@pytest.mark.gpu
def test_the_tutorial_followed_literally_on_a_gpu(tmp_path):
    assert follow(tmp_path, interpreted=False) == 6


def test_the_tutorial_installs_as_the_readme_does():
    (command,) = [block.strip() for kind, block in BLOCKS if kind == "console"]
    assert command in (ROOT / "README.md").read_text()
    assert {kind for kind, _ in BLOCKS} == {"console", "sh", "python", "text"}
