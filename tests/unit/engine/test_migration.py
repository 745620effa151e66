"""What docs/migration.md promises to those who come from another policy."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from msgspec.structs import replace

from nri_policy.engine.event import Synchronized
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import load
from nri_policy.workload.pod import Container
from tests.support import nodes, rooms
from tests.support.engine_driver import EngineDriver

PAGE = (Path(__file__).parents[3] / "docs" / "migration.md").read_text()
NRI_PLUGINS, STATIC = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def at(container: Container, cpus: str, mems: str = "") -> Container:
    return nodes.running(container, CPUSet.parse(cpus), CPUSet.parse(mems))


def found(*containers: Container) -> EngineDriver:
    """Return a daemon that starts for the first time beside running containers."""
    driver = EngineDriver()
    for each in containers:
        driver.runtime.cpus[each.id] = CPUSet.parse(each.resources.cpus)
        driver.runtime.mems[each.id] = CPUSet.parse(each.resources.mems)
    driver.handle(Synchronized(containers=containers))
    return driver


def test_whole_cpus_of_the_kubelets_static_manager_are_kept() -> None:
    """It leaves others everything else, the reserved CPU among it: they make room."""
    own = [nodes.container(2000), nodes.container(3000)]
    shared = [nodes.container(500), nodes.container(100, 200), nodes.best_effort()]
    driver = found(at(own[0], "2-3"), at(own[1], "4-6"), *(at(each, "0-1,7-15") for each in shared))
    assert [driver.cpus(each) for each in own] == ["2-3", "4-6"]
    assert [str(driver.runtime.mems[each.id]) for each in own] == ["0", "1"]
    for each in shared:
        assert CPUSet.parse(driver.cpus(each)).isdisjoint(CPUSet.parse("0,2-6"))


def test_who_has_cpus_beside_memory_that_is_too_small_moves() -> None:
    """Two of 3 GiB beside a node of 4: the memory of both was anywhere, and is pinned from now."""
    larger, other = (
        replace(each, resources=replace(each.resources, memory_limit=3 * 2**30))
        for each in (nodes.container(2000), nodes.container(1000))
    )
    driver = found(at(larger, "2-3"), at(other, "1"))
    assert (driver.cpus(larger), driver.cpus(other)) == ("2-3", "4")
    assert driver.decision.warnings == ()


def test_what_nri_plugins_placed_stays_where_its_rules_are_ours() -> None:
    """Exclusive CPUs in one NUMA node; shared ones of a pool; the reserved pool."""
    own, mixed = nodes.container(2000), nodes.container(1500)
    shared, system = nodes.container(500), nodes.container(100, 200, namespace="kube-system")
    driver = found(
        at(own, "4-5", "1"), at(mixed, "6-7", "1"), at(shared, "8-11", "2"), at(system, "0", "0-3")
    )
    assert driver.changed() == {}
    assert [driver.cpus(each) for each in (own, mixed, shared)] == ["4-5", "6-7", "8-11"]


def test_a_document_of_nri_plugins_is_read_and_what_has_no_effect_is_named() -> None:
    settings = load(NRI_PLUGINS, "theirs")
    assert settings.reserved_pool_namespaces
    quiet = {notice.partition(":")[0].removeprefix("spec.") for notice in settings.notices}
    assert quiet == {"instrumentation.samplingRatePerMillion", "log.source"}


def test_the_settings_for_the_kubelets_static_manager_do_what_its_options_did() -> None:
    """A machine of four NUMA nodes with two cores each; CPUs 0-1 are a core."""
    driver = EngineDriver(**yaml.safe_load(STATIC)["spec"])
    assert load(STATIC, "the page").notices == ()
    assert driver.create(nodes.container(100, 200, namespace="kube-system")) == "0-1"
    pod = rooms.pod(4000, annotations={})
    parts = [CPUSet.parse(driver.create(rooms.tenant(pod, name, 2000))) for name in ("a", "b")]
    assert str(parts[0] | parts[1]) == "4-7", "the pod's, in one NUMA node"
    assert "within a NUMA node" in driver.refuse(nodes.container(6000))
    assert driver.create(nodes.container(3000)) == "8-11", "two whole cores"


# Those of the CPU and topology managers in Kubernetes 1.36 (`policy_options.go` of each).
OPTIONS = (
    "align-by-socket",
    "distribute-cpus-across-cores",
    "distribute-cpus-across-numa",
    "full-pcpus-only",
    "prefer-align-cpus-by-uncorecache",
    "strict-cpu-reservation",
    "max-allowable-numa-nodes",
    "prefer-closest-numa-nodes",
)
POLICIES = ("best-effort", "restricted", "single-numa-node")


def test_every_option_of_the_kubelets_managers_has_a_row() -> None:
    rows = re.findall(r"^\| `([\w:. -]+)`", PAGE, re.MULTILINE)
    for name in (*OPTIONS, *(f"topologyManagerPolicy: {policy}" for policy in POLICIES)):
        assert name in rows


def test_alignment_refuses_what_restricted_admits() -> None:
    """Six CPUs are wider than a NUMA node of four."""
    assert EngineDriver().create(nodes.container(6000)) == "8-13"
    assert "within a NUMA node" in EngineDriver(alignment="numa").refuse(nodes.container(6000))


def test_the_default_spreads_what_restricted_refuses() -> None:
    """No NUMA node of four CPUs has three left."""
    driver = EngineDriver()
    _ = [driver.create(nodes.container(2000)) for _ in range(4)]
    assert driver.create(nodes.container(3000)) == "10-11,14"


def test_cpus_come_from_one_cache_and_from_one_socket_by_default() -> None:
    driver = EngineDriver("package:2 numa:2 l3:2 core:4 pu:1")
    assert driver.create(nodes.container(3000)) == "4-6", "the other cache has a reserved CPU"
    assert driver.create(nodes.container(12000)) == "16-27", "one NUMA node first, then the next"


def test_nodes_of_a_socket_are_not_chosen_by_their_distance() -> None:
    """Nodes 1 and 3 are closest, and have room."""
    far = "10,20,12,20/20,10,20,12/12,20,10,20/20,12,20,10"
    driver = EngineDriver(f"package:1 numa:4 core:4 pu:1 distances={far}")
    assert driver.create(nodes.container(6000)) == "1-2,4-7"
