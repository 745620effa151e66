"""Reads Settings from a YAML document or its `spec`; reports all errors, each with its path.

| case | result |
|---|---|
| unknown key | error, with the nearest known one |
| `null` | as if the key were missing |
| key without effect yet | its content is checked; a notice |
| `metadata`, `status` | ignored, because the API server fills them |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, reduce
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from msgspec import NODEFAULT, Struct, structs
from msgspec.structs import FieldInfo, fields, replace

from nri_policy.foundation.mismatch import MismatchError
from nri_policy.foundation.units import format_quantity
from nri_policy.foundation.wording import did_you_mean, quoted, some
from nri_policy.foundation.yamltext import (
    Marks,
    RepeatedKey,
    SeveralDocumentsError,
    TextPosition,
    YAMLTextError,
    read,
)
from nri_policy.settings import readers
from nri_policy.settings.readers import MAX_ENTRIES, plain
from nri_policy.settings.schema import Settings
from nri_policy.settings.section import Section
from nri_policy.settings.wrappers import describe_mistake, hint_at

API_VERSION = "config.nri/v1alpha1"
KIND = "TopologyAwarePolicy"
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_SHOWN = 20  # problems of one section in a message

_Settings = TypeVar("_Settings")
_Section = TypeVar("_Section", bound=Section)


class Problem(Struct, frozen=True):
    """An error: the path of the field, empty for the whole document, and the text."""

    path: str
    text: str
    mark: TextPosition | None = None  # the place in the text, if the settings come from one

    def __str__(self) -> str:
        mark = "" if self.mark is None else f"{self.mark}: "
        return f"{mark}{self.path}: {self.text}" if self.path else f"{mark}{self.text}"


class SettingsError(ValueError):
    """Settings were refused; `problems` has all errors."""

    def __init__(self, origin: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(origin, problems)
        self.origin = origin
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.origin}: {self.problems[0]}"
        lines = (f"\n  {problem}" for problem in self.problems)
        return f"{self.origin}: {len(self.problems)} errors:{''.join(lines)}"


def load(text: str | bytes, origin: str, above: int = 0) -> Settings:
    """Return the settings in a TopologyAwarePolicy document; *origin* names it in messages.

    *above* is the number of lines before it in its file. Raises SettingsError.
    """

    def read_spec(spec: Any, problems: list[Problem]) -> Settings:
        return _settings(spec, "spec", origin, problems)

    return load_kind(text, origin, KIND, read_spec, above)


_SIDES = {  # kinds of settings, and what reads each
    "TopologyAwarePolicy": "these are a node's settings; `nri-policy config check` checks them",
    "ClusterPlacement": (
        "these are the cluster's settings; `nri-policy cluster tree --settings` reads them"
    ),
}


def load_kind(
    text: str | bytes,
    origin: str,
    kind: str,
    read_spec: Callable[[Any, list[Problem]], _Settings],
    above: int = 0,
) -> _Settings:
    """Return the result of *read_spec* for the `spec` in a document of that *kind*.

    *read_spec* gets the problems outside of the `spec`. Raises SettingsError, as it does; each
    problem then has its place in the text.
    """
    marks: Marks = {}
    document, repeated = _read_document(text, origin, marks, above)
    if other := describe_mistake(document):
        raise SettingsError(origin, (*repeated, Problem("", other)))
    given = document.get("kind")
    if given != kind and isinstance(given, str) and given in _SIDES:
        with _locate_problems(origin, marks):
            problem = Problem("kind", f"{quoted(given)} is not {kind}: {_SIDES[given]}")
            raise SettingsError(origin, (*repeated, problem))
    unknown = _unknown(document, "", _TOP, otherwise="; settings belong below `spec`")
    problems = [*repeated, *unknown]
    for key, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if document.get(key) != expected:
            given = document.get(key)
            missing = f"missing: it has to be {expected}"
            wrong = missing if given is None else f"{quoted(given)} is not {expected}"
            problems.append(Problem(key, wrong))
    metadata = document.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        problems.append(Problem("metadata", f"{quoted(metadata)} is not a map"))
    with _locate_problems(origin, marks):
        return read_spec(document.get("spec"), problems)


def load_values(text: str | bytes, origin: str, above: int = 0) -> Settings:
    """Return the settings in `config` of values for the Helm chart; raises SettingsError."""
    marks: Marks = {}
    document, repeated = _read_document(text, origin, marks, above)
    with _locate_problems(origin, marks):
        settings = _settings(document.get("config"), "config", origin, repeated)
    others = [str(key) for key in document if key != "config"]
    checked = (
        [f"only `config` is checked here; helm checks {some(others)} by the chart's schema"]
        if others
        else []
    )
    notices = (*settings.notices, *_half_on(document, settings), *checked)
    return structs.replace(settings, notices=notices)


def _half_on(values: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield what is missing if only one of the chart's switches for claims is on."""
    dra = values.get("dra")
    chart = isinstance(dra, dict) and dra.get("enabled") is True
    if chart and not settings.dra.enabled:
        yield "dra.enabled: config.dra.enabled is false, so no CPUs are published for claims"
    if settings.dra.enabled and not chart:
        yield (
            "config.dra.enabled: the chart's own dra.enabled is false, so the DeviceClass, rights"
            " and folders are missing"
        )


