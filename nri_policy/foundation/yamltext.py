"""YAML from outside, read into plain values at a bounded cost.

One document of maps, lists, text, numbers, booleans and nulls. What YAML has beyond that is
refused: tags (no object is ever made), merge keys, several documents (except by `read_all`),
repeated keys, keys that are not scalars. Aliases are followed, but every use counts as if it was
written out, so that a small text cannot stand for a huge value. Dates, and numbers of base 60, stay
text. Aliased maps and lists are shared in the result: do not change them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from nri_policy.foundation.wording import quoted

MAX_SIZE = 1 << 20  # bytes
MAX_DEPTH = 32
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
MAX_VALUES = 50_000
_MAX_NUMBER = 100  # characters; longer ones cost quadratic time

_TAG = "tag:yaml.org,2002:"
# What libyaml finds, as a reader can act on it.
_PROBLEMS = {
    "block sequence entries are not allowed in this context": "a list has to begin on a new line",
    "could not find expected ':'": "a key without ':'; or the line has to be indented further",
    "did not find expected ',' or ']'": "',' or ']' is missing",
    "did not find expected ',' or '}'": "',' or '}' is missing",
    "did not find expected '-' indicator": "an entry has to begin with '-': see the indentation",
    "did not find expected <document start>": "more text after the end of the document",
    "did not find expected key": "a key has to begin here: see the indentation",
    "did not find expected node content": "a value is missing, or a bracket is not closed",
    "exceeded maximum nesting depth": _TOO_DEEP,
    "found character that cannot start any token": "a value that begins like this needs quotes",
    "found unexpected end of stream": "the text ends within quotes",
    "found unknown escape character": "in double quotes a backslash has to be written twice",
    "mapping values are not allowed in this context": "a value that contains ': ' needs quotes, and"
    " a key has to begin on a new line",
}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it


class YAMLTextError(ValueError):
    """A YAML text was refused; the message has the line and the reason."""


class SeveralDocumentsError(YAMLTextError):
    """A YAML text has more than the one document that is expected."""


class TextPosition(NamedTuple):
    """A place in a text, counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


# by path: keys of maps, and numbers of lists' entries from 0
Marks = dict[tuple[Any, ...], TextPosition]


class RepeatedKey(NamedTuple):
    """A key that its map has already, by its path and place."""

    path: tuple[Any, ...]
    mark: TextPosition


class _Read(NamedTuple):
    """A value, how many values it holds with itself, and how deep they nest."""

    value: Any
    size: int
    height: int


def read(  # noqa: PLR0913 - all but the text are optional
    text: str | bytes,
    *,
    max_size: int = MAX_SIZE,
    max_values: int = MAX_VALUES,
    marks: Marks | None = None,
    repeated: list[RepeatedKey] | None = None,
    above: int = 0,
) -> Any:
    """Return the one document in *text* as plain values; None if there is none.

    Raises YAMLTextError if it is malformed, uses a feature that the module docstring excludes, or
    is larger than *max_size* bytes or *max_values* values. *marks* gets the places of all keys and
    entries. With *repeated*, which gets repeated keys, these are no error, and the last one counts.
    *above* is the number of lines before the text.
    """
    if len(text) > max_size:
        raise YAMLTextError(f"the text is longer than {max_size} bytes")
    try:
        characters = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        characters.encode()  # text may hold lone surrogates
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise YAMLTextError(f"the text is not UTF-8 (at position {error.start})") from None
    loader = _Loader(characters)
    try:
        return _Reader(loader, marks, repeated, above, max_values).document()
    except yaml.MarkedYAMLError as error:
        raise YAMLTextError(_explain(error, characters, above)) from None
    except yaml.reader.ReaderError as error:
        raise YAMLTextError(f"position {error.position}: {error.reason}") from None
    finally:
        loader.dispose()


def read_all(text: str, *, max_size: int = MAX_SIZE, max_values: int = MAX_VALUES) -> list[Any]:
    """Return the documents in *text*, empty ones left out; raises YAMLTextError like `read`."""
    if len(text) > max_size:
        raise YAMLTextError(f"the text is longer than {max_size} bytes")
    documents = [
        read(part, max_size=max_size, max_values=max_values, above=above)
        for part, above in split(text)
    ]
    return [document for document in documents if document is not None]


def split(text: str) -> Iterator[tuple[str, int]]:
    """Yield the text of each document in *text*, and how many lines are above it."""
    above = 0
    # YAML allows no line inside of a document to begin like this.
    for part in re.split(r"^---(?=\s)", text, flags=re.MULTILINE):
        yield part, above
        above += part.count("\n")


def _explain(error: yaml.MarkedYAMLError, text: str, above: int) -> str:
    """Return what libyaml found wrong, with the line, on one line."""
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem)
    if mark is None:
        return _PROBLEMS.get(problem, problem)
    line = (text.splitlines()[mark.line : mark.line + 1] or [""])[0]
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        return f"{_mark(mark, above)}: a tab begins this line: indent with spaces, not with tabs"
    return f"{_mark(mark, above)}: {_PROBLEMS.get(problem, problem)}"


