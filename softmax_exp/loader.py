"""Hydra's loader made cheap: it composes once for each choice of groups, and sets what else a job says in a copy.

In: a job's overrides.  Out: its config, the same as Hydra's own loader would make, which is a test. Composing reads
ten files and takes 55 ms, a copy a tenth of that, a change of the last job's copy a tenth of a copy.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

from softmax_exp import config, guard
from softmax_exp.cases import stable_hash
from softmax_exp.config import Schema

JOBS = "jobs="  # the override that brings a chunk its jobs: long, and no text for Hydra to parse
_MAKERS = ("config.py", "cases.py", "variant_checks.py")
_CODE = stable_hash([(Path(__file__).parent / name).read_text() for name in _MAKERS])


class Loader(ConfigLoaderImpl):
    """Composes for Hydra's launchers, and for the checks of a whole sweep."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._cache: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}
        self._hashes: dict[tuple[str, ...], str] = {}
        self._last: tuple[list[str], dict[str, str], DictConfig] | None = None

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The whole config of what a launcher runs, Hydra's own part included."""
        given = [text for text in sweep_overrides if not text.startswith(JOBS)]
        plain, rest = _split(given)
        job = copy.deepcopy(self._composed(master_config, rest)[0])
        self._apply_overrides_to_config(plain, job)
        job.hydra.overrides.task = given
        for text in sweep_overrides[len(given) :]:  # it stands last
            job.jobs = text.removeprefix(JOBS)
        return job

    def load_job(self, master_config: DictConfig, overrides: list[str]) -> DictConfig:
        """The config of a job without Hydra's part, good until the next call.

        ConfigError where that part is not as it must be.
        """
        plain, rest = _split(overrides)
        wanted = {each.key_or_group: str(each.input_line) for each in plain}
        last_rest, last, job = self._last or ([], {}, None)
        self._last = None  # unless all goes well
        if job is None or rest != last_rest or [*wanted] != [*last]:
            last, job = {}, copy.deepcopy(self._composed(master_config, rest)[1])
        self._apply_overrides_to_config([each for each in plain if last.get(each.key_or_group) != each.input_line], job)
        if not any(isinstance(each.value(), dict) for each in plain):  # a dictionary joins what is there
            self._last = rest, wanted, job
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


def _split(overrides: Sequence[str]) -> tuple[list[Override], list[str]]:
    """The plain values of schema keys, and the rest, which needs composing. Order matters among the rest only."""
    parsed = [_parse(text) for text in overrides]
    plain = [override for override, is_plain in parsed if is_plain]
    rest = [override for override, is_plain in parsed if not is_plain]
    if any(override.key_or_group not in guard.GROUPS for override in rest):
        return [], list(overrides)
    return plain, [str(override.input_line) for override in rest]


@functools.cache
def _parse(text: str) -> tuple[Override, bool]:
    override = OverridesParser.create().parse_override(text)
    name = override.key_or_group
    is_plain = (
        override.type == OverrideType.CHANGE
        and override.package is None
        and name not in guard.GROUPS
        and name.split(".")[0] in Schema.__dataclass_fields__
    )
    return override, is_plain
