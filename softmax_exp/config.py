"""The schema of a config: types, bounds, and the checks across keys.

In: what Hydra composed from `conf/` and the command line.  Out: a frozen `Experiment`, or a ConfigError that names the
dotted key, its value, what is allowed and the fix.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from softmax_exp import checks, variant_checks
from softmax_exp.cases import DISTRIBUTIONS, DTYPE_ALIASES, ITEMSIZE, LAYOUTS, MASKS, MODES, Case, stable_hash
from softmax_exp.checks import ConfigError
from softmax_exp.redaction import redact, redact_values

ELSEWHERE = ("tracking", "placement")  # kept with a config, but they say nothing of what is measured
BESIDE = (*ELSEWHERE, "outputs", "chunk", "sweep_id", "resume", "retry", "job", "remaining", "jobs")  # nor do these

__all__ = ["ConfigError", "Experiment", "MeasureSettings", "TrackingSettings", "from_fields", "hash_of", "read"]


def key(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
    allowed: Collection[str] | None = None,
    pattern: tuple[str, str] | None = None,
    only: tuple[str, str] | None = None,
    advice: str = "",
) -> Any:
    """A field of the schema with its bounds; `only` names the neighbour and its value beside which it has a meaning."""
    limits = {"ge": ge, "gt": gt, "lt": lt, "allowed": allowed, "pattern": pattern, "only": only, "advice": advice}
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class MeasureSettings:
    """How a case is measured; the keys under `measure`."""

    clock: str = key("device", allowed=("device", "wall", "none"))
    """`device`: GPU time by events (by graph replays for short cases), host time beside it. `wall`: the host clock
    alone, one variant after the other, as in the first version. `none`: right or wrong only. On a CPU `device` means
    the host clock, interleaved."""
    n_warmup: int = key(5, ge=0)
    """Calls before anything is timed."""
    n_iters: int = key(30, ge=1, only=("clock", "wall"), advice="for a fast run use measure=quick")
    """Timed calls a variant; used by `clock=wall` only."""
    budget_s: float = key(2.0, gt=0, advice="for a fast run use measure=quick")
    """Time for the interleaved rounds of one case, all variants together, in seconds."""
    min_rounds: int = key(20, ge=6, advice="fewer cannot hold an interval of 95 %")
    """Rounds that are measured even beyond the budget."""
    max_rounds: int = key(1000, ge=2)
    """Rounds after which measuring stops in any case."""
    target_pct: float = key(0.5, gt=0)
    """Measuring stops once the half-width of every interval is within this percentage of its median."""
    confidence: float = key(0.95, gt=0, lt=1, advice="e.g. 0.95")
    """Confidence level of every interval."""
    margin_pct: float = key(1.0, ge=0)
    """Two variants whose ratio's interval lies within this percentage of 1 are called the same."""
    cache: str = key("cold", allowed=("cold", "warm"))
    """`cold`: nothing of the case is in the L2 cache when a call starts. `warm`: the same buffers call after call."""
    warm: bool = key(False)
    """Also measure the warm figure (`warm_ms`) beside the cold one."""
    graph_below_us: float = key(14.0, ge=0)
    """Cases whose least bytes take less than this at the memory's theoretical rate are given by CUDA-graph replays,
    with the event time beside it. Kernels near it take about 20 us between events."""
    self_check: bool = key(False)
    """Also measure the baseline a second time under another name, which must come out the same."""
    order_seed: int = key(0, ge=0)
    """Seed of the random order within rounds and of the bootstrap."""
    throttle_retries: int = key(3, ge=0)
    """Times that throttled rounds are measured again before they are kept and flagged."""
    first_call_deadline_s: float = key(300.0, gt=0)
    """Seconds that the first call of a variant (compilation included) may take before it is a TIMEOUT."""
    measure_deadline_s: float = key(120.0, gt=0)
    """Seconds that checking and measuring may take beyond `budget_s` before it is a TIMEOUT."""


@dataclass(frozen=True)
class TrackingSettings:
    """Where the results are shown; the keys under `tracking`."""

    kind: str = key("local", allowed=("local", "server", "off"), advice="choose it by tracking=local|server|off")
    """`local`: an MLflow store under `outputs`. `server`: the store at `uri`. `off`: records only."""
    uri: str | None = key(None)
    """Address of the MLflow store; None with `kind=local` is the SQLite store under `outputs`."""
    experiment: str = key("softmax_exp")
    """Name of the MLflow experiment."""


@dataclass(frozen=True)
class PlacementSettings:
    """Where cases may be measured; the keys under `placement`."""

    gpu_model: str | None = key(None)
    """A part of the GPU's name, e.g. `H200`: a case that comes to another GPU is SKIPPED. None: any."""


