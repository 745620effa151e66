"""The queue of groups: order, what is tried again, and for whom hosts are set aside."""

from __future__ import annotations

import pytest

from nri_policy.cluster.groups.queue import Queue
from nri_policy.cluster.groups.record import QueuePlace, rank_of
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.objects.metadata import Key

TIMEOUT = 600.0
A, B, C, D = (("default", name) for name in "abcd")


def tried(queue: Queue, fits: str = "", hopeless: str = "") -> str:
    """Try what is due; those that fit leave. The groups tried, in order."""
    found = ""
    for key in queue.due():
        found += key[1]
        if key[1] in fits:
            queue.remove(key)
        else:
            queue.note_refusal(key, hopeless=key[1] in hopeless)
    return found


def queue_of(*groups: tuple[Key, int, float]) -> Queue:
    queue = Queue(GroupTable())
    for key, priority, since in groups:
        queue.put(key, QueuePlace(rank_of(priority, since)))
    return queue


def test_priority_goes_first_then_age() -> None:
    queue = queue_of((A, 0, 3.0), (B, 5, 9.0), (C, 0, 1.0), (D, 5, 4.0))
    assert tried(queue, fits="abcd") == "dbca"
    assert len(queue) == 0


def test_a_group_with_another_priority_moves_and_all_are_tried_again() -> None:
    queue = queue_of((A, 5, 0.0), (B, 0, 1.0), (C, 3, 2.0))
    assert tried(queue) == "acb"
    queue.prioritize(B, 0)
    queue.prioritize(D, 9)
    assert tried(queue) == ""
    queue.prioritize(B, 4)
    assert queue.rank(B) == (-4, True, "", 1.0)
    assert tried(queue) == "abc"


def test_a_group_is_tried_again_only_after_a_change() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0))
    assert tried(queue) == "ab"
    assert tried(queue) == ""
    queue.put(C, QueuePlace(rank_of(0, 3.0)))
    assert tried(queue) == "c"
    queue.note_change()
    assert tried(queue, fits="b") == "abc"


def test_a_refusal_that_still_holds_lasts_until_a_change_or_another_request() -> None:
    groups = GroupTable()
    queue = Queue(groups)
    for at, key in enumerate((A, B, C)):
        queue.put(key, QueuePlace(rank_of(0, float(at))))
    assert tried(queue) == "abc"

    def last() -> None:
        queue.note_change()
        for key in queue.due():
            queue.note_lasting_refusal(key)
        assert tried(queue) == ""

    last()
    queue.note_edit(B)
    assert tried(queue) == "b"
    last()
    groups.update(C, place=None)  # as reconcile has a group leave, and join again
    groups.update(C, place=QueuePlace(rank_of(0, 2.0)))
    assert tried(queue) == "c"
    last()
    queue.note_change()
    assert tried(queue) == "abc"


def test_what_changes_while_groups_are_tried_is_not_lost() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0))
    for key in queue.due():
        queue.note_refusal(key, hopeless=False)
        if key == A:
            queue.note_change()
    assert tried(queue) == "a"


def test_the_first_that_has_waited_its_time_is_the_holder() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0), (C, 5, 2.0))
    assert tried(queue) == "cab"
    assert queue.holders(TIMEOUT - 1, TIMEOUT) == []
    assert queue.holders(TIMEOUT, TIMEOUT) == [A]
    assert queue.holders(TIMEOUT + 2, TIMEOUT) == [C]
    queue.remove(C)
    assert queue.holders(TIMEOUT + 2, TIMEOUT) == [A]


def test_a_group_that_was_not_tried_yet_is_no_holder() -> None:
    queue = queue_of((A, 0, 0.0))
    assert queue.holders(TIMEOUT, TIMEOUT) == []


def test_a_holder_holds_nobody_up() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0))
    tried(queue)
    queue.note_change()
    assert queue.holders(TIMEOUT + 5, TIMEOUT) == [A]
    assert tried(queue) == "ab"


def test_each_topology_has_a_holder_of_its_own() -> None:
    queue = Queue(GroupTable())
    for key, topology in ((A, ""), (B, ""), (C, "other")):
        queue.put(key, QueuePlace(rank_of(0, 0.0, key[1]), topology))
    tried(queue)
    assert queue.holders(TIMEOUT, TIMEOUT) == [A, C]


def test_one_that_can_never_fit_is_no_holder() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0))
    assert tried(queue, hopeless="a") == "ab"
    assert queue.holders(TIMEOUT + 5, TIMEOUT) == [B]


def test_one_whose_refusal_is_final_is_tried_again_in_another_cluster_only() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0))
    queue.note_refusal(A, hopeless=True, final=True)
    queue.note_change()
    assert tried(queue) == "b"
    queue.note_new_cluster()
    assert tried(queue) == "ab"
    queue.note_change()
    assert tried(queue) == "ab"


def test_one_for_which_others_leave_is_a_holder_at_once() -> None:
    queue = queue_of((A, 0, 0.0), (B, 0, 1.0))
    queue.note_refusal(B, hopeless=False, holds=True)
    assert queue.holders(2.0, TIMEOUT) == [B]
    queue.note_change()
    tried(queue)
    assert queue.holders(2.0, TIMEOUT) == [B]


def test_one_with_hosts_of_another_leader_is_a_holder_before_it_is_tried() -> None:
    queue = Queue(GroupTable())
    queue.put(A, QueuePlace(rank_of(0, 0.0), holds=True))
    assert queue.holders(0.0, TIMEOUT) == [A]


def test_it_says_how_long_the_oldest_waits() -> None:
    queue = queue_of((A, 0, 10.0), (B, 0, 30.0))
    assert queue.oldest(40.0) == 30.0
    queue.remove(A)
    assert queue.oldest(40.0) == 10.0
    queue.remove(B)
    assert queue.oldest(40.0) == 0.0


def test_only_a_group_that_fits_nowhere_is_refused_for_good() -> None:
    queue = queue_of((A, 0, 0.0))
    with pytest.raises(AssertionError):
        queue.note_refusal(A, hopeless=False, final=True)
