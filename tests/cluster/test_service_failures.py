"""The service dies, freezes and loses the API server: each group is placed once, and nobody waits.

On a real control plane, whose Job controller makes the pods and whose scheduler binds them.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from tests.cluster.installation import CONFIGS
from tests.cluster.living import DISRUPTED, Cluster, living
from tests.cluster.shop import GROUPS, HOSTNAME, NODES, SCHEDULER, SHOP

IGNORED = {"action": "Ignore", "onPodConditions": [DISRUPTED]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with living(tmp_path_factory.mktemp("failures")) as made:
        yield made


@pytest.fixture(autouse=True)
def _is_clean(cluster: Cluster) -> Iterator[None]:
    with cluster.cleaned():
        yield


class Replica:
    """A process of the service, and what it answers."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def url(self) -> str:
        found = re.search(r"event=listening .*port=(\d+)", self.log.read_text())
        return f"http://127.0.0.1:{found[1]}" if found else ""

    def ready(self) -> bool:
        return self.get("/readyz") is not None

    def get(self, path: str) -> str | None:
        """Return an answer, None where there is none or it is a refusal."""
        try:
            with urlopen(self.url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except (URLError, ValueError, OSError):
            return None

    def written(self) -> float:
        """How many writes for groups it has carried out, by its metrics."""
        metrics = self.get("/metrics") or ""
        found = re.findall(r'writes_total\{.*outcome="done"\} (\S+)', metrics)
        return sum(map(float, found))


@contextmanager
def replica(cluster: Cluster, name: str) -> Iterator[Replica]:
    with cluster.shop.service(log=name) as process:
        yield Replica(process, cluster.shop.log.with_name(f"{name}.log"))


def until_one_leads(cluster: Cluster, *replicas: Replica) -> Replica:
    """Wait until exactly one of them is ready; return it."""
    found: list[Replica] = []

    def one() -> bool:
        found[:] = [each for each in replicas if each.ready()]
        return len(found) == 1

    cluster.api.until(one, "one of the replicas leads")
    return found[0]


def revisions(cluster: Cluster) -> dict[str, str]:
    """The PlacementGroups as they are."""
    groups = cluster.api.asked("GET", GROUPS)["items"]
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in groups}


def assert_promises_are_kept(cluster: Cluster, jobs: Iterable[str]) -> None:
    """Assert that each ungated pod goes to a place of its group, and that no node is overbooked.

    Pods of a group that has lost its places do not count: they will be deleted.
    """
    used: Counter[str] = Counter()
    for job in jobs:
        pods, places = cluster.pods("job-name", job), cluster.hosts(f"job-{job}")
        gone = Counter(each["spec"].get("nodeSelector", {}).get(HOSTNAME, "") for each in pods)
        del gone[""]
        assert gone <= places or not places, (job, gone, places)
        for each in pods:
            cpu = each["spec"]["containers"][0]["resources"]["requests"]["cpu"]
            used[each["spec"].get("nodeName", "")] += int(cpu)
    assert all(used[node] <= 4 for node in NODES), used


def test_a_service_that_dies_of_each_write_places_each_group_once(cluster: Cluster) -> None:
    """Groups are placed, preempted, and placed anew when a node fails; each write is a death."""
    cluster.shop.write_settings(groups={"preemption": True})
    jobs: list[str] = []
    placed: set[str] = set()
    log = cluster.shop.log.with_name("dying.log")

    def die_until_running(job: str, pods: int) -> None:
        while cluster.running(job) != pods:
            with cluster.shop.service(
                program="tests.cluster.dying", lease="", log="dying"
            ) as process:
                cluster.api.until(
                    lambda: process.poll() is not None or cluster.running(job) == pods,
                    f"{pods} pods of {job} run, or a service dies",
                )
            assert_promises_are_kept(cluster, jobs)
            if cluster.places(f"job-{job}"):
                placed.add(job)
            assert job in placed or not cluster.let_go(job), "places are stored first"

    policy: Any = {"podFailurePolicy": {"rules": [IGNORED]}, "backoffLimit": 0}
    for job, pods, cpu in (("one", 4, 2), ("low", 2, 4)):
        jobs.append(job)
        cluster.submit(job, pods, cpu=cpu, **policy)
        die_until_running(job, pods)
    jobs.append("urgent")
    cluster.submit("urgent", 3, cpu=4, priority="urgent")
    die_until_running("urgent", 3)
    (evicted,) = [each for each in ("one", "low") if not cluster.running(each)]
    cluster.delete_job("urgent")
    die_until_running(evicted, 4 if evicted == "one" else 2)
    (failed, *_) = cluster.hosts("job-one")
    cluster.set_ready(False, failed)
    for pod in cluster.pods("job-name", "one"):
        if pod["spec"].get("nodeName") == failed:
            cluster.evict(pod["metadata"]["name"])
    cluster.api.until(lambda: cluster.running("one") == 2, "the pods of the node are gone")
    die_until_running("one", 4)
    assert failed not in cluster.hosts("job-one")
    with cluster.shop.service():
        cluster.shop.until_state("one", "Running")
        cluster.shop.until_state("low", "Running")
    assert_promises_are_kept(cluster, jobs)
    assert (cluster.places("job-one"), cluster.places("job-low")) == (4, 2)
    assert not [job for job in ("one", "low") if cluster.job(job)["status"].get("failed")]
    said = log.read_text()
    deaths = Counter(
        (method, *re.findall(r"(placementgroups|pods|status)(?=/|\n|$)", path))
        for method, path in re.findall(r"died of (\S+) (\S+)", said)
    )
    assert deaths.keys() >= {
        ("POST", "placementgroups"),
        ("PATCH", "placementgroups", "status"),
        ("PATCH", "pods"),
        ("PATCH", "pods", "status"),
        ("DELETE", "pods"),
    }
    assert "Traceback" not in said


