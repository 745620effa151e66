"""What `explain` shows of a decision."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.criteria import CRITERIA
from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.event import Created
from nri_policy.engine.explanation import Explanation
from nri_policy.pools.supply import Column
from nri_policy.report import explanation_report, plain
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

NAMES = [criterion.name for criterion in CRITERIA]


def explained(driver: EngineDriver, container: Container) -> dict[str, Any]:
    placed = driver.engine.state.placed[container.id]
    shown: dict[str, Any] = plain(explanation_report(placed.explanation, placed.grant))
    return shown


def lost_on(shown: dict[str, Any]) -> dict[str, str | None]:
    return {each["pool"]: each["lost_on"] for each in shown["candidates"]}


def value(shown: dict[str, Any], pool: str, criterion: str) -> object:
    (candidate,) = [each for each in shown["candidates"] if each["pool"] == pool]
    return candidate["values"][NAMES.index(criterion)]


def test_the_criteria_are_those_of_the_specification_in_its_order() -> None:
    names = [criterion.name for criterion in CRITERIA]
    assert names == [
        *("isolated_fit", "affinity", "hints", "hint_depth", "memory_kind", "memory_burst"),
        *("cpu_burst", "memory_tightness", "cpu_class"),
        *("undisturbed_memory", "depth", "domains", "quiet", "capacity", "id"),
    ]
    assert [column for criterion in CRITERIA for column in criterion.columns] == list(Column)
    assert all(criterion.doc for criterion in CRITERIA)


def test_every_candidate_shows_its_values_and_what_it_lost_on() -> None:
    driver = EngineDriver()
    container = nodes.container(2000)
    driver.create(container)
    shown = explained(driver, container)
    assert shown["container"] == container.full_name
    assert shown["outcome"] == "placed"
    assert shown["pool"] == "NUMA node #1"
    assert shown["criteria"] == NAMES
    assert shown["summary"] == (
        "placed: 2 exclusive CPUs on NUMA node #1, because NUMA nodes #1, #2 and #3 are equally"
        " good, and the lowest number wins"
    )
    assert shown["request"] == {
        "sort": "normal",
        "qos": "Guaranteed",
        "exclusive": 2,
        "shared_milli": 0,
        "isolated": "no",
        "cpu_limit_milli": 2000,
        "source": "estimate",
    }
    assert lost_on(shown) == {
        "NUMA node #0": "capacity",
        "NUMA node #1": None,
        "NUMA node #2": "id",
        "NUMA node #3": "id",
        "socket #0": "memory_tightness",
        "socket #1": "memory_tightness",
        "root": "memory_tightness",
    }
    assert shown["decided_by"] == "id"
    assert all(each["fits"] and each["shortfall"] == 0 for each in shown["candidates"])
    assert all(len(each["values"]) == len(NAMES) for each in shown["candidates"])
    assert value(shown, "socket #0", "depth") == 1
    assert value(shown, "NUMA node #0", "capacity") == [1, 0]
    assert value(shown, "NUMA node #0", "hints") == [0, 0]


def test_what_decided_is_what_the_last_rival_lost_on() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(4000))
    driver.create(nodes.container(4000))
    driver.create(nodes.container(3000))
    container = nodes.container(3000)
    driver.create(container)
    shown = explained(driver, container)
    assert shown["pool"] == "NUMA node #0"
    assert shown["decided_by"] == "memory_tightness"
    shortfalls = {each["pool"]: (each["fits"], each["shortfall"]) for each in shown["candidates"]}
    assert shortfalls == {
        "NUMA node #0": (True, 0),
        "NUMA node #1": (False, 3000),
        "NUMA node #2": (False, 3000),
        "NUMA node #3": (False, 2000),
        "socket #0": (True, 0),
        "socket #1": (False, 2000),
        "root": (True, 0),
    }
    assert lost_on(shown)["NUMA node #1"] is None, "it was not compared"


def test_the_only_pool_that_fits_was_not_decided_by_anything() -> None:
    driver = EngineDriver()
    container = nodes.container(15_000)
    driver.create(container)
    shown = explained(driver, container)
    assert (shown["pool"], shown["decided_by"]) == ("root", None)
    assert shown["summary"] == (
        "placed: 15 exclusive CPUs on root, because no other pool has room: socket #1 is 7 CPUs"
        " short"
    )


@pytest.mark.parametrize(
    ("packing", "amounts", "why"),
    [
        ("spread", [1000, 1000, 1000], "most CPUs are left there"),
        ("tight", [2000, 1000], "fewest CPUs are left there (packing: tight)"),
        ("spread", [500, 500, 500, 700], "fewest containers share CPUs there"),
        (
            "spread",
            [500, 500, 500],
            "fewest containers share CPUs there, then most CPU is left to share there",
        ),
    ],
)
def test_it_says_in_which_way_the_room_left_decided(
    packing: str, amounts: list[int], why: str
) -> None:
    driver = EngineDriver(packing=packing)
    containers = [nodes.container(milli) for milli in amounts]
    for container in containers:
        driver.create(container)
    shown = explained(driver, containers[-1])
    assert (shown["decided_by"], shown["why"]) == ("capacity", why)


def test_a_refusal_is_explained_with_what_every_pool_lacked() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(4000))
    with pytest.raises(PlacementError) as refused:
        driver.handle(Created(container=nodes.container(12_000)))
    assert isinstance(refused.value.explanation, Explanation)
    shown: dict[str, Any] = plain(explanation_report(refused.value.explanation, None))
    assert shown["outcome"] == "refused"
    assert shown["summary"] == str(refused.value)
    assert (shown["pool"], shown["decided_by"]) == (None, None)
    assert {each["pool"]: each["shortfall"] for each in shown["candidates"]} == {
        "NUMA node #0": 9000,
        "NUMA node #1": 12_000,
        "NUMA node #2": 8000,
        "NUMA node #3": 8000,
        "socket #0": 9000,
        "socket #1": 4000,
        "root": 1000,
    }
    assert set(lost_on(shown).values()) == {None}


def test_aligned_pools_do_not_fit_but_lack_nothing() -> None:
    driver = EngineDriver(alignment="numa")
    container = nodes.container(2000)
    driver.create(container)
    shown = explained(driver, container)
    (root,) = [each for each in shown["candidates"] if each["pool"] == "root"]
    assert (root["fits"], root["shortfall"], root["lost_on"]) == (False, 0, None)
    assert shown["decided_by"] == "id"


def test_a_resize_in_place_was_not_decided_by_the_comparison() -> None:
    driver = EngineDriver()
    # with memory of its own the pool that it is in would win the comparison, too
    keeps_memory = {"memory.preserve.resource-policy.nri.io/pod": "true"}
    container, other = nodes.container(2000, annotations=keeps_memory), nodes.container(2000)
    for each in (container, other, *map(nodes.container, (2000, 1000, 1000, 1000))):
        driver.create(each)
    driver.stop(other)
    driver.resize(container, nodes.resources(1000, 1000))
    shown = explained(driver, container)
    assert (shown["pool"], shown["outcome"]) == ("NUMA node #1", "resized where it was")
    explanation = driver.engine.state.placed[container.id].explanation
    assert explanation.table is not None
    assert explanation.table.best() == 3, "node 2 is empty"
    assert shown["decided_by"] is None
    assert set(lost_on(shown).values()) == {None}


def test_a_moved_guest_shows_where_it_is_and_why() -> None:
    driver = EngineDriver("package:1 numa:2 core:2")
    guest = nodes.best_effort()
    driver.create(guest)
    assert explained(driver, guest)["decided_by"] == "capacity"
    driver.create(nodes.container(2000))
    driver.create(nodes.container(1000))
    shown = explained(driver, guest)
    assert shown["pool"] == "socket #0"
    assert shown["decided_by"] is None
    assert set(lost_on(shown).values()) == {None}
    assert "moved from NUMA node #1 to socket #0" in shown["notes"][0]


@pytest.mark.parametrize(
    ("annotation", "namespace", "summary"),
    [
        ("cpu.preserve", "default", "left as it is: preserved"),
        ("prefer-reserved-cpus", "default", "on the reserved CPUs: 500m reserved"),
        (None, "kube-system", "on the reserved CPUs: 500m reserved"),
    ],
)
def test_without_a_comparison_there_are_no_candidates(
    annotation: str | None, namespace: str, summary: str
) -> None:
    annotations = {f"{annotation}.resource-policy.nri.io/pod": "true"} if annotation else {}
    driver = EngineDriver()
    container = nodes.container(500, namespace=namespace, annotations=annotations)
    driver.create(container)
    shown = explained(driver, container)
    assert (shown["candidates"], shown["decided_by"]) == ([], None)
    assert shown["summary"] == summary
    assert summary.startswith(shown["outcome"])


def test_a_mixed_request_is_told_in_full() -> None:
    driver = EngineDriver()
    container = nodes.container(1500)
    driver.create(container)
    assert explained(driver, container)["summary"] == (
        "placed: 1 exclusive CPU and shared CPUs (requests 500m) on NUMA node #1, "
        "because NUMA nodes #1, #2 and #3 are equally good, and the lowest number wins"
    )


@pytest.mark.parametrize(
    ("zone", "milli", "notes"),
    [
        ("node-2", 2000, ["placement.nri/zone: kept"]),
        ("socket #1", 6000, ["placement.nri/zone: kept"]),
        (
            "node-2",
            6000,
            ["placement.nri/zone: not kept, it is on socket #1: it has no room there"],
        ),
        ("node-7", 2000, []),
    ],
)
def test_it_says_whether_the_zone_of_the_scheduler_was_kept(
    zone: str, milli: int, notes: list[str]
) -> None:
    driver = EngineDriver()
    container = nodes.container(milli, annotations={"placement.nri/zone": zone})
    driver.create(container)
    assert explained(driver, container)["notes"] == notes


def test_a_zone_gives_way_to_what_counts_before_hints() -> None:
    driver = EngineDriver()
    first = nodes.container(2000)
    driver.create(first)  # on node 1
    away = """c0:
    - scope: {operator: AlwaysTrue}
      match: {key: name, operator: Equals, values: [c0]}
    """
    zone = {"placement.nri/zone": "node-1"}
    container = nodes.container(
        1000, annotations=zone | {"resource-policy.nri.io/anti-affinity": away}
    )
    driver.create(container)
    (note,) = explained(driver, container)["notes"]
    assert note.startswith("placement.nri/zone: not kept")
    assert note.endswith("other criteria decided before hints")


@pytest.mark.parametrize(
    ("milli", "annotations", "expected"),
    [
        (12_000, {}, (Lack.CPU, "root", 12_000, 11_000)),
        (4000, {"require-isolated-cpus": "true"}, (Lack.ISOLATED_CPU, "root", 4000, 0)),
    ],
)
def test_a_refusal_carries_what_is_lacking_and_where_there_is_most(
    milli: int, annotations: dict[str, str], expected: tuple[Lack, str, int, int]
) -> None:
    driver = EngineDriver()
    driver.create(nodes.container(4000))
    keys = {f"{key}.resource-policy.nri.io/pod": text for key, text in annotations.items()}
    with pytest.raises(PlacementError) as refused:
        driver.handle(Created(container=nodes.container(milli, annotations=keys)))
    error = refused.value
    assert (error.lack, error.pool, error.requested.milli, error.available) == expected


def test_a_refusal_for_want_of_memory_carries_bytes() -> None:
    driver = EngineDriver()
    memory = driver.engine.layout.memory_bytes
    big = nodes.container(1000)
    with pytest.raises(PlacementError) as refused:
        driver.handle(
            Created(
                container=replace(big, resources=replace(big.resources, memory_limit=2 * memory))
            )
        )
    error = refused.value
    assert (error.lack, error.pool, error.requested.memory) == (Lack.MEMORY, "root", 2 * memory)
    assert 0 < error.available <= memory


def test_affinities_that_match_nobody_say_so() -> None:
    def shown(affinity: str, **spec: Any) -> Any:
        driver = EngineDriver(**spec)
        driver.create(nodes.container(1000))
        wish = {"resource-policy.nri.io/affinity": affinity} if affinity else None
        container = nodes.container(1000, annotations=wish)
        driver.create(container)
        return explained(driver, container)["affinity"]

    name = nodes.container(1000).name
    match = "match: {key: pod/name, operator: Equals, values: [nobody]}"
    nobody = "no container that was there matches its affinities"
    assert shown(f"{name}: [{{{match}}}]") == [
        f"{nobody}; without `scope` only its own pod is searched"
    ]
    everywhere = "scope: {operator: AlwaysTrue}"
    assert shown(f"{name}: [{{{everywhere}, {match}}}]") == [nobody]
    assert shown(f"{name}: [later]") == [nobody]
    assert shown("", colocatePods=True) == [], "nobody wrote that"
    (pulled,) = shown(f"{name}: [{{{everywhere}, match: {{operator: AlwaysTrue}}}}]")
    assert pulled.startswith("pulled by ")


def test_why_here_is_told_by_the_pools_elsewhere_not_by_those_around_it() -> None:
    driver = EngineDriver("package:2 numa:2 core:2 pu:2 isolated=14-15", preferIsolatedCPUs=True)
    ticker = nodes.container(1000)
    driver.create(ticker)
    shown = explained(driver, ticker)
    assert shown["pool"] == "NUMA node #3"
    assert shown["why"] == "only NUMA node #3 has enough isolated CPUs"
    assert shown["summary"].endswith("because only NUMA node #3 has enough isolated CPUs")
    assert shown["decided_by"] == "memory_tightness", "against the second-best, around it"
