"""Going on with a sweep: which cells of its manifest are not finished, and a plan of those.

In: an expanded command line that sets `resume`, and the sweep's folder.  Out: the `Sweep` and, for each job, the
variants still to be measured. A sweep is data: nothing that it names is run unless the command line names it too.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmax_exp import engine, variants
from softmax_exp.checks import ConfigError, nearest
from softmax_exp.compose import Expansion, Plan
from softmax_exp.config import ELSEWHERE, Experiment, hash_of
from softmax_exp.records import FORMAT, Record, Status, read_records
from softmax_exp.sweep import Sweep

FAILED = tuple(status.value for status in Status if status.failed and status is not Status.KILLED)
_OWN = re.compile(r"(resume|retry|outputs|chunk)=.*", re.DOTALL)
_SWITCHES = ("-m", "--multirun")
_SHOWN = 12  # differences that are told one by one

Environments = Callable[[list[str]], dict[str, set[str]]]


@dataclass(frozen=True)
class Resumed:
    """The jobs that a sweep lacks, any of its experiments, and how many cells are measured for which reason."""

    plan: Plan
    first: Experiment
    reasons: dict[str, int]


def find(wish: Any, outputs: Path, arguments: Sequence[str]) -> Sweep:
    """The sweep that `resume` names: by id, by folder, or (true) the last of the same command in `outputs`."""
    sweeps = outputs / "sweeps"
    if wish is True:
        for folder in sorted((path.parent for path in sweeps.glob("*/manifest.json")), reverse=True):
            if sorted(command_of(Sweep(folder))) == sorted(_plain(arguments)):
                return Sweep(folder.absolute())
        raise ConfigError(f"resume (true) must follow a sweep of the same command; there is none under {sweeps}")
    if not isinstance(wish, str):
        raise ConfigError(f"resume ({wish}) must be true, the id of a sweep, or its folder")
    for folder in (sweeps / wish, Path(wish)):
        if (folder / "manifest.json").is_file():
            return Sweep(folder.resolve())
    raise ConfigError(f"resume ({wish}) is neither the id of a sweep under {sweeps} nor a sweep's folder")


def is_bare(arguments: Sequence[str]) -> bool:
    """Whether a command says nothing of what is measured, so that the sweep's own command is meant."""
    return not _plain(arguments)


def command_of(sweep: Sweep) -> list[str]:
    """The arguments of the command that made a sweep, those aside that say where results go."""
    try:
        return _plain(shlex.split(read_manifest(sweep)["command"])[3:])
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def arguments_of(sweep: Sweep) -> list[str]:
    """The same, to be run again without being given again; so it may hold plain values alone.

    ConfigError where it names files, stores or secrets: whoever wants these used must write them himself.
    """
    arguments = command_of(sweep)
    for text in arguments:
        if text.startswith(("-", "hydra")) or any(sign in text for sign in (".py:", "://", "sqlite:", "***", "${")):
            raise ConfigError(f"resume needs the whole command here, because it held {text}: repeat it with resume=…")
    return arguments


def read_manifest(sweep: Sweep) -> dict[str, Any]:
    """The manifest, checked as far as it is used here. ConfigError where it is damaged or of another place."""
    try:
        manifest = sweep.manifest()
        if not isinstance(manifest.get("chunk", 1), int):
            raise ValueError("chunk is no number")
        for number, job in enumerate(manifest["jobs"]):
            names, device = job["config"]["variants"], job["config"]["device"]
            if job["job"] != number or not all(isinstance(text, str) for text in [device, *names]):
                raise ValueError(f"job {number} is not as it was written")
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise ConfigError(f"{sweep.folder / 'manifest.json'} is damaged ({type(error).__name__}: {error})") from error
    if manifest.get("format") != FORMAT or manifest.get("sweep_id") != sweep.sweep_id:
        raise ConfigError(f"{sweep.folder} does not hold the sweep {manifest.get('sweep_id')} of format {FORMAT}")
    if sweep.folder.parent.name != "sweeps":
        raise ConfigError(f"{sweep.folder} must lie in a folder `sweeps`, as it did when it was made")
    return manifest


