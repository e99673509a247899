import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from softmax_exp import environment
from softmax_exp.environment import (
    describe_device,
    describe_git,
    describe_host,
    environment_class,
    environment_hash,
    keep_environment,
)
from tests.made_up import ENVIRONMENT


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_the_host_is_described_as_json_and_without_torch():
    code = "import json, sys; from softmax_exp.environment import describe_host; print(json.dumps(describe_host()));"
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    host = json.loads(done.stdout)
    assert done.returncode == 0
    assert host["cpu"] and host["memory_bytes"] > 2**28 and host["cpu_count"] == len(os.sched_getaffinity(0))
    assert host["packages"]["torch"] == torch.__version__
    assert host["python"] == sys.version.split()[0]


def test_the_device_names_the_torch_build():
    device = describe_device(torch.device("cpu"))
    assert device["type"] == "cpu" and device["torch"] == torch.__version__ and device["threads"] >= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_is_matched_with_nvml_by_its_uuid():
    device = describe_device(torch.device("cuda"))
    assert device["sm_count"] > 0 and device["l2_bytes"] > 0 and device["driver"] and device["sm_clock_max_mhz"] > 0
    assert device["name"] == torch.cuda.get_device_name()


def test_of_several_gpus_the_one_that_torch_runs_on_is_described(monkeypatch):
    properties = types.SimpleNamespace(
        name="NVIDIA H200", uuid="bbbb", multi_processor_count=132, L2_cache_size=60, total_memory=1, major=9, minor=0
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    gpus = [{"name": "x", "uuid": f"GPU-{c * 4}", "power_limit_w": w} for c, w in (("a", 300.0), ("b", 700.0))]
    monkeypatch.setattr(environment, "describe_gpus", lambda: gpus)
    device = describe_device(torch.device("cuda"))
    assert (device["power_limit_w"], device["name"], device["uuid"]) == (700.0, "NVIDIA H200", "bbbb")


def test_git_tells_commit_and_whether_it_is_all(repository):
    clean = describe_git(repository)
    assert clean is not None and len(clean["commit"]) == 40
    assert (clean["branch"], clean["dirty"], clean["remote"]) == ("trunk", False, None)
    (repository / "new.py").write_text("x")
    dirty = describe_git(repository)
    assert dirty is not None and dirty["dirty"] is True and dirty["commit"] == clean["commit"]


def test_a_token_in_a_remote_is_not_kept(repository):
    git(repository, "remote", "add", "origin", "https://me:s3cret-token@example.org/x.git")
    state = describe_git(repository)
    assert state is not None and state["remote"] == "https://***@example.org/x.git"


def test_outside_of_a_repository_there_is_no_git_state(tmp_path):
    assert describe_git(tmp_path) is None


def test_a_program_named_in_the_repositorys_settings_is_not_run(repository):
    git(repository, "config", "core.fsmonitor", f"touch {repository / 'was-run'}; false")
    assert describe_git(repository) is not None
    assert not (repository / "was-run").exists()


@pytest.mark.parametrize("part, key", [("device", "driver"), ("device", "torch"), ("device", "name"), ("host", "cpu")])
def test_the_hash_follows_what_changes_latencies(part, key):
    other = {**ENVIRONMENT, part: {**ENVIRONMENT[part], key: "another"}}
    assert environment_hash(other) != environment_hash(ENVIRONMENT)


@pytest.mark.parametrize("part, key", [("host", "hostname"), ("host", "git"), ("device", "uuid")])
def test_the_hash_ignores_what_does_not(part, key):
    other = {**ENVIRONMENT, part: {**ENVIRONMENT[part], key: "another"}}
    assert environment_hash(other) == environment_hash(ENVIRONMENT)
    assert key not in environment_class(other)


def test_an_environment_is_kept_once_under_its_hash(tmp_path):
    name = keep_environment(tmp_path, ENVIRONMENT)
    path = tmp_path / "environments" / f"{name}.json"
    assert json.loads(path.read_text()) == ENVIRONMENT
    before = path.stat().st_mtime_ns
    assert keep_environment(tmp_path, {**ENVIRONMENT}) == name and path.stat().st_mtime_ns == before


def test_the_host_of_this_checkout_knows_its_commit():
    root = Path(__file__).parents[1]
    if describe_git(root) is None:
        pytest.skip("the tests do not run in a git checkout")
    package = describe_host()["git"]["package"]
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert package["commit"] == head
