import importlib.machinery
import importlib.metadata
import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from softmax_exp import compose, variants
from softmax_exp.cases import Case
from softmax_exp.config import MeasureSettings
from softmax_exp.records import Status
from softmax_exp.variants import foreign, peers
from tests.test_measure import results

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

    from softmax_exp.kernels.plan_overrides import OVERRIDES
    from softmax_exp.variants import triton

    assert list(inspect.signature(triton.build).parameters) == ["case", *OVERRIDES]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def softmax(x): pass\nasync def other(x): pass", "other", "is async"),
        ("@triton.jit\ndef kernel(x_ptr): pass", "kernel", "name the Python function that launches it"),
        ("def softmax(): pass", "softmax", "takes no arguments; it must be softmax"),
        ("def softmax(x, case): pass", "softmax", "case must come first"),
    ],
)
def test_a_wrong_signature_is_told_by_the_source_alone(tmp_path, text, name, words):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        variants.check(f"{path}:{name}")


def test_a_function_that_a_file_imports_may_be_named(tmp_path):
    name = write(tmp_path, "from torch import softmax as soft\n").replace(":softmax", ":soft")
    variants.check(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def softmax(x, dim): pass", (["dim"], [])),
        ("def softmax(x, mask=None, *, fast=True): pass", ([], ["fast"])),
        ("def softmax(case, warps, stages=2): pass", (["warps"], ["stages"])),
        ("def softmax(case, **args): pass", None),
        ("softmax = torch.softmax", None),
    ],
)
def test_arguments_are_known_by_the_source(tmp_path, text, expected):
    assert variants.parameters(write(tmp_path, text)) == expected


def test_arguments_that_are_missing_are_told_before_anything_starts(tmp_path):
    name = write(tmp_path, "def softmax(x, dim): return torch.softmax(x, dim)")
    with pytest.raises(compose.ConfigError, match=r"needs dim; set variant_args\.softmax\.dim"):
        compose.plan([f"variants=['{name}']"], "s")
    compose.plan([f"variants=['{name}']", "variant_args.softmax.dim=-1"], "s")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("return 3", ValueError, "returned a int instead of the function"),
        ("return lambda: 3", ValueError, r"takes \(\) instead of x"),
        ("return lambda x, y: 3", ValueError, "takes .*x, y.* instead of x"),
    ],
)
def test_a_factory_that_returns_something_else_is_told(tmp_path, text, error, words):
    variant = variants.load(write(tmp_path, f"def softmax(case): {text}"))
    with pytest.raises(error, match=words):
        variant.build(Case(shape=(2, 3)))


def test_a_function_without_a_mask_is_refused_where_the_case_has_one(tmp_path):
    variant = variants.load(write(tmp_path, "def softmax(case): return lambda x: x"))
    with pytest.raises(variants.Unsupported, match="takes no mask"):
        variant.build(Case(shape=(2, 3), mask="additive"))
    both = variants.load(write(tmp_path, "def softmax(x, mask=None): return torch.softmax(x + mask, -1)"))
    built = both.build(Case(shape=(2, 3), mask="additive"))
    assert torch.equal(built(torch.zeros(2, 3), torch.zeros(2, 3)), torch.full((2, 3), 1 / 3))


def test_a_file_that_imports_triton_needs_a_gpu_unless_it_says_otherwise(tmp_path):
    text = "import triton.language as tl\ndef softmax(x): return x"
    assert not variants.load(write(tmp_path, "def softmax(x): return x")).needs_cuda
    assert variants.load(write(tmp_path, text)).needs_cuda
    assert not variants.load(write(tmp_path, "NEEDS_CUDA = False\n" + text)).needs_cuda


def test_files_beside_a_file_can_be_imported_and_declared(tmp_path):
    (tmp_path / "beside_mine.py").write_text("POWER = 2")
    name = write(
        tmp_path, "import beside_mine\nSOURCES = ('beside_mine.py',)\ndef softmax(x): return x * beside_mine.POWER"
    )
    variant = variants.load(name)
    assert float(variant.build(Case(shape=(1,)))(torch.ones(1))) == 2
    before = variant.kernel_hash
    (tmp_path / "beside_mine.py").write_text("POWER = 3")
    assert variants.kernel_hash(name) != before


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """A made-up installed package that offers a variant."""
    (tmp_path / "fast_softmax").mkdir()
    (tmp_path / "fast_softmax" / "__init__.py").write_text("raise RuntimeError('imported too early')")
    (tmp_path / "fast_softmax" / "kernel.py").write_text("import torch\ndef soft(x): return torch.softmax(x, -1)\n")
    info = tmp_path / "fast_softmax-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast-softmax\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[softmax_exp.variants]\nfastest = fast_softmax.kernel:soft\nbroken = fast_softmax.gone:soft\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    foreign.offered.cache_clear()
    yield tmp_path
    foreign.offered.cache_clear()


