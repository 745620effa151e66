"""A cluster for tests of the controller of groups: objects, who writes them, and time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.groups.reconcile import reconcile
from nri_policy.cluster.groups.writes import (
    CreateGroup,
    DeletePod,
    FailPod,
    Notice,
    OpenGate,
    Write,
    WriteSpec,
    WriteStatus,
)
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import ClusterSettings, read_settings
from nri_policy.cluster.requests.group import PlacementGroup, read_group
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.job_sets import read_job_set_steps, read_led_workers
from nri_policy.cluster.workloads.membership import read_job, read_pod_group
from nri_policy.cluster.workloads.replica_kinds import read_owner
from nri_policy.foundation.clock import Clock
from tests.unit.cluster.written import HOSTNAME, node, pod_spec, settings

GATE = "placement.nri/group"
INDEX = "batch.kubernetes.io/job-completion-index"
OTHER = "example.com/other"  # a gate of somebody else's
HOSTS, CPUS = 6, 4
DATE = 1_767_225_600.0  # the world's, when it begins: 2026
Object = dict[str, Any]


class RefusedError(Exception):
    """The API server refuses a write."""


class World:
    """The cluster: objects by kind and name, and what changed since the controller looked."""

    def __init__(self, hosts_in_rack: int) -> None:
        self.objects: dict[str, dict[str, Object]] = {
            kind: {}
            for kind in ("nodes", "jobs", "podgroups", "jobsets", "lws", "owners", "pods", "groups")
        }
        self.changes: list[tuple[str, str]] = []
        self.events: list[tuple[str, str]] = []  # about whom, and the reason
        self.disrupted: list[tuple[str, Object]] = []  # pods that were deleted, and why
        self.revision = 0
        self.slow = False  # pods take their time to end
        self.refuse: Callable[[Write], str] = lambda _write: ""  # why a policy or quota does
        self.made = 0  # pods, by the job controller
        self.templates: dict[str, tuple[Object, Object]] = {}  # by Job: annotations and spec
        for at in range(HOSTS):
            self.put("nodes", node(f"h{at}", RACK=f"r{at // hosts_in_rack}"))
        spec = pod_spec({"cpu": 1}, nodeName="h0")
        self.put("pods", {"metadata": {"name": "web", "uid": "u"}, "spec": spec})
        self.stranger = json.dumps(self.objects["pods"]["web"])

    def put(self, kind: str, item: Object) -> None:
        self.revision += 1
        item["metadata"]["resourceVersion"] = str(self.revision)
        time = f"2026-01-01T00:00:00.{self.revision:06}Z"
        item["metadata"].setdefault("creationTimestamp", time)
        self.objects[kind][item["metadata"]["name"]] = json.loads(json.dumps(item))
        self.changes.append((kind, item["metadata"]["name"]))
        if item["metadata"]["name"] == "web":
            self.stranger = json.dumps(self.objects["pods"]["web"])

    def delete(self, kind: str, name: str) -> None:
        del self.objects[kind][name]
        if name == "web":
            self.stranger = "null"
        self.changes.append((kind, name))

    def submit(
        self, name: str, pods: int, cpu: int, required: str, *, job: Any = (), **spec: Any
    ) -> None:
        """A Job, and the pods that its controller makes."""
        metadata = {"name": name, "uid": f"u-{name}"}
        self.put("jobs", {"metadata": metadata, "spec": {"parallelism": pods, **dict(job)}})
        annotations = {"kueue.x-k8s.io/podset-required-topology": required}
        spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}, {"name": OTHER}], **spec)
        self.templates[name] = (annotations, spec)
        for index in range(pods):
            self.make_pod(name, index, f"{name}-{index}")

    def make_pod(self, job: str, index: int, name: str) -> None:
        """A pod of a Job, as its controller makes it."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"u-{job}"}
        annotations, spec = self.templates[job]
        metadata = {
            "name": name,
            "uid": f"u-{name}",
            "labels": {INDEX: str(index)},
            "annotations": annotations,
            "ownerReferences": [owner | {"controller": True}],
        }
        self.put("pods", {"metadata": metadata, "spec": json.loads(json.dumps(spec))})

    def pods_of(self, job: str) -> dict[str, Object]:
        return {
            name: item
            for name, item in self.objects["pods"].items()
            if any(one["name"] == job for one in item["metadata"].get("ownerReferences", ()))
        }

    def evict(self, *hosts: str) -> None:
        """Delete the pods of those hosts, as it happens to those of nodes that failed."""
        for name, item in [*self.objects["pods"].items()]:
            if item["spec"].get("nodeName") in hosts and name != "web":
                self.delete("pods", name)

    def control_jobs(self) -> None:
        """Make the pods anew that failed or are gone, and as many more as completions need."""
        for job, item in self.objects["jobs"].items():
            pods = self.pods_of(job).values()
            phases = {
                int(each["metadata"]["labels"][INDEX]): phase
                for each in pods
                if (phase := each.get("status", {}).get("phase", "Pending")) != "Failed"
            }
            spec = item["spec"]
            active = sum(phase != "Succeeded" for phase in phases.values())
            missing = set(range(spec.get("completions", spec["parallelism"]))) - phases.keys()
            for index in sorted(missing)[: spec["parallelism"] - active]:
                self.made += 1
                self.make_pod(job, index, f"{job}-{index}-{self.made}")

    def finish(self, name: str) -> None:
        """A Job is deleted, and with it all that it owns."""
        self.delete("jobs", name)
        for pod in self.pods_of(name):
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
            self.put("groups", made)
        elif isinstance(write, WriteStatus | WriteSpec):
            item = self.objects["groups"].get(write.group.name)
            if item is None or item["metadata"]["resourceVersion"] != write.revision:
                raise RefusedError
            part = "status" if isinstance(write, WriteStatus) else "spec"
            old = item["spec"] if part == "spec" else {}
            self.put("groups", item | {part: old | write.patch()[part]})
        elif isinstance(write, OpenGate):
            self.open(write)
        elif isinstance(write, FailPod):
            item = self.as_seen(write.patch()["metadata"], write.pod.name)
            assert not item["spec"].get("nodeName"), "it never got there"
            self.put("pods", item | {"status": write.patch()["status"]})
        elif isinstance(write, DeletePod):
            item = self.as_seen(write.patch()["metadata"], write.pod.name)
            self.disrupted.append((write.pod.name, write.patch()["status"]["conditions"][0]))
            if self.slow and item["spec"].get("nodeName"):
                item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self.put("pods", item)
            else:
                self.delete("pods", write.pod.name)
        else:
            self.events.append((write.about[1], write.reason))

    def as_seen(self, seen: Object, name: str) -> Object:
        """Return a pod that has the uid and revision that a write names."""
        item = self.objects["pods"].get(name)
        if item is None or any(item["metadata"][key] != seen[key] for key in seen):
            raise RefusedError
        return item

    def open(self, write: OpenGate) -> None:
        patch, pod = write.patch(), write.opening.pod
        annotations = patch["metadata"].pop("annotations")
        item = self.as_seen(patch["metadata"], pod.name)
        gates = [each["name"] for each in item["spec"].get("schedulingGates") or ()]
        assert GATE in gates, "it is let go once"
        assert self.group(write.group).status.assignments, "not without a stored assignment"
        item["metadata"].setdefault("annotations", {}).update(annotations)
        item["spec"]["nodeSelector"] = patch["spec"]["nodeSelector"]
        item["spec"]["schedulingGates"] = patch["spec"]["schedulingGates"]
        assert [each["name"] for each in patch["spec"]["schedulingGates"]] == [OTHER]
        self.put("pods", item)
        self.check()

    def schedule(self) -> None:
        """Bind each pod that was let go to its host if that is well: there must be room."""
        for item in [*self.objects["pods"].values()]:
            spec = item["spec"]
            host = self.objects["nodes"].get(spec.get("nodeSelector", {}).get(HOSTNAME))
            if host is None or spec.get("nodeName") or "phase" in item.get("status", {}):
                continue
            if host["status"]["conditions"][0]["status"] == "True" and not host["spec"]["taints"]:
                spec["nodeName"] = host["metadata"]["name"]
                self.put("pods", item | {"status": {"phase": "Running"}})
        self.check()

    def check(self) -> None:
        """No host has more than it can have, and no group more pods on one than assigned."""
        used: Counter[str] = Counter()
        for item in self.objects["pods"].values():
            spec = item["spec"]
            host = spec.get("nodeName") or spec.get("nodeSelector", {}).get(HOSTNAME)
            if host and item.get("status", {}).get("phase") not in ("Failed", "Succeeded"):
                requests = spec["containers"][0]["resources"]["requests"]
                used[host] += int(requests["cpu"])
        assert all(number <= CPUS for number in used.values()), used
        assert json.dumps(self.objects["pods"].get("web")) == self.stranger

    def let_go(self, job: str) -> tuple[int, int]:
        """Return how many of a Job's pods were ungated, and how many it has."""
        pods = [
            item
            for item in self.pods_of(job).values()
            if item.get("status", {}).get("phase") != "Failed"
        ]
        return sum(HOSTNAME in each["spec"].get("nodeSelector", {}) for each in pods), len(pods)


