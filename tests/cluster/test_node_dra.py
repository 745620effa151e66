"""Resource claims for CPUs on a real node: from the scheduler to a container's CPUs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_policy.dra.resource_slice import CPU, NUMA_NODE, slice_name, values_in
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.claim import DRIVER, VARIABLE
from tests.cluster.installation import install_dra
from tests.cluster.node import NAME, Node, pod
from tests.cluster.shop import SCHEDULER
from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tools.control_plane import OLDEST

HARDWARE = "package:2 numa:2 core:4 pu:2"  # NUMA node k has CPUs 8k to 8k+7, CPU 0 is reserved
MORE_PROGRAMS = ("kube-scheduler",)
TOO_OLD = (OLDEST,)  # its scheduler, with the gate on, counts one device by another's capacity
IDLE = {"numa0": 7, "numa1": 8, "numa2": 8, "numa3": 8}  # what is published
API = "/apis/resource.k8s.io/v1"
SLICES = f"{API}/resourceslices"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"


@pytest.fixture
def settings() -> dict[str, Any]:
    agent = {"podResourceAPI": True}  # claims are hints, too, but not those of our own devices
    return {"reservedResources": {"cpu": 1}, "dra": {"enabled": True}, "agent": agent}


@pytest.fixture(scope="module")
def cluster(node: Node) -> Node:
    """A node whose cluster has our component for DRA, and a scheduler."""
    install_dra(node.cluster)
    node.cluster.start_scheduler(SCHEDULER)
    return node


@pytest.fixture
def driver(cluster: Node, daemon: Daemon) -> Iterator[Daemon]:
    """A daemon that is registered and has published its slice; pods and claims go before it."""
    until_published(cluster, IDLE)
    yield daemon
    cluster.clear()
    for kind in (CLAIMS, TEMPLATES):
        cluster.cluster.asked("DELETE", kind)


def until_published(node: Node, values: Mapping[str, int]) -> None:
    """Wait until claims can have so many CPUs of each device."""

    def found() -> bool:
        answer = node.cluster.ask("GET", f"{SLICES}/{slice_name(NAME)}")
        return answer.status == 200 and values_in(answer.body) == values

    node.cluster.until(found, f"the slice has {values}")


def request(amount: str, numa: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a claim's request for CPUs of one NUMA node, or of any."""
    exactly: dict[str, Any] = {
        "deviceClassName": f"cpu.{DRIVER}",
        "capacity": {"requests": {CPU: amount}},
    }
    if numa is not None:
        domain, _, key = NUMA_NODE.partition("/")
        expression = f"device.attributes['{domain}'].{key} == {numa}"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": "cpu", "exactly": exactly, **more}


def claim(node: Node, name: str, *requests: Mapping[str, Any], **more: Any) -> None:
    """Make a claim."""
    devices = {"requests": requests, **more}
    node.cluster.asked("POST", CLAIMS, {"metadata": {"name": name}, "spec": {"devices": devices}})


def template(node: Node, name: str, *requests: Mapping[str, Any]) -> None:
    """Make a template of claims."""
    spec = {"spec": {"devices": {"requests": requests}}}
    node.cluster.asked("POST", TEMPLATES, {"metadata": {"name": name}, "spec": spec})


def user(name: str, cpu: str, *, claimed: str = "", made_from: str = "") -> dict[str, Any]:
    """Return a pod, for the scheduler to bind, whose container uses a claim, or a template's."""
    amounts = {"cpu": cpu, "memory": "32Mi"}
    resources = {"requests": amounts, "limits": amounts, "claims": [{"name": "own"}]}
    its = {"resourceClaimTemplateName": made_from} if made_from else {"resourceClaimName": claimed}
    made = pod(name, {"main": resources}, resourceClaims=[{"name": "own", **its}])
    del made["spec"]["nodeName"]
    return made


def claimed(node: Node, name: str) -> CPUSet:
    """Return the CPUs that a container's environment says it has by its claims."""
    (process, *_) = cgroup.processes(node.cgroup_of(name, "main"))
    comm = Path(f"/proc/{process}/comm")  # StartContainer ends a moment before the program begins
    node.cluster.until(lambda: "runc" not in comm.read_text(), "the container's program runs")
    variables = Path(f"/proc/{process}/environ").read_text().split("\0")
    values = [each.partition("=")[2] for each in variables if each.startswith(VARIABLE)]
    return CPUSet.union(map(CPUSet.parse, values))


def cpus(node: Node, name: str) -> CPUSet:
    return node.cpuset(name, "main").cpus


def is_free(node: Node, name: str) -> bool:
    """Whether a claim is allocated to nobody."""
    return "allocation" not in node.cluster.asked("GET", f"{CLAIMS}/{name}").get("status", {})


