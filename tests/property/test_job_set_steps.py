"""Steps of a JobSet that share a rack, and may lose hosts: all get places if there is a way.

Driver and workers are a group each. Whether there is a way is found out by trying everything
beside the pods that stay, on six hosts.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from nri_policy.cluster.objects.document import Object
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.planning.group_answers import try_groups
from nri_policy.cluster.requests.group import hosts_of
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.workloads.workload import read_groups
from tests.support.exact_placement import Pods, fit_together
from tests.support.placement_world import CPUS, GATE, HOSTS, INDEX, OTHER, Play, empty
from tests.unit.cluster.written import pod_spec

CASES = 160
JOBSET = "jobset.sigs.k8s.io/"
SHARED = {"placement.nri/group-required-topology": "example.com/rack"}
GROUPS = {"driver": "jobset-s", "w": "jobset-s.w"}
Places = dict[str, Counter[str]]  # pods on hosts, by step


class Steps:
    """A JobSet of a driver and its workers, who start after it."""

    def __init__(self, seed: int, *, fail_fast: bool) -> None:
        self.rng = random.Random(seed)
        self.hosts_in_rack = self.rng.choice([2, 3])
        failure = {"failFast": fail_fast}
        self.play: Play = empty(hosts_in_rack=self.hosts_in_rack, failure=failure)
        self.free = {f"h{number}": CPUS for number in range(HOSTS)}
        self.pods = {  # their number, and the CPUs of each
            "driver": (self.rng.randint(1, 2), self.rng.randint(1, 3)),
            "w": (self.rng.randint(1, 3), self.rng.randint(1, 3)),
        }
        self.made = 0

    def rack(self, host: str) -> int:
        return int(host[1]) // self.hosts_in_rack

    def fill(self, host: str, cpu: int) -> None:
        """Have a pod of no group on a host, instead of the one that was there."""
        self.free[host] = CPUS - cpu
        name = f"on-{host}"
        if name in self.play.world.objects["pods"]:
            self.play.world.delete("pods", name)
        if cpu:
            spec = pod_spec({"cpu": cpu}, nodeName=host)
            self.play.world.put("pods", {"metadata": {"name": name, "uid": name}, "spec": spec})

    def begin(self) -> bool:
        """Start the steps one after the other, in one rack; return whether they got places."""
        only = self.rng.randrange(HOSTS // self.hosts_in_rack)
        for host in self.free:
            if self.rack(host) != only:
                self.fill(host, CPUS)
        self.start()
        for host, own in self.used().items():
            self.fill(host, self.rng.randint(0, CPUS - own))
        self.play.rest()
        return self.are_placed()

    def job_set(self) -> Object:
        jobs: list[Any] = []
        for name, (count, cpu) in self.pods.items():
            pod = {"metadata": {"annotations": SHARED}, "spec": pod_spec({"cpu": cpu})}
            job = {"parallelism": count, "template": pod}
            jobs.append({"name": name, "template": {"spec": job}})
        order = {"startupPolicyOrder": "InOrder"}
        spec = {"replicatedJobs": jobs, "startupPolicy": order}
        return {"kind": "JobSet", "metadata": {"name": "s"}, "spec": spec}

    def plan(self) -> Places:
        """Where the steps would go, as `nri-policy cluster place` says it."""
        cluster = {kind: [*self.play.world.objects[kind].values()] for kind in ("nodes", "pods")}
        engine = engine_of(read_snapshot(cluster), self.play.settings)
        found = {
            each.name: sum((Counter(part.hosts) for part in each.parts), Counter())
            for each in try_groups(engine, read_groups([self.job_set()]))
        }
        return {step: found[name.removeprefix("jobset-")] for step, name in GROUPS.items()}

    def start(self) -> None:
        """Make the JobSet, and start the steps one after the other."""
        self.play.world.put("jobsets", self.job_set())
        for step, (count, _) in self.pods.items():
            metadata = {"name": f"s-{step}-0", "uid": f"u-{step}", "labels": self._labels(step)}
            job = {"parallelism": count, "completions": count}
            self.play.world.put("jobs", {"metadata": metadata, "spec": job})
            self.make_pods(step)
            self.play.rest()

    def make_pods(self, *steps: str) -> None:
        """Make the pods that are missing, as the Job controller does."""
        for step in steps or GROUPS:
            pods = self.play.world.pods_of(f"s-{step}-0").values()
            there = {
                each["metadata"]["labels"][INDEX]
                for each in pods
                if each.get("status", {}).get("phase") != "Failed"
            }
            for index in map(str, range(self.pods[step][0])):
                if index not in there:
                    self._make(step, index)

    def _make(self, step: str, index: str) -> None:
        self.made += 1
        name = f"s-{step}-0-{index}-{self.made}"
        owner = {"kind": "Job", "name": f"s-{step}-0", "uid": f"u-{step}", "controller": True}
        own = {f"{JOBSET}global-replicas": "2", f"{JOBSET}job-index": "0", INDEX: index}
        gates = [{"name": GATE}, {"name": OTHER}]
        metadata = {
            "name": name,
            "uid": name,
            "labels": self._labels(step) | own,
            "annotations": SHARED,
            "ownerReferences": [owner],
        }
        spec = pod_spec({"cpu": self.pods[step][1]}, schedulingGates=gates)
        self.play.world.put("pods", {"metadata": metadata, "spec": spec})

    def _labels(self, step: str) -> dict[str, str]:
        named = {"jobset-name": "s", "jobset-uid": "s", "replicatedjob-name": step}
        return {f"{JOBSET}{key}": value for key, value in named.items()}

    def places(self) -> Places:
        there = self.play.world.objects["groups"]
        return {
            step: hosts_of(self.play.world.group(name)) if name in there else Counter()
            for step, name in GROUPS.items()
        }

    def used(self) -> dict[str, int]:
        places = self.places()
        return {
            host: sum(places[step][host] * cpu for step, (_, cpu) in self.pods.items())
            for host in self.free
        }

    def are_placed(self) -> bool:
        """Whether all pods of both steps have places on hosts that have not failed, in one rack."""
        places = self.places()
        hosts = {host for own in places.values() for host in +own}
        return (
            all(places[step].total() == count for step, (count, _) in self.pods.items())
            and len({*map(self.rack, hosts)}) == 1
            and all(self.free[host] for host in hosts)
        )

    def lose(self, hosts: list[str], *, deleted: bool) -> None:
        """Have hosts fail, with the pods that are there."""
        for host in hosts:
            self.free[host] = 0
            if deleted:
                self.play.world.delete("nodes", host)
            else:
                item = self.play.world.objects["nodes"][host]
                item["status"]["conditions"][0]["status"] = "False"
                self.play.world.put("nodes", item)
        self.play.world.evict(*hosts)
        for _ in range(4):
            self.make_pods()
            self.play.rest()

    def fit(self, kept: Places) -> bool:
        """Whether all pods of steps would fit in a rack beside those that are kept.

        This tries everything.
        """
        racks = {self.rack(host) for own in kept.values() for host in own}
        for rack in racks or range(HOSTS // self.hosts_in_rack):
            hosts = [host for host in self.free if self.rack(host) == rack]
            sets = [
                Pods(count, (cpu,), kept={hosts.index(at): n for at, n in kept[step].items()})
                for step, (count, cpu) in self.pods.items()
                if step in kept
            ]
            free = [(self.free[host],) for host in hosts]
            if fit_together([("rack", host) for host in hosts], free, sets):
                return True
        return False


def test_steps_get_places_one_after_the_other_if_there_is_a_way() -> None:
    """The driver goes first, and never waits; the workers have to follow into its rack.

    Commands that plan say so before.
    """
    found: Counter[bool] = Counter()
    for seed in range(CASES):
        steps = Steps(seed, fail_fast=True)
        for host in steps.free:
            steps.fill(host, steps.rng.randint(0, CPUS))
        fits = steps.fit({step: Counter() for step in GROUPS})
        alone = steps.fit({"driver": Counter()})
        planned = steps.plan()
        steps.start()
        assert steps.places() == planned, f"seed {seed}"
        assert steps.are_placed() == fits, f"seed {seed}"
        assert (steps.places()["driver"].total() > 0) == alone, f"seed {seed}"
        found[fits] += 1
    assert min(found[True], found[False]) >= 20, found


@pytest.mark.parametrize("fail_fast", [True, False])
def test_steps_that_lose_hosts_get_places_again_if_there_is_a_way(fail_fast: bool) -> None:
    """In the same second or one after the other; nodes are deleted, or only not ready."""
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(CASES):
        steps = Steps(seed, fail_fast=fail_fast)
        if not steps.begin():
            continue
        used = [host for host, cpu in steps.used().items() if cpu]
        number = steps.rng.choice([1, 2, len(used)])
        lost = steps.rng.sample(used, min(len(used), number))
        batches = [[host] for host in lost] if steps.rng.random() < 0.5 else [lost]
        deleted = steps.rng.random() < 0.5
        for batch in batches:
            before = steps.places()
            steps.lose(batch, deleted=deleted)
            kept = {
                step: Counter({host: pods for host, pods in own.items() if steps.free[host]})
                for step, own in before.items()
            }
            fits, stay = steps.fit(kept), any(own.total() for own in kept.values())
            assert steps.are_placed() or not fits, f"seed {seed}: {before}, lost {lost}"
            found[fits, stay] += 1
            if not steps.are_placed():
                break
    assert min(found[fits, stay] for fits in (True, False) for stay in (True, False)) >= 5, found
