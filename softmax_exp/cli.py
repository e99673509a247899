"""The command `python -m softmax_exp`: check the whole sweep, run its jobs, finish.

In: overrides on the command line.  Out: the sweep's folder and an exit status: 0 all measured, or skipped for a reason;
1 something failed or nothing could be measured; 2 a bad config; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import secrets
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from softmax_exp import compose, config, engine, parent, stops
from softmax_exp.checks import ConfigError
from softmax_exp.config import Experiment
from softmax_exp.files import append_line, write_whole
from softmax_exp.guard import in_words
from softmax_exp.records import Status, now
from softmax_exp.redaction import redact
from softmax_exp.sweep import Sweep

LISTEN_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments (default: the command line's) and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parsed = get_args_parser().parse_intermixed_args(arguments)
    if parsed.help or parsed.hydra_help or parsed.cfg or parsed.info or parsed.shell_completion:
        return _show(arguments)
    try:
        _refuse_flags(parsed)
        expansion = compose.expand(parsed.overrides, parsed.config_dir)
        with stops.heeded():
            return (start if expansion.master.resume in (None, False) else go_on)(expansion, arguments)
    except (ConfigError, OmegaConfBaseException) as error:  # the latter: `${...}` in a key of the whole sweep
        print(redact(in_words(error)), file=sys.stderr)
        return 2
    except (stops.Stopped, KeyboardInterrupt) as stopped:  # before anything was started
        return getattr(stopped, "status", 130)


def new_sweep_id() -> str:
    """UTC time to the second and four random hexadecimal digits, so that two sweeps of one second differ."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)


def start(expansion: compose.Expansion, arguments: list[str]) -> int:
    """Check and run a new sweep."""
    if expansion.master.retry is not None:
        raise ConfigError(f"retry ({expansion.master.retry}) would be ignored without resume; set resume=true too")
    plan = expansion.plan(new_sweep_id())
    about = _about(arguments) | {"chunk": plan.jobs[0].experiment.chunk}
    with _written_to(plan.folder):
        try:
            sweep = Sweep.create(plan.folder, [_expected(job) for job in plan.jobs], about)
        except FileExistsError:  # a sweep of the same second drew the same digits
            return start(expansion, arguments)
        with sweep.held():
            return run(plan.launch, sweep, plan.jobs[0].experiment, len(plan.jobs))


def go_on(expansion: compose.Expansion, arguments: list[str]) -> int:
    """Run what a sweep lacks. ConfigError where there is no such sweep, or its config was another."""
    from softmax_exp import jobs, resume

    master = expansion.master
    sweep = resume.find(master.resume, expansion.outputs, [redact(text) for text in arguments])
    if resume.is_bare(arguments):
        given = [text for text in arguments if text.startswith("retry=")]
        expansion = compose.expand([*resume.arguments_of(sweep), *given])
    with _written_to(sweep.folder), sweep.held():
        found = resume.remaining(
            sweep, expansion, lambda devices: jobs.environments(devices, sweep.folder / "worker.log")
        )
        n_cells = sum(len(job.experiment.remaining or ()) for job in found.plan.jobs)
        reasons = ", ".join(f"{n} {reason}" for reason, n in found.reasons.items()) or "all others are finished"
        print(f"going on with {sweep.folder}: {n_cells} cells to measure ({reasons})", file=sys.stderr)
        append_line(sweep.folder / "resumed.jsonl", json.dumps({"at": now(), "cells": n_cells, "why": found.reasons}))
        return run(found.plan.launch if n_cells else None, sweep, found.first, len(found.plan.jobs))


def run(
    launch: Callable[[Callable[[DictConfig], None]], None] | None, sweep: Sweep, first: Experiment, n_jobs: int
) -> int:
    """Launch the jobs of a checked sweep, and finish it from what is on disk, whatever happened.

    `first` is any of its experiments; it tells where the sweep is tracked. The exit status.
    """
    from softmax_exp import jobs

    jobs.n_jobs, ended = n_jobs, None
    try:
        if launch is not None:
            launch(functools.partial(run_jobs, run=sweep.begin()))
    except stops.Stopped as stopped:
        ended = stopped.status
    except jobs.Unkept as error:
        print(redact(str(error)), file=sys.stderr)
        ended = 1
    except Exception as error:  # no job's failure comes this far: a launcher's own, as when its job process was killed
        print(redact(f"the launcher failed: {type(error).__name__}: {str(error).strip()[:300]}"), file=sys.stderr)
        ended = 1
    try:
        if stops.asked():
            ended = stops.status()  # also where job processes went first, and the launcher failed for it
        if stops.hurried():
            jobs.abandon()
        else:
            sweep.dismiss()
            sweep.wait_for_jobs()
            jobs.finish(sweep, first)
        status = exit_status(sweep)
    except stops.Stopped as stopped:
        jobs.abandon()
        ended = status = stopped.status
    except (OSError, ValueError) as error:
        jobs.abandon()
        print(redact(f"the sweep could not be finished: {error}"), file=sys.stderr)
        ended = status = ended or 1
    if ended:
        print(f"go on by: {_command_to_resume(sweep)}", file=sys.stderr)
    return ended or status


