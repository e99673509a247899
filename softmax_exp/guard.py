"""What a user's config may not do in Hydra, and Hydra's errors in the form of ours.

In: parsed overrides, composed configs, exceptions of Hydra and OmegaConf.  Out: nothing or a ConfigError; a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from softmax_exp import engine
from softmax_exp.checks import OURS, ConfigError, nearest, unknown_key
from softmax_exp.config import Schema

GROUPS = ("workload", "measure", "tracking", "experiment")
ONCE = ("outputs", "tracking", "experiment", "chunk", "resume", "retry")  # one for a whole sweep
OPEN_TO_USERS = re.compile(r"hydra/launcher|hydra\.(mode|searchpath|launcher\..*|sweeper\.(params\..*|max_batch_size))")
FIXED = {  # what a config may not change in Hydra: it would run code, or put files elsewhere
    "callbacks": {},
    "sweeper._target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "sweep.dir": "${outputs}/sweeps/${sweep_id}",
    "sweep.subdir": "jobs/${job}",
    "output_subdir": None,
    "job.chdir": None,
    "job.env_set": {},
    "job.env_copy": [],
    "job_logging": {"version": 1, "root": None, "disable_existing_loggers": False},
    "hydra_logging": {"version": 1, "root": None, "disable_existing_loggers": False},
}


def refuse_overrides(overrides: Sequence[Override]) -> None:
    """ConfigError for an override that Hydra would take and that must not be."""
    for override in overrides:
        name, value = override.key_or_group, override.get_value_string() if override.value_type else ""
        if name == "hydra.mode" and value != "MULTIRUN":
            raise ConfigError(
                f"hydra.mode ({value}) must be MULTIRUN; leave it out: one value a key is a sweep of one job"
            )
        if override.is_hydra_override() and not OPEN_TO_USERS.fullmatch(name):
            raise ConfigError(
                f"{name} cannot be set; outputs=… says where results go, hydra/launcher=… how jobs are run"
            )
        if name.split(".")[-1] == "_target_" or "_target_" in value:
            raise ConfigError(f"{name} ({value}) must not name code to call (_target_)")
        if name in OURS:
            raise ConfigError(f"{name} ({value}) is set by the program; leave it out")
        if name.split(".")[0] in ONCE and override.is_sweep_override():
            raise ConfigError(
                f"{name} ({value}) must be one value for a whole sweep; run the others as sweeps of their own"
            )
        if override.is_delete() and name not in GROUPS:
            raise ConfigError(f"~{name} must not be taken away; set it instead")


def refuse_code(composed: DictConfig) -> None:
    """ConfigError where a composed config changed what Hydra would run, or where it writes."""
    hydra = OmegaConf.to_container(composed.hydra, resolve=False)
    for dotted, expected in FIXED.items():
        found: Any = hydra
        for part in dotted.split("."):
            found = found[part]
        if found != expected:
            raise ConfigError(f"hydra.{dotted} ({found}) cannot be set; it must stay {expected}")
    assert isinstance(hydra, dict)
    launcher = dict(hydra["launcher"])
    target = launcher.pop("_target_", None)
    known = [f"{plugin.__module__}.{plugin.__name__}" for plugin in Plugins.instance().discover(Launcher)]
    for name, (ours, extra) in engine.PLUGINS.items():
        if target == ours and target not in known:
            raise ConfigError(f"hydra/launcher ({name}) needs a plugin of Hydra: pip install -e '.[{extra}]'")
    if target not in known or "_target_" in str(launcher):
        raise ConfigError("hydra.launcher must not name code to call (_target_); choose one by hydra/launcher=…")


def in_words(error: Exception) -> str:
    """Hydra's and OmegaConf's errors in the form of ours: the dotted key, its value, what is allowed."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OverrideParseException):
        reason = [line for line in str(error).splitlines() if not line.startswith(("See https", "Error parsing"))]
        return f"{error.override} cannot be read as key=value ({reason[0]}); put the value in quotes"
    cause: BaseException = error
    while not isinstance(cause, OmegaConfBaseException | MissingConfigException) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, MissingConfigException) and cause.options and cause.missing_cfg_file:
        group, _, choice = cause.missing_cfg_file.rpartition("/")
        return f"{group} ({choice}) is not there; {nearest(choice, cause.options)}"
    if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    dotted = str(cause.full_key)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return unknown_key(dotted, Schema)
    if isinstance(cause, ValidationError):
        told = f"{dotted} ({cause.value}) must be {_wanted(str(cause.msg), cause.value)}"
        if isinstance(cause.value, list) and cause.value:
            told += f"; a sweep over values is written without brackets: {dotted}={','.join(map(str, cause.value))}"
        return told
    return f"{dotted}: {str(cause).strip().splitlines()[0]}"


def _wanted(message: str, value: Any) -> str:
    """What a key's type asks for, from OmegaConf's message about a value that has another."""
    if "Integer" in message:
        whole = isinstance(value, float) and value.is_integer()
        return "a whole number" + (f"; write {int(value)}" if whole else "")
    for name, words in (
        ("Float", "a number"),
        ("to string", "text"),
        ("Boolean", "true or false"),
        ("ListConfig", "a list, e.g. [8,12,512,512]"),
    ):
        if name in message:
            return words
    return f"of another type: {message.splitlines()[0]}"
