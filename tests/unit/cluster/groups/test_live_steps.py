"""JobSets whose Jobs start one after the other, and workers that wait for a ready leader.

The pods of a step exist only once those of the step before are ready or complete: no group waits
for pods of another step.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.job_set_play import (
    ASKS,
    LWS,
    OURS,
    PREFERRED,
    SHARED,
    after,
    complete,
    end,
    is_let_go,
    job_set,
    pod,
    replicated,
    start,
    stay,
)
from tests.support.placement_world import Play, empty, racks_of
from tests.unit.cluster.written import pod_spec


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_jobs_that_wait_for_others_need_no_pods_of_these(late: bool, gated: bool) -> None:
    play = empty()
    data, model = replicated("data", 1), replicated("model", 1)
    after = [{"name": name, "status": "Complete"} for name in ("model", "data")]
    jobs = (data, model, replicated("node", 2, dependsOn=after))
    if not late:
        job_set(play, *jobs)
    first = [*start(play, "data", 1, 3, gated), *start(play, "model", 1, 3, gated)]
    play.rest()
    if late:
        job_set(play, *jobs)
        play.rest()
    assert all(is_let_go(play, name) for name in first)
    end(play, *first)
    play.rest()
    nodes = start(play, "node", 2, 3)
    play.rest()
    assert all(is_let_go(play, name) for name in nodes)
    assert len({*racks_of(play, "s-node-0")}) == 1
    status = play.world.group("jobset-s.node").status
    assert sum(one.count for each in status.assignments for one in each.domains) == len(nodes)


def test_jobs_in_order_are_a_group_each() -> None:
    play = empty()
    order = {"startupPolicyOrder": "InOrder"}
    job_set(play, replicated("driver", 1), replicated("w", 2), startupPolicy=order)
    (driver,) = start(play, "driver", 1, 2)
    play.rest()
    assert is_let_go(play, driver)
    workers = start(play, "w", 2, 2)
    play.rest()
    assert all(is_let_go(play, name) for name in workers)
    assert play.world.group("jobset-s.w").pod_sets[0].count == 2
    assert play.world.group("jobset-s").pod_sets[0].count == 1


def test_jobs_that_start_together_wait_for_each_other() -> None:
    play = empty()
    job_set(play, replicated("a", 1), replicated("b", 1))
    (first,) = start(play, "a", 1, 2)
    play.rest()
    assert not is_let_go(play, first)
    assert "Jobs of the JobSet that are missing: 1" in play.notices[first]
    (second,) = start(play, "b", 1, 2)
    play.rest()
    assert is_let_go(play, first)
    assert is_let_go(play, second)


def test_jobs_that_wait_for_one_to_be_ready_and_to_be_complete_do_not_wait_for_each_other() -> None:
    """The first may be what lets the Job that both wait for become complete."""
    play = empty()
    helper, last = replicated("b", 1, **after("a", "Ready")), replicated("c", 1)
    job_set(play, replicated("a", 1), helper, {**last, **after("a", "Complete")})
    start(play, "a", 1, 3)
    play.rest()
    (second,) = start(play, "b", 1, 3)
    play.rest()
    assert is_let_go(play, second)


def three_jobs(play: Play, b: Any) -> None:
    """Run Jobs a and b, where b starts as it says, and c after a is complete; a is complete."""
    c = replicated("c", 2, **after("a", "Complete"))
    job_set(play, replicated("a", 1), {**replicated("b", 1), **b}, c)
    start(play, "a", 1, 3, asks=SHARED)
    if b:
        play.rest()
    start(play, "b", 1, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r0", "r0"]
    complete(play, "a")


@pytest.mark.parametrize("b", [{}, after("a", "Ready")])
@pytest.mark.parametrize("seen", [True, False])
def test_a_job_after_a_complete_one_shares_the_rack_with_those_that_run(b: Any, seen: bool) -> None:
    """Whether b is in a group with a, or alone; c fits best in rack r1."""
    play = empty()
    three_jobs(play, b)
    if seen:
        play.rest()
    stay(play, "h2", 4)
    start(play, "c", 2, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-c") == ["r0", "r0"]


@pytest.mark.parametrize("b", [{}, after("a", "Ready")])
@pytest.mark.parametrize("seen", [True, False])
def test_a_job_after_complete_ones_goes_anywhere(b: Any, seen: bool) -> None:
    """No pod of the others is there any more."""
    play = empty()
    three_jobs(play, b)
    complete(play, "b")
    if seen:
        play.rest()
    stay(play, "h2", 4)
    start(play, "c", 2, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-c") == ["r1", "r1"]


def in_order(play: Play, asks: Any) -> list[str]:
    """Start a driver in rack r0, then two workers, which fit best in r1; return the workers."""
    job_set(
        play,
        replicated("driver", 1),
        replicated("w", 2),
        startupPolicy={"startupPolicyOrder": "InOrder"},
    )
    start(play, "driver", 1, 2, asks=asks)
    play.rest()
    assert racks_of(play, "s-driver-0") == ["r0"]
    stay(play, "h2", 4)
    workers = start(play, "w", 2, 2, asks=asks)
    play.rest()
    return workers


def test_jobs_that_start_later_share_the_rack_of_those_before() -> None:
    play = empty()
    in_order(play, ASKS)
    assert racks_of(play, "s-w-0") == ["r1", "r1"]
    play = empty()
    in_order(play, SHARED)
    assert racks_of(play, "s-w-0") == ["r0", "r0"]
    play = empty()
    in_order(play, PREFERRED)
    assert racks_of(play, "s-w-0") == ["r0", "r0"]


def test_groups_that_users_name_in_a_jobset_go_anywhere() -> None:
    play = empty()
    names = [{**SHARED, f"{OURS}group": f"x.{name}", f"{OURS}group-size": "1"} for name in "ab"]
    (first,) = start(play, "a", 1, 2, asks=names[0])
    play.rest()
    stay(play, "h2", 2)
    stay(play, "h3", 4)
    (second,) = start(play, "b", 1, 2, asks=names[1])
    play.rest()
    assert [racks_of(play, name) for name in (first, second)] == [["r0"], ["r1"]]


def test_without_room_there_they_wait_and_say_where() -> None:
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 3)
    stay(play, "h4", 4)
    stay(play, "h5", 4)
    workers = in_order(play, SHARED)
    status = play.world.group("jobset-s.w").status
    assert status.state == "Waiting"
    assert status.message.startswith(
        "fits nowhere beside what stays: it shares rack r0 with default/jobset-s of its JobSet;"
        " there, w finds no room: topology"
    )
    play.world.delete("pods", "on-h1")
    play.rest()
    assert all(is_let_go(play, name) for name in workers)
    assert racks_of(play, "s-w-0") == ["r0", "r0"]
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 3)
    stay(play, "h4", 4)
    stay(play, "h5", 4)
    in_order(play, PREFERRED)
    assert racks_of(play, "s-w-0") == ["r1", "r1"]


def test_a_refusal_names_no_rack_but_that_of_the_jobs_before() -> None:
    """Rack r1 comes closest to hold the workers, but would not help, and r2 is full."""
    play = empty()
    for host, cpus in {"h0": 2, "h1": 3, "h3": 3, "h4": 4, "h5": 4}.items():
        stay(play, host, cpus)
    workers = in_order(play, SHARED)
    play.world.delete("pods", "on-h2")
    stay(play, "h2", 2)
    play.rest()
    status = play.world.group("jobset-s.w").status
    assert status.state == "Waiting"
    assert status.message.startswith(
        "fits nowhere beside what stays: it shares rack r0 with default/jobset-s of its JobSet"
    )
    assert "r1" not in status.message
    play.now += 600.0
    play.rest()
    assert play.world.group("jobset-s.w").status.reserved == []
    end(play, "s-driver-0-0")
    play.world.put("jobs", play.world.objects["jobs"]["s-driver-0"] | {"spec": {"parallelism": 0}})
    play.world.delete("pods", "on-h3")
    play.rest()
    assert all(is_let_go(play, name) for name in workers)
    assert racks_of(play, "s-w-0") == ["r1", "r1"]


def test_hosts_are_set_aside_where_the_jobs_before_are() -> None:
    """Beside the driver no worker fits now, in rack r1 one does. The driver runs on meanwhile."""
    play = empty()
    stay(play, "h0", 1)
    stay(play, "h1", 4, ends=True)
    stay(play, "h3", 2, ends=True)
    stay(play, "h4", 4)
    stay(play, "h5", 4)
    in_order(play, SHARED)
    play.now += 600.0
    play.rest()
    assert play.world.group("jobset-s.w").status.reserved == ["h1"]


def test_hosts_are_set_aside_elsewhere_once_the_jobs_before_have_ended() -> None:
    """The driver has moved to rack r2, where no host could ever hold the workers."""
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4, ends=True)
    stay(play, "h3", 4)
    stay(play, "h4", 4)
    stay(play, "h5", 2)
    in_order(play, SHARED)
    play.now += 600.0
    play.rest()
    assert play.world.group("jobset-s.w").status.reserved == ["h1"]
    play.world.delete("nodes", "h0")
    play.world.delete("pods", "s-driver-0-0")
    start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-driver-0") == ["r2"]
    assert play.world.group("jobset-s.w").status.reserved == []
    complete(play, "driver")
    play.rest()
    assert play.world.group("jobset-s.w").status.reserved == ["h1"]


def test_jobs_that_wait_are_tried_again_when_those_before_move() -> None:
    play = empty()
    stay(play, "h1", 4)
    stay(play, "h3", 4)
    workers = in_order(play, SHARED)
    assert not any(is_let_go(play, name) for name in workers)
    play.world.delete("nodes", "h0")
    play.world.delete("pods", "s-driver-0-0")
    start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-driver-0") == ["r2"]
    assert racks_of(play, "s-w-0") == ["r2", "r2"]


def of_lws(play: Play, index: int) -> str:
    name = "m-0" if index == 0 else f"m-0-{index}"
    labels = {"name": "m", "group-index": "0", "worker-index": str(index), "size": "3"}
    owner = "StatefulSet/m" if index == 0 else "StatefulSet/m-0"
    pod(play, name, owner, {f"{LWS}{key}": value for key, value in labels.items()})
    item = play.world.objects["pods"][name]  # the API server adds what no template has
    item["spec"]["tolerations"] = [
        {"key": "not-ready", "operator": "Exists", "effect": "NoExecute"}
    ]
    play.world.put("pods", item)
    return name


@pytest.mark.parametrize("policy", ["LeaderReady", "LeaderCreated"])
@pytest.mark.parametrize("late", [False, True])
def test_a_leader_that_has_to_be_ready_first_gets_its_place_with_its_workers(
    late: bool, policy: str
) -> None:
    play = empty()
    workers = {"metadata": {"annotations": ASKS}, "spec": pod_spec({"cpu": 2})}
    template = {"size": 3, "workerTemplate": workers}
    spec = {"startupPolicy": policy, "leaderWorkerTemplate": template}
    made = {"metadata": {"name": "m"}, "spec": spec}
    if not late:
        play.world.put("lws", made)
    leader = of_lws(play, 0)
    play.rest()
    if late:
        play.world.put("lws", made)
        play.rest()
    assert is_let_go(play, leader) == (policy == "LeaderReady")
    followers = [of_lws(play, index) for index in (1, 2)]
    play.rest()
    assert all(is_let_go(play, name) for name in (leader, *followers))
    assert [(each.name, each.count) for each in play.world.group("lws-m-0").pod_sets] == [
        ("main", 3)
    ]
    assert len({*racks_of(play, "m-0")}) == 1
    status = play.world.group("lws-m-0").status
    hosts = [(one.values[-2:], one.count) for each in status.assignments for one in each.domains]
    assert sum(count for _, count in hosts) == 3
