"""The joint with Hydra: expanding a sweep into jobs, checking all of them, launching them in chunks.

In: the overrides of a command line.  Out: a `Plan` of checked jobs, before any folder exists; or a ConfigError.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from softmax_exp import config, guard, launching
from softmax_exp.checks import ConfigError
from softmax_exp.config import Experiment
from softmax_exp.loader import JOBS, Loader
from softmax_exp.redaction import note_secrets, redact
from softmax_exp.sweep import Sweep

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "conf" / "config.yaml").is_file() else None
_OURS = tuple(f"{name}=" for name in config.BESIDE if name not in config.ELSEWHERE)
_N_CHUNKS, _LARGEST_CHUNK = 200, 100  # where the user has no wish
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


@dataclass
class Chunk:
    """Consecutive jobs that Hydra launches as one: the first one's config, and what the others set beyond it."""

    overrides: list[str]
    fields: dict[str, Any]
    size: int
    jobs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, number: int, fields: dict[str, Any], remaining: Sequence[str] | None) -> None:
        """A job with its unresolved config; `remaining` as in `Expansion.plan`."""
        own = {name: value for name, value in fields.items() if repr(value) != repr(self.fields[name])}
        self.jobs.append(own | {"job": number} | ({} if remaining is None else {"remaining": list(remaining)}))

    @property
    def launched(self) -> list[str]:
        """The overrides of the one Hydra job; its number is that of the folder."""
        first = self.jobs[0]["job"]
        text = json.dumps(self.jobs).replace("$", "\\u0024")  # nothing in it is for OmegaConf to resolve
        return [*self.overrides, f"chunk={self.size}", f"job={first - first % self.size}", JOBS + text]


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
    chunks: list[Chunk]

    @property
    def folder(self) -> Path:
        """The sweep's folder; that of a new sweep does not exist yet."""
        return self.jobs[0].experiment.folder

    def launch(self, task: Callable[[DictConfig], Any]) -> None:
        """Run `task` with each chunk's config by Hydra's launcher."""
        callbacks = Callbacks()
        callbacks.callbacks.append(Forget())
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=self.loader, callbacks=callbacks),
            task_function=task,
            config=self.master,
        )
        jobs = [chunk.launched for chunk in self.chunks]
        launching.launch(launcher, self.master.hydra, jobs, Sweep(self.folder).dismiss)


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
        self,
        sweep_id: str,
        outputs: Path | None = None,
        remaining: Mapping[int, Sequence[str]] | None = None,
        chunk: int | None = None,
    ) -> Plan:
        """Check the jobs. `remaining` chooses jobs by number, and of each the variants that are still to be measured.

        `chunk` is the size of the sweep's chunks where it has one. ConfigError with the faults of the first job that
        has any.
        """
        outputs = outputs or self.outputs
        with open_dict(self.master):
            self.master.outputs, self.master.sweep_id = str(outputs), sweep_id
        ours = [f"outputs={_quoted(str(outputs))}", f"sweep_id={_quoted(sweep_id)}"]
        jobs: list[Job] = []
        chunks: dict[int, Chunk] = {}
        for number in range(len(self.jobs)) if remaining is None else sorted(remaining):
            mine, left = [*self.jobs[number], *ours], None if remaining is None else tuple(remaining[number])
            fields, experiment = self._experiment(number, mine)
            size = chunk or experiment.chunk or _chunk_size(len(self.jobs))
            experiment = dataclasses.replace(experiment, chunk=size, job=number, remaining=left)
            jobs.append(Job(number, mine, experiment, self.made_from(number)))
            chunks.setdefault(number // size, Chunk(mine, fields, size)).add(number, fields, left)
        return Plan(self.master, self.loader, jobs, [*chunks.values()])

    def _experiment(self, number: int, overrides: list[str]) -> tuple[dict[str, Any], Experiment]:
        """A job's config as it stands, unresolved, and what it comes to."""
        try:
            composed = self.loader.load_job(self.master, overrides)
        except Exception as error:
            raise self._fault(number, overrides, error) from error
        try:
            fields: Any = OmegaConf.to_container(composed, resolve=False)
            return fields, config.read(composed, self.given, fields)
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
    """Put the schema where the defaults list of conf/config.yaml finds it, and what presets need where they do."""
    launching.register()
    ConfigStore.instance().store(name="schema", node=config.schema_node())


def _chunk_size(n_jobs: int) -> int:
    """A job of its own for each case of a small sweep; for each chunk of a large one, enough of them for many GPUs."""
    return min(-(-n_jobs // _N_CHUNKS), _LARGEST_CHUNK)


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
