"""A JobSet for tests of the controller of groups: its Jobs, and their pods."""

from __future__ import annotations

from typing import Any

from tests.support.placement_world import GATE, INDEX, OTHER, Play
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


def after(name: str, status: str) -> Any:
    return {"dependsOn": [{"name": name, "status": status}]}


def pod(
    play: Play, name: str, owner: str, labels: Any, gated: bool = True, *, asks: Any = ASKS
) -> None:
    kind, _, own = owner.partition("/")
    reference = {"kind": kind, "name": own, "uid": f"u-{own}", "controller": True}
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, "ownerReferences": [reference]}
    spec = pod_spec({"cpu": 2}, schedulingGates=[{"name": GATE}, {"name": OTHER}] if gated else [])
    spec["restartPolicy"] = "Never" if kind == "Job" else "Always"
    metadata["annotations"] = asks if gated else {}
    play.world.put("pods", {"metadata": metadata, "spec": spec})


def start(
    play: Play, kind: str, pods: int, jobs: int, gated: bool = True, *, asks: Any = ASKS
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
        pod(play, name, f"Job/s-{kind}-0", labels | own, gated, asks=asks)
    return names


def end(play: Play, *names: str) -> None:
    for name in names:
        item = play.world.objects["pods"][name]
        play.world.put("pods", {**item, "status": {"phase": "Succeeded"}})


def complete(play: Play, kind: str) -> None:
    """Have all pods of a Job succeed, and the Job know it."""
    pods = [*play.world.pods_of(f"s-{kind}-0")]
    end(play, *pods)
    done = {"succeeded": len(pods), "conditions": [{"type": "Complete", "status": "True"}]}
    play.world.put("jobs", {**play.world.objects["jobs"][f"s-{kind}-0"], "status": done})


def is_let_go(play: Play, name: str) -> bool:
    gates = play.world.objects["pods"][name]["spec"].get("schedulingGates") or ()
    return {"name": GATE} not in gates


def stay(play: Play, host: str, cpus: int, ends: bool = False) -> None:
    """Have a pod on a host, of no group."""
    restart = "Never" if ends else "Always"
    spec = pod_spec({"cpu": cpus}, nodeName=host, restartPolicy=restart)
    play.world.put("pods", {"metadata": {"name": f"on-{host}", "uid": host}, "spec": spec})


def run_both(play: Play) -> None:
    """Run a driver, then its two workers, who share its rack."""
    order = {"startupPolicyOrder": "InOrder"}
    job_set(play, replicated("driver", 1), replicated("w", 2), startupPolicy=order)
    for kind, pods in (("driver", 1), ("w", 2)):
        start(play, kind, pods, 2, asks=SHARED)
        play.rest()


def make_again(play: Play) -> None:
    for kind, pods in (("driver", 1), ("w", 2)):
        if not play.world.pods_of(f"s-{kind}-0"):
            start(play, kind, pods, 2, asks=SHARED)
