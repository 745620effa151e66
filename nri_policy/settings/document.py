"""From a YAML document, or the `spec` of one, to Settings: all errors at once, each with its path.

| case | what happens |
|---|---|
| unknown key | error, with the nearest known one |
| `null` | as if not given |
| key of a later version of the policy | accepted, a notice |
| `metadata`, `status` | whatever the API server puts there |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from nri_policy.settings.mistaken import mistaken
from nri_policy.settings.schema import Section, Settings
from nri_policy.settings.values import plain
from nri_policy.wording import did_you_mean, quoted
from nri_policy.yamltext import Mark, Marks, YAMLTextError, read

API_VERSION = "config.nri/v1alpha1"
KIND = "TopologyAwarePolicy"
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_SHOWN = 20  # problems of one section: enough to work on

_Settings = TypeVar("_Settings")
_Section = TypeVar("_Section", bound=Section)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the path of the field, empty for the whole document, and what."""

    path: str
    text: str
    mark: Mark | None = None  # where in the text, if they come from one

    def __str__(self) -> str:
        mark = "" if self.mark is None else f"{self.mark}: "
        return f"{mark}{self.path}: {self.text}" if self.path else f"{mark}{self.text}"


class SettingsError(ValueError):
    """Settings were refused; `problems` has everything that is wrong with them."""

    def __init__(self, origin: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(origin, problems)
        self.origin = origin
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.origin}: {self.problems[0]}"
        lines = (f"\n  {problem}" for problem in self.problems)
        return f"{self.origin}: {len(self.problems)} errors:{''.join(lines)}"


def load(text: str | bytes, origin: str) -> Settings:
    """Return the settings in a TopologyAwarePolicy document; *origin* names it in messages.

    Raises SettingsError.
    """
    return load_kind(
        text, origin, KIND, lambda spec, problems: _settings(spec, "spec", origin, problems)
    )


def load_kind(
    text: str | bytes,
    origin: str,
    kind: str,
    read_spec: Callable[[Any, list[Problem]], _Settings],
) -> _Settings:
    """Return what *read_spec* makes of the `spec` in a document of that *kind*.

    It is given what is wrong around the `spec`. Raises SettingsError, as it does; each problem then
    has its place in the text.
    """
    marks: Marks = {}
    try:
        document = read(text, marks=marks)
    except YAMLTextError as error:
        raise SettingsError(origin, (Problem("", str(error)),)) from None
    if not isinstance(document, dict):
        fields = f"a document with {', '.join(_TOP[:-1])}"
        found = "the file is empty" if document is None else f"{quoted(document)} is no document"
        problem = f"{found}: it has to be {fields}"
        raise SettingsError(origin, (Problem("", problem),))
    if other := mistaken(document):
        raise SettingsError(origin, (Problem("", other),))
    problems = _unknown(document, "", _TOP)
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if document.get(key) != expected:
            given = document.get(key)
            missing = f"missing: it has to be {expected}"
            wrong = missing if given is None else f"{quoted(given)} is not {expected}"
            problems.append(Problem(key, wrong))
    metadata = document.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        problems.append(Problem("metadata", f"{quoted(metadata)} is not a map"))
    try:
        return read_spec(document.get("spec"), problems)
    except SettingsError as error:
        places = _places(marks)
        located = [replace(each, mark=_nearest(each.path, places)) for each in error.problems]
        located.sort(key=lambda each: each.mark or (0, 0))  # as one reads the text
        raise SettingsError(origin, (*located,)) from None


def place_of(path: str, text: str | bytes) -> Mark | None:
    """Return where a field is in a document that can be read: itself, or what it would be in."""
    marks: Marks = {}
    read(text, marks=marks)
    return _nearest(path, _places(marks))


def _places(marks: Marks) -> dict[str, Mark]:
    """Return the marks by paths as messages have them; a number may be a key, or an entry's."""
    places = {reduce(_entry, path, ""): mark for path, mark in marks.items()}
    return places | {reduce(_join, path, ""): mark for path, mark in marks.items()}


def _nearest(path: str, places: Mapping[str, Mark]) -> Mark | None:
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def from_spec(spec: Any, origin: str) -> Settings:
    """Return the settings in a bare `spec`, as scenario files have it.

    Raises SettingsError.
    """
    return _settings(spec, "", origin, [])


def read_section(kind: type[_Section], given: Any, path: str, problems: list[Problem]) -> _Section:
    """Return a section and those in it; None is read as one without fields.

    What is wrong goes to *problems*. The section is of no use if there are any.
    """
    reading = _Reading(problems, [], set(), path)
    found = reading.made(kind, {} if given is None else given, path)
    return kind() if found is None else found


def _settings(spec: Any, path: str, origin: str, problems: list[Problem]) -> Settings:
    reading = _Reading(problems, [], set(), path)
    values = reading.section(Settings, {} if spec is None else spec, path)
    if reading.problems:
        raise SettingsError(origin, tuple(reading.problems))
    return Settings(
        origin=origin, notices=tuple(reading.notices), given=frozenset(reading.given), **values
    )


