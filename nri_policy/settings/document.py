"""From a YAML document, or the `spec` of one, to Settings: all errors at once, each with its path.

| case | what happens |
|---|---|
| unknown key | error, with the nearest known one |
| `null` | as if not given |
| key that has no effect yet | its content is checked, a notice |
| `metadata`, `status` | whatever the API server puts there |
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
from nri_policy.foundation.yamltext import Mark, Marks, SeveralDocumentsError, YAMLTextError, read
from nri_policy.settings import values
from nri_policy.settings.schema import Settings
from nri_policy.settings.section import Section
from nri_policy.settings.values import MAX_ENTRIES, plain
from nri_policy.settings.wrapped import find_mistake, hint_at

API_VERSION = "config.nri/v1alpha1"
KIND = "TopologyAwarePolicy"
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_SHOWN = 20  # problems of one section: enough to work on

_Settings = TypeVar("_Settings")
_Section = TypeVar("_Section", bound=Section)


class Problem(Struct, frozen=True):
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


def load(text: str | bytes, origin: str, above: int = 0) -> Settings:
    """Return the settings in a TopologyAwarePolicy document; *origin* names it in messages.

    There are so many lines *above* it. Raises SettingsError.
    """

    def read_spec(spec: Any, problems: list[Problem]) -> Settings:
        return _settings(spec, "spec", origin, problems)

    return load_kind(text, origin, KIND, read_spec, above)


def load_kind(
    text: str | bytes,
    origin: str,
    kind: str,
    read_spec: Callable[[Any, list[Problem]], _Settings],
    above: int = 0,
) -> _Settings:
    """Return what *read_spec* makes of the `spec` in a document of that *kind*.

    It is given what is wrong around the `spec`. Raises SettingsError, as it does; each problem then
    has its place in the text.
    """
    marks: Marks = {}
    document = _read_document(text, origin, marks, above)
    if other := find_mistake(document):
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
    with _locate_problems(origin, marks):
        return read_spec(document.get("spec"), problems)


def load_values(text: str | bytes, origin: str, above: int = 0) -> Settings:
    """Return the settings in `config` of values for the Helm chart; raises SettingsError."""
    marks: Marks = {}
    document = _read_document(text, origin, marks, above)
    with _locate_problems(origin, marks):
        settings = _settings(document.get("config"), "config", origin, [])
    others = [str(key) for key in document if key != "config"]
    checked = (
        [f"only `config` is checked here; helm checks {some(others)} by the chart's schema"]
        if others
        else []
    )
    notices = (*settings.notices, *_half_on(document, settings), *checked)
    return structs.replace(settings, notices=notices)


def _half_on(values: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield what is missing where only one of the chart's switches for claims is on."""
    dra = values.get("dra")
    chart = isinstance(dra, dict) and dra.get("enabled") is True
    if chart and not settings.dra.enabled:
        yield "dra.enabled: config.dra.enabled is false, so no CPUs are published for claims"
    if settings.dra.enabled and not chart:
        yield (
            "config.dra.enabled: the chart's own dra.enabled is false, so the DeviceClass, rights"
            " and folders are missing"
        )


def _read_document(text: str | bytes, origin: str, marks: Marks, above: int) -> dict[str, Any]:
    try:
        document = read(text, marks=marks, above=above)
    except SeveralDocumentsError as error:
        hint = f"{error}. `config check` checks each; use one, in a file of its own"
        raise SettingsError(origin, (Problem("", hint),)) from None
    except YAMLTextError as error:
        raise SettingsError(origin, (Problem("", str(error)),)) from None
    if isinstance(document, dict):
        return document
    fields = f"a document with {', '.join(_TOP[:-1])}"
    found = "the file is empty" if document is None else f"{quoted(document)} is not a document"
    raise SettingsError(origin, (Problem("", f"{found}: it has to be {fields}"),))


@contextmanager
def _locate_problems(origin: str, marks: Marks) -> Iterator[None]:
    """Give the problems of a SettingsError within the context their places in the text."""
    try:
        yield
    except SettingsError as error:
        places = _places(marks)
        located = [replace(each, mark=_nearest(each.path, places)) for each in error.problems]
        located.sort(key=lambda each: each.mark or (0, 0))  # as one reads the text
        raise SettingsError(origin, (*located,)) from None


def place_of(path: str, text: str | bytes, above: int = 0) -> Mark | None:
    """Return where a field is in a document that can be read: itself, or what it would be in."""
    marks: Marks = {}
    read(text, marks=marks, above=above)
    return _nearest(path, _places(marks))


def _places(marks: Marks) -> dict[str, Mark]:
    """Return the marks by paths as messages have them; a number may be a key, or an entry's."""
    places = {reduce(_entry, path, ""): mark for path, mark in marks.items()}
    return places | {reduce(_join, path, ""): mark for path, mark in marks.items()}


