"""Whatever a settings file holds, it gives settings or a settings error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.settings import Settings, SettingsError, from_spec, load
from nri_policy.settings.document import _fields
from nri_policy.settings.schema import Section

SECTIONS = [Settings, *(kind.type for kind, reader in _fields(Settings).values() if not reader)]
names = st.sampled_from([name for kind in SECTIONS for name in (*_fields(kind), *kind.LATER)])
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


@given(st.dictionaries(names, values, max_size=8) | values)
def test_any_spec_is_settings_or_an_error(spec: Any) -> None:
    try:
        settings = from_spec(spec, "here")
    except SettingsError as error:
        message = str(error)
    else:
        assert isinstance(settings.reserved, Section)
        return
    assert message.startswith("here: ")


@given(st.binary(max_size=100) | st.text("apiVersion:knd{}[]&*!\n ", max_size=60))
def test_any_bytes_are_settings_or_an_error(text: str | bytes) -> None:
    with pytest.raises(SettingsError, match="here: "):  # no such text has a reservation
        load(text, "here")
