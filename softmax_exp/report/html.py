"""HTML and SVG, safe by construction: whatever is no `Html` is escaped on its way in.

In: names of elements, text, attributes.  Out: `Html`, a string that needs no more escaping.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

_VOID = {"meta", "link", "br", "input", "path", "rect", "circle", "line", "use", "col"}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *content: Any, **attributes: Any) -> Html:
    """An element. In attribute names `_` stands for `-`; None leaves one out, True gives it without a value.

    Content that is no `Html` is escaped; None is left out, other values become text.
    """
    opened = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        opened += f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
    if name in _VOID and not content:
        return Html(f"<{opened}>" if name in ("meta", "link", "br", "input", "col") else f"<{opened}/>")
    return Html(f"<{opened}>{join(content)}</{name}>")


def join(parts: Iterable[Any], between: str = "") -> Html:
    """Parts one after the other, escaped where they are no `Html`."""
    return Html(between.join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None))


def escape(text: Any) -> Html:
    """Text as HTML. Characters that turn the direction of writing are shown as their code points."""
    text = html.escape(str(text))
    return Html(text if text.isascii() else "".join(_visible(letter) for letter in text))


def _visible(letter: str) -> str:
    turns = "\u200e" <= letter <= "\u200f" or "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069"
    return f"U+{ord(letter):04X}" if turns else letter
