"""Groups that are known to find no room are not tried again."""

from __future__ import annotations

from typing import Any

from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.requests.group import GroupStatus
from tests.unit.cluster.groups.test_waiting import RACK, TIMEOUT, Racks, rack
from tests.unit.cluster.written import pod_set

NOBODY: list[str] = []


class Tried(Racks):
    """Racks that record which groups are tried in a step."""

    def __init__(self, **own: Any) -> None:
        super().__init__(**own)
        self.tried: list[str] = []
        place = self.waiting.place

        def record(key: Key, *more: Any) -> GroupStatus:
            self.tried.append(key[1])
            return place(key, *more)

        self.waiting.place = record  # type: ignore[method-assign, assignment]

    def try_waiting(self, now: float = 1.0) -> list[str]:
        """Return the groups that a step tries after something has changed."""
        self.tried.clear()
        self.waiting.queue.note_change()
        self.step(now)
        return sorted(self.tried)


def crowded(**groups: Any) -> Tried:
    """Each host has a CPU left; a group of pods with 2 CPUs waits, and one of more pods."""
    racks = Tried(groups=groups)
    for at in range(6):
        racks.run(f"big{at}", f"h{at}", 2)
        racks.run(f"small{at}", f"h{at}", 1)
    racks.wait("pair", rack(2, cpu=2))
    racks.wait("four", rack(4, cpu=2), since=1.0)
    racks.step(0.0)
    return racks


def test_a_group_waits_until_a_host_with_room_for_its_pod_is_released() -> None:
    racks = crowded()
    assert racks.try_waiting() == NOBODY
    racks.run("brief", "h1", 1)
    racks.end("brief")
    assert racks.try_waiting() == NOBODY, "a CPU is no room for a pod of two"
    racks.end("small0")
    assert racks.try_waiting() == ["pair"], "more pods do not fit where fewer do not"
    assert racks.try_waiting() == NOBODY
    racks.end("small1")
    assert racks.try_waiting() == ["four", "pair"]
    assert [*racks.waiting.queue] == [("default", "four")]


def test_released_hosts_have_no_room_for_groups_whose_level_the_settings_lack() -> None:
    racks = crowded()
    racks.wait("lost", pod_set(2, {"required": "example.com/row"}, cpu=2))
    racks.step(0.0)
    racks.end("small0")
    racks.wait("more", pod_set(3, {"required": "example.com/row"}, cpu=2))
    assert racks.try_waiting() == ["more", "pair"]
    assert racks.try_waiting() == NOBODY


def test_another_leader_and_a_changed_request_try_a_group_again() -> None:
    racks = crowded()
    racks.waiting.queue.note_edit(("default", "pair"))
    assert racks.try_waiting() == ["pair"]
    racks.waiting.queue.remove(("default", "pair"))
    racks.wait("pair", rack(2, cpu=2))
    assert racks.try_waiting() == ["pair"]


def test_groups_are_tried_again_after_nodes_changed_or_zones_became_free() -> None:
    racks = crowded()
    racks.set_node("h5", ready=False)
    assert racks.try_waiting() == ["four", "pair"]
    racks.waiting.note_freed_zones()
    assert racks.try_waiting() == ["four", "pair"]


def test_a_group_whose_places_depend_on_others_is_always_tried() -> None:
    racks = crowded()
    racks.wait("spread", pod_set(2, {"spreadOver": [RACK]}, cpu=2))
    racks.wait("sets", rack(2, cpu=2), rack(1, cpu=2, name="more"))
    racks.wait("alone", pod_set(2, {"exclusive": RACK}, cpu=2))
    racks.step(0.0)
    assert racks.try_waiting() == ["alone", "sets", "spread"]


def test_all_are_tried_if_groups_may_leave_for_others() -> None:
    assert crowded(preemption=True).try_waiting() == ["four", "pair"]


def test_a_holder_is_tried_while_it_holds_and_once_afterwards() -> None:
    racks = crowded()
    racks.step(TIMEOUT)
    assert racks.reserved("pair")
    assert "pair" in racks.try_waiting(TIMEOUT + 1)
    assert "pair" in racks.try_waiting(TIMEOUT + 2)
    racks.waiting.queue.bar(("default", "pair"))
    assert "pair" in racks.try_waiting(TIMEOUT + 3)
    assert not racks.reserved("pair")
    assert "pair" not in racks.try_waiting(TIMEOUT + 4)
