"""Shares of caches, as goresctrl reads them."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.settings import SettingsError, from_spec
from nri_policy.tuning.items import Item, Kind, check


def problems_of(*partitions: dict[str, Any]) -> list[str]:
    """Return what is wrong with the settings of partitions."""
    named = dict(zip(("all", "other", "third"), partitions, strict=False))
    control = {"rdt": {"enable": True, "partitions": named}}
    try:
        from_spec({"reservedResources": {"cpu": 1}, "control": control}, "here")
    except SettingsError as error:
        return [
            str(each).removeprefix("control.rdt.partitions.all.").removeprefix("classes.gold.")
            for each in error.problems
        ]
    return []


def share_of(text: str) -> dict[str, Any]:
    return {"l3Allocation": {"all": {"unified": text}}}


@pytest.mark.parametrize(
    "text", ["1%", "100%", "0-1%", "50-50%", "1-100%", "0-5", "7", "0x1", "0xff0"]
)
def test_a_class_has_a_share_of_its_partition(text: str) -> None:
    assert not problems_of({"classes": {"gold": share_of(text)}})


@pytest.mark.parametrize(
    "text", ["0%", "101%", "0-0%", "60-50%", "50-101%", "50%-60%", "5-0", "0x0", "0xf0f", "half"]
)
def test_a_malformed_share_is_refused(text: str) -> None:
    assert problems_of({"classes": {"gold": share_of(text)}}) == [
        f"l3Allocation.all.unified: '{text}' is not a share of a cache, such as 50%, 0-5 or 0xff0"
    ]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("l3Allocation", {"all": {"unified": 50}}, "50 is not a share of a cache"),
        ("mbAllocation", ["50%"], "a list (1 entry) is not a map of cache ids to lists"),
        ("mbAllocation", {"half": ["50%"]}, "'half' is not a list of cache ids"),
        ("mbAllocation", {"all": ["0%"]}, "'0%' is not a bandwidth, such as 50% or 1000MBps"),
        ("mbAllocation", {"all": ["101%"]}, "'101%' is not a bandwidth"),
    ],
)
def test_a_share_in_another_form_is_refused(field: str, value: object, problem: str) -> None:
    (found,) = problems_of({"classes": {"gold": {field: value}}})
    assert problem in found


def test_a_class_is_in_one_partition() -> None:
    (problem,) = problems_of({"classes": {"gold": {}}}, {"classes": {"gold": {}}})
    assert problem == "control.rdt.partitions.other.classes: 'gold' is given twice"


@pytest.mark.parametrize("name", ["a b", ".", "..", ".a", "a/b", "a\n", "tasks", "info", "x" * 65])
def test_a_class_has_a_name_that_the_tuner_accepts(name: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a resctrl"):
        check(Item(Kind.RESCTRL, name, "schemata"), "")
    (problem,) = problems_of({"classes": {name: {}}})
    assert "is not the name of a group: 1 to 64 letters" in problem


def test_a_partition_has_no_range_of_percents() -> None:
    assert not problems_of(share_of("50%"))
    split = {"l2Allocation": {"0": {"unified": "50%", "code": "1-50%", "data": "50%"}}}
    assert problems_of(share_of("50-60%")) == [
        "l3Allocation: all: '50-60%': only a class can have a range of percents"
    ]
    assert problems_of(split) == [
        "l2Allocation: 0: '1-50%': only a class can have a range of percents"
    ]


@pytest.mark.parametrize(
    ("shares", "problem"),
    [
        (["60%", "40%"], ""),
        (["0x3", "2-5"], ""),
        (["60%", "41%"], "the partitions have 101% together, which is more than 100%"),
        (["50%", "0x3"], "some partitions have percents and others bits"),
        (["0-3", "3-5"], "the bits of partitions overlap"),
        (["0x1", "5", "0x1f"], "the bits of partitions overlap"),
    ],
)
def test_partitions_are_side_by_side(shares: list[str], problem: str) -> None:
    expected = [f"control.rdt.partitions: l3Allocation: {problem}"] if problem else []
    assert problems_of(*map(share_of, shares)) == expected


def test_each_cache_is_shared_out_by_itself() -> None:
    def partition(**shares: Any) -> dict[str, Any]:
        return {"l2Allocation": {ids.replace("_", "-"): share for ids, share in shares.items()}}

    one = partition(**{"all": {"unified": "60%"}, "0_1": {"unified": "50%"}})
    other = partition(**{"all": {"unified": "40%"}, "0_3": {"unified": "50%"}})
    where = "control.rdt.partitions: l2Allocation of cache id 2"
    assert problems_of(one, other) == [
        f"{where}: the partitions have 110% together, which is more than 100%"
    ]
    other = partition(all={"unified": "40%"}, **{"0_1": {"unified": "50%"}})
    assert not problems_of(one, other)
    code = partition(all={"unified": "40%", "code": "50%", "data": "40%"})
    assert "have 110% together" in problems_of(one, code)[0], "code counts by itself"
    (problem,) = problems_of(one, partition(half={"unified": "40%"}))
    assert "'half' is not a list of cache ids" in problem