def to_spec(section: Section) -> dict[str, Any]:
    """Return the `spec` that `from_spec` reads these settings from.

    All defaults are in it, but for what is not supported yet: that would be worth a notice.
    """
    spec: dict[str, Any] = {}
    for name, (field, reader) in _fields(type(section)).items():
        value = getattr(section, field.name)
        if value is not None and not (name in section.LATER and value == field.default):
            spec[name] = to_spec(value) if reader is None else plain(value)
    return spec


class EffectiveSetting(Struct, frozen=True, kw_only=True):
    """A field of the settings in force."""

    field: str  # its path in `spec`
    value: Any  # as in YAML
    origin: str  # who set it: a file, an object, or `default`


def effective(settings: Settings) -> tuple[EffectiveSetting, ...]:
    """Return every field that has an effect."""
    return tuple(
        EffectiveSetting(field=path, value=value, origin=settings.origin if given else "default")
        for path, value, given in _effective(settings, "", settings.given)
    )


def _effective(
    section: Section, above: str, given: Collection[str]
) -> Iterator[tuple[str, Any, bool]]:
    for name, (field, reader) in _fields(type(section)).items():
        value, path = getattr(section, field.name), _join(above, name)
        if reader is None:
            yield from _effective(value, path, given)
        elif name not in section.LATER:
            yield path, plain(value), path in given


class _Reading(NamedTuple):
    """What is gathered while a document is read."""

    problems: list[Problem]
    notices: list[str]
    given: set[str]
    top: str  # the path of the spec

    def section(self, kind: type[Section], given: Any, path: str) -> dict[str, Any]:
        """Return the values for the fields of *kind*; what is wrong goes to the problems."""
        if not isinstance(given, dict):
            self.problems.append(Problem(path, f"{quoted(given)} is not a map"))
            return {}
        known = _fields(kind)
        self.problems.extend(_unknown(given, path, (*known, *kind.LATER)))
        self.notices.extend(
            f"{_join(path, key)}: not supported yet, it has no effect"
            for key in given
            if key in kind.LATER and given[key] is not None
        )
        values = {}
        for name, (field, reader) in known.items():
            value, place = given.get(name), _join(path, name)
            if value is None and not field.required:
                continue
            if reader is None:
                values[field.name] = self.inner(field.type, value, place)
                continue
            self.given.add(place.removeprefix(f"{self.top}."))
            try:
                values[field.name] = reader(value)
            except ValueError as error:
                self.problems.append(Problem(place, str(error)))
        return values

    def inner(self, kind: Any, given: Any, path: str) -> Any:
        """Return the value of a field that is a section, or a list of them."""
        if get_origin(kind) is not list:
            return self.made(kind, {} if given is None else given, path)
        if not isinstance(given, list):
            self.problems.append(Problem(path, f"{quoted(given)} is not a list"))
            return []
        (one,) = get_args(kind)
        return [self.made(one, each, _entry(path, number)) for number, each in enumerate(given)]

    def made(self, kind: type[_Section], given: Any, path: str) -> _Section | None:
        """Return a section; None if something is wrong, in it or before."""
        values = self.section(kind, given, path)
        if self.problems:
            return None
        found = kind(**values)
        top = f"{path}." if path else ""
        self.problems.extend(Problem(f"{top}{name}", text) for name, text in found.faults())
        return found


@cache
def _fields(kind: type[Section]) -> dict[str, tuple[FieldInfo, Callable[[Any], Any] | None]]:
    """Return the fields of *kind* by their name in YAML, with their readers; None for sections."""
    known: dict[str, tuple[FieldInfo, Callable[[Any], Any] | None]] = {}
    for field in fields(kind):
        if get_origin(field.type) is Annotated:
            known[field.encode_name] = field, field.type.__metadata__[0]
        elif get_origin(field.type) is list or (
            get_origin(field.type) is None and issubclass(field.type, Section)
        ):
            known[field.encode_name] = field, None
    return known


def _unknown(given: dict[Any, Any], path: str, known: Iterable[str]) -> list[Problem]:
    """Return a problem for each key that is not *known*, up to a bound."""
    unknown = [key for key in given if key not in known]
    problems = []
    for key in unknown[:_SHOWN]:
        hint = did_you_mean(key, known) if isinstance(key, str) else ""
        problems.append(Problem(_join(path, key), f"unknown field{hint}"))
    if len(unknown) > _SHOWN:
        problems.append(Problem(path, f"{len(unknown) - _SHOWN} more unknown fields"))
    return problems


def _entry(path: str, key: Any) -> str:
    return f"{path}[{key}]" if isinstance(key, int) and path else _join(path, key)


def _join(path: str, key: Any) -> str:
    name = key if isinstance(key, str) and key.isidentifier() and len(key) < 60 else quoted(key)
    return f"{path}.{name}" if path else name
