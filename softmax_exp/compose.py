"""The joint with Hydra: composing a config, expanding a sweep into jobs, checking all of them, launching them.

In: the overrides of a command line.  Out: a `Plan` of checked jobs, before any folder exists; or a ConfigError.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from softmax_exp import config, guard
from softmax_exp.cases import stable_hash
from softmax_exp.checks import ConfigError
from softmax_exp.config import Experiment, Schema
from softmax_exp.redaction import note_secrets, redact

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "conf" / "config.yaml").is_file() else None
_OURS = tuple(f"{name}=" for name in config.BESIDE if name != "tracking")
_CODE = stable_hash([(PACKAGE / name).read_text() for name in ("config.py", "cases.py", "variant_checks.py")])
CONF = CHECKOUT / "conf" if CHECKOUT else PACKAGE / "conf"


@dataclass(frozen=True)
class Job:
    """One job of a sweep: its number, the overrides that make its config, and what they came to."""

    number: int
    overrides: list[str]
    experiment: Experiment
    made_from: str

    @property
    def told(self) -> list[str]:
        """The overrides that the user gave, for people: without Hydra's escapes, without secrets."""
        return _told(self.overrides)


class Loader(ConfigLoaderImpl):
    """Hydra's loader, which composes once for each choice of groups and sets a job's plain values in a copy.

    Composing reads ten files and takes 55 ms, a copy a tenth of that. That both come to the same is a test.
    """

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._cache: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}
        self._hashes: dict[tuple[str, ...], str] = {}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The whole config of a job, Hydra's own part included."""
        plain, rest = _split(sweep_overrides)
        job = copy.deepcopy(self._composed(master_config, rest)[0])
        self._apply_overrides_to_config(plain, job)
        job.hydra.overrides.task = list(sweep_overrides)
        return job

    def load_job(self, master_config: DictConfig, overrides: list[str]) -> DictConfig:
        """The config of a job without Hydra's part. ConfigError where that part is not as it must be."""
        plain, rest = _split(overrides)
        job = copy.deepcopy(self._composed(master_config, rest)[1])
        self._apply_overrides_to_config(plain, job)
        return job

    def made_from(self, master_config: DictConfig, overrides: list[str]) -> str:
        """Equal for two jobs only if their configs are equal, tracking aside, and found without making them.

        Empty where the environment has a say in it.
        """
        plain, rest = _split(overrides)
        if tuple(rest) not in self._hashes:
            fields: Any = OmegaConf.to_container(self._composed(master_config, rest)[1], resolve=False)
            kept = {name: value for name, value in fields.items() if name not in config.BESIDE}
            self._hashes[tuple(rest)] = "" if "${oc." in str(kept) else stable_hash([_CODE, kept])
        texts = [str(each.input_line) for each in plain if each.key_or_group.split(".")[0] not in config.BESIDE]
        base = self._hashes[tuple(rest)]
        return stable_hash([base, sorted(texts)]) if base and "${oc." not in str(texts) else ""

    def _composed(self, master_config: DictConfig, overrides: list[str]) -> tuple[DictConfig, DictConfig]:
        if tuple(overrides) not in self._cache:
            whole = super().load_sweep_config(master_config, overrides)
            guard.refuse_code(whole)
            job = copy.deepcopy(whole)
            with open_dict(job):
                del job["hydra"]
            self._cache[tuple(overrides)] = whole, job
        return self._cache[tuple(overrides)]


class Forget(Callback):
    """Drops the configs of finished jobs."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Forget what Hydra would keep to the end of the sweep: 0.1 MB a job."""
        job_return.cfg = job_return.hydra_cfg = None


@dataclass
class Plan:
    """A checked sweep, ready to be launched."""

    master: DictConfig
    loader: Loader
    jobs: list[Job]

    @property
    def folder(self) -> Path:
        """The sweep's folder; that of a new sweep does not exist yet."""
        return self.jobs[0].experiment.folder

    def launch(self, task: Callable[[DictConfig], Any]) -> None:
        """Run `task` with each job's config by Hydra's launcher."""
        callbacks = Callbacks()
        callbacks.callbacks.append(Forget())
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=self.loader, callbacks=callbacks),
            task_function=task,
            config=self.master,
        )
        launcher.launch([job.overrides for job in self.jobs], initial_job_idx=0)


