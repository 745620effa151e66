"""Finds settings in a text: a document, or one wrapped in a form that `wrapped` knows."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from nri_policy.foundation.wording import printable, some
from nri_policy.foundation.yamltext import (
    MAX_SIZE,
    Marks,
    RepeatedKey,
    YAMLTextError,
    read,
    split,
)
from nri_policy.settings.document import (
    Problem,
    SettingsError,
    describe_repeated,
    find_place,
    load,
    load_values,
)
from nri_policy.settings.schema import Settings
from nri_policy.settings.wrappers import is_config_map, is_old, is_other_object, is_values, texts_of

_UNINDENTED = re.compile(r"^(---|\.\.\.|%)", re.MULTILINE)
_COMMENTS = re.compile(r"(?:[ \t\r]*(?:#.*)?\n)*[ \t\r]*(?:#.*)?")


class SettingsText(Struct, frozen=True, kw_only=True):
    """A text with settings in it, and the place of the settings."""

    text: str | bytes
    origin: str  # names it in messages
    at: str = "spec"  # the field that has the settings
    above: int = 0  # lines of the file above the text

    def load(self) -> Settings:
        """Return the settings; raises SettingsError."""
        reader = load if self.at == "spec" else load_values
        return reader(self.text, self.origin, self.above)

    def problem(self, path: str, text: str) -> Problem:
        """Return a problem of a field, which is named by its path in the settings."""
        whole = f"{self.at}.{path}"
        return Problem(whole, text, find_place(whole, self.text, self.above))


class Document(Struct, frozen=True, kw_only=True):
    """One document of a file, which may have several."""

    text: str | bytes
    origin: str  # names it in messages
    name: str = ""  # its `metadata.name`, if the file has several documents
    above: int = 0  # lines of the file above it
    other: str = ""  # its kind, if it is an object unrelated to settings
    replaces: bool = False  # one before it, of the same kind, namespace and name, in a cluster


def documents_of(text: bytes, origin: str) -> list[Document]:
    """Return the documents in *text* with their names, or else their lines."""
    try:
        parts = [
            each for each in split(text.decode("utf-8-sig")) if not _COMMENTS.fullmatch(each[0])
        ]
    except UnicodeDecodeError:
        parts = []  # reading the settings reports the place
    if len(parts) < 2 or len(text) > MAX_SIZE:  # a text of this size may be incomplete
        return [Document(text=text, origin=origin, other=_other_kind(_read(text)))]
    seen = set[str]()
    return [_name_document(part, origin, above, seen) for part, above in parts]


def _name_document(text: str, origin: str, above: int, seen: set[str]) -> Document:
    """Return a document with its name; what a cluster knows it by is added to *seen*."""
    found = _read(text)
    document = found if isinstance(found, dict) else {}
    metadata = document.get("metadata")
    given = metadata.get("name") if isinstance(metadata, dict) else None
    name = given if isinstance(given, str) and given else f"line {above + 1}"
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    key = repr((document.get("kind"), namespace, name))
    replaces = key in seen
    seen.add(key)
    return Document(
        text=text,
        origin=f"{origin}, {printable(name)}",
        name=name,
        above=above,
        other=_other_kind(found),
        replaces=replaces,
    )


def _other_kind(found: Any) -> str:
    """Return the kind of an object that is unrelated to settings; "" for anything else."""
    return found["kind"] if isinstance(found, dict) and is_other_object(found) else ""


def _read(
    text: str | bytes,
    marks: Marks | None = None,
    repeated: list[RepeatedKey] | None = None,
    above: int = 0,
) -> Any:
    """Return the content of *text*; None if unreadable: reading the settings reports why."""
    repeated = [] if repeated is None else repeated
    try:
        return read(text, marks=marks, repeated=repeated, above=above)
    except YAMLTextError:
        return None


def find_settings(text: str | bytes, origin: str, above: int = 0) -> SettingsText:
    """Return where the settings are in *text*. Raises SettingsError if that is ambiguous."""
    marks, repeated = Marks(), list[RepeatedKey]()
    document = _read(text, marks, repeated, above)
    if not isinstance(document, dict):
        return SettingsText(text=text, origin=origin, above=above)
    if is_config_map(document) and not is_old(document):
        if repeated:
            raise SettingsError(origin, (*describe_repeated(repeated),))
        texts = texts_of(document)
        keys = [key for key in texts if key.endswith((".yaml", ".yml"))] or [*texts]
        if len(keys) != 1:
            found = f"it has {some(keys)}" if keys else "it has no text"
            problem = f"{found}; one key with the text of the settings is expected"
            raise SettingsError(origin, (Problem("data", problem),))
        key, line = keys[0], marks["data", keys[0]].line - above
        origin = f"{origin}, key {key}"
        if block := _block(text, texts[key], line):
            return SettingsText(text=block, origin=origin, above=above + line)
        return SettingsText(text=texts[key], origin=origin)
    at = "config" if is_values(document) else "spec"
    return SettingsText(text=text, origin=origin, at=at, above=above)


def _block(text: str | bytes, inner: str, above: int) -> str:
    """Return the *inner* text as it is in *text* after *above* lines, with its indentation.

    Empty if it is written in another way, such as in quotes, or is only valid without indentation.
    """
    whole = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    wanted = inner.splitlines()
    lines = whole.splitlines()[above : above + len(wanted)]
    as_written = [line.strip() for line in lines] == [line.strip() for line in wanted]
    return "\n".join(lines) if as_written and not _UNINDENTED.search(inner) else ""
