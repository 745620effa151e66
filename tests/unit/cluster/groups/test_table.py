"""Records of groups, and what is said once of a group."""

from __future__ import annotations

import pytest

from nri_policy.cluster.groups.record import NO_FAILURE, Group, SeenGroup
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.writes import CreateGroup, WriteStatus
from nri_policy.cluster.requests.group import PlacementGroup, read_group
from tests.unit.cluster.written import HOSTNAME, group, pod_set

KEY = ("default", "g")
EVERY = {"podSet": "main", "levels": [HOSTNAME], "domains": [{"values": ["h1"], "count": 2}]}


def made(*, placed: bool, evicted: str = "") -> PlacementGroup:
    status = {"assignments": [EVERY] if placed else [], "evicted": evicted}
    return read_group(group(pod_set(2), name="g", status=status))


def test_a_problem_is_news_once_and_again_after_it_was_over() -> None:
    groups = GroupTable()
    assert groups.say(KEY, "too few pods")
    assert not groups.say(KEY, "too few pods")
    assert groups.say(KEY, "no room")
    assert not groups.say(KEY, "")
    assert not groups.records
    assert groups.say(KEY, "no room")


def test_indexes_follow_the_object_and_its_writes() -> None:
    groups = GroupTable()
    groups.update(KEY, seen=SeenGroup(made(placed=True), "1", frozenset({"u"})))
    assert [*groups.on_host("h1")] == [*groups.owned_by("u")] == [*groups.known()] == [KEY]
    write = WriteStatus(made(placed=False, evicted="Preempted"), "1")
    groups.update(KEY, write=write, unanswered=True, look_at=3.0)
    assert [*groups.pending] == [*groups.unanswered] == [*groups.delayed] == [KEY]
    groups.look_again(KEY, 4.0)
    assert groups[KEY].look_at == 3.0
    groups.put(KEY, Group(seen=SeenGroup(write.group, "2", frozenset())))
    assert [*groups.evicted] == [KEY]
    assert not [*groups.on_host("h1"), *groups.owned_by("u")]
    assert not [*groups.pending, *groups.unanswered, *groups.delayed]
    groups.put(KEY, Group())
    assert not [*groups.records, *groups.evicted]


@pytest.mark.parametrize(
    "bad",
    [
        Group(unanswered=True),
        Group(write=WriteStatus(made(placed=False), "1")),
        Group(
            write=CreateGroup(made(placed=False), ()),
            seen=SeenGroup(made(placed=False), "1", frozenset()),
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_not_stored(bad: Group) -> None:
    groups = GroupTable()
    with pytest.raises(AssertionError):
        groups.put(KEY, bad)
    assert not groups.records


def test_a_pause_is_longer_after_each_failure_and_as_long_as_asked() -> None:
    first = NO_FAILURE.after_failure(10.0, "why")
    second = first.after_failure(20.0)
    assert (second.failures, second.text) == (2, "why")
    assert 0.0 < first.until - 10.0 < second.until - 20.0
    assert second.after_failure(30.0, wait=60.0).until == 90.0