class CheckedController(Controller):
    """A controller that checks that `reconcile` is a function: all plays of groups do."""

    def _reconcile(self, key: Key) -> Iterator[Write]:
        before = self._snapshot()
        first, again = reconcile(key, self._view), reconcile(key, self._view)
        after = self._snapshot()
        if first != again or before != after:  # an assertion error would be one of the group
            pytest.fail(f"reconcile is no function: {first} and {again}")
        yield from super()._reconcile(key)

    def _snapshot(self) -> list[dict[str, Any]]:
        """What the controller knows, but for trees and forks that are made when needed."""
        state, waiting = self.engine.state, self.placer.waiting
        parts: list[object] = [self, self.groups, self.members, self.queue, self.placer, waiting]
        parts += [self.placer.statistics, self._failed_hosts, state, state.usages]
        kept = ("_trial", "_trial_without", "_kinds_of")  # what was computed, for the next time
        return [
            {name: _copy(part) for name, part in vars(each).items() if name not in kept}
            for each in parts
        ]


def _copy(part: Any) -> Any:
    """Return a copy of a collection, and of those in it; records in it are never changed."""
    if isinstance(part, dict):
        return {key: _copy(each) for key, each in part.items()}
    return type(part)(part) if isinstance(part, list | set) else part


class Play:
    """A world, its controller, and time."""

    def __init__(self, seed: int = 0, *, hosts_in_rack: int = 2, **spec: Any) -> None:
        self.chance = random.Random(seed)
        self.world = World(hosts_in_rack)
        self.now = 0.0
        self.contested = False  # pods that were let through may go to any host
        self.away = 0.0  # seconds of the world before the clock of this controller began
        self.kills = 0
        self.notices: dict[str, str] = {}  # object -> text of its latest Event
        self.settings: ClusterSettings = read_settings(settings("rack", HOSTNAME, **spec))
        self.begin()

    def begin(self) -> None:
        """Begin anew, from what is there: kinds are listed in any order."""
        self.cluster = Cluster()
        clock = Clock(now=lambda: self.now, date=lambda: DATE + self.now + self.away)
        self.zones = LiveZones(self.settings.extender, self.cluster.view, clock)
        self.controller = CheckedController(
            self.settings,
            self.cluster.view,
            clock,
            self.zones,
            is_contested=lambda _key: self.contested,
        )
        self.cluster.follow(self.zones, self.controller)
        every = [(kind, name) for kind, items in self.world.objects.items() for name in items]
        self.chance.shuffle(every)
        self.world.changes.clear()
        for kind, name in every:
            self.notify(kind, name)

    def notify(self, kind: str, name: str) -> None:
        """Tell the controller what became of an object."""
        controller = self.controller
        item = self.world.objects[kind].get(name)
        if kind == "nodes":
            self.cluster.set_node(read_node(item, "")) if item else self.cluster.remove_node(name)
        elif kind == "jobs":
            controller.set_job(read_job(item, "")) if item else controller.remove_job(
                "default", name
            )
        elif kind in ("podgroups", "jobsets", "lws", "owners"):
            self._notify_of_makers(kind, name, item)
        elif kind == "pods":
            for each in (self.zones, controller):
                each.set_pod(read_pod(item, "")) if item else each.remove_pod("default", name)
        elif item is None:
            controller.remove_group("default", name)
        else:
            metadata = item["metadata"]
            owners = frozenset(each["uid"] for each in metadata.get("ownerReferences", ()))
            controller.groups.update(("default", name), revision=metadata["resourceVersion"])
            controller.set_group(read_group(item), metadata["resourceVersion"], owners)

    def _notify_of_makers(self, kind: str, name: str, item: Object | None) -> None:
        """Tell the controller of an object that pods are made from, or that they name."""
        controller = self.controller
        if kind == "lws":
            key, led = read_led_workers(item, "") if item else (("default", name), None)
            controller.set_leader_workers(key, led)
        elif kind == "jobsets" and item is None:
            controller.remove_job_set(("default", name))
        elif kind == "jobsets" and item is not None:
            controller.set_job_set(read_job_set_steps(item, ""))
        elif kind == "owners" and item is None:
            controller.members.remove_owner(("RayCluster", "default", name))
        elif kind == "owners" and item is not None:
            controller.set_owner(read_owner(item, item["kind"], ""))
        elif item:
            controller.set_pod_group(read_pod_group(item, ""))
        else:
            controller.remove_pod_group("default", name)

    def listen(self, most: int | None = None) -> None:
        """Tell the controller the next *most* changes."""
        changes = self.world.changes
        for _ in range(len(changes) if most is None else min(most, len(changes))):
            self.notify(*changes.pop(0))

    def step(self, kill: float = 0.0, lost: float = 0.0) -> int:
        """Have the controller do a step; return how many writes it asked.

        It may die before any write, and any answer may be *lost*, the write done or not.
        """
        writes = self.controller.step()
        for write in writes:
            if isinstance(write, Notice):
                self.notices[write.about[1]] = self.notices.get(write.about[1], "") + write.message
            if self.chance.random() < kill:
                self.kills += 1
                self.begin()
                return len(writes)
            if reason := self.world.refuse(write):
                self.controller.note_failure(write, reason)
                continue
            answered = self.chance.random() >= lost
            with suppress(RefusedError):  # whose news are under way
                if answered or self.chance.random() < 0.5:
                    self.world.write(write)
            if not answered:
                self.controller.note_no_answer(write)
        return len(writes)

    def rest(self, *, schedule: bool = True) -> None:
        """Go on until nothing happens any more."""
        for _ in range(50):
            if schedule:
                self.world.schedule()
            self.listen()
            if not self.step() and not self.controller.busy and not self.world.changes:
                return
        raise AssertionError("it does not come to rest")


