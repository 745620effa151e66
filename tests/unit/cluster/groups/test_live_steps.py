"""JobSets whose Jobs start one after the other, and workers that wait for a ready leader.

The pods of a step exist only once those of the step before are ready or complete: no group waits
for pods of another step.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.placement_world import GATE, INDEX, OTHER, Play, empty, hosts_of, racks_of
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"
OURS = "placement.nri/"
JOBSET = "jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
ASKS = {"kueue.x-k8s.io/podset-required-topology": RACK}
SHARED = {f"{OURS}group-required-topology": RACK}
PREFERRED = {f"{OURS}group-preferred-topology": RACK}


def replicated(name: str, pods: int, **more: Any) -> Any:
    job = {"parallelism": pods, "template": {"spec": pod_spec({"cpu": 2})}}
    return {"name": name, "replicas": 1, "template": {"spec": job}, **more}


def sharing(name: str, pods: int, asks: Any = SHARED, **more: Any) -> Any:
    made = replicated(name, pods, **more)
    made["template"]["spec"]["template"]["metadata"] = {"annotations": asks}
    return made


def job_set(play: Play, *jobs: Any, **more: Any) -> None:
    play.world.put("jobsets", {"metadata": {"name": "s"}, "spec": {"replicatedJobs": jobs, **more}})


def pod(  # noqa: PLR0917
    play: Play, name: str, owner: str, labels: Any, gated: bool = True, asks: Any = ASKS
) -> None:
    kind, _, own = owner.partition("/")
    reference = {"kind": kind, "name": own, "uid": f"u-{own}", "controller": True}
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, "ownerReferences": [reference]}
    spec = pod_spec({"cpu": 2}, schedulingGates=[{"name": GATE}, {"name": OTHER}] if gated else [])
    spec["restartPolicy"] = "Never" if kind == "Job" else "Always"
    metadata["annotations"] = asks if gated else {}
    play.world.put("pods", {"metadata": metadata, "spec": spec})


def start(  # noqa: PLR0917
    play: Play, kind: str, pods: int, jobs: int, gated: bool = True, asks: Any = ASKS
) -> list[str]:
    """Make a Job of the JobSet, which has as many *jobs*, and its pods; return their names."""
    labels = {f"{JOBSET}{key}": "s" for key in ("jobset-name", "jobset-uid")}
    labels[f"{JOBSET}replicatedjob-name"] = kind
    metadata = {"name": f"s-{kind}-0", "uid": f"u-s-{kind}-0", "labels": labels}
    spec = {"parallelism": pods, "completions": pods}
    play.world.put("jobs", {"metadata": metadata, "spec": spec})
    names = [f"s-{kind}-0-{index}" for index in range(pods)]
    for index, name in enumerate(names):
        own = {f"{JOBSET}global-replicas": str(jobs), f"{JOBSET}job-index": "0", INDEX: str(index)}
        pod(play, name, f"Job/s-{kind}-0", labels | own, gated, asks)
    return names


def end(play: Play, *names: str) -> None:
    for name in names:
        item = play.world.objects["pods"][name]
        play.world.put("pods", {**item, "status": {"phase": "Succeeded"}})


def is_let_go(play: Play, name: str) -> bool:
    gates = play.world.objects["pods"][name]["spec"].get("schedulingGates") or ()
    return {"name": GATE} not in gates


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


def after(name: str, status: str) -> Any:
    return {"dependsOn": [{"name": name, "status": status}]}


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


def complete(play: Play, kind: str) -> None:
    """Have all pods of a Job succeed, and the Job know it."""
    pods = [*play.world.pods_of(f"s-{kind}-0")]
    end(play, *pods)
    done = {"succeeded": len(pods), "conditions": [{"type": "Complete", "status": "True"}]}
    play.world.put("jobs", {**play.world.objects["jobs"][f"s-{kind}-0"], "status": done})


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


def stay(play: Play, host: str, cpus: int, ends: bool = False) -> None:
    """Have a pod on a host, of no group."""
    restart = "Never" if ends else "Always"
    spec = pod_spec({"cpu": cpus}, nodeName=host, restartPolicy=restart)
    play.world.put("pods", {"metadata": {"name": f"on-{host}", "uid": host}, "spec": spec})


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


def declare(play: Play, asks: Any) -> None:
    """Make a JobSet of a driver and two workers, who start after it."""
    order = {"startupPolicyOrder": "InOrder"}
    job_set(play, sharing("driver", 1, asks), sharing("w", 2, asks), startupPolicy=order)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("asks", [SHARED, PREFERRED])
def test_a_driver_goes_where_its_workers_fit_too(asks: Any, late: bool) -> None:
    """By itself it would fit best in rack r0. The JobSet may be seen after its pod."""
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4)
    if not late:
        declare(play, asks)
    start(play, "driver", 1, 2, asks=asks)
    play.rest()
    if late:
        assert racks_of(play, "s-") == []
        declare(play, asks)
        play.rest()
    start(play, "w", 2, 2, asks=asks)
    play.rest()
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


@pytest.mark.parametrize("asks", [SHARED, PREFERRED])
def test_a_driver_does_not_wait_for_room_for_its_workers(asks: Any) -> None:
    play = empty()
    for host, cpus in {"h0": 2, "h1": 4, "h2": 4, "h4": 4}.items():
        stay(play, host, cpus)
    declare(play, asks)
    start(play, "driver", 1, 2, asks=asks)
    play.rest()
    assert racks_of(play, "s-") == ["r0"]


def test_a_driver_leaves_room_for_all_pods_of_all_steps() -> None:
    """Rack r0 has room for the driver, r1 for it and either both Jobs of w or x, r2 for all."""
    play = empty()
    for host, cpus in {"h0": 2, "h1": 4, "h2": 2}.items():
        stay(play, host, cpus)
    w = sharing("w", 1, **after("driver", "Ready")) | {"replicas": 2}
    job_set(play, sharing("driver", 1), w, sharing("x", 1, **after("w", "Ready")))
    start(play, "driver", 1, 4, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r2"]


def test_steps_leave_room_for_those_that_run_beside_them() -> None:
    """Not for those that start once others are complete, or after such ones."""
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4)
    last = sharing("w", 2, **after("main", "Ready"))
    job_set(play, sharing("a", 1), sharing("main", 1, **after("a", "Complete")), last)
    start(play, "a", 1, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r0"]
    complete(play, "a")
    play.rest()
    start(play, "main", 1, 3, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-main") == ["r1"]


def test_a_later_step_with_a_malformed_request_leaves_the_first_alone() -> None:
    play = empty()
    stay(play, "h0", 2)
    stay(play, "h1", 4)
    bad = SHARED | {"kueue.x-k8s.io/podset-slice-size": "x"}
    job_set(play, sharing("driver", 1), sharing("w", 2, bad, **after("driver", "Ready")))
    start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    assert racks_of(play, "s-") == ["r0"]


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


def run_both(play: Play) -> None:
    """Run a driver, then its two workers, who share its rack."""
    order = {"startupPolicyOrder": "InOrder"}
    job_set(play, replicated("driver", 1), replicated("w", 2), startupPolicy=order)
    for kind, pods in (("driver", 1), ("w", 2)):
        start(play, kind, pods, 2, asks=SHARED)
        play.rest()


def test_a_driver_whose_host_fails_goes_back_to_the_rack_of_its_workers() -> None:
    """It has lost all of its group; it would fit best in the other rack."""
    play = empty(hosts_in_rack=3)
    run_both(play)
    stay(play, "h3", 4)
    stay(play, "h4", 4)
    stay(play, "h5", 2)
    (lost,) = hosts_of(play, "s-driver-0")
    kept = hosts_of(play, "s-w-0")
    assert {lost, *kept} < {"h0", "h1", "h2"}
    assert lost not in kept
    play.world.delete("nodes", lost)
    play.world.delete("pods", "s-driver-0-0")
    start(play, "driver", 1, 2, asks=SHARED)
    play.rest()
    assert hosts_of(play, "s-driver-0").keys() < {"h0", "h1", "h2"}
    assert hosts_of(play, "s-w-0") == kept


def in_rack_0(**failure: Any) -> Play:
    """Run a driver and its workers in rack r0; rack r2 has room for the driver, r1 for none."""
    play = empty(failure=failure)
    for host in ("h2", "h3", "h4", "h5"):
        stay(play, host, 4)
    run_both(play)
    assert racks_of(play, "s-") == ["r0", "r0", "r0"]
    stay(play, "h4", 2)
    play.rest()
    return play


def lose(play: Play, *hosts: str, deleted: bool) -> None:
    """Have hosts fail at once, with their pods, which the Jobs make anew."""
    for host in hosts:
        if deleted:
            play.world.delete("nodes", host)
        else:
            item = play.world.objects["nodes"][host]
            item["status"]["conditions"][0]["status"] = "False"
            play.world.put("nodes", item)
    play.world.evict(*hosts)
    make_again(play)
    play.rest()


def make_again(play: Play) -> None:
    for kind, pods in (("driver", 1), ("w", 2)):
        if not play.world.pods_of(f"s-{kind}-0"):
            start(play, kind, pods, 2, asks=SHARED)


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("fail_fast", [True, False])
def test_steps_that_lose_all_at_once_go_where_both_have_room(
    fail_fast: bool, deleted: bool
) -> None:
    """The driver alone would fit best where the workers never fit."""
    play = in_rack_0(failFast=fail_fast)
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    play.rest()
    lose(play, "h0", "h1", deleted=deleted)
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


def test_a_step_does_not_wait_for_one_on_a_host_that_lost_its_label() -> None:
    """Of the workers one lost its host, and the host of the other one is in no rack any more."""
    play = empty(hosts_in_rack=3, failure={"failFast": False})
    for host, cpus in {"h0": 2, "h1": 2, "h2": 2, "h3": 4, "h4": 4, "h5": 4}.items():
        stay(play, host, cpus)
    run_both(play)
    (driver,), (first, second) = hosts_of(play, "s-driver-0"), sorted(hosts_of(play, "s-w-0"))
    assert {driver, first, second} == {"h0", "h1", "h2"}
    play.world.delete("pods", "on-h5")
    stay(play, "h5", 2)
    item = play.world.objects["nodes"][first]
    del item["metadata"]["labels"][RACK]
    play.world.put("nodes", item)
    lose(play, driver, second, deleted=False)
    assert hosts_of(play, "s-driver-0").keys() == {"h5"}


@pytest.mark.parametrize("deleted", [True, False])
def test_steps_that_lose_all_at_once_wait_until_both_have_room(deleted: bool) -> None:
    play = in_rack_0(failFast=False)
    lose(play, "h0", "h1", deleted=deleted)
    assert racks_of(play, "s-") == []
    driver, workers = (play.world.group(name).status for name in ("jobset-s", "jobset-s.w"))
    assert driver.state == workers.state == "Degraded"
    assert driver.message.startswith(
        "no rack holds all pod sets together; in rack r2, jobset-s.w/w finds no room beside driver:"
    )
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    play.rest()
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


def test_a_step_that_lost_all_follows_one_that_moves_later() -> None:
    """The host of the workers is not ready, but they run on for a while; the driver waits."""
    play = in_rack_0(failFast=False)
    for host in ("h2", "h3"):
        play.world.delete("pods", f"on-{host}")
    driver, workers = (set(hosts_of(play, f"s-{kind}-0")) for kind in ("driver", "w"))
    assert driver != workers
    for host in (*driver, *workers):
        item = play.world.objects["nodes"][host]
        item["status"]["conditions"][0]["status"] = "False"
        play.world.put("nodes", item)
    play.world.evict(*driver)
    make_again(play)
    play.rest()
    assert racks_of(play, "s-driver") == []
    play.world.evict(*workers)
    make_again(play)
    play.rest()
    assert racks_of(play, "s-") == ["r1", "r1", "r1"]


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
