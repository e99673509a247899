import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softmax_exp import variants
from softmax_exp.cases import Case

OWN = ("eager", "torch.compile", "torch.compile-max-autotune", "triton", "triton-simple")


def test_names_are_known_without_importing_torch():
    code = "import sys; from softmax_exp import variants; print(*variants.names()); assert 'torch' not in sys.modules"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(OWN) <= set(told)


@pytest.mark.parametrize("name", OWN)
def test_every_variant_loads_under_its_name_with_a_hash_of_its_sources(name):
    variant = variants.load(name)
    assert variant.name == name and len(variant.kernel_hash) == 16
    assert variant.kernel_hash == variants.kernel_hash(name), "known without loading it"
    assert variant.needs_cuda == name.startswith("triton")


def test_the_hash_follows_the_declared_sources():
    assert Path(variants.__file__).with_name("eager.py") in variants.load("torch.compile").sources
    assert len(variants.load("triton").sources) > 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eagre", "did you mean 'eager'"),
        ("nowhere/mine.py:softmax", "no file nowhere/mine.py"),
        ("tests/faulty.py:sofmax", "defines no 'sofmax'"),
    ],
)
def test_a_wrong_name_is_told_with_what_is_allowed(name, words, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    with pytest.raises(ValueError, match=words):
        variants.check(name)


def write(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text("import torch\n" + text)
    return f"{path}:softmax"


def test_a_function_of_ones_own(tmp_path):
    variant = variants.load(write(tmp_path, "def softmax(x): return torch.softmax(x, -1)"))
    x = torch.randn(2, 3)
    assert torch.equal(variant.build(Case(shape=(2, 3)))(x), torch.softmax(x, -1))
    with pytest.raises(variants.Unsupported, match="factory"):
        variant.build(Case(shape=(2, 3), mask="causal"))


def test_a_factory_of_ones_own_gets_the_case_and_arguments(tmp_path):
    name = write(
        tmp_path, "def softmax(case, power=1):\n    return lambda x: torch.softmax(x * power, -1) * case.n_cols"
    )
    x = torch.randn(2, 3)
    built = variants.load(name).build(Case(shape=(2, 3)), power=2)
    assert torch.equal(built(x), torch.softmax(x * 2, -1) * 3)


def test_a_function_without_arguments_is_refused(tmp_path):
    with pytest.raises(ValueError, match="takes no arguments"):
        variants.load(write(tmp_path, "def softmax(): pass"))


def test_checking_a_file_does_not_run_it(tmp_path):
    variants.check(write(tmp_path, "raise SystemExit('ran')\ndef softmax(x): pass"))


def test_our_variant_takes_every_field_of_the_plan_and_no_other():
    import inspect

    from softmax_exp.kernels.plan import OVERRIDES
    from softmax_exp.variants import triton

    assert list(inspect.signature(triton.build).parameters) == ["case", *OVERRIDES]
