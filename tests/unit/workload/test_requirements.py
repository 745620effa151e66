"""The annotation with a container's exact resource requirements."""

from __future__ import annotations

import pytest

from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.requirements import Requirements, requirements

KEY = "noderesource.dev/resources"


def read(text: str, container: str = "c0") -> Requirements | None:
    return requirements({KEY: text}, container)


def test_requests_and_limits_are_exact() -> None:
    text = """{"containers": {"c0": {
        "requests": {"cpu": "1001m", "memory": "1Gi", "example.com/gpu": "1"},
        "limits": {"cpu": 2, "memory": 2147483649}, "claims": []}}}"""
    assert read(text) == Requirements(
        cpu_request=1001, cpu_limit=2000, memory_request=2**30, memory_limit=2**31 + 1
    )


def test_init_containers_are_found_too() -> None:
    text = '{"initContainers": {"i0": {"requests": {"cpu": "1"}}}, "containers": null}'
    assert read(text, "i0") == Requirements(cpu_request=1000)


@pytest.mark.parametrize("text", ["{}", '{"containers": {"c1": {}}}', '{"other": 1}'])
def test_a_container_that_is_not_named_has_none(text: str) -> None:
    assert read(text) is None
    assert requirements({}, "c0") is None


@pytest.mark.parametrize("entry", ["{}", '{"requests": null}', '{"limits": {"cpu": null}}'])
def test_what_is_left_out_is_none(entry: str) -> None:
    assert read(f'{{"containers": {{"c0": {entry}}}}}') == Requirements()


def test_a_malformed_entry_hurts_no_other_container() -> None:
    text = '{"containers": {"c0": {"limits": {"cpu": "1"}}, "c1": {"limits": 7}}}'
    assert read(text) == Requirements(cpu_limit=1000)
    with pytest.raises(AnnotationError):
        read(text, "c1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON such as"),
        ("{", "is not JSON such as"),
        ("[]", "is not JSON such as"),
        ('{"containers": []}', "is not JSON such as"),
        ('{"containers": {"c0": 1}}', "is not JSON such as"),
        ('{"containers": {"c0": ' + "[" * 500_000, "is not JSON such as"),
        ('{"containers": {"c0": {"requests": ' + '{"a":' * 100_000, "is not JSON such as"),
        (" " * (2 << 20), "of at most 1048576 characters"),
        ('"\ud800"', "is not JSON such as"),
        ('{"containers": {"c0": {"limits": {"cpu": "-1"}}}}', "'-1' is not .* limits.cpu .*nega"),
        ('{"containers": {"c0": {"limits": {"cpu": true}}}}', "true is not .* limits.cpu"),
        ('{"containers": {"c0": {"requests": {"memory": 1e400}}}}', "is not"),
        ('{"containers": {"c0": {"requests": {"memory": ' + "9" * 999 + "}}}}", "is not"),
    ],
    ids=range(13),
)
def test_an_error_names_the_annotation_and_what_is_accepted(text: str, problem: str) -> None:
    with pytest.raises(AnnotationError, match=problem) as caught:
        read(text)
    assert str(caught.value).startswith(f"annotation {KEY}: ")
    assert len(str(caught.value)) < 500
