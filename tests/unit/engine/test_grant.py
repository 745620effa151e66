"""Joining successive changes of one container into one."""

from __future__ import annotations

from nri_policy.engine.grant import Placement, join
from nri_policy.foundation.cpuset import CPUSet


def placement(
    cpu: int, *, shares: int | None = None, quota: int | None = None, limits: str = ""
) -> Placement:
    return Placement(
        cpus=CPUSet([cpu]),
        mems=CPUSet([0]),
        shares=shares,
        cause=f"to {cpu}",
        quota=quota,
        limits={"io.max": limits} if limits else {},
    )


def test_a_later_change_leaves_alone_what_it_does_not_say() -> None:
    first = {
        "plain": placement(1),
        "both": placement(1, shares=5, quota=7, limits="8:0 rbps=1"),
        "first": placement(1),
    }
    then = {
        "then": placement(2),
        "both": placement(2, quota=9, limits="8:1 rbps=1"),
        "plain": placement(2),
    }
    joined = join(first, then)
    assert joined == {
        "plain": then["plain"],
        "both": placement(2, shares=5, quota=9, limits="8:0 rbps=1\n8:1 rbps=1"),
        "first": first["first"],
        "then": then["then"],
    }
    assert [*joined] == ["plain", "both", "first", "then"]
    assert joined["plain"] is then["plain"], "nothing is made where the first says no more"
