"""YAML from outside, against PyYAML's own safe loader."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.yamltext import YAMLTextError, read

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(documents, st.booleans())
def test_what_pyyaml_writes_reads_back(document: Any, flow: bool) -> None:
    assert read(yaml.safe_dump(document, default_flow_style=flow)) == document


@given(
    st.binary(max_size=200)
    | st.text(max_size=200)
    | st.text(alphabet="ab1:-?[]{},&*!|>'\"%#\n\t <~.", max_size=60)
)
def test_any_text_is_plain_values_or_an_error(text: str | bytes) -> None:
    try:
        value = read(text)
    except YAMLTextError:
        return
    assert isinstance(value, str | int | float | list | dict | None)
