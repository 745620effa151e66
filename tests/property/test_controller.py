"""The controller of placement groups in a small, strict cluster, killed between any two writes.

The job controller makes a Job's pods and cleans up after it; the scheduler takes pods without gates
and honours their selectors; both are this test's own. What must hold after every single write: no
pod is let go without a place in an assignment that is stored, and no place is given twice; nobody
else's pod is touched. And at rest: a group's pods have all been let go, or none.
"""

from __future__ import annotations

import json

import pytest

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.writes import CreateGroup, OpenGate, WriteStatus
from nri_policy.cluster.requests.group import PlacementRequest
from nri_policy.foundation.clock import Clock
from tests.property.seeds import seeds
from tests.support.placement_world import Play, RefusedError, assigned, hosts_of
from tests.unit.cluster.written import HOSTNAME


def check_indexes(controller: Controller) -> None:
    """Each index follows from the records of groups, or of pods, alone."""
    groups, members = GroupTable(), Members(Clock(now=lambda: 0.0))
    for key, each in controller.groups.records.items():
        groups.put(key, each)
    assert vars(groups) == vars(controller.groups)
    for key, pod in controller.members._pods.items():
        members._put(key, pod)
    for index in ("_by_group", "opening", "unanswered", "elsewhere", "leaving"):
        assert getattr(members, index) == getattr(controller.members, index), index


@seeds(15)
def test_no_group_is_half_placed_and_nothing_is_promised_twice(seed: int) -> None:
    play = Play(seed)
    chance, world = play.chance, play.world
    jobs: list[str] = []
    for number in range(40):
        what = chance.random()
        if what < 0.4:
            jobs.append(submit_any(play, number))
        elif what < 0.55 and jobs:
            world.finish(jobs.pop(chance.randrange(len(jobs))))
        elif what < 0.6:
            world.schedule()
        play.now += chance.choice([0.0, 1.0, 30.0])
        play.listen(chance.choice([None, 0, 1, 3]))
        play.step(kill=0.2, lost=0.2)
        check_indexes(play.controller)
    play.now += 60.0
    play.rest()
    for job in jobs:
        gone, every = world.let_go(job)
        assert gone in (0, every), job
        stored = world.objects["groups"][f"job-{job}"]["status"]
        assert bool(gone) == bool(stored["assignments"]), (job, stored)
        assert stored["state"] == ("Running" if gone else stored["state"])
        if not gone:
            assert "allows to fit" in stored["message"] or "doesn't allow" in stored["message"]
        world.finish(job)
    world.submit("last", 1, 1, HOSTNAME)  # fits an empty cluster; the others may be too large
    play.rest()
    assert world.let_go("last") == (1, 1)
    assert play.kills


@seeds(8)
def test_groups_that_are_deleted_while_pods_run_promise_nothing_twice(seed: int) -> None:
    """Pods come and go, too; in the end no Job waits that has room."""
    play = Play(seed)
    chance, world = play.chance, play.world
    jobs: list[str] = []
    for number in range(40):
        what = chance.random()
        if what < 0.35:
            jobs.append(submit_any(play, number))
        elif what < 0.6:
            world.schedule()
        elif what < 0.75 and world.objects["groups"]:
            world.delete("groups", chance.choice(sorted(world.objects["groups"])))
            play.listen()
        elif what < 0.9 and jobs and (pods := world.pods_of(chance.choice(jobs))):
            world.delete("pods", chance.choice(sorted(pods)))
        else:
            world.control_jobs()
        go_on(play)
    while True:
        world.control_jobs()
        play.now += 60.0
        play.rest()
        done = [job for job in jobs if len({*world.let_go(job)}) == 1]
        if not done:
            break
        assert {world.group(f"job-{job}").status.state for job in done} == {"Running"}
        world.finish(done[0])
        jobs.remove(done[0])
    assert {world.let_go(job)[0] for job in jobs} <= {0}  # they fit no host, or no rack
    for job in jobs:
        message = world.group(f"job-{job}").status.message
        assert "allows to fit" in message or "doesn't allow" in message