def test_a_variant_of_an_installed_package_is_found_and_imported_only_when_it_is_loaded(offered):
    variants.check("fastest")
    assert len(variants.kernel_hash("fastest")) == 16
    compose.plan(["variants=[eager,fastest]"], "s")
    assert "fast_softmax" not in sys.modules
    (offered / "fast_softmax" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    variant = variants.load("fastest")
    assert variant.package == "fast-softmax 1.2" and not variant.needs_cuda
    x = torch.randn(2, 3)
    assert torch.equal(variant.build(Case(shape=(2, 3)))(x), torch.softmax(x, -1))
    with pytest.raises(ValueError, match="did you mean 'fastest'"):
        variants.check("fastes")
    with pytest.raises(
        ValueError, match=r"fast-softmax 1\.2 offers broken, but its module fast_softmax\.gone is not there"
    ):
        variants.check("broken")


PEERS = {"liger": "liger-kernel", "flag_gems": "flag-gems", "quack": "quack-kernels"}


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_not_installed_is_skipped_with_the_command(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(
        variants.Skipped, match=f"{PEERS[name]} is not installed; to measure it: pip install.*{PEERS[name]}"
    ):
        variants.load(name).build(Case(shape=(2, 3)))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("change", [{"mask": "causal"}, {"scale": 0.5}])
def test_a_peer_refuses_masks_and_scales(name, change):
    with pytest.raises(variants.Unsupported, match="no mask or scale"):
        variants.load(name).build(Case(shape=(2, 3), **change))


class Soft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return y * (dy - (dy * y).sum(-1, keepdim=True))


@pytest.fixture
def stand_ins(monkeypatch):
    """Modules with the peers' functions as they are called, made of torch, and their versions."""

    def calculate_settings(n):
        if n > 65536:
            raise RuntimeError(f"n = {n} exceeds 65536")

    def matrix_softmax(x):
        assert x.dim() == 2
        return Soft.apply(x)

    def softmax_backward(grad, y, dim, dtype):
        return (y * (grad - (grad * y).sum(dim, keepdim=True))).to(dtype)

    modules = {
        "liger_kernel": {},
        "liger_kernel.ops": {},
        "liger_kernel.ops.softmax": {"LigerSoftmaxFunction": Soft},
        "liger_kernel.ops.utils": {"calculate_settings": calculate_settings},
        "flag_gems": {"softmax": torch.softmax, "softmax_backward": softmax_backward},
        "quack": {},
        "quack.softmax": {"softmax": matrix_softmax},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "9.8.7")
    peers._import.cache_clear()
    yield
    peers._import.cache_clear()


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("mode", ["forward", "full"])
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 4, 17)])
def test_a_peer_is_called_as_its_api_wants_it_and_its_version_is_in_the_result(name, mode, shape, stand_ins):
    case = Case(shape=shape, mode=mode, dtype="float32", device="cpu")
    result = results(case, name, settings=MeasureSettings(clock="none"), interpreted=True)[name]
    assert result["status"] == Status.PASSED, result
    assert result["plan"] == {"package": f"{PEERS[name]} 9.8.7"}


def test_a_peers_refusal_is_told_with_its_version(stand_ins):
    case = Case(shape=(2, 70001), device="cpu")
    result = results(case, "liger", interpreted=True)["liger"]
    assert result["status"] == Status.UNSUPPORTED
    assert result["message"] == "n = 70001 exceeds 65536 (liger-kernel 9.8.7)"
    assert result["plan"] == {"package": "liger-kernel 9.8.7"}


def test_a_peer_that_cannot_be_imported_is_skipped_with_the_reason_each_time(tmp_path, monkeypatch):
    (tmp_path / "flag_gems.py").write_text("raise RuntimeError('no device\\n at all')")
    monkeypatch.syspath_prepend(tmp_path)
    peers._import.cache_clear()
    for _ in range(2):
        with pytest.raises(variants.Skipped, match=r"cannot be imported \(RuntimeError: no device at all\)"):
            variants.load("flag_gems").build(Case(shape=(2, 3)))
    peers._import.cache_clear()
