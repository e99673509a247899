"""The command `python -m softmax_exp`: check the whole sweep, run its jobs, finish.

In: overrides on the command line.  Out: the sweep's folder and an exit status: 0 all measured, or skipped for a reason;
1 something failed or nothing could be measured; 2 a bad config; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import shlex
import signal
import sys
import time
import traceback
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from softmax_exp import compose, config
from softmax_exp.checks import ConfigError
from softmax_exp.guard import in_words
from softmax_exp.records import Status, Sweep, now, write_whole
from softmax_exp.redaction import redact


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments (default: the command line's) and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parsed = get_args_parser().parse_intermixed_args(arguments)
    if parsed.help or parsed.hydra_help or parsed.cfg or parsed.info or parsed.shell_completion:
        return _show(arguments)
    try:
        _refuse_flags(parsed)
        plan = compose.plan(parsed.overrides, new_sweep_id(), parsed.config_dir)
    except ConfigError as error:
        print(redact(str(error)), file=sys.stderr)
        return 2
    return run(plan, arguments)


def new_sweep_id() -> str:
    """UTC time to the second and four random hexadecimal digits, so that two sweeps of one second differ."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)


def run(plan: compose.Plan, arguments: list[str]) -> int:
    """Write the manifest, run the jobs of a checked sweep, finish it from what is on disk, whatever happened."""
    from softmax_exp import jobs

    sweep = Sweep.create(
        plan.folder, [_expected(number, job) for number, job in enumerate(plan.jobs)], _about(arguments)
    )
    previous = signal.signal(signal.SIGTERM, _terminate)
    interrupted = None
    try:
        plan.launch(run_job)
    except KeyboardInterrupt:
        interrupted = 130
    except _Terminated:
        interrupted = 143
    finally:
        jobs.finish(sweep)
        signal.signal(signal.SIGTERM, previous)
    return interrupted or exit_status(sweep)


def run_job(composed: DictConfig) -> None:
    """One job, Hydra's task function. A failure is told at once, kept in the job's folder, and ends here."""
    from softmax_exp import jobs

    number = HydraConfig.get().job.num
    experiment = config.read(composed)
    folder = Sweep(experiment.folder).job_folder(number)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(experiment.config)))
    try:
        jobs.run_case(experiment, number)
    except Exception as error:
        write_whole(folder / "error.txt", redact(traceback.format_exc()))
        told = redact(f"job {number} ({experiment.case.title}) failed: {type(error).__name__}: {error}")
        print(f"{told}\n  traceback in {folder / 'error.txt'}", file=sys.stderr, flush=True)


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


class _Terminated(BaseException):
    """SIGTERM came; not an Exception, so that no job's boundary takes it for a failure of its own."""


def _terminate(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the sweep is being finished now; a second one changes nothing
    raise _Terminated


def _show(arguments: list[str]) -> int:
    """Hydra's own answers: --help, --cfg, --info, --shell-completion. They compose and print, and run nothing."""
    compose.register_schema()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its exceptions come to us instead of its own report and exit
    command, sys.argv = sys.argv, ["softmax_exp", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(compose.CONF), config_name="config")(run_job)()
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


def _expected(number: int, job: compose.Job) -> dict[str, Any]:
    experiment = job.experiment
    return {
        "job": number,
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
