"""Shares of caches, as goresctrl reads them."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.settings import SettingsError, from_spec


def problems_of(partition: dict[str, Any]) -> list[str]:
    """Return what is wrong with the settings of one partition."""
    control = {"rdt": {"enable": True, "partitions": {"all": partition}}}
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
def test_what_is_no_share_is_refused(text: str) -> None:
    assert problems_of({"classes": {"gold": share_of(text)}}) == [
        f"l3Allocation.all.unified: '{text}' is not a share of a cache, as in 50%, 0-5 or 0xff0"
    ]


def test_a_partition_has_no_range_of_percents() -> None:
    assert not problems_of(share_of("50%"))
    split = {"l2Allocation": {"0": {"unified": "50%", "code": "1-50%", "data": "50%"}}}
    assert problems_of(share_of("50-60%")) == [
        "l3Allocation: all: '50-60%': only a class can have a range of percents"
    ]
    assert problems_of(split) == [
        "l2Allocation: 0: '1-50%': only a class can have a range of percents"
    ]