def _read_document(
    text: str | bytes, origin: str, marks: Marks, above: int
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document in *text*, and its repeated keys as problems."""
    repeated = list[RepeatedKey]()
    try:
        document = read(text, marks=marks, repeated=repeated, above=above)
    except SeveralDocumentsError as error:
        hint = f"{error}. `config check` checks each; use one, in a file of its own"
        raise SettingsError(origin, (Problem("", hint),)) from None
    except YAMLTextError as error:
        raise SettingsError(origin, (Problem("", str(error)),)) from None
    if isinstance(document, dict):
        return document, describe_repeated(repeated)
    fields = f"a document with {', '.join(_TOP[:-1])}"
    found = "the file is empty" if document is None else f"{quoted(document)} is not a document"
    raise SettingsError(origin, (Problem("", f"{found}: it has to be {fields}"),))


def describe_repeated(keys: Iterable[RepeatedKey]) -> list[Problem]:
    """Return what is wrong with repeated *keys*."""
    text = "repeated: this field is given above"
    return [Problem(reduce(_entry, each.path, ""), text, each.mark) for each in keys]


@contextmanager
def _locate_problems(origin: str, marks: Marks) -> Iterator[None]:
    """Add to the problems of a SettingsError within the context their places in the text."""
    try:
        yield
    except SettingsError as error:
        places = _places(marks)
        located = [
            replace(each, mark=each.mark or _nearest(each.path, places)) for each in error.problems
        ]
        located.sort(key=lambda each: each.mark or (0, 0))  # in the order of the text
        raise SettingsError(origin, (*located,)) from None


def find_place(path: str, text: str | bytes, above: int = 0) -> TextPosition | None:
    """Return the place of a field in a readable document, or of the nearest field above it."""
    marks: Marks = {}
    read(text, marks=marks, above=above)
    return _nearest(path, _places(marks))


def _places(marks: Marks) -> dict[str, TextPosition]:
    """Return the marks by paths as in messages; a number may be a key, or an entry's index."""
    places = {reduce(_entry, path, ""): mark for path, mark in marks.items()}
    return places | {reduce(_join, path, ""): mark for path, mark in marks.items()}


def _nearest(path: str, places: Mapping[str, TextPosition]) -> TextPosition | None:
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def from_spec(spec: Any, origin: str, marks: Marks | None = None) -> Settings:
    """Return the settings in a bare `spec`, as in scenario files.

    Raises SettingsError; *marks* are the places of its parts in a text.
    """
    with _locate_problems(origin, marks or {}):
        return _settings(spec, "", origin, [])


def read_section(kind: type[_Section], given: Any, path: str, problems: list[Problem]) -> _Section:
    """Return a section with the sections in it; None is read as a section without fields.

    Errors go to *problems*. If there are any, the section must not be used.
    """
    reading = _Reading(problems, [], set(), path)
    found = reading.section(kind, {} if given is None else given, path)
    return kind() if found is None else found


def _settings(spec: Any, path: str, origin: str, problems: list[Problem]) -> Settings:
    reading = _Reading(problems, [], set(), path)
    settings = reading.section(Settings, {} if spec is None else spec, path, origin=origin)
    if settings is None or reading.problems:
        raise SettingsError(origin, tuple(reading.problems))
    notices = (*reading.notices, *settings.remarks())
    return structs.replace(settings, notices=notices, given=frozenset(reading.given))


def to_spec(section: Section) -> dict[str, Any]:
    """Return the `spec` from which `from_spec` reads these settings.

    It has all defaults, except of settings without effect: these would cause a notice.
    """
    spec: dict[str, Any] = {}
    for name, known in _fields(type(section)).items():
        value = getattr(section, known.field.name)
        if value is not None and not (name in section.LATER and value == known.default):
            spec[name] = known.written(value)
    return spec


def _plain(value: object) -> Any:
    """Return a value, with the sections in it, in plain YAML types."""
    match value:
        case Section():
            return to_spec(value)
        case tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case _:
            return plain(value)


class EffectiveSetting(Struct, frozen=True, kw_only=True):
    """A field of the settings in force."""

    field: str  # its path in `spec`
    value: Any  # as in YAML
    origin: str  # the file or object that sets it, or `default`
    is_default: bool  # whether the value equals the default, also if it was set


def effective(settings: Settings) -> tuple[EffectiveSetting, ...]:
    """Return every field that has an effect."""
    return tuple(_effective(settings, "", settings.given, settings.origin))


def _effective(
    section: Section, above: str, given: Collection[str], origin: str
) -> Iterator[EffectiveSetting]:
    for name, known in _fields(type(section)).items():
        value, path = getattr(section, known.field.name), _join(above, name)
        if name in section.LATER:
            continue
        if isinstance(value, Section):
            yield from _effective(value, path, given, origin)
        else:
            yield EffectiveSetting(
                field=path,
                value=known.written(value),
                origin=origin if path in given else "default",
                is_default=value == known.default,
            )


class _Known(NamedTuple):
    """A field: its *reader* for a value, or *sections* for the form of its sections."""

    field: FieldInfo
    reader: Callable[[Any], Any] | None
    sections: Any = None  # a Section; or a list, tuple or Mapping of such a form

    @property
    def default(self) -> Any:
        """The value of a field that is not given."""
        factory = self.field.default_factory
        return self.field.default if factory is NODEFAULT else factory()

    def written(self, value: object) -> Any:
        """Return its value in plain YAML types."""
        if self.reader is readers.memory and isinstance(value, int):
            return format_quantity(value)
        return _plain(value)


class _Reading(NamedTuple):
    """The results of reading a document."""

    problems: list[Problem]
    notices: list[str]
    given: set[str]
    top: str  # the path of the spec

    def section(self, kind: type[_Section], given: Any, path: str, **about: Any) -> _Section | None:
        """Return a section with the *given* values, and fields *about* the document.

        Errors go to the problems. Return None if a value, here or below, is wrong.
        """
        if not isinstance(given, dict):
            hint = ": write NAME: VALUE, without '-'" if isinstance(given, list) else ""
            self.problems.append(Problem(path, f"{quoted(given)} is not a map{hint}"))
            return None
        known = _fields(kind)
        self.problems.extend(_unknown(given, path, known))
        self.notices.extend(
            f"{_join(path, key)}: {_why_later(kind.INSTEAD.get(key))}"
            for key in given
            if key in kind.LATER and given[key] is not None
        )
        strange = [key for key in given if isinstance(key, str) and key not in known]
        hints = {did_you_mean(key, known) for key in strange[:_SHOWN]}
        read, wrong = dict[str, Any](), set()
        for name, each in known.items():
            value, place = given.get(name), _join(path, name)
            absent = value is None and each.field.required
            if absent and did_you_mean(name, [name]) in hints:
                read[each.field.name] = None
                wrong.add(each.field.name)
                continue  # the typo is reported: one error is enough
            if absent and isinstance(each.sections, type):
                value = {}  # so that its missing fields are reported
            if value is not None or each.field.required:
                before = len(self.problems)
                read[each.field.name] = self._value(each, value, place)
                if read[each.field.name] is None and len(self.problems) > before:
                    wrong.add(each.field.name)
        made = kind(**about, **read)
        top = f"{path}." if path else ""
        for attributes, find_faults in made.list_checks():
            if wrong.isdisjoint(attributes):
                self.problems.extend(
                    Problem(f"{top}{name}" if name else path, text) for name, text in find_faults
                )
        return None if wrong else made

    def _value(self, known: _Known, value: Any, place: str) -> Any:
        if isinstance(known.sections, type):
            return self._sections(known.sections, value, place)
        self.given.add(place.removeprefix(f"{self.top}."))
        if known.reader is None:
            return self._sections(known.sections, value, place)
        try:
            return known.reader(value)
        except MismatchError as error:
            self.problems.append(Problem(error.path_below(place), error.text))
        except ValueError as error:
            self.problems.append(Problem(place, str(error)))

    def _sections(self, form: Any, value: Any, place: str) -> Any:
        """Return one section, or several in their container; None if a value is wrong."""
        if isinstance(form, type):
            return self.section(form, value, place)
        kind, inner = _several(form)
        plain_kind, noun = (dict, "map") if kind is Mapping else (list, "list")
        if not isinstance(value, plain_kind) or len(value) > MAX_ENTRIES:
            most = f" of at most {MAX_ENTRIES} entries" if isinstance(value, plain_kind) else ""
            self.problems.append(Problem(place, f"{quoted(value)} is not a {noun}{most}"))
            return None
        if isinstance(value, dict):
            named = {
                str(key): self._sections(inner, each, _join(place, key))
                for key, each in value.items()
            }
            return None if None in named.values() else named
        listed = kind(
            self._sections(inner, each, _entry(place, number)) for number, each in enumerate(value)
        )
        return None if None in listed else listed


def _why_later(instead: str | None) -> str:
    """Return what a notice says of a setting without effect."""
    return f"it has no effect: use {instead}" if instead else "not supported yet, it has no effect"


@cache
def _fields(kind: type[Section]) -> dict[str, _Known]:
    """Return the fields of *kind* by their name in YAML."""
    known = {}
    for field in fields(kind):
        if get_origin(field.type) is Annotated:
            known[field.encode_name] = _Known(field, field.type.__metadata__[0])
        elif of_sections(field.type):
            known[field.encode_name] = _Known(field, None, field.type)
    return known


def of_sections(form: Any) -> bool:
    """Return whether a field of this type has a section, or several."""
    if isinstance(form, type):
        return issubclass(form, Section)
    return get_origin(form) in (list, tuple, Mapping) and of_sections(_several(form)[1])


def _several(form: Any) -> tuple[Any, Any]:
    """Return the container of several sections, and the form of each."""
    kind = get_origin(form)
    return kind, get_args(form)[1 if kind is Mapping else 0]


def _unknown(
    given: dict[Any, Any], path: str, known: Iterable[str], *, otherwise: str = ""
) -> list[Problem]:
    """Return a problem for each key that is not *known*, up to a limit.

    *otherwise* is the hint about a key that is like none of them.
    """
    unknown = [key for key in given if key not in known]
    problems = []
    for key in unknown[:_SHOWN]:
        hint = ""
        if isinstance(key, str):
            foreign = hint_at(key)
            hint = f": {foreign}" if foreign else did_you_mean(key, known) or otherwise
        problems.append(Problem(_join(path, key), f"unknown field{hint}"))
    if len(unknown) > _SHOWN:
        problems.append(Problem(path, f"{len(unknown) - _SHOWN} more unknown fields"))
    return problems


def _entry(path: str, key: Any) -> str:
    return f"{path}[{key}]" if isinstance(key, int) and path else _join(path, key)


def _join(path: str, key: Any) -> str:
    name = key if isinstance(key, str) and key.isidentifier() and len(key) < 60 else quoted(key)
    return f"{path}.{name}" if path else name