def test_one_of_two_replicas_leads_until_it_dies_or_ends(cluster: Cluster) -> None:
    """The other one goes on within seconds, and writes nothing of what is there anew."""
    with replica(cluster, "first") as first, replica(cluster, "second") as second:
        leader = until_one_leads(cluster, first, second)
        cluster.submit("one", 4)
        cluster.until_running("one", 4)
        cluster.shop.until_state("one", "Running")
        other = second if leader is first else first
        assert not other.ready()
        assert (leader.written() > 0, other.written()) == (True, 0)
        before = revisions(cluster)
        leader.process.kill()
        cluster.submit("two", 4)
        cluster.until_running("two", 4)
        assert other.ready()
        assert revisions(cluster).items() >= before.items()
        with replica(cluster, "third") as third:
            cluster.api.until(lambda: third.get("/livez"), "the third answers")
            assert not third.ready()
            other.process.send_signal(signal.SIGTERM)
            assert other.process.wait(30) == 0
            assert until_one_leads(cluster, third) is third
            cluster.submit("three", 2)
            cluster.until_running("three", 2)
    assert_promises_are_kept(cluster, ["one", "two", "three"])


def test_a_leader_that_freezes_writes_nothing_once_another_one_leads(cluster: Cluster) -> None:
    with replica(cluster, "frozen") as first, replica(cluster, "awake") as second:
        leader = until_one_leads(cluster, first, second)
        other = second if leader is first else first
        cluster.submit("one", 4)
        cluster.until_running("one", 4)
        cluster.shop.until_state("one", "Running")
        written = leader.written()
        leader.process.send_signal(signal.SIGSTOP)
        try:
            cluster.submit("two", 4)
            cluster.until_running("two", 4)
            cluster.delete_job("one")
            cluster.submit("three", 6)
            cluster.until_running("three", 6)
        finally:
            leader.process.send_signal(signal.SIGCONT)
        cluster.api.until(lambda: leader.get("/livez"), "it is awake again")
        cluster.submit("four", 2)
        cluster.until_running("four", 2)
        assert (leader.ready(), other.ready()) == (False, True)
        assert leader.written() == written
    assert_promises_are_kept(cluster, ["two", "three", "four"])


def test_kube_scheduler_goes_on_without_an_extender_that_does_not_answer(cluster: Cluster) -> None:
    """By the configuration that we ship; pods behind a gate wait for it."""
    sample = CONFIGS / "cluster" / "scheduler-configuration.yaml"
    (extender,) = yaml.safe_load(sample.read_text())["extenders"]
    with replica(cluster, "slow") as slow:
        until_one_leads(cluster, slow)
        plain = {"urlPrefix": slow.url, "enableHTTPS": False, "tlsConfig": None}
        cluster.api.stop("kube-scheduler")
        cluster.api.start_scheduler({**SCHEDULER, "extenders": [extender | plain]})
        try:
            pods = [cluster.pod(f"bare-{number}") for number in range(3)]
            cluster.api.until(lambda: cluster.node_of(pods[0]), "it is bound")
            assert 'requests_total{status="200",verb="filter"}' in (slow.get("/metrics") or "")
            slow.process.send_signal(signal.SIGSTOP)
            late = [cluster.pod(f"late-{number}") for number in range(3)]
            cluster.submit("gated", 2)
            cluster.api.until(lambda: all(map(cluster.node_of, late)), "they are bound without it")
            assert not cluster.running("gated")
            slow.process.send_signal(signal.SIGCONT)
            cluster.until_running("gated", 2)
        finally:
            slow.process.send_signal(signal.SIGCONT)
            cluster.api.stop("kube-scheduler")
            cluster.api.start_scheduler(SCHEDULER)
            for name in [*pods, *late]:
                cluster.delete(f"{SHOP}/pods/{name}")


def test_a_watch_whose_history_is_gone_begins_anew(cluster: Cluster) -> None:
    """The API server restarts while the service is frozen, and answers 410 to its watches."""
    with replica(cluster, "watching") as watching:
        cluster.submit("one", 6)
        cluster.until_running("one", 6)
        cluster.shop.until_state("one", "Running")
        known = cluster.api.asked("GET", f"{SHOP}/pods")["metadata"]["resourceVersion"]
        watching.process.send_signal(signal.SIGSTOP)
        try:
            cluster.delete_job("one")
            cluster.api.until(lambda: not cluster.pods("job-name", "one"), "its pods are gone")
            cluster.submit("two", 6)
            cluster.submit("three", 6)
            cluster.api.until(lambda: len(cluster.pods("job-name", "three")) == 6, "pods wait")
            cluster.api.stop("kube-apiserver", signal.SIGTERM)
            cluster.api.start_api_server()
            again = f"/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion={known}"
            answer = cluster.api.ask("GET", again)
            assert "too old resource version" in str(answer.body), answer
        finally:
            watching.process.send_signal(signal.SIGCONT)
        for job in ("two", "three"):
            cluster.until_running(job, 6)
        said = watching.log.read_text()
    failed = re.findall(r"event=not-followed kind=(\w+)", said)
    assert "pods" not in failed, "it met 410, and no other failure"
    assert_promises_are_kept(cluster, ["two", "three"])
