import json
import os
import subprocess
import sys

import pytest
import torch

import softmax_exp
from softmax_exp import benchmark_softmax_variants, kernels


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.parametrize("device", ["cuda", torch.device("cuda"), "cpu", torch.device("cpu")])
def test_without_cuda_there_is_the_one_result_of_the_first_version(device):
    assert benchmark_softmax_variants(device) == [{"variant": "all", "error": "skipped: requires a CUDA GPU"}]


@pytest.mark.gpu
def test_the_first_versions_result_for_each_variant():
    code = (
        "import json, torch; from softmax_exp import benchmark_softmax_variants as benchmark\n"
        "print(json.dumps(benchmark(torch.device('cuda'), batch=2, heads=3, seq=128, n_warmup=2, n_iters=5)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [result["variant"] for result in found] == ["eager", "torch.compile", "triton"]
    for result in found:
        assert set(result) == {"variant", "mean_latency_ms", "std_latency_ms", "max_abs_error"}, result
        assert result["mean_latency_ms"] > 0 and 0 < result["max_abs_error"] < 1e-3


def test_both_functions_are_importable_from_both_places():
    assert softmax_exp.triton_softmax is kernels.triton_softmax
    assert softmax_exp.benchmark_softmax_variants is kernels.benchmark_softmax_variants


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu_the_kernels_import_and_a_call_says_what_it_needs():
    code = "import torch, softmax_exp; softmax_exp.triton_softmax(torch.randn(2, 3))"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stderr
    assert told.splitlines()[-1].startswith("RuntimeError") and "CUDA" in told.splitlines()[-1]