def of_numa_node(number: int) -> CPUSet:
    return CPUSet(range(8 * number, 8 * number + 8))


def events(node: Node, name: str) -> str:
    """Return the messages of the events about an object of that name."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    return "\n".join(each["message"] for each in node.cluster.asked("GET", path)["items"])


def test_a_claim_s_cpus_are_its_container_s_alone_until_the_pod_is_gone(
    cluster: Node, driver: Daemon
) -> None:
    claim(cluster, "fast", request("2", numa=2))
    cluster.start(user("first", "2", claimed="fast"))
    own = cpus(cluster, "first")
    assert len(own) == 2
    assert own <= of_numa_node(2)
    assert claimed(cluster, "first") == own
    explained = driver.ask("explain", "first").stdout
    assert "claim default/fast (cpu)" in explained
    assert f"claim:{DRIVER}" not in explained

    amounts = {"cpu": "5", "memory": "32Mi"}
    whole = {"requests": amounts, "limits": amounts}
    others: tuple[tuple[str, Any], ...] = ("idle", {}), ("own", whole), ("another", whole)
    for name, resources in others:
        cluster.start(pod(name, {"main": resources}))
    for name, _ in others:
        cluster.cluster.until(
            lambda name=name: cpus(cluster, name).isdisjoint(own), f"{name} is elsewhere"
        )
    assert cpus(cluster, "first") == own

    cluster.delete("first")
    cluster.cluster.until(lambda: is_free(cluster, "fast"), "the claim is given back")
    for name, _ in others:
        cluster.delete(name)
    until_published(cluster, IDLE)
    claim(cluster, "next", request("8", numa=2))
    cluster.start(user("next", "8", claimed="next"))
    assert cpus(cluster, "next") == of_numa_node(2), "with those that were given back"


def test_claims_of_a_template_are_allocated_as_far_as_there_are_cpus(
    cluster: Node, driver: Daemon
) -> None:
    template(cluster, "five", request("5"))
    names = [f"pod-{number}" for number in range(4)]
    cluster.start(*(user(each, "5", made_from="five") for each in names))
    own = [cpus(cluster, each) for each in names]
    assert sorted(len(each) for each in own) == [5, 5, 5, 5]
    assert {min(each) // 8 for each in own} == {0, 1, 2, 3}, "one on each NUMA node"
    assert len(CPUSet.union(own)) == 20
    assert [claimed(cluster, each) for each in names] == own
    cluster.create(user("late", "5", made_from="five"))

    def waits() -> bool:
        conditions = cluster.pod("late")["status"].get("conditions", [])
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    cluster.cluster.until(waits, "nothing is left for a fifth")
    cluster.delete("pod-1")
    cluster.until_ready("late")
    assert cpus(cluster, "late") <= of_numa_node(min(own[1]) // 8)
    assert len(cpus(cluster, "late")) == 5
    assert "given back" not in driver.ask("status").stdout


def test_what_ordinary_pods_take_is_published(cluster: Node, driver: Daemon) -> None:
    amounts = {"cpu": "5", "memory": "32Mi"}
    cluster.start(pod("own", {"main": {"requests": amounts, "limits": amounts}}))
    taken = min(cpus(cluster, "own")) // 8
    until_published(cluster, {**IDLE, f"numa{taken}": IDLE[f"numa{taken}"] - 5})
    cluster.delete("own")
    until_published(cluster, IDLE)
    assert not driver.counted("slice-not-published")


def test_restarts_of_daemon_and_kubelet_move_nobody(cluster: Node, driver: Daemon) -> None:
    claim(cluster, "fast", request("2500m", numa=1))
    cluster.start(user("first", "2500m", claimed="fast"))
    own, had = claimed(cluster, "first"), cpus(cluster, "first")
    assert len(own) == 2
    driver.stop()
    driver.start()
    assert cpus(cluster, "first") == had
    driver.kill()
    driver.start()
    until_published(cluster, IDLE)
    cluster.kill_kubelet()
    cluster.start_kubelet()  # it takes slices away, and has all claims prepared again
    until_published(cluster, IDLE)
    assert cpus(cluster, "first") == had
    assert "claim default/fast (cpu)" in driver.ask("explain", "first").stdout
    cluster.delete("first")
    cluster.cluster.until(lambda: is_free(cluster, "fast"), "the claim is given back")


def test_claims_in_use_outlive_what_the_daemon_has_stored(cluster: Node, driver: Daemon) -> None:
    claim(cluster, "fast", request("2", numa=1))
    cluster.start(user("first", "2", claimed="fast"))
    had = cpus(cluster, "first")
    driver.kill()
    shutil.rmtree(driver.state / "store")
    driver.start()
    assert driver.counted("claims-recovered") == 1
    assert cpus(cluster, "first") == had == claimed(cluster, "first")
    assert "claim default/fast (cpu)" in driver.ask("explain", "first").stdout
    cluster.delete("first")
    cluster.cluster.until(lambda: is_free(cluster, "fast"), "the claim is given back")
    claim(cluster, "next", request("8", numa=1))
    cluster.start(user("next", "8", claimed="next"))
    assert cpus(cluster, "next") == of_numa_node(1)


def test_a_pod_waits_while_the_driver_is_away_both_to_start_and_to_end(
    cluster: Node, driver: Daemon
) -> None:
    claim(cluster, "old", request("2", numa=3))
    claim(cluster, "new", request("8", numa=2))
    cluster.start(user("first", "2", claimed="old"))
    driver.kill()
    cluster.create(user("second", "8", claimed="new"))
    cluster.cluster.asked("DELETE", "/api/v1/namespaces/default/pods/first")
    cluster.cluster.until(
        lambda: "FailedPrepareDynamicResources" in reasons(cluster, "second"),
        "the kubelet says why the pod does not start",
    )
    cluster.cluster.until(lambda: not cluster.running("first"), "its container has ended")
    assert cluster.pod("first"), "it stays, for its claim cannot be given back"
    driver.start()
    cluster.until_ready("second")
    assert cpus(cluster, "second") == claimed(cluster, "second") == of_numa_node(2)
    cluster.cluster.until(lambda: not cluster.pod("first"), "the pod is gone")
    cluster.cluster.until(lambda: is_free(cluster, "old"), "so is its claim")


def reasons(node: Node, name: str) -> set[str]:
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    return {each["reason"] for each in node.cluster.asked("GET", path)["items"]}


def test_containers_have_the_requests_that_they_name_and_the_first_the_claim_before_them(
    cluster: Node, driver: Daemon
) -> None:
    near = {**request("3", numa=1), "name": "near"}
    sub = {
        "name": "cpu",
        "firstAvailable": [
            {**request("9")["exactly"], "name": "much"},
            {**request("1", numa=3)["exactly"], "name": "little"},
        ],
    }
    claim(cluster, "both", near, sub)
    made = user("first", "1", claimed="both")
    (main,) = made["spec"]["containers"]
    asked = {each: main["resources"][each] for each in ("requests", "limits")}
    one = [{"name": "own", "request": "cpu"}]
    side = {**main, "name": "side", "resources": {**asked, "claims": one}}
    begin = {**main, "name": "begin", "command": ["/bin/busybox", "true"]}
    made["spec"]["containers"].append(side)
    made["spec"]["initContainers"] = [begin]
    cluster.start(made)
    assert len(cpus(cluster, "first")) == 4
    assert len(cpus(cluster, "first") & of_numa_node(1)) == 3
    assert cluster.cpuset("first", "side").cpus == cpus(cluster, "first") & of_numa_node(3)
    assert "(cpu/little)" in driver.ask("explain", "first/side").stdout


def test_the_owner_of_a_refused_claim_reads_why_and_nobody_else_is_disturbed(
    cluster: Node, driver: Daemon
) -> None:
    config = [{"opaque": {"driver": DRIVER, "parameters": {"kind": "Unknown"}}}]
    claim(cluster, "odd", request("2"), config=config)
    claim(cluster, "fast", request("2"))
    cluster.create(user("first", "2", claimed="odd"))
    cluster.cluster.until(
        lambda: f"has a config for {DRIVER}" in events(cluster, "first"), "its owner is told"
    )
    cluster.cluster.until(
        lambda: f"has a config for {DRIVER}" in events(cluster, "odd"), "by the claim as well"
    )
    cluster.start(user("second", "2", claimed="fast"))
    assert len(cpus(cluster, "second")) == 2
    assert driver.counted("claim-not-prepared")


def test_nothing_is_published_while_the_kubelets_own_cpu_manager_is_on(
    cluster: Node, driver: Daemon
) -> None:
    state = cluster.machine.folder / "var/lib/kubelet/cpu_manager_state"

    def is_gone() -> bool:
        return cluster.cluster.ask("GET", f"{SLICES}/{slice_name(NAME)}").status == 404

    cluster.kill_kubelet()
    state.unlink()
    try:
        cluster.start_kubelet(cpuManagerPolicy="static", reservedSystemCPUs="0")
        cluster.cluster.until(lambda: driver.counted("cpus-not-published") == 1, "it is noticed")
        cluster.cluster.until(is_gone, "the slice is gone")
        assert "cpuManagerPolicy: none" in driver.ask("status").stdout
        cluster.cluster.until(lambda: "cpuManagerPolicy" in events(cluster, NAME), "it is told")
    finally:
        cluster.kill_kubelet()
        state.unlink()
        cluster.start_kubelet()
    until_published(cluster, IDLE)
    assert "cpuManagerPolicy" not in driver.ask("status").stdout
