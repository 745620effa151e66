"""Whatever a settings file holds, it gives settings or a settings error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.settings import Section, Settings, SettingsError, from_spec, to_spec
from nri_policy.settings.document import _fields, of_sections


def _sections(form: Any) -> Iterator[type[Section]]:
    """Yield the sections in a form, down to the innermost."""
    if isinstance(form, type):
        yield form
        for known in _fields(form).values():
            if known.sections is not None:
                yield from _sections(known.sections)
        return
    for inner in get_args(form):
        if of_sections(inner):
            yield from _sections(inner)


SECTIONS = [*dict.fromkeys(_sections(Settings))]
names = st.sampled_from(
    [name for kind in SECTIONS for name in (*_fields(kind), *sorted(kind.LATER))]
)
words = st.sampled_from(["off", "cpuset:0-3", "exclude-cpuset:", "1Gi", "750m", ":80", "30s", "a["])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=9)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names | st.integers(0, 9) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)


def _values(settings: Settings) -> Settings:
    """Return *settings* without what is known of the document that they come from."""
    return msgspec.structs.replace(settings, notices=(), given=frozenset())


@given(st.dictionaries(names, values, max_size=8) | values)
def test_any_spec_is_settings_or_an_error(spec: Any) -> None:
    try:
        settings = from_spec(spec, "here")
    except SettingsError as error:
        message = str(error)
    else:
        again = from_spec(to_spec(settings), "here")
        assert _values(again) == _values(settings)
        return
    assert message.startswith("here: ")


plain_specs = st.fixed_dictionaries(
    {
        "reservedResources": st.fixed_dictionaries(
            {"cpu": st.sampled_from(["750m", "cpuset:0-3,8"])}
        )
    },
    optional={
        "pinCPU": st.booleans(),
        "reservedPoolNamespaces": st.lists(st.sampled_from(["kube-*", "a[b-d]?"]), max_size=2),
        "availableResources": st.fixed_dictionaries(
            {}, optional={"cpu": st.just("exclude-cpuset:9,11"), "memory": st.just("16Gi")}
        ),
        "memoryKinds": st.dictionaries(st.integers(0, 9), st.sampled_from(["hbm", "pmem"])),
        "unlimitedBurstable": st.sampled_from(["numa", "system"]),
        "audit": st.sampled_from([False, "repair"]),
        "instrumentation": st.fixed_dictionaries(
            {},
            optional={
                "httpEndpoint": st.sampled_from(["", ":8891", "[::1]:80", "host:1"]),
                "reportPeriod": st.integers(10**9, 10**15).map("{}ns".format),
            },
        ),
        "log": st.just({"debug": ["*", "nri"]}),
    },
)


@given(plain_specs)
def test_settings_are_read_from_what_they_are_written_as(spec: dict[str, Any]) -> None:
    settings = from_spec(spec, "here")
    written = json.loads(json.dumps(to_spec(settings)))
    again = from_spec(written, "here")
    assert set(again.notices) <= set(settings.notices)
    assert _values(again) == _values(settings)
