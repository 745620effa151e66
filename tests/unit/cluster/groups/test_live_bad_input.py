"""An error in one group is reported for it, and does not affect others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nri_policy.cluster.groups.unbound_pods import NOT_BOUND, UNBOUND_SECONDS
from nri_policy.cluster.groups.writes import OpenGate, WriteStatus
from tests.support.placement_world import Object, Play, empty
from tests.unit.cluster.written import HOSTNAME

RACK = "example.com/rack"
SIZE = "placement.nri/group-size"


def good(play: Play) -> bool:
    """Whether a group beside it gets its places."""
    if "good" not in play.world.objects["jobs"]:
        play.world.submit("good", 2, 1, RACK)
    play.rest()
    return play.world.let_go("good") == (2, 2)


def named(play: Play, group: str, sizes: dict[str, str], **annotations: str) -> None:
    """Pods of a group by name, each with the size that it says."""
    play.world.submit("n", len(sizes), 1, RACK)
    for item, (name, size) in zip(play.world.pods_of("n").values(), sizes.items(), strict=True):
        play.world.delete("pods", item["metadata"]["name"])
        item["metadata"] |= {"name": name, "uid": f"u-{name}"}
        item["metadata"]["labels"] = {"placement.nri/group": group, SIZE: size}
        item["metadata"]["annotations"] = {f"placement.nri/{k}": v for k, v in annotations.items()}
        play.world.put("pods", item)


def said(play: Play, about: str) -> str:
    key = ("default", about)
    return play.controller.groups[key].problem or play.controller.members.state(key).problem


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"a": "2", "b": "3"}, "pods of group 'g' disagree on its size: 2, 3"),
        ({"a": "2", "b": "2", "c": "2"}, "group 'g' has 3 pods, but a size of 2"),
        ({"a": "4", "b": "4"}, "2 of 4 pods are there, 2 are missing"),
    ],
)  # fmt: skip
def test_sizes_that_are_wrong(sizes: dict[str, str], message: str) -> None:
    play = Play()
    named(play, "g", sizes)
    assert good(play)
    assert message in said(play, "g")
    reasons = dict(play.world.events)
    assert reasons["a"] == ("Incomplete" if "missing" in message else "Malformed")
    assert "g" not in play.world.objects["groups"]
    assert not any("nodeSelector" in play.world.objects["pods"][name]["spec"] for name in sizes)


def test_pods_of_one_pod_set_that_are_not_alike() -> None:
    play = Play()
    named(play, "g", {"a": "2", "b": "2"}, **{"pod-set": "main"})
    requests = play.world.objects["pods"]["b"]["spec"]["containers"][0]["resources"]
    requests["requests"] = {"cpu": "2"}
    play.world.put("pods", play.world.objects["pods"]["b"])
    assert good(play)
    assert "pods of pod set 'main' are not alike: 'b' differs" in said(play, "g")


def test_a_pod_that_says_nonsense_is_told_itself() -> None:
    play = Play()
    named(play, "g", {"a": "many"})
    assert good(play)
    assert "'many'" in said(play, "a")
    assert ("a", "Malformed") in play.world.events


def test_a_pod_that_does_not_wait_holds_its_group_up() -> None:
    play = Play()
    named(play, "g", {"a": "2", "b": "2"})
    item = play.world.objects["pods"]["b"]
    item["spec"] |= {"schedulingGates": [], "nodeName": "h0"}
    play.world.put("pods", item | {"status": {"phase": "Running"}})
    assert good(play)
    text = said(play, "g")
    assert "pod 'b' does not wait behind the gate placement.nri/group, as it asks for no" in text


def test_a_pod_that_is_deleted_while_it_waits() -> None:
    play = Play()
    play.world.submit("old", 6, 1, RACK)
    play.world.submit("big", 8, 3, RACK)
    play.rest()
    play.world.delete("pods", "big-3")
    assert good(play)
    message = play.world.group("job-big").status.message
    assert message == "pod set 'main': 7 of 8 pods are there"
    play.world.control_jobs()
    play.rest()
    assert "allows to fit" in play.world.group("job-big").status.message


def test_a_place_waits_for_the_next_pod_where_one_is_deleted_before_it_is_let_go() -> None:
    play = Play()
    play.world.submit("j", 3, 1, RACK)
    play.listen()
    while not play.world.objects["groups"].get("job-j", {}).get("status"):
        play.step()
        play.listen()
    play.world.delete("pods", "j-1")
    play.rest()
    assert play.world.let_go("j") == (2, 2)
    assert good(play)
    play.world.control_jobs()
    play.rest()
    assert play.world.let_go("j") == (3, 3)
    assert play.world.group("job-j").status.state == "Running"


@pytest.mark.parametrize("label", [RACK, HOSTNAME])
def test_a_label_is_taken_from_a_node_in_use(label: str) -> None:
    """Its pods run on, no other group goes there, and its room is not promised twice."""
    play = empty()
    play.world.submit("j", 4, 1, RACK)
    play.rest()
    item = play.world.objects["nodes"]["h0"]
    value = item["metadata"]["labels"].pop(label)
    play.world.put("nodes", item)
    play.rest()
    status = play.world.group("job-j").status
    assert (status.state, status.message) == ("Running", f"h0 has no label {label} any more")
    for number in range(6):
        play.world.submit(f"k{number}", 4, 1, RACK)
    play.rest()
    item["metadata"]["labels"][label] = value
    play.world.put("nodes", item)
    play.rest()
    assert sum(play.world.let_go(f"k{number}")[0] for number in range(6)) == 20
    status = play.world.group("job-j").status
    assert (status.state, status.message) == ("Running", "")


LIES: dict[str, tuple[list[Object], str]] = {
    "too many": ([{"podSet": "main", "pods": {"h0": 5}}], "has 5 pods of pod set"),
    "too few": ([{"podSet": "main", "pods": {"h0": 1}}], "has 1 pod of pod set"),
    "no such pod set": (
        [{"podSet": "main", "pods": {"h0": 2}}, {"podSet": "x", "pods": {"h1": 1}}],
        "pod set 'x', which has 0",
    ),
    "twice": (
        [{"podSet": "main", "pods": {"h0": 1}}, {"podSet": "main", "pods": {"h1": 1}}],
        "twice",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_status_that_lies_is_not_believed(lie: str) -> None:
    given, message = LIES[lie]
    play = Play()
    named(play, "g", {"a": "2", "b": "2"})
    template: Any = {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
    request = {"required": RACK}
    assignments = [
        {
            "podSet": each["podSet"],
            "levels": [HOSTNAME],
            "domains": [{"values": [host], "count": n} for host, n in each["pods"].items()],
        }
        for each in given
    ]
    play.world.put(
        "groups",
        {
            "metadata": {"name": "g", "uid": "u-g"},
            "spec": {
                "podSets": [{"name": "main", "count": 2, "template": template, "request": request}]
            },
            "status": {"state": "Placed", "assignments": assignments},
        },
    )
    if lie == "too many":
        for name in "ab":
            play.world.delete("pods", name)
    assert good(play)
    if lie == "too many":
        status = play.world.group("g").status
        assert (status.assignments, status.message) == ([], "pod set 'main': 0 of 2 pods are there")
    else:
        assert sum(hosts(play, "a", "b").values()) == 2  # placed anew, as it should be
    assert ("g", "Malformed") in play.world.events
    assert message in play.notices["g"]


def hosts(play: Play, *names: str) -> Counter[str]:
    return Counter(
        play.world.objects["pods"][name]["spec"].get("nodeSelector", {}).get(HOSTNAME, "")
        for name in names
    )


def test_a_group_of_another_owner_is_not_taken_for_this_one() -> None:
    """A Job is deleted and made again under its name, before the old PlacementGroup is gone."""
    play = Play()
    play.world.submit("j", 2, 1, RACK)
    play.rest()
    old = play.world.objects["groups"]["job-j"]
    play.world.finish("j")
    old["metadata"]["ownerReferences"][0]["uid"] = "of the old one"
    play.world.put("groups", old)
    play.world.submit("j", 2, 1, RACK)
    assert good(play)
    assert play.world.let_go("j") == (0, 2)
    assert ("job-j", "OtherOwner") in play.world.events
    play.world.delete("groups", "job-j")
    play.rest()
    assert play.world.let_go("j") == (2, 2)


def named_by(play: Play, job: str, pods: int, size: int) -> None:
    """A Job whose pods name the group g."""
    play.world.submit(job, pods, 1, RACK)
    for item in play.world.pods_of(job).values():
        item["metadata"]["labels"] |= {"placement.nri/group": "g", SIZE: str(size)}
        play.world.put("pods", item)


def test_two_owners_whose_pods_are_too_many_for_one_group_wait() -> None:
    play = Play()
    named_by(play, "a", 2, 2)
    named_by(play, "b", 2, 2)
    assert good(play)
    assert said(play, "g") == "group 'g' has 4 pods of Job a, Job b, but a size of 2"
    assert ("a-0", "Malformed") in play.world.events
    assert "g" not in play.world.objects["groups"]
    assert play.world.let_go("a") == play.world.let_go("b") == (0, 2)
    play.world.finish("b")
    play.rest()
    assert play.world.let_go("a") == (2, 2)


def test_two_owners_of_which_each_has_a_part_of_a_group_share_it() -> None:
    play = Play()
    named_by(play, "launcher", 1, 3)
    named_by(play, "workers", 2, 3)
    assert good(play)
    assert (play.world.let_go("launcher"), play.world.let_go("workers")) == ((1, 1), (2, 2))
    owners = play.world.objects["groups"]["g"]["metadata"]["ownerReferences"]
    assert [each["uid"] for each in owners] == ["u-launcher", "u-workers"]


def test_a_second_owner_that_comes_later_takes_no_place_of_the_first() -> None:
    play = Play()
    named_by(play, "b", 2, 2)
    play.rest()
    named_by(play, "a", 2, 2)
    assert good(play)
    status = play.world.group("g").status
    assert status.message == "it has 4 pods, more than places: those of Job a, Job b"
    assert status.state == "Running"
    item = play.world.objects["pods"]["b-1"]
    play.world.put("pods", item | {"status": {"phase": "Failed"}})
    play.world.make_pod("b", 1, "b-1-again")
    item = play.world.objects["pods"]["b-1-again"]
    item["metadata"]["labels"] |= {"placement.nri/group": "g", SIZE: "2"}
    play.world.put("pods", item)
    play.rest()
    assert (play.world.let_go("a"), play.world.let_go("b")) == ((0, 2), (2, 2))
    play.world.finish("a")
    play.rest()
    assert play.world.group("g").status.message == ""


def test_clocks_that_jump_change_no_order_and_end_no_wait() -> None:
    """Age is what the API server says of the pods, whatever our clock does, and when we began."""
    play = Play()
    play.world.submit("old", 8, 1, RACK)
    play.world.submit("old2", 8, 1, RACK)
    play.world.submit("old3", 7, 1, RACK)
    play.rest()
    play.world.submit("first", 8, 1, RACK)
    play.rest()
    play.now -= 1e6
    play.world.submit("second", 8, 1, RACK)
    play.rest()
    play.now += 2e6
    play.begin()
    play.rest()
    play.now -= 3e6
    play.world.finish("old")
    play.rest()
    assert (play.world.let_go("first")[0], play.world.let_go("second")[0]) == (8, 0)
    play.world.finish("old2")
    play.rest()
    assert play.world.let_go("second")[0] == 8


def test_how_long_a_group_has_waited_is_known_after_a_restart() -> None:
    play = Play()
    for number in range(3):
        play.world.submit(f"old{number}", 7 + (number > 0), 1, RACK)
    play.world.submit("large", 8, 1, RACK)
    play.rest()
    for item in play.world.pods_of("large").values():
        item["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00.000000Z"  # a day before
        play.world.put("pods", item)
    play.begin()
    play.rest()
    play.world.submit("small", 1, 1, RACK)
    play.world.finish("old0")
    play.rest()
    assert play.world.let_go("small") == (0, 1)  # it would fit, but the large one holds its place
    play.world.finish("old1")
    play.rest()
    assert play.world.let_go("small") == (1, 1)
    assert play.world.let_go("large") == (8, 8)


def fill(play: Play, **completions: int | None) -> None:
    """Have these Jobs, of four pods at a time, take all nodes."""
    play.world.delete("pods", "web")
    for name, count in completions.items():
        play.world.submit(name, 4, 2, RACK, job={"completions": count} if count else ())
    play.rest()


def succeed(play: Play, *names: str) -> None:
    for name in names:
        play.world.put(
            "pods", play.world.objects["pods"][name] | {"status": {"phase": "Succeeded"}}
        )
    play.world.control_jobs()
    play.rest()


def test_the_place_of_a_pod_that_succeeded_is_given_back_once() -> None:
    """A Job that goes on with other pods needs it; one that does not gives it to the next group."""
    play = Play()
    world = play.world
    fill(play, on=6, end=None, old=None)
    world.submit("next", 2, 2, RACK)
    play.rest()
    succeed(play, "on-0", "on-1")
    assert world.let_go("on") == (6, 6)  # two of them are done
    assert world.let_go("next") == (0, 2)
    succeed(play, "end-0", "end-1")
    assert world.let_go("next") == (2, 2)
    assert world.group("job-end").status.state == "Running"
    status = world.group("job-end").status
    assert (status.given_back, [one.count for one in status.assignments[0].domains]) == (2, [2])
    world.submit("third", 2, 2, RACK)
    play.begin()
    play.rest()
    assert world.let_go("third") == (0, 2)  # those places are taken


def test_a_place_that_was_given_back_is_lost_to_the_group_though_nobody_remembers_it() -> None:
    """The pods that gave it back are gone, and the service is another; one more pod comes."""
    play = Play()
    world = play.world

    def say_succeeded(pods: int) -> None:
        world.put("jobs", world.objects["jobs"]["end"] | {"status": {"succeeded": pods}})
        play.rest()

    fill(play, end=5, old=None, older=None)
    world.submit("next", 1, 2, RACK)
    succeed(play, "end-0", "end-1")
    assert world.let_go("next") == (1, 1)
    for name in ("end-0", "end-1"):
        world.delete("pods", name)
    play.begin()
    say_succeeded(2)
    world.put("pods", world.objects["pods"]["end-3"] | {"status": {"phase": "Failed"}})
    world.make_pod("end", 3, "end-3-again")
    play.rest()
    assert hosts(play, "end-3-again") == hosts(play, "end-2") != hosts(play, "next-0")
    assert world.group("job-end").status.state == "Running"
    for name in ("end-2", "end-3", "end-3-again"):
        world.delete("pods", name)
    say_succeeded(4)
    assert world.group("job-end").status.given_back == 3
    world.submit("third", 2, 2, RACK)
    play.rest()
    assert world.let_go("third") == (2, 2)


def test_a_place_is_free_for_others_once_the_cluster_knows_that_it_was_given_back() -> None:
    play = Play()
    world = play.world
    for number in range(3):
        world.submit(f"old{number}", 7 - (number == 0), 1, RACK)
    play.rest()
    world.submit("next", 2, 1, RACK)
    play.rest()
    world.put("pods", world.objects["pods"]["old1-0"] | {"status": {"phase": "Succeeded"}})
    play.listen()
    (asked,) = [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    assert asked.group.status.given_back == 1
    play.controller.queue.note_change()
    assert not [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    world.write(asked)
    play.rest()
    assert world.let_go("next") == (2, 2)


def test_no_place_is_given_back_to_which_a_pod_is_on_its_way() -> None:
    play = Play()
    world = play.world
    world.submit("j", 3, 1, RACK)
    play.listen()
    play.step()
    play.listen()
    play.step()
    play.listen()
    assert sum(isinstance(each, OpenGate) for each in play.controller.step()) == 3
    world.put("jobs", world.objects["jobs"]["j"] | {"status": {"succeeded": 1}})
    world.delete("pods", "j-0")
    play.listen()
    assert not play.controller.step()


def contradict(play: Play, name: str) -> None:
    """Somebody edits a group so that its request contradicts itself."""
    item = play.world.objects["groups"][name]
    item["spec"]["podSets"][0]["request"] = {"required": RACK, "preferred": HOSTNAME}
    play.world.put("groups", item)


CONTRADICTION = f"required '{RACK}' and preferred '{HOSTNAME}' exclude each other"


def test_a_group_whose_request_contradicts_itself_is_told_what_is_wrong() -> None:
    play = Play()
    named(play, "g", {"a": "2", "b": "2"}, **{"pod-set": "main"})
    play.listen()
    play.step()  # the object is written
    contradict(play, "g")
    assert good(play)
    status = play.world.group("g").status
    assert (status.state, status.assignments) == ("Unplaceable", [])
    assert CONTRADICTION in status.message


def test_a_placed_group_keeps_what_it_has_while_its_request_contradicts_itself() -> None:
    play = Play(failure={"failFast": False})
    named(play, "g", {"a": "2", "b": "2"}, **{"pod-set": "main"})
    play.rest()
    before = play.world.group("g").status.assignments
    contradict(play, "g")
    play.world.delete("nodes", before[0].domains[0].values[-1])
    assert good(play)
    status = play.world.group("g").status
    assert (status.state, status.assignments) == ("Degraded", before)
    assert CONTRADICTION in status.message


def test_a_pod_that_is_not_bound_waits_while_the_request_of_its_group_contradicts_itself() -> None:
    play = Play()
    named(play, "g", {"a": "2", "b": "2"}, **{"pod-set": "main"})
    play.rest(schedule=False)
    before = play.world.group("g").status.assignments
    contradict(play, "g")
    item = play.world.objects["pods"]["a"]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    item["spec"]["schedulingGates"] = None
    play.world.put("pods", item | {"status": {"conditions": [condition | {"message": "no"}]}})
    play.rest(schedule=False)
    play.now += UNBOUND_SECONDS
    play.rest(schedule=False)
    status = play.world.group("g").status
    assert (status.assignments, status.conditions[0].type) == (before, NOT_BOUND)
    assert not play.controller.errors