@dataclass(frozen=True)
class Schema:
    """Every key of a config as it is composed; what each means stands in conf/config.yaml."""

    workload: str = key("attention", allowed=("attention", "matrix"))
    shape: list[int] = field(default_factory=list)
    batch: int | None = key(None, ge=1)
    heads: int | None = key(None, ge=1)
    seq: int | None = key(None, ge=1)
    seq_q: int | None = key(None, ge=1)
    rows: int | None = key(None, ge=1)
    cols: int | None = key(None, ge=1)
    dtype: str = key("float16", allowed=(*ITEMSIZE, *DTYPE_ALIASES))
    mode: str = key("forward", allowed=MODES)
    mask: str = key("none", allowed=MASKS)
    scale: float | None = key(None)
    distribution: str = key("normal", allowed=DISTRIBUTIONS)
    layout: str = key("contiguous", allowed=LAYOUTS)
    seed: int = key(0, ge=0)
    device: str = key("auto", pattern=(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or one GPU such as cuda:1"))
    variants: Any = field(default_factory=list)
    variant_args: dict[str, Any] = field(default_factory=dict)
    baseline: str | None = key("eager")
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    outputs: str | None = key(None)
    chunk: int | None = key(None, ge=1)
    resume: Any = None
    retry: Any = None
    sweep_id: str | None = key(None)
    job: int | None = key(None, ge=0)
    remaining: list[str] | None = None
    jobs: str | None = None


@dataclass(frozen=True)
class Experiment:
    """One job: a case, the variants to measure in it, and how. `config` are the plain values that make it again."""

    case: Case
    variants: tuple[str, ...]
    variant_args: dict[str, dict[str, Any]]
    baseline: str | None
    measure: MeasureSettings
    tracking: TrackingSettings
    placement: PlacementSettings
    outputs: Path
    sweep_id: str
    config: dict[str, Any]
    chunk: int = 0
    """How many jobs of its sweep are run together and share a folder; 0: not known yet."""
    job: int = 0
    """Its number in the sweep."""
    remaining: tuple[str, ...] | None = None
    """The variants that a resumed sweep still has to measure in this case; None: all."""

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return self.outputs / "sweeps" / self.sweep_id

    @property
    def config_hash(self) -> str:
        """Identity of what is measured and how: the same for every sweep, place and store of the results."""
        return hash_of(self.config)


def hash_of(fields: dict[str, Any]) -> str:
    """`Experiment.config_hash` of a kept config."""
    return stable_hash({name: value for name, value in fields.items() if name not in ELSEWHERE})


def schema_node() -> DictConfig:
    """The schema as a config that can be merged into; `variant_args` takes any key."""
    node = OmegaConf.structured(Schema)
    OmegaConf.set_readonly(node, False)
    for name in ("measure", *ELSEWHERE):
        OmegaConf.set_readonly(node[name], False)
    OmegaConf.set_struct(node.variant_args, False)
    return node


def from_fields(fields: dict[str, Any], outputs: Path, sweep_id: str = "") -> Experiment:
    """The experiment that `Experiment.config` described. ConfigError as `read`; unknown keys are errors."""
    _refuse(checks.unknown_keys(fields, Schema))
    config = OmegaConf.merge(schema_node(), fields, {"outputs": str(outputs), "sweep_id": sweep_id})
    assert isinstance(config, DictConfig)
    return read(config)


def jobs_of(composed: DictConfig) -> list[Experiment]:
    """The experiments of what Hydra runs as one job: of `jobs`, JSON that lists what each sets, or of itself."""
    fields: Any = OmegaConf.to_container(composed, resolve=False)
    listed = fields.pop("jobs")
    if listed is None:
        return [read(composed)]
    experiments, before, config = [], {}, None
    for own in json.loads(listed):
        if config is None or any(isinstance(value, dict) for value in (before | own).values()):
            config = OmegaConf.merge(schema_node(), {**fields, **own})
        else:  # a tenth of the time, but a dictionary would join what is there
            for name in before | own:
                config[name] = own.get(name, fields[name])
        assert isinstance(config, DictConfig)
        experiments.append(read(config))
        before = own
    return experiments


def read(config: DictConfig, given: Collection[str] = (), raw: Any = None) -> Experiment:
    """Check a composed config and convert it. `given` are the keys set by hand, in case they would be ignored.

    `raw` is the config unresolved, where it is at hand. ConfigError with every fault found; OmegaConf's own errors for
    what cannot be resolved.
    """
    raw = OmegaConf.to_container(config, resolve=False) if raw is None else raw
    _refuse(checks.unknown_keys(raw, Schema))
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if isinstance(plain["variants"], str):
        plain["variants"] = [plain["variants"]]
    _refuse(
        [
            *checks.out_of_bounds(plain | ({"seq_q": None} if raw["seq_q"] == "${seq}" else {}), Schema),
            *checks.ignored_sizes(raw, plain, given),
            *checks.shape_faults(plain),
            *variant_checks.variant_faults(plain["variants"], plain["baseline"]),
            *checks.measure_faults(plain["measure"]),
            *checks.tracking_faults(plain["tracking"]),
            *checks.placement_faults(plain["placement"], plain["device"]),
        ]
    )
    plain["variant_args"], faults = variant_checks.arguments_by_variant(plain["variant_args"], plain["variants"])
    _refuse(faults)
    plain["dtype"] = DTYPE_ALIASES.get(plain["dtype"], plain["dtype"])
    case = Case.from_dict({name: plain[name] for name in Case.__dataclass_fields__})
    _refuse(checks.too_large(case))

    names = plain["variants"]
    kept = {name: plain[name] for name in plain if name not in (*checks.SIZES, *BESIDE)}
    # a value that came from the environment may be a secret: what is kept is the name of its variable
    kept |= {name: raw[name] for name in ELSEWHERE}
    return Experiment(
        case=case,
        variants=tuple(names),
        variant_args=plain["variant_args"],
        baseline=plain["baseline"] if plain["baseline"] in names else None,
        measure=MeasureSettings(**plain["measure"]),
        tracking=TrackingSettings(**plain["tracking"]),
        placement=PlacementSettings(**plain["placement"]),
        outputs=Path(plain["outputs"] or "outputs").absolute(),
        sweep_id=plain["sweep_id"] or "",
        config=redact_values(kept),
        chunk=plain["chunk"] or 0,
        job=plain["job"] or 0,
        remaining=None if plain["remaining"] is None else tuple(plain["remaining"]),
    )


def _refuse(faults: Iterable[str]) -> None:
    faults = list(faults)
    if faults:
        raise ConfigError(redact("\n".join(faults)))
