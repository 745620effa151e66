"""A cluster around the tests' API server: a job controller, a scheduler, and nodes that fail.

All three are this project's own and strict: the scheduler binds a pod only to a node that is well,
that its selector names and that has room; a Job's pods are made anew where they failed or are gone;
pods of nodes that are not ready are deleted, some time later. What must hold after every change of
any object is checked as it is made (`_check`).
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from nri_policy.cluster.requests.group import PlacementGroup, hosts_of, read_group
from tests.support.cluster_api import ClusterAPI, Object, send, status
from tests.unit.cluster import written as objects
from tests.unit.cluster.written import HOSTNAME, pod_spec

GATE = "placement.nri/group"
INDEX = "batch.kubernetes.io/job-completion-index"
RACK = "example.com/rack"
HOSTS, CPUS = 8, 4
ENDED = ("Failed", "Succeeded")


class SimulatedCluster(ClusterAPI):
    """Eight hosts in four racks, and two pods of nobody's."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder)
        self.chance = chance
        self.dies_after: int | None = None  # requests
        self.died = False
        self.refused = 0  # how many of the next writes are refused
        self.broken: list[AssertionError] = []  # what did not hold after some change
        self._made = 0
        self._jobs = 0
        self._strangers: dict[str, str] = {}
        self._done: defaultdict[str, dict[int, str]] = defaultdict(dict)  # Job -> index -> host

    async def begin(self) -> None:
        """Make the nodes and the strangers."""
        for at in range(HOSTS):
            await self.put("nodes", objects.node(f"h{at}", RACK=f"r{at // 2}"))
        for name, node in (("web", "h0"), ("pending", "")):
            spec = pod_spec({"cpu": 1}, nodeName=node)
            item = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}
            await self.put("pods", item)
            self._strangers[f"default/{name}"] = json.dumps(item)

    async def submit(self) -> None:
        """A Job comes."""
        self._jobs += 1
        name, pods = f"j{self._jobs}", self.chance.randint(1, 8)
        annotations = {
            f"kueue.x-k8s.io/podset-{self.chance.choice(['required', 'preferred'])}-topology": RACK
        }
        if self.chance.random() < 0.2:
            annotations = {"placement.nri/spread-over": RACK}
        cpu, priority = self.chance.randint(1, 3), self.chance.choice([0, 0, 5])
        spec = pod_spec({"cpu": cpu}, schedulingGates=[{"name": GATE}], priority=priority)
        template = {"metadata": {"annotations": annotations}, "spec": spec}
        completions = pods + self.chance.choice([0, 0, 2])
        metadata = {"name": name, "namespace": "default", "uid": f"u-{name}"}
        job = {"parallelism": pods, "completions": completions, "template": template}
        await self.put("jobs", {"metadata": metadata, "spec": job})

    async def happen(self) -> str:
        """Something happens; return what."""
        jobs, chance = [*self.objects["jobs"].values()], self.chance
        ready = [each for each in self.objects["nodes"].values() if _is_ready(each)]
        what = chance.choices(
            [
                *("submit", "finish", "succeed", "fail", "delete", "recover", "cut", "nothing"),
                *("scale", "remove", "refuse", "darken"),
            ],
            [6 if len(jobs) < 8 else 0, 3, 4, 2, 1, 4, 1, 2, 3, 2, 2, 1],
        )[0]
        if what == "submit":
            await self.submit()
        elif what == "finish" and jobs:
            await self._finish(chance.choice(jobs)["metadata"]["name"])
        elif what == "succeed":
            await self._end_some("Succeeded" if chance.random() < 0.7 else "Failed")
        elif what == "fail" and len(ready) > HOSTS - 3:
            await self._lose(chance.choice(ready))
        elif what == "delete" and len(ready) > HOSTS - 3:
            await self.delete("nodes", chance.choice(ready)["metadata"]["name"])
        elif what == "recover":
            for at in range(HOSTS):
                node = objects.node(f"h{at}", RACK=f"r{at // 2}")
                old = self.objects["nodes"].get(f"h{at}")
                if old is None or not _is_ready(old):
                    await self.put("nodes", node)
        else:
            await self._disturb(what, jobs, ready)
        return what

    async def _disturb(self, what: str, jobs: list[Object], ready: list[Object]) -> None:
        """Something happens that is rarer."""
        chance = self.chance
        if what == "cut":
            await self.cut()
        elif what == "scale" and jobs:
            await self._scale(chance.choice(jobs))
        elif what == "remove":
            pods = [name for name in self.objects["pods"] if name not in self._strangers]
            for name in chance.sample(pods, min(len(pods), 2)):
                await self.delete("pods", name)
        elif what == "refuse":
            self.refused = chance.randint(1, 4)
        elif what == "darken":
            for each in ready:
                await self._lose(each)

    async def _lose(self, node: Object) -> None:
        """A node is no longer ready."""
        changed = json.loads(json.dumps(node))
        changed["status"]["conditions"][0]["status"] = "Unknown"
        await self.put("nodes", changed)

    async def _scale(self, job: Object) -> None:
        """A Job runs another number of pods at once; those that are too many are deleted."""
        pods, name = self.chance.randint(0, 8), job["metadata"]["name"]
        completions = max(pods, len(self._done[name])) + self.chance.choice([0, 2])
        spec = {**job["spec"], "parallelism": pods, "completions": completions}
        await self.put("jobs", {**job, "spec": spec})
        active = [each for each in self.pods_of(name) if _phase(each) not in ENDED]
        for each in active[pods:]:
            await self.delete("pods", f"default/{each['metadata']['name']}")

    async def control(self) -> bool:
        """Have all controllers do their work once; return whether there was some."""
        before = self._revision
        await self._control_jobs()
        await self._collect()
        await self._schedule()
        return self._revision != before

    def pods_of(self, job: str) -> list[Object]:
        return [
            item
            for item in self.objects["pods"].values()
            if any(one["name"] == job for one in item["metadata"].get("ownerReferences", ()))
        ]

    def group_of(self, job: str) -> PlacementGroup | None:
        item = self.objects["placementgroups"].get(f"default/job-{job}")
        return None if item is None else read_group(item)

    async def _control_jobs(self) -> None:
        """Make pods that are missing: failed, gone, or not there yet; say how many succeeded."""
        for item in [*self.objects["jobs"].values()]:
            name, spec = item["metadata"]["name"], item["spec"]
            status = {"succeeded": len(self._done[name])}
            if item.get("status", {"succeeded": 0}) != status:
                await self.put("jobs", item | {"status": status})
            active = {
                int(each["metadata"]["labels"][INDEX])
                for each in self.pods_of(name)
                if _phase(each) not in ENDED
            }
            missing = sorted({*range(spec["completions"])} - active - self._done[name].keys())
            for index in missing[: max(0, spec["parallelism"] - len(active))]:
                self._made += 1
                owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
                metadata = {
                    "name": f"{name}-{index}-{self._made}",
                    "namespace": "default",
                    "uid": f"u{self._made}",
                    "labels": {INDEX: str(index)},
                    "annotations": dict(spec["template"]["metadata"]["annotations"]),
                    "ownerReferences": [owner | {"uid": f"u-{name}", "controller": True}],
                }
                pod = {
                    "metadata": metadata,
                    "spec": json.loads(json.dumps(spec["template"]["spec"])),
                }
                await self.put("pods", pod)

    async def _collect(self) -> None:
        """Delete pods of nodes that are gone, or not ready: sooner or later."""
        for name, item in [*self.objects["pods"].items()]:
            node = item["spec"].get("nodeName")
            found = self.objects["nodes"].get(node)
            if name in self._strangers or not node or (found is not None and _is_ready(found)):
                continue
            if self.chance.random() < 0.5:
                await self.delete("pods", name)

    async def _schedule(self) -> None:
        """Bind pods that no gate holds to nodes that their selectors name; they run at once."""
        for item in [*self.objects["pods"].values()]:
            spec = item["spec"]
            host = self.objects["nodes"].get(spec.get("nodeSelector", {}).get(HOSTNAME))
            if spec.get("schedulingGates") or spec.get("nodeName") or _phase(item) in ENDED:
                continue
            if host is None or not _is_ready(host):
                continue
            name = host["metadata"]["name"]
            used = sum(
                _cpus(each)
                for each in self.objects["pods"].values()
                if each["spec"].get("nodeName") == name and _phase(each) not in ENDED
            )
            assert used + _cpus(item) <= CPUS, f"{item['metadata']['name']} finds no room on {name}"
            bound = json.loads(json.dumps(item))
            bound["spec"]["nodeName"] = name
            await self.put("pods", bound | {"status": {"phase": "Running"}})

    async def _finish(self, job: str) -> None:
        """A Job is deleted, and then all that it owns."""
        await self.delete("jobs", f"default/{job}")
        for item in self.pods_of(job):
            await self.delete("pods", f"default/{item['metadata']['name']}")
        if self.group_of(job) is not None:
            await self.delete("placementgroups", f"default/job-{job}")

    async def _end_some(self, phase: str) -> None:
        running = [
            each
            for each in self.objects["pods"].values()
            if _phase(each) == "Running" and INDEX in each["metadata"].get("labels", {})
        ]
        for item in self.chance.sample(running, min(len(running), 2)):
            if phase == "Succeeded":
                job = item["metadata"]["ownerReferences"][0]["name"]
                index = int(item["metadata"]["labels"][INDEX])
                self._done[job][index] = item["spec"]["nodeName"]
            await self.put("pods", json.loads(json.dumps(item)) | {"status": {"phase": phase}})

    async def _answer(self, method: str, target: str, body: Any, content: str, writer: Any) -> None:
        """Answer, but from some request on no more: the service has died before it, or after."""
        if self.dies_after is not None and method != "GET":
            self.dies_after -= 1
            if self.dies_after < 0:
                self.died = True
                if self.chance.random() < 0.5 or self.dies_after < -1:
                    raise ConnectionError
        if self.refused and method != "GET":
            self.refused -= 1
            code = self.chance.choice([403, 422])
            send(writer, code, status(code, "a quota, or a policy"))
            return
        await super()._answer(method, target, body, content, writer)

    async def _tell(self, kind: str, change: str, item: Object) -> None:
        if kind in ("pods", "placementgroups"):
            try:
                self._check(kind, change, item)
            except AssertionError as error:  # the service is not to be told: it ends the play
                self.broken.append(error)
        await super()._tell(kind, change, item)

    def _check(self, kind: str, change: str, item: Object) -> None:
        """Check what holds after every change."""
        for name, text in self._strangers.items():
            assert json.dumps(self.objects["pods"][name]) == text, "nobody else's pods are touched"
        groups = {name: read_group(each) for name, each in self.objects["placementgroups"].items()}
        selector = item["spec"].get("nodeSelector", {})
        if kind == "pods" and change == "MODIFIED" and selector and _phase(item) == "Pending":
            group = groups[f"default/{item['metadata']['annotations'][GATE]}"]
            assert group.status.assignments, "no pod is let go without an assignment"
            assert selector.keys() == {HOSTNAME}
        used: Counter[str] = Counter()
        own: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by group
        size: dict[str, int] = {}
        for each in self.objects["pods"].values():
            spec = each["spec"]
            host = spec.get("nodeName") or spec.get("nodeSelector", {}).get(HOSTNAME, "")
            owners = each["metadata"].get("ownerReferences")
            if not owners:
                used[host] += _cpus(each)
                continue
            name = f"default/job-{owners[0]['name']}"
            size[name] = _cpus(each)
            if _phase(each) not in ENDED:
                own[name][host] += 1
        held_by: defaultdict[str, dict[str, int]] = defaultdict(dict)  # host -> group -> CPUs
        for name in {*groups, *own}:
            places = hosts_of(groups[name]) if name in groups else Counter()
            for host in {*places, *own[name]} - {""}:
                held_by[host][name] = max(places[host], own[name][host]) * size.get(name, 0)
        for host, held in held_by.items():
            full = sum(held.values()) + used[host] > CPUS
            assert not full, f"{host} is promised twice: {held}"


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _cpus(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def _is_ready(node: Object) -> bool:
    return bool(node["status"]["conditions"][0]["status"] == "True")
