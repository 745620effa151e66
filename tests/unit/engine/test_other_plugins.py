"""What plugins before ours make of a container changes its class only with a word (§3.0)."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.workload.amounts import described
from nri_policy.workload.pod import Container
from nri_policy.workload.requirements import PodRequirements, Requirements
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

CHANGED = "another plugin changed its CPU quota from 2 to 3: it is placed by 2"


def changed(quota: int, others: int = 0) -> Container:
    """Return a Guaranteed container of 2 CPUs that has another *quota*, in milli-CPU.

    *others* are the milli-CPU of the other containers of its pod.
    """
    plain = nodes.container(2000)
    whole = nodes.resources(2000 + others, 2000 + others)
    asked = replace(plain.resources, cpu_quota=100 * quota)
    return replace(plain, pod=replace(plain.pod, amounts=whole), resources=asked)


def test_a_quota_that_is_more_than_its_pod_has_takes_no_exclusive_cpus_away() -> None:
    driver, container = EngineDriver(), changed(3000)
    assert driver.create(container) == "4-5"
    assert len(driver.grant(container).exclusive) == 2
    assert driver.decision.warnings == (CHANGED,)
    assert CHANGED in driver.engine.state.placed[container.id].explanation.notes


def test_a_quota_that_its_pod_s_object_denies_is_another_plugin_s() -> None:
    said = PodRequirements(
        containers={"c0": Requirements(cpu_request=2000, cpu_limit=2000)}, pod_level=False
    )
    for quota, text in ((3000, CHANGED), (1000, CHANGED.replace("to 3", "to 1"))):
        driver, container = EngineDriver(), described(changed(quota, 4000), said)
        assert driver.create(container) == "4-5"
        assert len(driver.grant(container).exclusive) == 2
        assert driver.decision.warnings == (text,)


def test_a_quota_that_nobody_has_changed_is_no_note() -> None:
    driver, container = EngineDriver(), changed(2000)
    driver.create(container)
    assert not driver.decision.warnings
