"""Settings inside of a ConfigMap, or of values of the Helm chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.settings import SettingsError, documents_of, find_settings

PROJECT = Path(__file__).parents[3]
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: nri-policy}
data:
  config.yaml: |
    apiVersion: config.nri/v1alpha1
    kind: TopologyAwarePolicy
    spec: {reservedResources: {cpu: 750m}, pinCPU: VALUE}
"""


def problems(text: str) -> tuple[str, list[str]]:
    """Return the origin of the settings and the problems in them."""
    with pytest.raises(SettingsError) as caught:
        find_settings(text.encode(), "given.yaml").load()
    return caught.value.origin, [str(each) for each in caught.value.problems]


def test_the_settings_of_a_config_map_are_read_and_its_key_is_named() -> None:
    good = find_settings(CONFIG_MAP.replace("VALUE", "false").encode(), "given.yaml").load()
    assert not good.pin_cpu
    assert problems(CONFIG_MAP.replace("VALUE", "maybe")) == (
        "given.yaml, key config.yaml",
        ["line 8, column 44: spec.pinCPU: 'maybe' is not true or false"],
    )
    _, second = documents_of(f"a: 1\n---\n{CONFIG_MAP}".encode(), "given.yaml")
    given = find_settings(second.text, second.origin, second.above)
    assert str(given.problem("pinCPU", "no")) == "line 10, column 44: spec.pinCPU: no"


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (CONFIG_MAP.replace("    apiVersion: config", "    ---\n    apiVersion: config"), 4),
        ("kind: ConfigMap\ndata: {a.yaml: 'kind: x\n\n  spec: {pinCPU: VALUE}'}", 2),
    ],
)
def test_lines_are_those_of_the_key_where_it_is_not_written_as_a_block(
    block: str, line: int
) -> None:
    given = find_settings(block, "given.yaml")
    mark = given.problem("pinCPU", "no").mark
    assert mark is not None
    assert mark.line == line


def test_a_config_map_with_several_texts_or_none_is_not_guessed_at() -> None:
    two = "kind: ConfigMap\ndata: {a.yaml: x, b.yaml: y, c.txt: z}"
    assert problems(two)[1] == [
        "data: it has a.yaml, b.yaml; one key with the text of the settings is expected"
    ]
    none = problems("kind: ConfigMap\ndata: {a: 1}")[1]
    assert none == ["data: it has no text; one key with the text of the settings is expected"]


@pytest.mark.parametrize(
    "text",
    [
        "kind: ConfigMap\ndata: {policy: 'Active: topology-aware', logger: 'Debug: policy'}",
        "kind: ConfigMap\ndata: {fallback.cfg: 'policy: {Active: topology-aware}'}",
        "policy:\n  Active: topology-aware\n  ReservedResources: {CPU: 750m}\nlogger: {}",
    ],
)
def test_settings_in_the_old_form_are_named_as_such(text: str) -> None:
    (problem,) = problems(text)[1]
    assert problem.startswith("these are settings in the old form of nri-plugins and CRI Resource")


def test_the_chart_s_own_values_are_good() -> None:
    text = (PROJECT / "configs/helm/nri-policy/values.yaml").read_bytes()
    assert find_settings(text, "values.yaml").load().instrumentation.prometheus_export


def test_problems_of_values_have_their_lines_and_paths() -> None:
    assert problems("config:\n  reservedResources: {cpu: 1}\n  pinCpu: true") == (
        "given.yaml",
        ["line 3, column 3: config.pinCpu: unknown field; did you mean 'pinCPU'?"],
    )
    given = find_settings(b"config:\n  reservedResources: {cpu: 99}", "given.yaml")
    problem = given.problem("reservedResources.cpu", "too many")
    assert str(problem) == "line 2, column 23: config.reservedResources.cpu: too many"


def test_all_else_is_read_as_a_document() -> None:
    assert problems("") == (
        "given.yaml",
        [
            "the file is empty: it has to be a document with apiVersion, kind, metadata, spec",
        ],
    )
    assert problems("a: [")[1] == [
        "line 2, column 1: a value is missing, or a bracket is not closed"
    ]


def test_a_file_with_one_document_is_taken_as_it_is() -> None:
    for text in (b"", b"# a\r\n\r\n---\r\nspec: {}\r\n---\r\n", b"\xff\n---\nspec: {}"):
        (document,) = documents_of(text, "given.yaml")
        assert (document.text, document.origin, document.name) == (text, "given.yaml", "")


def test_a_file_that_is_too_long_is_not_taken_apart() -> None:
    (document,) = documents_of(b"a: 1\n---\nb: 2\n#" + b"-" * (1 << 20), "given.yaml")
    with pytest.raises(SettingsError, match="the text is longer than"):
        find_settings(document.text, document.origin).load()


def test_a_repeated_key_hides_no_other_error() -> None:
    head = "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\n"
    spec = "pinCPU: true\n  pinCPU: false\n  pinMemry: 3\n  reservedResources: {cpu: 1}\n"
    found = [
        "line LINE, column 3: AT.pinCPU: repeated: this field is given above",
        "line NEXT, column 3: AT.pinMemry: unknown field; did you mean 'pinMemory'?",
    ]
    for text, at, line in (
        (f"{head}spec:\n  {spec}", "spec", 5),
        (f"config:\n  {spec}", "config", 3),
    ):
        expected = [
            each.replace("LINE", str(line)).replace("NEXT", str(line + 1)).replace("AT", at)
            for each in found
        ]
        assert problems(text) == ("given.yaml", expected)


def test_a_repeated_key_of_a_config_map_is_refused() -> None:
    twice = f"{CONFIG_MAP}metadata: {{name: other}}\n"
    assert problems(twice) == (
        "given.yaml",
        ["line 9, column 1: metadata: repeated: this field is given above"],
    )
