from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from nri_policy.engine.event import Created, Event, Resized, Stopped, Synchronized
from nri_policy.foundation.refusal import Refused
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.nri.service import RequestResult
from nri_policy.observability.gauges import make_gauges, take_snapshot
from nri_policy.workload.pod import Resources
from tests.support import nodes
from tests.support.engine_driver import EngineDriver
from tests.support.metrics_client import counted
from tests.support.stores import AMOUNTS


class Counted(EngineDriver):
    """A life whose decisions are counted."""

    def __init__(self, machine: str = nodes.SMALL, **spec: Any) -> None:
        super().__init__(machine, **spec)
        self.metrics = counted(now=1000.0)

    def meet(self, event: Event) -> None:
        """Handle and count *event*, also if it is refused."""
        self.metrics.time_decision(event, 0.001)
        try:
            decision = self.engine.handle(event)
        except Refused as error:
            self.metrics.observe(event, error, view_of(self.engine))
        else:
            self.metrics.observe(event, decision, view_of(self.engine))

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for family in (
            *(make() for make in self.metrics.collect()),
            *make_gauges(take_snapshot(view_of(self.engine))),
        ):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def total(self, name: str, **labels: str) -> float:
        wanted = {label.rstrip("_"): value for label, value in labels.items()}
        return sum(
            value
            for other, found, value in self.samples()
            if other == name and wanted.items() <= found.items()
        )


def test_placements_are_counted_by_class_and_by_how_they_came_about() -> None:
    driver = Counted()
    driver.meet(Created(container=nodes.container(2000)))
    driver.meet(Created(container=nodes.best_effort()))
    driver.meet(Created(container=nodes.container(100, 200, namespace="kube-system")))
    count = "nri_policy_allocations_total"
    assert driver.total(count) == 3
    assert driver.total(count, class_="Guaranteed", result="placed", reason="placed") == 1
    assert driver.total(count, class_="BestEffort", result="placed", reason="placed") == 1
    assert driver.total(count, class_="Burstable", result="placed", reason="reserved") == 1
    assert driver.total("nri_policy_decision_duration_seconds_count", event="created") == 3


def test_sharers_that_make_way_and_go_back_are_counted() -> None:
    driver = Counted()
    for _ in range(4):
        driver.meet(Created(container=nodes.container(100)))
    wide = nodes.container(4000)
    driver.meet(Created(container=wide))
    assert driver.total("nri_policy_moves_total", direction="up") == 1
    driver.meet(Stopped(container_id=wide.id))
    assert driver.total("nri_policy_moves_total", direction="back") == 1


@pytest.mark.parametrize(
    ("spec", "annotations", "reason"),
    [
        ({}, {}, "cpu"),
        ({"alignment": "numa"}, {}, "aligned-cpu"),
        ({}, {"require-isolated-cpus": "true"}, "isolated-cpu"),
        ({}, {"pick-resources-by-hints": "perhaps"}, "annotation"),
    ],
)
def test_refusals_are_counted_by_what_was_missing(
    spec: dict[str, Any], annotations: dict[str, str], reason: str
) -> None:
    driver = Counted(**spec)
    annotated = {f"{key}.resource-policy.nri.io": text for key, text in annotations.items()}
    driver.meet(Created(container=nodes.container(40_000, annotations=annotated)))
    count = "nri_policy_allocations_total"
    assert driver.total(count) == driver.total(count, result="refused", reason=reason) == 1


def test_amounts_that_the_kernel_does_not_take_are_a_reason_of_their_own() -> None:
    driver = Counted()
    container = nodes.container(500, 600)
    driver.meet(Created(container=container))
    driver.meet(Resized(container_id=container.id, resources=Resources(cpu_period=1)))
    assert driver.total("nri_policy_allocations_total", result="refused", reason="amounts") == 1