@seeds(15)
def test_where_hosts_come_and_go_groups_have_their_places_where_their_pods_run(seed: int) -> None:
    """Pods may outlive the node that they are bound to, and the service may not have seen it go."""
    play = Play(seed, failure={"policy": "Fixed30s", "failFast": False})
    chance, world = play.chance, play.world
    nodes = {name: json.dumps(item) for name, item in world.objects["nodes"].items()}
    jobs: list[str] = []
    for number in range(60):
        what = chance.random()
        if what < 0.25:
            jobs.append(submit_any(play, number))
        elif what < 0.5:
            world.schedule()
        elif what < 0.8:
            change_host(play, nodes)
        elif what < 0.9 and jobs and (pods := world.pods_of(chance.choice(jobs))):
            world.delete("pods", chance.choice(sorted(pods)))
        else:
            world.control_jobs()
        go_on(play)
    for node in nodes.values():
        world.put("nodes", json.loads(node))
    for _ in range(3):
        world.control_jobs()
        play.now += 60.0
        play.rest()
    for job in jobs:
        hosts, group = hosts_of(play, job), world.group(f"job-{job}")
        wide = group.pod_sets[0].request == PlacementRequest(required="example.com/rack")
        racks = {host and int(host[1]) // 2 for host in hosts}
        if "" not in hosts and len(racks if wide else hosts) == 1:
            assert assigned(play, f"job-{job}") == hosts, job
            assert group.status.state == "Running", job


def submit_any(play: Play, number: int) -> str:
    """Submit a Job of any size, to be in one rack or on one host; return its name."""
    chance, name = play.chance, f"j{number}"
    level = chance.choice(["example.com/rack", HOSTNAME])
    play.world.submit(name, chance.randint(1, 6), chance.randint(1, 3), level)
    return name


def go_on(play: Play) -> None:
    """Have some time pass, and the controller hear of some of the news, then take a step."""
    chance = play.chance
    play.now += chance.choice([0.0, 1.0, 30.0])
    play.listen(chance.choice([None, 0, 1, 3]))
    play.step(kill=0.1, lost=0.2)
    check_indexes(play.controller)


def change_host(play: Play, nodes: dict[str, str]) -> None:
    """Have one of *nodes* fail, or be as it was at first."""
    world, what = play.world, play.chance.random()
    host = play.chance.choice(sorted(nodes))
    if what < 0.67 or host not in world.objects["nodes"]:
        world.put("nodes", json.loads(nodes[host]))
    elif what < 0.83:
        world.delete("nodes", host)
    else:
        item = world.objects["nodes"][host]
        item["status"]["conditions"][0]["status"] = "False"
        world.put("nodes", item)


def test_ranks_are_in_order_of_the_assignment() -> None:
    play = Play(0)
    play.world.submit("j", 6, 1, "example.com/rack")
    play.rest()
    pods = play.world.objects["pods"]
    hosts = [pods[f"j-{at}"]["spec"]["nodeSelector"][HOSTNAME] for at in range(6)]
    assert hosts == sorted(hosts)
    assert len({*hosts}) == 2


def test_a_large_group_gets_its_place_at_last() -> None:
    """Small Jobs come and go all the time; after the timeout they wait until the large one fits."""
    play = Play(1)
    for number in range(3):
        play.world.submit(f"old{number}", 7 - (number == 0), 1, "example.com/rack")
    play.rest()
    play.world.submit("large", 7, 1, "example.com/rack")
    play.rest()
    assert play.world.let_go("large") == (0, 7)
    play.now = 601.0
    play.world.submit("small", 2, 1, "example.com/rack")
    play.world.finish("old2")
    play.rest()
    assert play.world.let_go("large")[0] == 7


def test_a_list_that_comes_again_takes_no_promise_back() -> None:
    """What was asked to be written, and is not seen yet, is promised all the same."""
    play = Play(2)
    for name in "abcd":
        play.world.submit(name, 7, 1, "example.com/rack")
    play.listen()
    play.step()
    play.listen()
    asked = [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    assert sum(bool(each.group.status.assignments) for each in asked) == 3
    for name in play.world.objects["groups"]:
        play.notify("groups", name)
    play.controller.queue.note_change()
    assert not [each for each in play.controller.step() if isinstance(each, WriteStatus)]


def waiting_and_full(play: Play) -> list[WriteStatus]:
    """Four groups of which three fit; the writes that give them their places, not yet done."""
    for name in "abcd":
        play.world.submit(name, 7, 1, "example.com/rack")
    play.listen()
    play.step()
    play.listen()
    return placements(play)


def placements(play: Play) -> list[WriteStatus]:
    """What the next step writes that gives places."""
    writes = [each for each in play.controller.step() if isinstance(each, WriteStatus)]
    return [each for each in writes if each.group.status.assignments]


def submit_urgent(play: Play) -> None:
    """A group comes that goes before all others; nothing else of the cluster is seen."""
    play.world.submit("urgent", 7, 1, "example.com/rack", priority=9)
    for kind, name in [("jobs", "urgent"), *(("pods", f"urgent-{at}") for at in range(7))]:
        play.notify(kind, name)
    (created,) = [each for each in play.controller.step() if isinstance(each, CreateGroup)]
    play.world.write(created)
    play.notify("groups", "job-urgent")


@pytest.mark.parametrize("done", [False, True])
def test_what_nobody_answers_is_promised_and_asked_again_as_it_was(done: bool) -> None:
    play = Play()
    first, *others = waiting_and_full(play)
    assert len(others) == 2
    if done:
        play.world.write(first)
    submit_urgent(play)
    play.controller.note_no_answer(first)
    assert not placements(play)
    play.now += 1.0
    assert placements(play) == [first]  # whose places nobody else gets
    assert not placements(play)
    for each in others:
        play.world.write(each)
    if not done:
        play.world.write(first)
    play.rest()
    assert {name: play.world.let_go(name)[0] for name in [*"abcd", "urgent"]} == {
        "a": 7, "b": 7, "c": 7, "d": 0, "urgent": 0,
    }  # fmt: skip


def test_what_is_refused_as_outdated_is_promised_until_the_news_are_there() -> None:
    """They are of its own writing: the answer was lost, and the same was asked again."""
    play = Play()
    first, *_ = waiting_and_full(play)
    play.world.write(first)
    play.controller.note_no_answer(first)
    play.now += 1.0
    (again,) = placements(play)
    with pytest.raises(RefusedError):
        play.world.write(again)
    submit_urgent(play)
    assert not placements(play)


def test_places_are_free_again_once_it_is_known_that_they_were_not_written() -> None:
    play = Play()
    asked = waiting_and_full(play)
    for each in asked:
        play.controller.note_no_answer(each)
    revisions = {each.key: each.revision for each in asked}
    assert not play.controller.groups.lacks(revisions)
    assert play.controller.groups.lacks(revisions | {("default", "x"): "1"}) == {("default", "x")}
    play.now += 1.0
    play.controller.settle()
    assert len(placements(play)) == 3
    play.rest()


def test_a_lost_answer_of_an_opening_that_was_seen_meanwhile_changes_nothing() -> None:
    play = Play()
    play.world.submit("j", 1, 1, HOSTNAME)
    for _ in range(2):
        play.listen()
        play.step()
    play.listen()
    (opening,) = [each for each in play.controller.step() if isinstance(each, OpenGate)]
    play.world.write(opening)
    play.listen()
    play.controller.note_no_answer(opening)
    play.now += 1.0
    play.rest()
    assert not play.controller.errors
    assert play.world.let_go("j") == (1, 1)


def test_no_place_is_given_back_while_nobody_knows_whether_a_pod_is_on_its_way() -> None:
    play = Play()
    world = play.world
    world.submit("j", 3, 1, "example.com/rack")
    for _ in range(2):
        play.listen()
        play.step()
    play.listen()
    for each in play.controller.step():
        world.write(each)
        play.controller.note_no_answer(each)
    world.put("jobs", world.objects["jobs"]["j"] | {"status": {"succeeded": 1}})
    world.delete("pods", "j-0")
    for kind, name in (("jobs", "j"), ("pods", "j-0")):
        play.notify(kind, name)
    play.now += 1.0
    again = play.controller.step()
    assert [type(each) for each in again] == [OpenGate] * 2  # to be refused
    play.rest()
    assert world.let_go("j") == (2, 2)
