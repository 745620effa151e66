"""What `explain` shows of devices and mounts."""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec.structs import replace

from nri_policy.cli.node.criteria_table import explain
from nri_policy.cli.output import Canvas
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import view_of
from nri_policy.report import (
    ExplanationReport,
    HintReport,
    answer_report,
    explanation_report,
    held_hints,
)
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

GPU = "podresourceapi:nvidia.com/gpu"
SPREAD = {"pick-resources-by-hints.resource-policy.nri.io/pod": "true"}


def gpu(node: int, device: str = "") -> Hint:
    nodes = CPUSet([node])
    return Hint(source=GPU, kind=HintKind.POD_RESOURCES, cpus=EMPTY, nodes=nodes, device=device)


def explanation(
    *hints: Hint, milli: int = 3000, annotations: dict[str, str] | None = None, fill: int = 0
) -> ExplanationReport:
    """Return the explanation of a container with these hints, on a machine of four nodes.

    One that came before has *fill* milli-CPU of node 1.
    """
    driver = EngineDriver()
    if fill:
        driver.create(nodes.container(fill))
    container = replace(nodes.container(milli, annotations=annotations), hints=hints)
    driver.create(container)
    placed = driver.engine.state.placed[container.id]
    view = view_of(driver.engine)
    devices = held_hints(view.holding(placed), driver.engine.layout.topology_hints)
    answer = answer_report(view, placed, devices)
    return replace(
        explanation_report(placed.explanation, placed.grant), answer=answer, devices=devices
    )


def text(report: ExplanationReport) -> list[str]:
    screen = StringIO()
    for part in explain(report, why=True):
        Canvas(file=screen, width=110, no_color=True).print(part)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_every_device_is_shown_with_where_it_is_and_how_many_cpus_are_there() -> None:
    report = explanation(gpu(0), gpu(3))
    assert report.pool == "root"
    assert "because it is the smallest pool with room that contains both devices" in report.summary
    assert report.devices == (
        HintReport(
            source=GPU,
            count=1,
            nodes=CPUSet([0]),
            cpus=CPUSet.parse("0-3"),
            granted=3,
            granted_of=3,
        ),
        HintReport(
            source=GPU,
            count=1,
            nodes=CPUSet([3]),
            cpus=CPUSet.parse("12-15"),
            granted=0,
            granted_of=3,
        ),
    )


def test_a_claimed_device_is_shown_with_its_name_and_claim() -> None:
    claimed = Hint(
        source="claim:gpu.x",
        kind=HintKind.CLAIMS,
        cpus=EMPTY,
        nodes=CPUSet([3]),
        device="gpu-0 (claim gpus)",
    )
    report = explanation(claimed)
    assert "because it is the smallest pool with room that contains its device" in report.summary
    shown = text(report)
    row = shown[shown.index("Devices") + 2]
    assert row.split() == [
        "claim:gpu.x",
        "gpu-0",
        "(claim",
        "gpus)",
        "3",
        "12-15",
        *["3", "of", "3"],
    ]
    opening = next(line for line in shown if line.lstrip().startswith("devices"))
    assert "claim:gpu.x gpu-0 (claim gpus): 3 of 3 CPUs near it (NUMA node 3)" in opening
    other = replace(claimed, device="gpu-1 (claim gpus)")
    (both,) = explanation(claimed, other).devices
    assert (both.count, both.device) == (2, "gpu-0 (claim gpus), gpu-1 (claim gpus)")


def test_the_advice_to_spread_is_given_where_it_would_help() -> None:
    shown = text(explanation(gpu(0), gpu(3)))
    at = shown.index("Devices")
    assert shown[at + 2].split() == [GPU, "0", "0-3", "3", "of", "3"]
    assert 'pick-resources-by-hints.resource-policy.nri.io: "true"' in " ".join(
        " ".join(shown[:at]).split()
    )
    spread = explanation(gpu(0), gpu(3), annotations=SPREAD)
    assert min(each.granted for each in spread.devices) > 0
    assert not any("pick-resources" in line for line in text(spread))
    alone = explanation(gpu(0), gpu(3), milli=1000)
    assert not any("pick-resources" in line for line in text(alone)), "one CPU cannot be at both"