def _nearest(path: str, places: Mapping[str, Mark]) -> Mark | None:
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def from_spec(spec: Any, origin: str, marks: Marks | None = None) -> Settings:
    """Return the settings in a bare `spec`, as scenario files have it.

    Raises SettingsError; *marks* say where its parts are in a text.
    """
    with _locate_problems(origin, marks or {}):
        return _settings(spec, "", origin, [])


def read_section(kind: type[_Section], given: Any, path: str, problems: list[Problem]) -> _Section:
    """Return a section and those in it; None is read as one without fields.

    What is wrong goes to *problems*. The section is of no use if there are any.
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
    """Return the `spec` that `from_spec` reads these settings from.

    All defaults are in it, but for what is not supported yet: that would be worth a notice.
    """
    spec: dict[str, Any] = {}
    for name, known in _fields(type(section)).items():
        value = getattr(section, known.field.name)
        if value is not None and not (name in section.LATER and value == known.default):
            spec[name] = known.written(value)
    return spec


def _plain(value: object) -> Any:
    """Return a value as it is written in YAML, with the sections in it."""
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
    origin: str  # who set it: a file, an object, or `default`
    is_default: bool  # the value is the default, whoever set it


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
    """A field, and what it holds: a value that *reader* reads, or what *sections* is a form of."""

    field: FieldInfo
    reader: Callable[[Any], Any] | None
    sections: Any = None  # a Section; or a list, tuple or Mapping of such a form

    @property
    def default(self) -> Any:
        """What the field is where it is not given."""
        factory = self.field.default_factory
        return self.field.default if factory is NODEFAULT else factory()

    def written(self, value: object) -> Any:
        """Return its value as it is written in YAML."""
        if self.reader is values.memory and isinstance(value, int):
            return format_quantity(value)
        return _plain(value)


class _Reading(NamedTuple):
    """What is gathered while a document is read."""

    problems: list[Problem]
    notices: list[str]
    given: set[str]
    top: str  # the path of the spec

    def section(self, kind: type[_Section], given: Any, path: str, **about: Any) -> _Section | None:
        """Return a section with what is *given*, and fields *about* the document.

        What is wrong goes to the problems. It is None where that is a value, its own or below.
        """
        if not isinstance(given, dict):
            self.problems.append(Problem(path, f"{quoted(given)} is not a map"))
            return None
        known = _fields(kind)
        self.problems.extend(_unknown(given, path, known))
        self.notices.extend(
            f"{_join(path, key)}: not supported yet, it has no effect"
            for key in given
            if key in kind.LATER and given[key] is not None
        )
        read, wrong = dict[str, Any](), set()
        for name, each in known.items():
            value, place = given.get(name), _join(path, name)
            if value is None and isinstance(each.sections, type) and each.field.required:
                value = {}  # what is missing in it is told
            if value is not None or each.field.required:
                before = len(self.problems)
                read[each.field.name] = self._value(each, value, place)
                if read[each.field.name] is None and len(self.problems) > before:
                    wrong.add(each.field.name)
        made = kind(**about, **read)
        top = f"{path}." if path else ""
        for attributes, faults in made.checks():
            if wrong.isdisjoint(attributes):
                self.problems.extend(
                    Problem(f"{top}{name}" if name else path, text) for name, text in faults
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
        """Return one section, or several of them; None where something is wrong with a value."""
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
    """Return whether a field of this type holds a section, or several."""
    if isinstance(form, type):
        return issubclass(form, Section)
    return get_origin(form) in (list, tuple, Mapping) and of_sections(_several(form)[1])


def _several(form: Any) -> tuple[Any, Any]:
    """Return what holds several, and the form of each of them."""
    kind = get_origin(form)
    return kind, get_args(form)[1 if kind is Mapping else 0]


def _unknown(given: dict[Any, Any], path: str, known: Iterable[str]) -> list[Problem]:
    """Return a problem for each key that is not *known*, up to a bound."""
    unknown = [key for key in given if key not in known]
    problems = []
    for key in unknown[:_SHOWN]:
        hint = ""
        if isinstance(key, str):
            foreign = hint_at(key)
            hint = f": {foreign}" if foreign else did_you_mean(key, known)
        problems.append(Problem(_join(path, key), f"unknown field{hint}"))
    if len(unknown) > _SHOWN:
        problems.append(Problem(path, f"{len(unknown) - _SHOWN} more unknown fields"))
    return problems


def _entry(path: str, key: Any) -> str:
    return f"{path}[{key}]" if isinstance(key, int) and path else _join(path, key)


def _join(path: str, key: Any) -> str:
    name = key if isinstance(key, str) and key.isidentifier() and len(key) < 60 else quoted(key)
    return f"{path}.{name}" if path else name