def test_a_refused_resize_is_counted_with_the_class_of_its_container() -> None:
    driver = Counted()
    container = nodes.container(500, 600)
    driver.meet(Created(container=container))
    resources = nodes.resources(90_000, 90_000)
    driver.meet(Resized(container_id=container.id, resources=resources))
    labels = {"class_": "Burstable", "result": "refused", "reason": "cpu"}
    assert driver.total("nri_policy_allocations_total", **labels) == 1


def test_events_that_place_nobody_are_no_allocations() -> None:
    driver = Counted()
    driver.meet(Synchronized(containers=()))
    assert driver.total("nri_policy_allocations_total") == 0
    assert driver.total("nri_policy_decision_duration_seconds_count", event="synchronized") == 1


def test_a_runtime_that_configures_us_again_has_reconnected() -> None:
    driver = Counted()
    assert driver.total("nri_policy_reconnects_total") == 0
    for result in (RequestResult.OK, RequestResult.FAILED, RequestResult.OK, RequestResult.OK):
        driver.metrics.count_request("Configure", result, 0.001)
    assert driver.total("nri_policy_reconnects_total") == 2


def test_the_settings_in_force_have_a_time_and_refused_ones_a_flag() -> None:
    driver = Counted()
    gauges = (
        "nri_policy_config_last_reload_successful",
        "nri_policy_config_last_reload_success_timestamp_seconds",
    )
    assert [driver.total(name) for name in gauges] == [1, 1000]
    driver.metrics.count_refused_reload()
    assert [driver.total(name) for name in gauges] == [0, 1000]
    driver.metrics.count_taken_reload(2000.0)
    assert [driver.total(name) for name in gauges] == [1, 2000]
    assert driver.total("nri_policy_config_reloads_total", result="refused") == 1
    assert driver.total("nri_policy_config_reloads_total", result="taken") == 1


def test_what_others_find_out_is_counted_by_one_method_each() -> None:
    driver = Counted()
    driver.metrics.count_drift("cpus")
    driver.metrics.count_store_failure()
    driver.metrics.count_lag(0.3)
    assert driver.total("nri_policy_drift_total", what="cpus") == 1
    assert driver.total("nri_policy_late_answers_total", event="CreateContainer") == 3
    assert driver.total("nri_policy_tunables", kind="cpufreq", state="pending") == 7
    assert driver.total("nri_policy_tunable_writes_total", kind="cpufreq", result="failed") == 8
    assert driver.total("nri_policy_store_errors_total") == 1
    assert driver.total("nri_policy_state_generation") == 1
    assert driver.total("nri_policy_nrt_publish_errors_total") == 2
    assert driver.total("nri_policy_loop_lag_seconds_bucket", le="0.5") == 1
    assert driver.total("nri_policy_loop_lag_seconds_bucket", le="0.1") == 0


def test_the_series_are_bounded_by_the_machine_whatever_pods_come() -> None:
    driver = Counted()
    choices = random.Random(1)
    for number in range(1000):
        request = choices.choice(AMOUNTS)
        qos = choices.choice(list(QoS)) if request else QoS.BEST_EFFORT
        container = nodes.container(
            0 if qos is QoS.BEST_EFFORT else request,
            request if qos is QoS.GUARANTEED else None,
            qos=qos,
            namespace=choices.choice((f"team-{number}", "kube-system")),
            name=f"name-{number}",
        )
        driver.meet(Created(container=container))
        driver.metrics.count_request(f"Unheard{number}", "whatever", 0.001)
        driver.metrics.count_drift(container.name)
        if choices.random() < 0.5 and driver.engine.state.placed:
            placed = choices.choice([*driver.engine.state.placed])
            resources = nodes.resources(choices.choice(AMOUNTS), None)
            driver.meet(Resized(container_id=placed, resources=resources))
    samples = [*driver.samples()]
    assert not re.search(r"name-|team-|Unheard|pod\d", str(samples))
    pools = len(driver.engine.layout.tree.pools)
    assert len([s for s in samples if "zone" in s[1]]) <= pools * (6 + 2 * 3 + 3)
    assert len([s for s in samples if "zone" not in s[1]]) <= 640
