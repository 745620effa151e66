"""The controller of placement groups in a small, strict cluster, killed between any two writes.

The job controller makes a Job's pods and cleans up after it; the scheduler takes pods without gates
and honours their selectors; both are this test's own. What must hold after every single write: no
pod is let go without a place in an assignment that is stored, and no place is given twice; nobody
else's pod is touched. And at rest: a group's pods have all been let go, or none.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from nri_policy.cluster.controller import Controller
from nri_policy.cluster.group import PlacementGroup, read_group
from nri_policy.cluster.membership import read_job
from nri_policy.cluster.node import read_node
from nri_policy.cluster.pod import read_pod
from nri_policy.cluster.settings import Settings, read_settings
from nri_policy.cluster.writes import CreateGroup, OpenGate, Write, WriteStatus
from tests.unit.cluster.objects import HOSTNAME, node, pod_spec, settings

GATE = "placement.nri/group"
INDEX = "batch.kubernetes.io/job-completion-index"
HOSTS, CPUS = 6, 4
Object = dict[str, Any]


class RefusedError(Exception):
    """The API server refuses a write."""


class World:
    """The cluster: objects by kind and name, and what changed since the controller looked."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {
            kind: {} for kind in ("nodes", "jobs", "pods", "groups")
        }
        self.changes: list[tuple[str, str]] = []
        self.revision = 0
        for at in range(HOSTS):
            self.put("nodes", node(f"h{at}", RACK=f"r{at // 2}"))
        spec = pod_spec({"cpu": 1}, nodeName="h0")
        self.put("pods", {"metadata": {"name": "web", "uid": "u"}, "spec": spec})
        self.stranger = json.dumps(self.objects["pods"]["web"])

    def put(self, kind: str, item: Object) -> None:
        self.revision += 1
        item["metadata"]["resourceVersion"] = str(self.revision)
        self.objects[kind][item["metadata"]["name"]] = json.loads(json.dumps(item))
        self.changes.append((kind, item["metadata"]["name"]))
        if item["metadata"]["name"] == "web":
            self.stranger = json.dumps(self.objects["pods"]["web"])

    def delete(self, kind: str, name: str) -> None:
        del self.objects[kind][name]
        self.changes.append((kind, name))

    def submit(self, name: str, pods: int, cpu: int, required: str) -> None:
        """A Job, and the pods that its controller makes."""
        self.put("jobs", {"metadata": {"name": name}, "spec": {"parallelism": pods}})
        annotations = {"kueue.x-k8s.io/podset-required-topology": required}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"u-{name}"}
        for at in range(pods):
            metadata = {
                "name": f"{name}-{at}",
                "uid": f"u-{name}-{at}",
                "labels": {INDEX: str(at)},
                "annotations": annotations,
                "ownerReferences": [owner | {"controller": True}],
            }
            gates = [{"name": GATE}, {"name": "example.com/other"}]
            spec = pod_spec({"cpu": cpu}, schedulingGates=gates)
            self.put("pods", {"metadata": metadata, "spec": spec})

    def finish(self, name: str) -> None:
        """A Job is deleted, and with it all that it owns."""
        self.delete("jobs", name)
        for pod in [*self.objects["pods"]]:
            if pod.startswith(f"{name}-"):
                self.delete("pods", pod)
        if f"job-{name}" in self.objects["groups"]:
            self.delete("groups", f"job-{name}")

    def group(self, name: str) -> PlacementGroup:
        return read_group(self.objects["groups"][name])

    def write(self, write: Write) -> None:
        """Carry a write out as an API server does, or raise RefusedError."""
        if isinstance(write, CreateGroup):
            made = write.object()
            if made["metadata"]["name"] in self.objects["groups"]:
                raise RefusedError
            assert made["metadata"]["ownerReferences"], made
            self.put("groups", made)
        elif isinstance(write, WriteStatus):
            item = self.objects["groups"].get(write.key[1])
            if item is None or item["metadata"]["resourceVersion"] != write.revision:
                raise RefusedError
            self.put("groups", item | {"status": write.patch()["status"]})
        elif isinstance(write, OpenGate):
            self.open(write)

    def open(self, write: OpenGate) -> None:
        patch, pod = write.patch(), write.opening.pod
        item = self.objects["pods"].get(pod.name)
        if item is None or item["metadata"]["uid"] != patch["metadata"]["uid"]:
            raise RefusedError
        gates = [each["name"] for each in item["spec"].get("schedulingGates") or ()]
        assert GATE in gates, "it is let go once"
        assert self.group(write.group).status.assignments, "not without a stored assignment"
        item["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])
        item["spec"]["nodeSelector"] = patch["spec"]["nodeSelector"]
        item["spec"]["schedulingGates"] = patch["spec"]["schedulingGates"]
        assert [each["name"] for each in patch["spec"]["schedulingGates"]] == ["example.com/other"]
        self.put("pods", item)
        self.check()

    def schedule(self) -> None:
        """Bind each pod that was let go to its host: there must be room."""
        for name, item in self.objects["pods"].items():
            spec = item["spec"]
            if HOSTNAME in spec.get("nodeSelector", {}) and not spec.get("nodeName"):
                spec["nodeName"] = spec["nodeSelector"][HOSTNAME]
                item["status"] = {"phase": "Running"}
                self.changes.append(("pods", name))
        self.check()

    def check(self) -> None:
        """No host has more than it can have, and no group more pods on one than assigned."""
        used: Counter[str] = Counter()
        for item in self.objects["pods"].values():
            spec = item["spec"]
            host = spec.get("nodeName") or spec.get("nodeSelector", {}).get(HOSTNAME)
            if host:
                requests = spec["containers"][0]["resources"]["requests"]
                used[host] += int(requests["cpu"])
        assert all(number <= CPUS for number in used.values()), used
        assert json.dumps(self.objects["pods"]["web"]) == self.stranger

    def let_go(self, job: str) -> tuple[int, int]:
        """Of a Job's pods: those that were let go, and all."""
        pods = [
            item for name, item in self.objects["pods"].items() if name.rpartition("-")[0] == job
        ]
        return sum(HOSTNAME in each["spec"].get("nodeSelector", {}) for each in pods), len(pods)


def tell(controller: Controller, world: World, kind: str, name: str) -> None:
    """Tell the controller what became of an object."""
    item = world.objects[kind].get(name)
    if kind == "nodes":
        controller.set_node(read_node(item, ""))
    elif kind == "jobs":
        controller.set_job(read_job(item, "")) if item else controller.remove_job("default", name)
    elif kind == "pods":
        controller.set_pod(read_pod(item, "")) if item else controller.remove_pod("default", name)
    elif item is None:
        controller.remove_group("default", name)
    else:
        controller.set_group(read_group(item), item["metadata"]["resourceVersion"])


class Play:
    """A world, its controller, and time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World()
        self.now = 0.0
        self.kills = 0
        self.settings: Settings = read_settings(settings("rack", HOSTNAME))
        self.begin()

    def begin(self) -> None:
        """Begin anew, from what is there: kinds are listed in any order."""
        self.controller = Controller(self.settings, lambda: self.now)
        every = [(kind, name) for kind, items in self.world.objects.items() for name in items]
        self.chance.shuffle(every)
        self.world.changes.clear()
        for kind, name in every:
            tell(self.controller, self.world, kind, name)

    def listen(self, most: int | None = None) -> None:
        """Tell the controller the next *most* changes."""
        changes = self.world.changes
        for _ in range(len(changes) if most is None else min(most, len(changes))):
            tell(self.controller, self.world, *changes.pop(0))

    def step(self, kill: float = 0.0) -> int:
        """Have the controller do a step; it may die before any write. The writes that it asked."""
        writes = self.controller.step()
        for write in writes:
            if self.chance.random() < kill:
                self.kills += 1
                self.begin()
                return len(writes)
            try:
                self.world.write(write)
            except RefusedError:
                self.controller.failed(write)
        return len(writes)

    def rest(self) -> None:
        """Go on until nothing happens any more."""
        for _ in range(50):
            self.world.schedule()
            self.listen()
            if not self.step() and not self.world.changes:
                return
        raise AssertionError("it does not come to rest")


@pytest.mark.parametrize("seed", range(15))
def test_no_group_is_half_placed_and_nothing_is_promised_twice(seed: int) -> None:
    play = Play(seed)
    chance, world = play.chance, play.world
    jobs: list[str] = []
    for number in range(40):
        what = chance.random()
        if what < 0.4:
            jobs.append(f"j{number}")
            level = chance.choice(["example.com/rack", HOSTNAME])
            world.submit(jobs[-1], chance.randint(1, 6), chance.randint(1, 3), level)
        elif what < 0.55 and jobs:
            world.finish(jobs.pop(chance.randrange(len(jobs))))
        elif what < 0.6:
            world.schedule()
        play.now += chance.choice([0.0, 1.0, 30.0])
        play.listen(chance.choice([None, 0, 1, 3]))
        play.step(kill=0.2)
    play.rest()
    placed = 0
    for job in jobs:
        gone, every = world.let_go(job)
        assert gone in (0, every), job
        stored = world.objects["groups"][f"job-{job}"]["status"]
        assert bool(gone) == bool(stored["assignments"]), (job, stored)
        assert stored["state"] == ("Running" if gone else stored["state"])
        placed += bool(gone)
        if not gone:
            assert "allows to fit" in stored["message"] or "doesn't allow" in stored["message"]
    assert placed or not jobs
    assert play.kills


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
        tell(play.controller, play.world, "groups", name)
    play.controller.queue.changed()
    assert not [each for each in play.controller.step() if isinstance(each, WriteStatus)]
