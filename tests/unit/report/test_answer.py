"""What a container has, in the words that open `explain`."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from nri_policy.cli.node.holdings import amount
from nri_policy.engine.event import Created, Stopped
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import view_of
from nri_policy.report import AnswerReport, answer_report, container_report, explanation_report
from nri_policy.report import answer as answer_module
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from tests.support import nodes, rooms
from tests.support.engine_driver import EngineDriver


def answers(*containers: Container, machine: str = nodes.SMALL, **spec: Any) -> list[AnswerReport]:
    """Return the answer about each container after all of them were created on a machine."""
    driver = EngineDriver(machine, **spec)
    for each in containers:
        driver.handle(Created(container=each))
    view = view_of(driver.engine)
    return [answer_report(view, view.placed[each.id]) for each in containers]


def annotated(key: str, value: str = "true") -> dict[str, str]:
    return {f"{key}.resource-policy.nri.io/pod": value}


def said(answer: AnswerReport) -> tuple[str, str, str, str]:
    return (
        f"{answer.cpus}, {answer.cpus_are}",
        f"{answer.mems}, {answer.memory_is}",
        answer.asked,
        answer.got,
    )


def test_exclusive_cpus_are_cores_and_threads_in_the_smallest_pool_around_them() -> None:
    two, three, wide = answers(nodes.container(2000), nodes.container(3000), nodes.container(5000))
    assert said(two) == (
        "4-5, exclusive, 1 core on NUMA node #1",
        "1, dram",
        "2 CPUs",
        "2 exclusive",
    )
    assert three.cpus_are == "exclusive, 1 core and 1 thread on NUMA node #2"
    assert wide.cpus_are.startswith("exclusive, 2 cores and 1 thread on ")


def test_whole_cores_and_hidden_threads_are_why_it_got_something_else() -> None:
    (whole,) = answers(nodes.container(3000, annotations=annotated("full-cores", "require")))
    (hidden,) = answers(nodes.container(2000, annotations=annotated("hide-hyperthreads")))
    assert (whole.asked, whole.got) == ("3 CPUs", "4 exclusive: whole cores")
    assert (hidden.asked, hidden.got) == ("2 CPUs", "2 exclusive, sees 1: hide-hyperthreads")
    assert str(hidden.cpus) == "4"


def test_one_for_which_there_was_no_room_says_what_it_asked_for() -> None:
    driver = EngineDriver("package:1 core:4 pu:1")
    whole, part, none = nodes.container(2000), nodes.container(2000), nodes.container(300)
    for each in (whole, part, none):
        driver.handle(Created(container=each, admitted=True))
    view = view_of(driver.engine)
    answer = answer_report(view, view.placed[part.id])
    assert (answer.asked, answer.got) == ("2 CPUs", "1 shared: no room for 2 exclusive CPUs")
    answer = answer_report(view, view.placed[none.id])
    lack = "no room for 300m of a shared CPU"
    assert (answer.asked, answer.got) == ("300m CPU", f"shared CPUs: {lack}")
    shown = {each.placed.container.id: container_report(each, "") for each in view.holdings()}
    assert [amount(shown[each.id]) for each in (whole, part, none)] == ["2", "1 of 2", "0 of 300m"]
    assert shown[whole.id].requested_milli is None
    placed = view.placed[part.id]
    report = explanation_report(placed.explanation, placed.grant)
    assert report.why == "no pool has room for 2 exclusive CPUs: socket #0 is 1 CPU short"
    assert report.because is not None
    assert report.because.endswith("because there was no room for 2 exclusive CPUs.")
    assert report.summary.startswith("placed: shared CPUs (1 of 2 requested) on socket #0, because")
    assert report.request is not None
    assert report.request.exclusive == 2


def test_a_summary_says_what_was_granted() -> None:
    driver = EngineDriver(fullCores="require")
    container = nodes.container(3000)
    driver.create(container)
    assert driver.decision.explanation is not None
    report = explanation_report(driver.decision.explanation, driver.decision.grant)
    assert report.summary.startswith("placed: 4 exclusive CPUs (whole cores) on NUMA node #")


def test_the_containers_that_share_and_ask_for_most_are_named() -> None:
    many = [nodes.container(milli, name="web") for milli in (100, 400, 200, 300, 500)]
    first, *_ = answers(*many, machine="package:1 core:4 pu:1")
    amounts = re.findall(r"\((\d+m) CPU\)", first.cpus_are)
    assert amounts == ["500m", "400m", "300m"]
    assert " and 1 more, " in first.cpus_are


def test_cpus_without_memory_beside_them_are_counted() -> None:
    """Memory of a container that was moved up the tree stays where it is."""
    layout = EngineDriver("package:2 numa:1 core:4 pu:1").engine.layout
    near, far = CPUSet.parse("1-3"), CPUSet.parse("2-6")
    assert answer_module._away(layout, near, CPUSet.parse("0")) == ""
    assert answer_module._away(layout, far, CPUSet.parse("0")) == "3 of 5 CPUs are away from it"
    assert answer_module._away(layout, near, CPUSet.parse("1")) == "3 of 3 CPUs are away from it"
    assert answer_module._away(layout, near, EMPTY) == "", "it has no memory of its own"


def test_containers_that_share_are_named() -> None:
    one, other, guest = answers(
        nodes.container(500),
        nodes.container(1500),
        nodes.best_effort(),
        machine="package:1 core:4 pu:1",
    )
    assert re.fullmatch(
        r"shared with default/pod\d+/c0 \(1500m CPU\), default/pod\d+/c0 \(no CPU\),"
        " 2 cores on socket #0",
        one.cpus_are,
    )
    assert one.got.startswith("500m shared: it asks for less than one CPU")
    assert other.cpus_are.startswith("1 exclusive, 1 core on socket #0; 2-3 shared with default/")
    assert (other.asked, other.got) == ("1500m CPU", "1 exclusive and 500m shared")
    assert (guest.asked, guest.got.partition(":")[0]) == ("no CPU", "shared CPUs")
    (alone,) = answers(nodes.container(500))
    assert alone.cpus_are == "shared with no other container now, 2 cores on NUMA node #1"


def test_reserved_preserved_and_unpinned_containers_say_so() -> None:
    (reserved,) = answers(nodes.container(100, annotations=annotated("prefer-reserved-cpus")))
    assert reserved.cpus_are == "reserved, shared with no other container now"
    assert reserved.got == ("100m reserved: its annotation prefer-reserved-cpus asks for that")
    (kept,) = answers(nodes.container(1000, annotations=annotated("cpu.preserve")))
    assert (kept.cpus_are, kept.asked) == ("left as they are", "no pinning")
    assert kept.got == "preserved: its annotation cpu.preserve asks for that"
    assert kept.memory_is == "dram"


def test_what_is_decided_and_not_set_is_not_what_it_got() -> None:
    (own,) = answers(nodes.container(2000), pinCPU=False, pinMemory=False)
    assert (str(own.cpus), str(own.mems)) == ("", "")
    assert own.cpus_are == (
        "left as they are, because pinCPU is false; decided: 4-5, exclusive, 1 core on NUMA node #1"
    )
    assert own.memory_is == "left to the kernel, because pinMemory is false; decided: node 1, dram"
    assert own.got == "nothing; decided: 2 exclusive"
    sharer, _ = answers(
        nodes.container(500), nodes.best_effort(), machine="package:1 core:4 pu:1", pinCPU=False
    )
    assert "decided: 1-3, shared with default/" in sharer.cpus_are
    kept = nodes.container(1000, annotations=annotated("cpu.preserve"))
    (kept_anyway,) = answers(kept, pinCPU=False)
    assert kept_anyway.cpus_are == "left as they are"
    (pinned,) = answers(nodes.container(2000), pinMemory=False)
    assert (str(pinned.cpus), pinned.got) == ("4-5", "2 exclusive")


def test_isolated_cpus_and_kinds_of_memory_are_named() -> None:
    (isolated,) = answers(
        nodes.container(1000, annotations=annotated("prefer-isolated-cpus")),
        machine="package:2 core:4 pu:1 isolated=2-3",
    )
    assert isolated.cpus_are == "isolated, 1 core on socket #0"
    (tiered,) = answers(
        nodes.container(1000), machine="package:2(pmem=8GiB) numa:1(memory=4GiB) core:4 pu:1"
    )
    assert tiered.memory_is == "dram and pmem"


def test_what_kept_it_from_one_numa_node_is_said() -> None:
    (wide,) = answers(nodes.container(10_000))
    assert wide.better == (
        "its CPUs are in more than one NUMA node: socket #1 was 2 CPUs short when it was placed",
    )
    (close,) = answers(nodes.container(2000))
    assert close.better == ()


def test_a_spread_over_devices_that_was_asked_for_is_not_to_be_better() -> None:
    def asking(milli: int) -> Container:
        plain = nodes.container(milli, annotations=annotated("pick-resources-by-hints"))
        gpus = (
            Hint(source="gpu", kind=HintKind.POD_RESOURCES, cpus=CPUSet(), nodes=CPUSet([node]))
            for node in (0, 2)
        )
        return replace(plain, hints=tuple(gpus))

    (asked,) = answers(asking(2000))
    assert str(asked.cpus) == "1,8"
    assert asked.better == ()
    (wide,) = answers(asking(9000))
    assert wide.better[0].startswith("its CPUs are in more than one NUMA node")


def test_who_has_which_part_of_a_room_is_one_line() -> None:
    whole = rooms.pod(4000)
    parts = (("main", 2000), ("log", 900), ("mesh", 900))
    main, log, _ = answers(*(rooms.tenant(whole, name, milli) for name, milli in parts))
    assert main.room == log.room == "room of 4: 2 main, 2 shared by log, mesh"
    assert (main.got, log.got) == ("2 exclusive", "a share of 2 CPUs of its pod's room")
    mesh = f"{whole.namespace}/{whole.name}/mesh (900m CPU)"
    assert log.cpus_are == f"shared with {mesh}, 1 core on NUMA node #1"
    (alone,) = answers(nodes.container(500))
    assert alone.room is None


def test_a_kernel_partition_is_exclusive_against_the_whole_machine_or_it_says_why_not() -> None:
    mixed = annotated("prefer-shared-cpus", "false")
    containers = nodes.container(2000), nodes.container(2500, annotations=mixed)
    own, some = answers(*containers, nodes.best_effort(), exclusivePartitions="isolated")[:2]
    assert own.cpus_are == (
        "exclusive against the whole machine (kernel partition, isolated), 1 core on NUMA node #1"
    )
    assert own.partition is UNSET
    assert some.partition == "no kernel partition: it also shares CPUs with others"
    share = nodes.container(500, annotations=annotated("exclusive-partition", "isolated"))
    asking, silent = answers(share, nodes.container(500), exclusivePartitions="isolated")
    assert asking.partition == "no kernel partition: it has no exclusive CPUs"
    assert silent.partition is UNSET, "the setting is for containers with exclusive CPUs"
    driver = EngineDriver(exclusivePartitions="isolated")
    driver.handle(Created(container=containers[0]))
    view = view_of(driver.engine)
    answer = answer_report(view, view.placed[containers[0].id], partition_error="not exclusive")
    assert answer.cpus_are == "exclusive, 1 core on NUMA node #1"
    assert answer.partition == "no kernel partition: not exclusive"
    report = container_report(view.holding(view.placed[containers[0].id]), "running")
    assert report.partition == "isolated"
    driver.handle(Stopped(container_id=containers[0].id, keeps=True))
    view = view_of(driver.engine)
    answer = answer_report(view, view.placed[containers[0].id])
    assert answer.cpus_are.endswith(
        "; it has ended, and keeps them until its cgroup is no kernel partition"
    )
