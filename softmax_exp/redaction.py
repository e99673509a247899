"""Keeps secrets out of text: passwords in addresses, and what secret environment variables hold.

In: any text that will be printed or kept.  Out: the same text with `***` in place of secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
# A database's password may hold a slash, and even a second @, since only the last one ends it for the server.
_DATABASE = re.compile(r"(?P<scheme>\b(?:postgres(?:ql)?|mysql|mssql)(?:\+\w+)?://)[^\s'\"]*@")
_FROM_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)

_BETWEEN = " \0 "
_used: set[str] = set()  # names of the environment variables that configs of this process refer to


def note_secrets(text: str) -> None:
    """Remember the environment variables that a config or an override refers to by `${oc.env:NAME}`."""
    _used.update(_FROM_ENVIRONMENT.findall(text))


def redact(text: str) -> str:
    """The text without secrets.

    Replaced are `user:password@` in addresses, and the values of environment variables that a config uses or whose
    name says that they are secret. Numbers and existing paths that a config uses are no secrets.
    """
    for address in (_DATABASE, _ADDRESS):
        text = address.sub(r"\g<scheme>***@", text)
    for name, value in os.environ.items():
        if len(value) < 4 or value not in text or "://" in value:
            continue
        if _SECRET_NAME.search(name) or (name in _used and not value.isdigit() and not Path(value).exists()):
            text = text.replace(value, "***")
    return text


def environment_without_secrets() -> dict[str, str]:
    """The environment for a process that needs no secret: without variables whose names say that they hold one."""
    return {name: value for name, value in os.environ.items() if not _SECRET_NAME.search(name)}


def redact_values(value: Any) -> Any:
    """Plain values with `redact` applied to every text among them."""
    texts = [*dict.fromkeys(_texts(value))]
    # One call for all of them, since each looks through the environment; no secret spans a blank and a zero.
    clean = redact(_BETWEEN.join(texts)).split(_BETWEEN)
    if len(clean) != len(texts):  # one of them holds what stands between them
        clean = [redact(text) for text in texts]
    return _replaced(value, dict(zip(texts, clean, strict=True)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _replaced(value: Any, clean: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _replaced(item, clean) for name, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, clean) for item in value]
    return clean[value] if isinstance(value, str) else value
