"""msgspec's errors about a document of the wrong type, in plain words, with the path.

The words are those of YAML: a string, a whole number, a list, a map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nri_policy.foundation.wording import quoted

# msgspec's exceptions for text that is malformed JSON, or not of the type.
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_MESSAGE = re.compile(r"(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = "unknown field "
_PHRASES = [
    (re.compile(r"\AInput data was truncated\Z"), "the JSON text is cut off"),
    (re.compile(r"\AObject missing required field `(.*)`\Z", re.DOTALL), r"\1 is missing"),
    (re.compile(r"\AObject contains unknown field `(.*)`\Z", re.DOTALL), rf"{_UNKNOWN}\1"),
    (re.compile(r"\Amaximum recursion depth exceeded.*", re.DOTALL), "it is nested too deep"),
    (re.compile(r"\AExpected"), "expected"),
    (re.compile(r" >= (?=\d)"), " of at least "),
    (re.compile(r" <= (?=\d)"), " of at most "),
]
_TYPES = re.compile(r"`([^`]*)`")
_NOUNS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "a boolean",
    "object": "a map",
    "array": "a list",
    "null": "null",
}
_TYPE_NAMES: dict[type, str] = {  # msgspec's, in messages
    dict: "object",
    list: "array",
    type(None): "null",
}
_STEP = re.compile(r"\.[^.\[]+|\[\d+\]|\[\.\.\.\]")


class MismatchError(ValueError):
    """Something in a document is wrong: the path of the field, empty for the whole, and what."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)
        self.path = path
        self.text = text

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text

    def path_below(self, path: str) -> str:
        """Return the path of the field where the place of the document is *path*."""
        between = "." if path and self.path and not self.path.startswith("[") else ""
        return path + between + self.path


def json_problem(error: Exception, value: object = None) -> str:
    """Return what is wrong with a JSON text or the *value* in it: the field, and why."""
    path, text = find_mismatch(error, value)
    return f"{path}: {text}" if path else text


def find_mismatch(error: Exception, value: object) -> tuple[str, str]:
    """Return the path of the mismatch in *value*, empty for the whole, and its text."""
    match = _MESSAGE.fullmatch(str(error))
    assert match is not None  # the pattern matches every text
    text = match["text"]
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    text = ("a key: " if match["key"] else "") + _TYPES.sub(_in_words, text)
    return _name_keys(match["path"] or "", value, text).removeprefix("."), text


def unknown_field(text: str) -> str | None:
    """Return the name of the unknown field, if that is the error."""
    return text.removeprefix(_UNKNOWN) if text.startswith(_UNKNOWN) else None


def _in_words(types: re.Match[str]) -> str:
    names = types[1].split(" | ")
    if not _NOUNS.keys() >= {*names}:
        return types[0]
    *most, last = (_NOUNS[each] for each in names)
    return f"{', '.join(most)} or {last}" if most else last


def _name_keys(path: str, value: object, problem: str) -> str:
    """Return *path* with the keys of maps, which msgspec writes as `[...]`.

    A key is named if the *problem* is one of what stands there, the first one if of several.
    """
    if "[...]" not in path:
        return path
    found = (names for names, each in _walks(_STEP.findall(path), value) if _has(problem, each))
    return next(found, path)


def _walks(parts: Sequence[str], value: object) -> Iterator[tuple[str, object]]:
    """Yield the paths that *parts* may stand for in *value*, and what is there."""
    if not parts:
        yield "", value
        return
    part, rest = parts[0], parts[1:]
    inside: list[tuple[str, object]] = []
    if part == "[...]" and isinstance(value, Mapping):
        inside = [(f"[{quoted(key)}]", each) for key, each in value.items()]
    elif isinstance(value, Mapping):
        inside = [(part, value.get(part.removeprefix(".")))]
    elif isinstance(value, list) and part[1:-1].isdecimal():
        inside = [(part, value[int(part[1:-1])])]
    for name, each in inside:
        for names, end in _walks(rest, each):
            yield name + names, end


def _has(problem: str, value: object) -> bool:
    """Whether a problem may be one of *value*."""
    _, got, kind = problem.rpartition(", got ")
    if got and kind in _NOUNS.values():
        return kind == _NOUNS.get(_TYPE_NAMES.get(type(value), type(value).__name__))
    unknown = unknown_field(problem)
    return unknown is None or (isinstance(value, Mapping) and unknown in value)
