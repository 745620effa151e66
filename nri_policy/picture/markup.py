"""Markup: elements of SVG and HTML, in a form that is well-formed XML as well as HTML.

Owns escaping: a text becomes markup here and nowhere else, so nothing from outside can.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from nri_policy.foundation.wording import printable

_CHILDLESS = {
    "circle",
    "input",
    "line",
    "meta",
    "path",
    "rect",
    "wbr",
}  # HTML wants an end tag on others


class Element:
    """An element and its content; `str` makes its text."""

    def __init__(
        self, name: str, /, *content: Element | str, **attributes: str | float | None
    ) -> None:
        """Take attributes as names with `_` for `-`, and one after what is a keyword in Python.

        One that is None is left out.
        """
        self._name = name
        self._content = content
        self._attributes = {
            key.removesuffix("_").replace("_", "-"): value
            for key, value in attributes.items()
            if value is not None
        }

    def __str__(self) -> str:
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        attributes = "".join(
            f' {key}="{_escape(str(value))}"' for key, value in self._attributes.items()
        )
        if self._name in _CHILDLESS:
            yield f"<{self._name}{attributes}/>"
            return
        yield f"<{self._name}{attributes}>"
        # a line an element, but not within a text
        broken = all(isinstance(each, Element) for each in self._content) and self._content != ()
        for each in self._content:
            yield "\n" if broken else ""
            yield str(each) if isinstance(each, Element) else _escape(each)
        yield "\n" if broken else ""
        yield f"</{self._name}>"


def _escape(text: str) -> str:
    return escape(printable(text))


class Verbatim(Element):
    """A style sheet or a script, from a file beside this module."""

    def __init__(self, name: str, file: str) -> None:
        super().__init__(name)
        self.text = files(__package__).joinpath(file).read_text()

    def _parts(self) -> Iterator[str]:
        yield f"<{self._name}>\n{self.text}</{self._name}>"