def remaining(sweep: Sweep, expansion: Expansion, environments: Environments) -> Resumed:
    """What a sweep lacks of its manifest, by the config, kernel and environment hashes of its records.

    `environments` gives the hashes of the devices that each wish allows here. It costs a start of the measuring
    process, so it is called only where a record could count, and never where jobs run on other machines: there any
    environment counts. ConfigError where the config is not the sweep's, with the differences.
    """
    retry, manifest = _retried(expansion.master.retry), read_manifest(sweep)
    jobs, chunk = manifest["jobs"], manifest.get("chunk") or 1
    if expansion.master.chunk not in (None, chunk):
        raise ConfigError(f"chunk ({expansion.master.chunk}) must be that of the sweep, {chunk}; leave it out")
    if len(jobs) != len(expansion.jobs):
        raise _other_config(sweep, [f"the sweep has {len(jobs)} jobs, this command {len(expansion.jobs)}"])
    changed = [
        n for n, job in enumerate(jobs) if not job.get("made_from") or job["made_from"] != expansion.made_from(n)
    ]
    _compare(sweep, expansion, changed, jobs)

    latest = {(record.job, record.variant): record for record in read_records(sweep.records_path)}
    elsewhere = engine.name_of(expansion.master.hydra.launcher["_target_"]) in engine.REMOTE
    hashes = environments(sorted({str(job["config"]["device"]) for job in jobs})) if latest and not elsewhere else {}
    kernels: dict[str, str] = {}
    lacking: dict[int, list[str]] = {}
    reasons: dict[str, int] = {}
    for number, job in enumerate(jobs):
        config_hash = hash_of(job["config"])
        for variant in job["config"]["variants"]:
            if variant not in kernels:
                kernels[variant] = variants.kernel_hash(variant)
            record = latest.get((number, variant)) or latest.get((number, "all"))
            here = None if elsewhere else hashes.get(job["config"]["device"], set())
            expected = (config_hash, kernels[variant], here)
            reason = _unfinished(record, expected, retry)
            if reason is not None:
                lacking.setdefault(number, []).append(variant)
                reasons[reason] = reasons.get(reason, 0) + 1
    plan = expansion.plan(sweep.sweep_id, sweep.folder.parents[1], lacking or {0: []}, chunk)
    # what is measured now is compared whatever the manifest says of its origin
    _refuse_differences(sweep, {job.number: (jobs[job.number]["config"], job.experiment.config) for job in plan.jobs})
    return Resumed(plan, plan.jobs[0].experiment, reasons)


def _unfinished(record: Record | None, expected: tuple[str, str, set[str] | None], retry: set[str]) -> str | None:
    """Why a cell must be measured; None where its record counts. Of environments, None allows any."""
    if record is None:
        return "not measured yet"
    if record.status is Status.KILLED:
        return "stopped"
    if record.status in retry:
        return f"{record.status}, to be tried again"
    if record.placement.get("refused"):
        return "refused where it came to"
    config_hash, kernel_hash, environments = expected
    if record.config_hash != config_hash:
        return "measured with another config"
    if record.variant != "all" and record.kernel_hash != kernel_hash:
        return "measured with another kernel"
    if environments is not None and record.environment_hash not in environments:
        return "measured with another environment"
    return None


def _plain(arguments: Sequence[str]) -> list[str]:
    return [text for text in arguments if text not in _SWITCHES and not _OWN.fullmatch(text)]


def _retried(wish: Any) -> set[str]:
    if wish is None:
        return set()
    wishes = [wish] if isinstance(wish, str) else list(wish) if hasattr(wish, "__iter__") else [str(wish)]
    for each in wishes:
        if each not in ("failed", *FAILED):
            raise ConfigError(
                f"retry ({each}) must be one of these, or a list; {nearest(str(each), ('failed', *FAILED))}"
            )
    return set(FAILED) if "failed" in wishes else set(wishes)


def _compare(sweep: Sweep, expansion: Expansion, numbers: Sequence[int], jobs: list[dict[str, Any]]) -> None:
    """Compose the jobs that may have changed and refuse what did."""
    if numbers:
        plan = expansion.plan(sweep.sweep_id, sweep.folder.parents[1], {n: [] for n in numbers})
        _refuse_differences(
            sweep, {job.number: (jobs[job.number]["config"], job.experiment.config) for job in plan.jobs}
        )


def _refuse_differences(sweep: Sweep, pairs: dict[int, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    where: dict[str, list[int]] = {}
    for number, (was, now) in pairs.items():
        for line in differences(was, json.loads(json.dumps(now))):
            where.setdefault(line, []).append(number)
    if where:
        told = [
            f"{line} (job {', '.join(map(str, found[:5]))}{', …' * (len(found) > 5)})" for line, found in where.items()
        ]
        raise _other_config(sweep, told)


def differences(was: dict[str, Any], now: dict[str, Any], path: str = "") -> Iterator[str]:
    """One line for each dotted key in which two configs differ, `tracking` and `placement` aside."""
    for name in sorted({*was, *now} - ({*ELSEWHERE} if not path else set())):
        old, new = (json.dumps(fields[name]) if name in fields else "not there" for fields in (was, now))
        if isinstance(was.get(name), dict) and isinstance(now.get(name), dict):
            yield from differences(was[name], now[name], f"{path}{name}.")
        elif old != new:
            yield f"{path}{name}: {old} in the sweep, {new} now"


def _other_config(sweep: Sweep, told: list[str]) -> ConfigError:
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    lines = "".join(f"\n  {line}" for line in [*told[:_SHOWN], *more])
    return ConfigError(
        f"the sweep {sweep.sweep_id} was made by another config:{lines}\n"
        f"Repeat its command ({json.dumps(' '.join(command_of(sweep)), ensure_ascii=False)}), or start a new sweep"
    )
