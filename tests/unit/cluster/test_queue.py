"""The queue of groups: order, what is tried again, and who holds whom up."""

from __future__ import annotations

from nri_policy.cluster.queue import Queue

TIMEOUT = 600.0


def tried(queue: Queue[str], now: float, fits: str = "", hopeless: str = "") -> str:
    """Try what is due; those that fit leave. The groups tried, in order."""
    found = ""
    for key in queue.due(now):
        found += key
        if key in fits:
            queue.remove(key)
        else:
            queue.refused(key, hopeless=key in hopeless)
    return found


def queue_of(*groups: tuple[str, int, float]) -> Queue[str]:
    queue: Queue[str] = Queue(TIMEOUT)
    for key, priority, since in groups:
        queue.put(key, priority, since)
    return queue


def test_priority_goes_first_then_age() -> None:
    queue = queue_of(("a", 0, 3.0), ("b", 5, 9.0), ("c", 0, 1.0), ("d", 5, 4.0))
    assert tried(queue, 10.0, fits="abcd") == "dbca"
    assert len(queue) == 0


def test_a_group_is_tried_again_only_after_a_change() -> None:
    queue = queue_of(("a", 0, 0.0), ("b", 0, 1.0))
    assert tried(queue, 2.0) == "ab"
    assert tried(queue, 3.0) == ""
    queue.put("c", 0, 3.0)
    assert tried(queue, 4.0) == "c"
    queue.changed()
    assert tried(queue, 5.0, fits="b") == "abc"


def test_what_changes_while_groups_are_tried_is_not_lost() -> None:
    queue = queue_of(("a", 0, 0.0), ("b", 0, 1.0))
    for key in queue.due(2.0):
        queue.refused(key, hopeless=False)
        if key == "a":
            queue.changed()
    assert tried(queue, 3.0) == "a"


def test_small_ones_go_before_a_large_one_for_a_while_and_then_no_more() -> None:
    queue = queue_of(("large", 0, 0.0))
    names = iter("abcdefgh")
    order = []
    for now in range(0, 900, 150):
        queue.put(next(names), 0, now)
        queue.changed()
        order.append([*tried_names(queue, now)])
    assert order == [["large", name] for name in "abcd"] + [["large"], ["large"]]
    queue.changed()
    assert tried_names(queue, 900, fits={"large"}) == ["large", "e", "f"]


def tried_names(
    queue: Queue[str], now: float, fits: frozenset[str] | set[str] = frozenset()
) -> list[str]:
    """Small ones fit, the large one where it is said."""
    found = []
    for key in queue.due(now):
        found.append(key)
        if key != "large" or key in fits:
            queue.remove(key)
        else:
            queue.refused(key, hopeless=False)
    return found


def test_who_holds_its_place_gives_way_to_a_higher_priority() -> None:
    queue = queue_of(("a", 0, 0.0), ("b", 0, 1.0))
    tried(queue, 2.0)
    queue.put("urgent", 9, TIMEOUT)
    queue.changed()
    assert tried(queue, TIMEOUT + 5, fits="urgent") == "urgenta"


def test_one_that_can_never_fit_holds_nobody_up() -> None:
    queue = queue_of(("a", 0, 0.0), ("b", 0, 1.0))
    assert tried(queue, 2.0, hopeless="a") == "ab"
    queue.changed()
    assert tried(queue, TIMEOUT + 5, fits="b", hopeless="a") == "ab"


def test_it_says_how_long_the_oldest_waits() -> None:
    queue = queue_of(("a", 0, 10.0), ("b", 0, 30.0))
    assert queue.oldest(40.0) == 30.0
    queue.remove("a")
    assert queue.oldest(40.0) == 10.0
    queue.remove("b")
    assert queue.oldest(40.0) == 0.0