@dataclass
class Expansion:
    """A command line composed and expanded into the overrides of its jobs, none of which is checked yet."""

    master: DictConfig
    loader: Loader
    given: set[str]
    jobs: list[list[str]]

    @property
    def outputs(self) -> Path:
        """Where sweeps and the local store are."""
        return Path(self.master.outputs or (CHECKOUT or Path.cwd()) / "outputs").absolute()

    def made_from(self, number: int) -> str:
        """`Loader.made_from` of a job."""
        return self.loader.made_from(self.master, self.jobs[number])

    def plan(
        self, sweep_id: str, outputs: Path | None = None, remaining: Mapping[int, Sequence[str]] | None = None
    ) -> Plan:
        """Check the jobs. `remaining` chooses jobs by number, and of each the variants that are still to be measured.

        ConfigError with the faults of the first job that has any.
        """
        outputs = outputs or self.outputs
        with open_dict(self.master):
            self.master.outputs, self.master.sweep_id = str(outputs), sweep_id
        ours = [f"outputs={_quoted(str(outputs))}", f"sweep_id={_quoted(sweep_id)}"]
        jobs = []
        for number in range(len(self.jobs)) if remaining is None else remaining:
            mine = [*self.jobs[number], *ours]
            if remaining is not None:
                mine += [f"job={number}", f"remaining=[{','.join(map(_quoted, remaining[number]))}]"]
            jobs.append(Job(number, mine, self._experiment(number, mine), self.made_from(number)))
        return Plan(self.master, self.loader, jobs)

    def _experiment(self, number: int, overrides: list[str]) -> Experiment:
        try:
            composed = self.loader.load_job(self.master, overrides)
        except Exception as error:
            raise self._fault(number, overrides, error) from error
        try:
            return config.read(composed, self.given)
        except (ConfigError, OmegaConfBaseException) as error:
            raise self._fault(number, overrides, error) from error

    def _fault(self, number: int, overrides: list[str], error: Exception) -> ConfigError:
        where = f"\n  in job {number} of {len(self.jobs)} ({' '.join(_told(overrides))}); nothing was started"
        return ConfigError(redact(guard.in_words(error)) + (where if len(self.jobs) > 1 else ""))


def plan(overrides: Sequence[str], sweep_id: str, config_dir: str | None = None) -> Plan:
    """Compose, expand and check a whole new sweep. Nothing is written, nothing but Hydra is imported.

    ConfigError with the faults of the first job that has any.
    """
    return expand(overrides, config_dir).plan(sweep_id)


def expand(overrides: Sequence[str], config_dir: str | None = None) -> Expansion:
    """Compose a command line and expand it into jobs. ConfigError where Hydra cannot, or must not."""
    note_secrets(" ".join(overrides))
    try:
        return _expand(list(overrides), config_dir)
    except Exception as error:  # Hydra raises whatever its parts raise: OSError for a long name, TypeError
        raise ConfigError(redact(guard.in_words(error))) from error


def _expand(overrides: list[str], config_dir: str | None) -> Expansion:
    register_schema()
    loader = _loader(config_dir)
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    guard.refuse_overrides(parsed)
    master = loader.load_configuration("config", overrides, RunMode.MULTIRUN)
    guard.refuse_code(master)
    note_secrets(str(OmegaConf.to_container(master, resolve=False)))
    hydra: Any = OmegaConf.to_container(master.hydra, resolve=False)  # `${...}` is each job's to resolve
    task_overrides = [f"{name}={value}" for name, value in (hydra["sweeper"]["params"] or {}).items()]
    task_overrides += hydra["overrides"]["task"]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(task_overrides)
    guard.refuse_overrides(parsed)
    jobs = [list(job) for job in BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]]
    if not jobs:
        raise ConfigError(
            f"the sweep ({' '.join(_told(task_overrides))}) must have a job; one of its keys has no value"
        )
    return Expansion(master, loader, {override.key_or_group for override in parsed}, jobs)


def register_schema() -> None:
    """Put the schema where the defaults list of conf/config.yaml finds it."""
    ConfigStore.instance().store(name="schema", node=config.schema_node())


def _loader(config_dir: str | None) -> Loader:
    version.setbase("1.3")
    search_path = create_config_search_path(str(CONF))
    if config_dir is not None:
        folder = Path(config_dir).absolute()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir ({config_dir}) must be a folder that exists")
        search_path.prepend("command-line", f"file://{folder}", anchor=SearchPathQuery(provider="schema"))
    loader = Loader(search_path)
    GlobalHydra.instance().clear()
    GlobalHydra.instance().initialize(Hydra("softmax_exp", loader))
    return loader


def _told(overrides: Sequence[str]) -> list[str]:
    plain = [text for text in overrides if not text.startswith(_OURS)]
    return [redact(re.sub(r"\\(.)", r"\1", text)) for text in plain]


def _quoted(text: str) -> str:
    """A value of an override that is taken as it stands."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _split(overrides: Sequence[str]) -> tuple[list[Override], list[str]]:
    """The plain values of schema keys, and the rest, which needs composing. Order matters among the rest only."""
    parsed = [_parse(text) for text in overrides]
    plain = [override for override in parsed if _is_plain(override)]
    rest = [override for override in parsed if not _is_plain(override)]
    if any(override.key_or_group not in guard.GROUPS for override in rest):
        return [], list(overrides)
    return plain, [str(override.input_line) for override in rest]


@functools.cache
def _parse(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def _is_plain(override: Override) -> bool:
    name = override.key_or_group
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and name not in guard.GROUPS
        and name.split(".")[0] in Schema.__dataclass_fields__
    )
