"""Jobs, nodes and settings change at random: a controller that begins anew decides nothing else.

What is decided follows from the objects that are there. So at rest a new controller that sees them
finds nothing to do but to say again why groups wait: no group waits that fits, or has other places.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from tests.property.seeds import seeds
from tests.support.placement_world import GATE, HOSTS, OTHER, Object, Play
from tests.unit.cluster.written import HOSTNAME, node, pod_spec, settings

RACK, ZONE = "example.com/rack", "example.com/zone"
KUEUE = "kueue.x-k8s.io/podset"
STEPS = 20


def draw_settings(chance: random.Random) -> Any:
    levels = chance.choice([("rack", HOSTNAME), ("zone", "rack", HOSTNAME)])
    failure = {"policy": "PodTermination", "failFast": chance.random() < 0.3}
    groups = {"timeout": chance.choice(["10m", "1000h"]), "preemption": chance.random() < 0.3}
    return read_settings(settings(*levels, failure=failure, groups=groups))


class History:
    """What happens to a play; every method is one event."""

    def __init__(self, seed: int) -> None:
        self.play = Play(seed)
        self.chance, self.world = self.play.chance, self.play.world
        self.number = 0
        self.world.delete("pods", "web")
        for at in range(HOSTS):
            self.world.put("nodes", well(at))
        self.change_settings()

    def submit(self) -> None:
        """A Job comes that asks for one thing or another."""
        self.number += 1
        name, chance = f"j{self.number}", self.chance
        pods, cpu = chance.randint(1, 7), chance.randint(1, 4)
        asked: dict[str, str] = chance.choice(
            [
                {f"{KUEUE}-required-topology": chance.choice([RACK, ZONE, HOSTNAME])},
                {f"{KUEUE}-preferred-topology": RACK},
                {f"{KUEUE}-unconstrained-topology": "true"},
                {"placement.nri/spread-over": chance.choice([RACK, f"{ZONE}, {RACK}", HOSTNAME])},
                {"placement.nri/exclusive-topology": chance.choice([RACK, HOSTNAME])},
            ]
        )
        gates = [{"name": GATE}, {"name": OTHER}]
        spec = pod_spec({"cpu": cpu}, schedulingGates=gates, priority=chance.choice([0, 0, 5]))
        self.world.templates[name] = (asked, spec)
        job = {"parallelism": pods, "completions": pods + chance.choice([0, 2])}
        self.world.put("jobs", {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": job})

    def finish(self) -> None:
        if jobs := [*self.world.objects["jobs"]]:
            self.world.finish(self.chance.choice(jobs))

    def end_pods(self) -> None:
        pods = [each for each in self.world.objects["pods"].values() if running(each)]
        for each in self.chance.sample(pods, min(len(pods), 2)):
            phase = self.chance.choice(["Succeeded", "Succeeded", "Failed"])
            self.world.put("pods", each | {"status": {"phase": phase}})

    def scale(self) -> None:
        """A Job runs more or fewer pods at once; those that are too many are deleted."""
        if jobs := [*self.world.objects["jobs"].values()]:
            job, pods = self.chance.choice(jobs), self.chance.randint(0, 7)
            name, most = job["metadata"]["name"], max(pods, job["spec"]["completions"])
            spec = job["spec"] | {"parallelism": pods, "completions": most}
            self.world.put("jobs", job | {"spec": spec})
            own = [*self.world.pods_of(name).items()]
            active = [each for each, item in own if "phase" not in item.get("status", {})]
            active += [each for each, item in own if running(item)]
            for each in active[: max(0, len(active) - pods)]:
                self.world.delete("pods", each)

    def prioritize(self) -> None:
        """Pods of a Job that are not bound get another priority."""
        if jobs := [*self.world.objects["jobs"]]:
            name, priority = self.chance.choice(jobs), self.chance.choice([0, 5, 9])
            self.world.templates[name][1]["priority"] = priority
            for each in self.world.pods_of(name).values():
                if not each["spec"].get("nodeName"):
                    self.world.put("pods", each | {"spec": each["spec"] | {"priority": priority}})

    def lose_node(self) -> None:
        """A node goes, is no longer ready, or keeps pods away; its pods are deleted."""
        host = f"h{self.chance.randrange(HOSTS)}"
        if sum(map(is_well, self.world.objects["nodes"].values())) < HOSTS - 1:
            return
        item = well(int(host[1:]))
        match self.chance.randrange(4):
            case 0 if host in self.world.objects["nodes"]:
                self.world.delete("nodes", host)
            case 1:
                item["status"]["conditions"][0]["status"] = "Unknown"
                self.world.put("nodes", item)
            case 2:
                item["spec"]["taints"] = [{"key": "k", "effect": "NoExecute"}]
                self.world.put("nodes", item)
            case _:
                item["metadata"]["labels"].pop(RACK)
                self.world.put("nodes", item)
                return
        self.world.evict(host)

    def repair(self) -> None:
        for at in range(HOSTS):
            if self.world.objects["nodes"].get(f"h{at}") != well(at):
                self.world.put("nodes", well(at))

    def run_other(self) -> None:
        """A pod of no group begins to run where nothing is promised to others."""
        tree = self.play.controller.engine.state.tree("default")
        leaf = tree.leaf_of(host := f"h{self.chance.randrange(HOSTS)}")
        if leaf is not None and tree.rows.room(leaf).get("cpu", 0) >= 1000:
            self.number += 1
            spec = pod_spec({"cpu": 1}, nodeName=host)
            spec["restartPolicy"] = self.chance.choice(["Always", "Never"])
            name = f"other-{self.number}"
            item = {"metadata": {"name": name, "uid": name}, "spec": spec}
            self.world.put("pods", item | {"status": {"phase": "Running"}})

    def end_other(self) -> None:
        if others := [name for name in self.world.objects["pods"] if name.startswith("other")]:
            self.world.delete("pods", self.chance.choice(others))

    def change_settings(self) -> None:
        self.play.settings = draw_settings(self.chance)
        self.play.listen()
        self.play.controller.configure(self.play.settings)

    def wait(self) -> None:
        self.play.now += self.chance.choice([31.0, 301.0, 601.0])

    def happen(self) -> None:
        often = [self.submit, self.submit, self.end_pods, self.scale, self.run_other, self.wait]
        some = [self.finish, self.end_other, self.prioritize, self.lose_node, self.repair]
        self.chance.choice([*often, *often, *some, self.change_settings])()

    def rest(self) -> None:
        """Go on until nothing happens any more, and no pause or timeout is about to end."""
        for _ in range(3):
            rest(self.play)
            self.play.now += 61.0


def well(at: int) -> Object:
    return node(f"h{at}", ZONE=f"z{at // 4}", RACK=f"r{at // 2}")


def is_well(item: Object) -> bool:
    ready = item["status"]["conditions"][0]["status"] == "True"
    return ready and not item["spec"]["taints"] and RACK in item["metadata"]["labels"]


def running(item: Object) -> bool:
    owned = bool(item["metadata"].get("ownerReferences"))
    return owned and item.get("status", {}).get("phase") == "Running"


def rest(play: Play) -> None:
    for _ in range(100):
        play.world.control_jobs()
        play.world.schedule()
        play.listen()
        if not play.step() and not play.controller.busy and not play.world.changes:
            return
    raise AssertionError("it does not come to rest")


def decided(play: Play) -> dict[str, Any]:
    """Return the status of each group, without its messages."""
    found = {}
    for name, item in play.world.objects["groups"].items():
        status = read_group(item).status
        found[name] = (
            status.state,
            status.assignments,
            status.reserved,
            status.unhealthy_nodes,
            status.evicted,
        )
    return found


def begun_anew(play: Play) -> Play:
    """Return a new controller in a copy of the cluster, with the objects in another order."""
    made = copy.copy(play)
    made.world, made.chance = copy.deepcopy(play.world), random.Random(1)
    made.away, made.now = play.away + play.now, 0.0
    made.begin()
    return made


@seeds(12)
def test_what_is_decided_does_not_depend_on_what_was_before(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.happen()
        if history.chance.random() < 0.3:
            history.play.listen(history.chance.choice([0, 1, 3]))
            history.play.step(kill=0.05, lost=0.1)
            continue
        history.rest()
        assert not history.play.controller.errors
        other = begun_anew(history.play)
        rest(other)
        assert decided(other) == decided(history.play)