def _mark(mark: Any, above: int) -> TextPosition:
    """Return a mark of the parser, which counts from 0, as ours."""
    return TextPosition(above + mark.line + 1, mark.column + 1)


class _Reader:
    """Builds values from the parser's events, without a tree of nodes, so limits apply early."""

    def __init__(
        self,
        loader: Any,
        marks: Marks | None,
        repeated: list[RepeatedKey] | None,
        above: int,
        most: int,
    ) -> None:
        self._loader = loader
        self._marks = marks
        self._repeated = repeated
        self._above = above
        self._most = most
        self._path: list[Any] = []  # of what is being read
        self._anchors: dict[str, _Read | None] = {}  # None while it is being read
        self._values = 0

    def document(self) -> Any:
        self._loader.get_event()  # the stream's start
        if isinstance(self._loader.get_event(), yaml.StreamEndEvent):
            return None
        value = self._value(self._loader.get_event(), MAX_DEPTH).value
        self._loader.get_event()  # the document's end
        event = self._loader.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            mark = _mark(event.start_mark, self._above)
            raise SeveralDocumentsError(f"{mark}: a second document starts here; one is expected")
        return value

    def _value(self, event: Any, depth: int) -> _Read:
        """Return the value that starts with *event*; it may nest *depth* levels."""
        if isinstance(event, yaml.AliasEvent):
            read = self._construct_anchored(event)
        else:
            if event.anchor is not None:
                self._anchors[event.anchor] = None
            if depth == 0:
                raise _refusal(event, _TOO_DEEP)
            if isinstance(event, yaml.ScalarEvent):
                read = _Read(self._scalar(event), 1, 1)
            elif event.tag not in {None, "!", f"{_TAG}map", f"{_TAG}seq"}:
                raise _refusal(event, f"the tag {quoted(event.tag)} is not accepted")
            elif isinstance(event, yaml.MappingStartEvent):
                read = self._construct_mapping(depth)
            else:
                read = self._sequence(depth)
            if event.anchor is not None:
                self._anchors[event.anchor] = read
        if read.height > depth:
            raise _refusal(event, _TOO_DEEP)
        return read

    def _construct_anchored(self, event: yaml.AliasEvent) -> _Read:
        if event.anchor not in self._anchors:
            raise _refusal(event, f"there is no anchor {quoted(event.anchor)} above")
        read = self._anchors[event.anchor]
        if read is None:
            raise _refusal(event, f"the alias {quoted(event.anchor)} contains itself")
        self._count(event, read.size)
        return read

    def _count(self, event: Any, size: int) -> None:
        self._values += size
        if self._values > self._most:
            raise _refusal(event, f"more than {self._most} values, with aliases expanded")

    def _sequence(self, depth: int) -> _Read:
        items, size, height = list[Any](), 1, 0
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            item = self._entry(len(items), event, event, depth)
            items.append(item.value)
            size += item.size
            height = max(height, item.height)
        self._count(event, 1)
        return _Read(items, size, height + 1)

    def _construct_mapping(self, depth: int) -> _Read:
        entries, size, height = {}, 1, 0
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth - 1)
            if isinstance(key.value, dict | list):
                raise _refusal(event, "a map or list cannot be a key")
            if key.value in entries:
                self._repeat(key.value, event)
            item = self._entry(key.value, event, self._loader.get_event(), depth)
            entries[key.value] = item.value
            size += key.size + item.size
            height = max(height, item.height)
        self._count(event, 1)
        return _Read(entries, size, height + 1)

    def _repeat(self, key: Any, event: Any) -> None:
        """Note a repeated key, or raise if the reader does not take any."""
        if self._repeated is None:
            raise _refusal(event, f"the key {quoted(key)} is repeated")
        mark = _mark(event.start_mark, self._above)
        self._repeated.append(RepeatedKey((*self._path, key), mark))

    def _entry(self, name: Any, first: Any, event: Any, depth: int) -> _Read:
        """Return the value that starts with *event*; mark by its *name* where its entry begins."""
        self._path.append(name)
        if self._marks is not None:
            self._marks[(*self._path,)] = _mark(first.start_mark, self._above)
        item = self._value(event, depth - 1)
        self._path.pop()
        return item

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        self._count(event, 1)
        text = event.value
        if event.tag == f"{_TAG}str":
            return text
        if event.tag not in {None, "!"}:
            raise _refusal(event, f"the tag {quoted(event.tag)} is not accepted")
        tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit).removeprefix(_TAG)
        if tag == "merge":
            raise _refusal(event, "merge keys ('<<') are not accepted")
        # Kubernetes reads 1:30 as text, not as a number of base 60
        if tag not in {"null", "bool", "int", "float"} or ":" in text:
            return text
        if len(text) > _MAX_NUMBER:
            raise _refusal(event, f"{quoted(text)} is too long for a number")
        node = yaml.ScalarNode(_TAG + tag, text)
        try:
            return getattr(self._loader, f"construct_yaml_{tag}")(node)
        except ValueError:  # YAML's own rule takes `0x_` for a number
            raise _refusal(event, f"{quoted(text)} is not a number") from None


def _refusal(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
