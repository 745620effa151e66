"""Whatever a pod's annotations hold, a container has preferences or an error of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.workload.annotation_table import BY_NAME, DEPRECATED, Preferences, warnings
from nri_policy.workload.annotations import DOMAIN, RESOURCES, AnnotationError
from nri_policy.workload.preferences import preferences

keys = (
    st.builds(
        "{}.{}{}".format,
        st.sampled_from(sorted(BY_NAME)),
        st.just(DOMAIN),
        st.sampled_from(["", "/pod", "/container.c0", "/container.c1", "/x"]),
    )
    | st.builds("{}/{}".format, st.just(DOMAIN), st.sampled_from(sorted(DEPRECATED)))
    | st.just(RESOURCES)
    | st.text(max_size=20)
)
texts = (
    st.sampled_from(
        ["true", "F", "dram", "duration: 5s", "{type: glob, paths: [a]}", "high", "numa"]
    )
    | st.sampled_from(["c0: true", "c0: dram", "c0: {duration: 1s}", '{"containers":{"c0":{}}}'])
    | st.text(alphabet="c01: {}[]\"',-&*\n", max_size=30)
    | st.text(max_size=30)
)


@given(st.dictionaries(keys, texts, max_size=6))
def test_any_annotations_are_preferences_or_an_error(annotations: dict[str, str]) -> None:
    try:
        found = preferences(annotations, "c0")
    except AnnotationError as error:
        key, message = error.key, str(error)
    else:
        assert isinstance(found, Preferences)
        hash(found)
        return
    assert key in annotations
    assert not key.endswith("/container.c1")
    assert key in message


@given(st.dictionaries(keys, texts, max_size=6), keys, texts)
def test_an_annotation_of_another_container_changes_nothing(
    annotations: dict[str, str], key: str, text: str
) -> None:
    def outcome() -> Preferences | str:
        try:
            return preferences(annotations, "c0")
        except AnnotationError as error:
            return str(error)

    before = outcome()
    annotations[f"{key.partition('/')[0]}/container.c1"] = text
    assert outcome() == before


@given(st.dictionaries(keys, st.just(""), max_size=30))
def test_warnings_name_only_keys_under_our_domain(annotations: dict[str, str]) -> None:
    assert all(DOMAIN in warning for warning in warnings(annotations))