def run_jobs(composed: DictConfig, run: str = "") -> None:
    """One chunk, Hydra's task function, in this process or in one that a launcher made for that run of the sweep."""
    experiments = config.jobs_of(composed)
    with stops.in_job() as in_another_process:
        if not in_another_process:
            stops.check()
            return _run_jobs(experiments)
        parent.end_with_parent()  # joblib's job processes would outlive a killed sweep
        parent.take_parents_threads()
        engine.undo_local_submitit()
        sweep = Sweep(experiments[0].folder)
        with sweep.joined(run) as wanted, contextlib.suppress(stops.Stopped):
            if wanted:
                with _heard_from(sweep, run):
                    _run_jobs(experiments)


@contextlib.contextmanager
def _heard_from(sweep: Sweep, run: str) -> Iterator[None]:
    """End the jobs that run in this process as by SIGTERM, once their run of the sweep is over."""
    over = threading.Event()

    def listen() -> None:
        while not over.wait(LISTEN_S):
            with contextlib.suppress(OSError):
                if not sweep.wants(run):
                    return os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _run_jobs(experiments: list[Experiment]) -> None:
    from softmax_exp import jobs

    first = experiments[0]
    sweep = Sweep(first.folder)
    with jobs.kept():
        os.stat(sweep.manifest_path)  # Hydra makes the folder anew where the sweep's has vanished
        folder = sweep.job_folder(first.job, first.chunk)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.yaml", _config_of(experiments))
    for experiment in experiments:
        _run_job(experiment, folder)


def _run_job(experiment: Experiment, folder: Path) -> None:
    """A failure is told at once, kept in the job's folder, and ends here."""
    from softmax_exp import jobs

    try:
        jobs.run_case(experiment)
    except Exception as error:
        told = redact(f"job {experiment.job} ({experiment.case.title}) failed: {type(error).__name__}: {error}")
        with jobs.kept():
            append_line(folder / "error.txt", redact(f"{told}\n{traceback.format_exc()}"))
        print(f"{told}\n  traceback in {folder / 'error.txt'}", file=sys.stderr, flush=True)
    stops.check()


def _config_of(experiments: list[Experiment]) -> str:
    """The first one's config as YAML, and what the others set beyond it."""
    first = experiments[0].config
    others = [
        {"job": each.job} | {name: value for name, value in each.config.items() if repr(value) != repr(first[name])}
        for each in experiments
    ]
    return OmegaConf.to_yaml(OmegaConf.create(first | ({"jobs": others} if len(others) > 1 else {})))


def exit_status(sweep: Sweep) -> int:
    """0 where every expected cell has a record that did not fail, and one of them PASSED; else 1."""
    records = sweep.records()
    told = {record.cell for record in records}
    whole_jobs = {record.job for record in records if record.variant == "all"}
    missing = [
        cell for cell in sweep.expected_cells() if f"{cell[0]}/{cell[1]}" not in told and cell[0] not in whole_jobs
    ]
    failed = any(record.status.failed for record in records)
    return 0 if not missing and not failed and any(record.status == Status.PASSED for record in records) else 1


def _show(arguments: list[str]) -> int:
    """Hydra's own answers: --help, --cfg, --info, --shell-completion. They compose and print, and run nothing."""
    compose.register_schema()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its exceptions come to us instead of its own report and exit
    command, sys.argv = sys.argv, ["softmax_exp", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(compose.CONF), config_name="config")(run_jobs)()
    except (HydraException, OmegaConfBaseException) as error:
        print(redact(in_words(error)), file=sys.stderr)
        return 2
    finally:
        sys.argv = command
    return 0


def _refuse_flags(parsed: Any) -> None:
    if parsed.run:
        raise ConfigError("--run cannot be used; leave it out: one value a key is a sweep of one job")
    for flag in ("config_path", "config_name", "experimental_rerun"):
        if getattr(parsed, flag) is not None:
            raise ConfigError(
                f"--{flag.replace('_', '-')} cannot be used; --config-dir adds a folder of your own configs"
            )


@contextlib.contextmanager
def _written_to(folder: Path) -> Iterator[None]:
    """Tell in words why a sweep's folder cannot be used."""
    try:
        yield
    except BlockingIOError as error:
        raise ConfigError(f"{folder} is being measured by another process; wait for it or stop it") from error
    except OSError as error:
        raise ConfigError(
            f"outputs: {folder} cannot be written ({error.strerror or error}); choose outputs=…"
        ) from error
    except RuntimeError as error:
        raise ConfigError(str(error)) from error


def _command_to_resume(sweep: Sweep) -> str:
    try:
        manifest = sweep.manifest()
        return manifest["command"] + ("" if "replay_of" in manifest else f" resume={sweep.sweep_id}")
    except (OSError, ValueError, KeyError):
        return "the same command with resume=true"


def _expected(job: compose.Job) -> dict[str, Any]:
    experiment = job.experiment
    return {
        "job": job.number,
        "made_from": job.made_from,
        "overrides": job.told,
        "case": experiment.case.to_dict(),
        "variants": experiment.config["variants"],
        "variant_args": experiment.config["variant_args"],
        "config": experiment.config,
    }


def _about(arguments: list[str]) -> dict[str, Any]:
    try:
        version = importlib.metadata.version("softmax_exp")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        version = None
    command = " ".join(["python -m softmax_exp", *(shlex.quote(redact(text)) for text in arguments)])
    return {"started_at": now(), "command": command, "version": version}
