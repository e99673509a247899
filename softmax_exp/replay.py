"""The command `python -m softmax_exp.replay RUN|SWEEP`: measure the same again, and tell whether it agrees.

In: a sweep by folder or id, a file of records, or MLflow run ids.  Out: a new sweep of the same configs, what differs
between then and now, and a comparison. Exit status 0 it agrees, 1 it does not, 2 it cannot be run, 3 not comparable.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from softmax_exp import cli, config, results, stops, variants
from softmax_exp.cases import Case
from softmax_exp.comparison import Question, by_weight, compare
from softmax_exp.compose import CONF
from softmax_exp.config import ConfigError, Experiment
from softmax_exp.guard import in_words
from softmax_exp.pairing import pair
from softmax_exp.records import Record, Status, now
from softmax_exp.redaction import redact
from softmax_exp.report.__main__ import add_places
from softmax_exp.report.compared import lines
from softmax_exp.results import Results
from softmax_exp.sweep import Sweep

# Of `measure`: today's, then older ones, for records without a config.
_FORMER_DEFAULTS = ({}, {"graph_below_us": 20.0})
_CODE_KEYS = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m softmax_exp.replay", description="Measure a sweep or run again.")
    parser.add_argument("named", metavar="RUN|SWEEP", help="folder or id of a sweep, or MLflow run ids (a,b)")
    parser.add_argument("--trust", action="store_true", help="run code and read environment variables that it names")
    parser.add_argument("--tracking", choices=("local", "off"), default="local", help="of the new sweep (%(default)s)")
    add_places(parser)
    given = parser.parse_args(arguments)
    command = " ".join(
        ["python -m softmax_exp.replay", *map(shlex.quote, sys.argv[1:] if arguments is None else arguments)]
    )
    try:
        then = results.find(given.named, given.outputs, given.uri)
        fields = configs(then)
        refuse_foreign(fields, given.trust)
        experiments = [
            config.from_fields({**each, "tracking": {"kind": given.tracking}}, given.outputs.absolute(), sweep_id)
            for sweep_id in [cli.new_sweep_id()]
            for each in fields
        ]
    except (ValueError, OSError, RuntimeError, OmegaConfBaseException) as error:
        print(redact(in_words(error)), file=sys.stderr)
        return 2
    for line in differences_of_configs(then, experiments):
        print(f"note: {line}")
    with stops.heeded():
        status = run(experiments, {"command": command, "replay_of": then.name, "started_at": now()})
    if status > 1:  # stopped by the user
        return status
    return judge(then, results.of_sweep(Sweep(experiments[0].folder)))


def configs(then: Results) -> list[dict[str, Any]]:
    """The config of each job as it was kept, or made from its records where there is no manifest."""
    jobs = then.manifest.get("jobs") or []
    if jobs and all(job.get("config") for job in jobs):
        return [{key: value for key, value in job["config"].items() if key not in config.BESIDE} for job in jobs]
    by_job: dict[int, list[Record]] = {}
    for record in then.records:
        by_job.setdefault(record.job, []).append(record)
    return [_from_records(records) for _, records in sorted(by_job.items())]


def refuse_foreign(fields: list[dict[str, Any]], trust: bool) -> None:
    """ConfigError where a config would run code or read the environment, and is not trusted. `_target_` never is."""
    keys = {key for each in fields for key in _keys(each)}
    if bad := keys & {*_CODE_KEYS}:
        raise ConfigError(f"{', '.join(sorted(bad))} names code to call; a config of softmax_exp holds no such key")
    if trust:
        return
    named = [each.get("variants") or [] for each in fields]
    files = {
        str(name) for names in named for name in ([names] if isinstance(names, str) else names) if ".py:" in str(name)
    }
    if files:
        raise ConfigError(
            f"this run executes code of its own: {', '.join(sorted(files))}. Read it, then allow it by --trust"
        )
    if any("${" in text for each in fields for text in _texts(each)):
        raise ConfigError("this run's config reads values from here (${...}). Look at it, then allow it by --trust")


def run(experiments: list[Experiment], about: dict[str, Any]) -> int:
    """Measure the experiments as a sweep of their own; the exit status of such a sweep."""
    jobs = [
        {
            "job": number,
            "overrides": [],
            "case": experiment.case.to_dict(),
            "variants": list(experiment.variants),
            "variant_args": experiment.config["variant_args"],
            "config": experiment.config,
        }
        for number, experiment in enumerate(experiments)
    ]
    first = experiments[0]

    def launch(task: Callable[[Any], Any]) -> None:
        for number, experiment in enumerate(experiments):
            own = {"outputs": str(first.outputs), "sweep_id": first.sweep_id, "job": number}
            task(OmegaConf.merge(config.schema_node(), experiment.config, own))

    sweep = Sweep.create(first.folder, jobs, about)
    with sweep.held():
        return cli.run(launch, sweep, first, len(jobs))


def judge(then: Results, again: Results) -> int:
    """Print what differs and whether the figures agree; the exit status."""
    pairing = pair(then, again)
    pairing.only_candidate = []  # a run may be one cell of its job, which is measured as a whole again
    outcomes = [] if pairing.refused else by_weight(compare(pairing.pairs, then, again, Question()))
    print("\n".join(lines([then, again], pairing, outcomes, Question())))
    apart = [o for o in outcomes if o.verdict in ("slower", "faster", "broken", "fixed", "new") or o.regressions]
    timed = [outcome for outcome in outcomes if outcome.change_pct is not None]
    were_timed = any(each.baseline.status is Status.PASSED for each in pairing.pairs)
    if not apart and (pairing.refused or not outcomes or (were_timed and not timed)):
        print("whether it agrees cannot be told: no time of then compares with one of now")
        return 3
    if apart:
        print(f"it does not agree: {len(apart)} of {len(outcomes)} cells differ by more than noise between processes")
        return 1
    unclear = sum(outcome.verdict == "unclear" for outcome in outcomes)
    print(
        f"it agrees within the noise between processes: {len(timed)} cells timed, {len(outcomes)} checked"
        + (f"; {unclear} of them are too noisy to tell a small difference" if unclear else "")
    )
    return 0


def differences_of_configs(then: Results, experiments: list[Experiment]) -> list[str]:
    """Where the config, or the source of a variant, is not what it was."""
    found = []
    numbers = [job["job"] for job in then.manifest.get("jobs") or []] or sorted({r.job for r in then.records})
    for number, experiment in zip(numbers, experiments, strict=True):
        own = [record for record in then.records if record.job == number]
        if any(record.config_hash not in ("", experiment.config_hash) for record in own):
            found.append(f"job {number}: its config is not exactly what it was; see below for what can be compared")
        for record in own:
            if record.kernel_hash and record.variant in experiment.variants:
                if variants.kernel_hash(record.variant) != record.kernel_hash:
                    found.append(f"the source of {record.variant} has changed since")
    return list(dict.fromkeys(found))


def _from_records(records: list[Record]) -> dict[str, Any]:
    """A job's config from its records alone: that of the same hash, by the presets of conf/measure, now or formerly.

    Records name the device that was used, where the config may have left it open.
    """
    first = records[0]
    fields: dict[str, Any] = {name: getattr(first, name) for name in Case.__dataclass_fields__}
    fields["variants"] = [record.variant for record in records]
    fields["variant_args"] = {record.variant: record.variant_args for record in records if record.variant_args}
    fields["baseline"] = next((record.baseline for record in records if record.baseline), None)
    devices = dict.fromkeys([first.device, first.device.split(":")[0], "auto"])
    presets = [dict(OmegaConf.load(path)) for path in sorted((CONF / "measure").glob("*.yaml"))]
    baselines = (fields["baseline"], "eager")
    for former, measure, device, baseline in itertools.product(_FORMER_DEFAULTS, presets, devices, baselines):
        tried = {**fields, "baseline": baseline, "device": device, "measure": former | measure}
        if config.from_fields(tried, Path()).config_hash == first.config_hash:
            return tried
    return fields


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value} | {key for item in value.values() for key in _keys(item)}
    return {key for item in value for key in _keys(item)} if isinstance(value, list) else set()


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in [*value, *value.values()] for text in _texts(item)]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else [str(value)]


if __name__ == "__main__":
    sys.exit(main())