def test_what_kept_it_from_its_device_is_said_and_no_advice_that_cannot_help() -> None:
    for wishes in (None, SPREAD):
        report = explanation(gpu(1, "gpu1"), milli=3000, fill=4000, annotations=wishes)
        assert report.answer is not None
        assert [each.granted for each in report.devices] == [0]
        assert str(report.answer.mems) == "0-1", "beside its CPUs and its device"
        assert report.answer.better == (
            f"it has no CPUs beside {GPU} gpu1: NUMA node #1 was 3 CPUs short when it was placed",
        )
    shared = explanation(gpu(1), milli=500, fill=4000)
    assert shared.answer is not None
    (only,) = shared.answer.better
    assert only.endswith(f"{GPU}: NUMA node #1 was 1 CPU short when it was placed")
    two = explanation(gpu(1), gpu(2), milli=4000, fill=3000)  # two at each
    assert two.answer is not None
    assert two.answer.better[0].endswith("NUMA node #1 was 1 CPU short when it was placed")


STRICT = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}


def refused(*hints: Hint, milli: int = 3000) -> ExplanationReport:
    """Return why a container with strict hints is refused where node 1 is full."""
    driver = EngineDriver()
    driver.create(nodes.container(4000))
    container = replace(nodes.container(milli, annotations=STRICT), hints=hints)
    with pytest.raises(PlacementError) as error:
        driver.handle(Created(container=container))
    assert error.value.explanation is not None
    return explanation_report(error.value.explanation, None)


def test_a_refusal_for_strict_hints_names_the_device_and_what_is_missing_there() -> None:
    report = refused(gpu(1, "gpu1"))
    assert report.summary == (
        f"no pool near to all strict hints ({GPU} gpu1 on NUMA node 1) has room for 3 exclusive"
        " CPUs: NUMA node #1 comes closest, 3 CPUs short"
    )
    shown = text(report)
    rows = [line.split(maxsplit=3) for line in shown if "NUMA node #" in line and "  " in line]
    assert [row for row in rows if row[0] == "NUMA"] == [
        ["NUMA", "node", "#1", "3 CPUs short"],
        ["NUMA", "node", "#2", f"not near {GPU} gpu1 on NUMA node 1"],
        ["NUMA", "node", "#3", f"not near {GPU} gpu1 on NUMA node 1"],
    ]
    (socket,) = [line for line in shown if "socket #0" in line]
    assert "too few CPUs, or too little memory, near its strict hints" in socket
    assert "no memory left" not in " ".join(shown)


def test_hints_that_exclude_each_other_are_named() -> None:
    other = Hint(source="/dev/x", kind=HintKind.DEVICES, cpus=CPUSet.parse("12-15"), nodes=EMPTY)
    assert refused(gpu(1), other, milli=1000).summary == (
        f"nothing is near to all strict hints (/dev/x on CPUs 12-15, {GPU} on NUMA node 1)"
    )


def test_of_several_devices_of_a_resource_the_closest_counts() -> None:
    summary = refused(gpu(1, "a"), gpu(2, "b"), milli=5000).summary
    assert summary.endswith(": NUMA node #2 comes closest, 1 CPU short")


def test_devices_in_one_place_are_counted() -> None:
    report = explanation(gpu(2), gpu(2), milli=2000)
    assert "contains its device" in report.summary
    assert [(each.count, each.granted) for each in report.devices] == [(2, 2)]
    assert any(line.startswith(f"  2 x {GPU}") for line in text(report))


def test_the_kubelets_devices_have_their_ids() -> None:
    report = explanation(*(gpu(2, f"GPU-{letter}") for letter in "dabce"), milli=2000)
    assert [each.device for each in report.devices] == ["GPU-a, GPU-b, GPU-c and 2 more"]
    assert any(line.startswith(f"  5 x {GPU} GPU-a, GPU-b") for line in text(report))


def test_the_share_of_a_hint_has_two_decimals() -> None:
    table = [line for line in text(explanation(gpu(0), gpu(3))) if "root" in line]
    assert "0.66" in table[-1]
