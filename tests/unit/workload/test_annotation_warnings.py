"""What is odd about a pod's annotations, as `explain` shows it."""

from __future__ import annotations

import pytest

from nri_policy.workload.annotation_warnings import check_annotations

DOMAIN = "resource-policy.nri.io"


@pytest.mark.parametrize(
    ("key", "text", "remark"),
    [
        (
            f"memory-type.{DOMAIN}/container.mian",
            "dram",
            (
                f"annotation memory-type.{DOMAIN}/container.mian: the pod has had no container"
                " 'mian' so far; did you mean 'main'?"
            ),
        ),
        (
            f"{DOMAIN}/anti-affinity",
            "other: [main]",
            f"annotation {DOMAIN}/anti-affinity: the pod has had no container 'other' so far",
        ),
        (
            f"memory-typ.{DOMAIN}",
            "dram",
            (
                f"annotation 'memory-typ.{DOMAIN}' is unknown: there is no 'memory-typ';"
                " did you mean 'memory-type'?"
            ),
        ),
    ],
)
def test_what_has_no_effect_is_named(key: str, text: str, remark: str) -> None:
    assert check_annotations({key: text}, "main", ["main", "sidecar"], all_known=False) == (remark,)


def test_good_annotations_give_no_warning() -> None:
    annotations = {
        f"memory-type.{DOMAIN}/container.sidecar": "dram",
        f"prefer-shared-cpus.{DOMAIN}/pod": "true",
        f"{DOMAIN}/affinity": "main: [sidecar]",
        "example.com/container.x": "",
    }
    assert check_annotations(annotations, "main", ["main", "sidecar"], all_known=False) == ()


def test_a_malformed_annotation_is_left_to_the_refusal() -> None:
    annotations = {f"memory-type.{DOMAIN}/pod": "tin", f"{DOMAIN}/affinity": "[", "a": ""}
    assert check_annotations(annotations, "main", ["main"], all_known=False) == ()


def test_a_flood_is_cut_short() -> None:
    annotations = {f"memory-type.{DOMAIN}/container.c{n}": "dram" for n in range(5000)}
    assert len(check_annotations(annotations, "main", ["main"], all_known=False)) == 20


def test_the_order_is_that_of_the_keys() -> None:
    found = {f"{name}.{DOMAIN}/container.c0": "true" for name in ("odd", "cold-start", "b", "even")}
    backwards = dict(reversed(found.items()))
    first, second = (
        check_annotations(each, "c0", {"c0"}, all_known=True) for each in (found, backwards)
    )
    assert first == second
    assert [name for each in first for name in ("b", "even", "odd") if f"'{name}." in each] == [
        "b",
        "even",
        "odd",
    ]


def test_where_all_containers_are_known_others_do_not_exist() -> None:
    annotations = {f"memory-type.{DOMAIN}/container.mian": "dram"}
    (remark,) = check_annotations(annotations, "main", ["main"], all_known=True)
    assert remark.endswith("the pod has no container 'mian'; did you mean 'main'?")