def empty(seed: int = 0, **given: Any) -> Play:
    """Return a play without the pod that runs in the world at first."""
    play = Play(seed, **given)
    play.world.delete("pods", "web")
    return play


def assigned(play: Play, group: str = "job-j") -> dict[str, int]:
    """Return the places of a group of one pod set, by host."""
    return {
        place.values[0]: place.count
        for each in play.world.group(group).status.assignments
        for place in each.domains
    }


def hosts_of(play: Play, job: str) -> Counter[str]:
    """Return how many pods of a Job, but for failed ones, go to each host; "" for gated ones."""
    return Counter(
        item["spec"].get("nodeSelector", {}).get(HOSTNAME, "")
        for item in play.world.pods_of(job).values()
        if item.get("status", {}).get("phase") != "Failed"
    )


def racks_of(play: Play, prefix: str) -> list[str]:
    """Return the racks of the pods that were let go, whose names begin so; of two hosts each."""
    pods = [
        item for name, item in sorted(play.world.objects["pods"].items()) if name.startswith(prefix)
    ]
    hosts = [item["spec"].get("nodeSelector", {}).get(HOSTNAME) for item in pods]
    return [f"r{int(host[1]) // 2}" for host in hosts if host]


def full_racks(**settings: Any) -> Play:
    """Return three racks of 8 CPUs, each with a Job; a gang waits for a whole rack."""
    rack = "example.com/rack"
    play = empty(**settings)
    for name, pods in (("a", 6), ("b", 5), ("c", 6)):
        play.world.submit(name, pods, 1, rack)
        play.rest()
    play.world.submit("gang", 8, 1, rack)
    play.rest()
    return play
