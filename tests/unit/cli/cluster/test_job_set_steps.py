"""Commands that plan know the steps of a JobSet that are to come, as the running service does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.service.queries import answer_explain
from nri_policy.cluster.snapshot import read_snapshot
from tests.unit.cli.test_cluster_questions import named, run, write
from tests.unit.cluster.written import (
    HOSTNAME,
    Object,
    group,
    node,
    pod,
    pod_set,
    pod_spec,
    settings,
)

RACK = "example.com/rack"
SHARED = {"placement.nri/group-required-topology": RACK}
# rack a is the fullest that has room for the driver, b the fullest with room for its workers, too
NODES = [node(name, RACK=name[0], cpu=cpu, pods=99) for name, cpu in (("a", 2), ("b", 6), ("c", 9))]


def job_set(**after: str) -> Object:
    """A driver, and two workers, who start once it is what *after* says."""

    def replicated(name: str, pods: int) -> Object:
        template = {"metadata": {"annotations": SHARED}, "spec": pod_spec({"cpu": 2})}
        return {"name": name, "template": {"spec": {"parallelism": pods, "template": template}}}

    depends = [{"name": "driver", "status": status} for status in after.values()]
    jobs = [replicated("driver", 1), {**replicated("w", 2), "dependsOn": depends}]
    metadata = {"name": "s", "uid": "u"}
    return {"kind": "JobSet", "metadata": metadata, "spec": {"replicatedJobs": jobs}}


def hosts(status: Any) -> list[str]:
    return [one["values"][-1] for each in status["assignments"] for one in each["domains"]]


@pytest.fixture
def cluster(tmp_path: Path) -> list[str]:
    """Options that name the cluster."""
    file = write(tmp_path / "nodes.json", *(named("Node", each) for each in NODES))
    return ["--cluster", file, "--levels", f"{RACK},{HOSTNAME}", "-o", "json"]


@pytest.mark.parametrize(("status", "driver"), [("Ready", ["b"]), ("Complete", ["a"])])
def test_place_puts_a_driver_where_its_workers_fit_if_they_run_beside_it(
    tmp_path: Path, cluster: list[str], status: str, driver: list[str]
) -> None:
    file = write(tmp_path / "job-set.json", job_set(status=status))
    _, text = run("place", "-f", file, *cluster)
    assert {each["name"]: hosts(each["status"]) for each in json.loads(text)} == {
        "s": driver,
        "s.w": ["b"],
    }


def test_a_step_after_a_complete_one_is_placed_as_if_that_had_ended(
    tmp_path: Path, cluster: list[str]
) -> None:
    file = write(tmp_path / "job-set.json", job_set(status="Complete"))
    taken = [
        named("Pod", pod(f"on-{name}", name, cpu=cpu))
        for name, cpu in (("a", 2), ("b", 2), ("c", 9))
    ]
    _, text = run("place", "-f", file, *cluster, "--cluster", write(tmp_path / "pods.json", *taken))
    assert [hosts(each["status"]) for each in json.loads(text)] == [["b"], ["b"]]


@pytest.mark.parametrize("command", ["explain", "plan"])
def test_explain_and_plan_expect_the_workers_of_a_driver(
    tmp_path: Path, cluster: list[str], command: str
) -> None:
    """In the file, or where the driver is a group of the cluster, in the cluster."""
    made = group(pod_set(1, cpu=2), name="jobset-s")
    made["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-uid": "u"}
    made["spec"]["together"] = {"required": RACK}
    file = write(tmp_path / "job-set.json", job_set(status="Ready"))
    _, text = run(command, "s", "-f", file, *cluster)
    assert hosts(json.loads(text)["status"]) == ["b"]
    known = ("--cluster", write(tmp_path / "group.json", named("PlacementGroup", made)))
    _, text = run(command, "jobset-s", *cluster, *known)
    assert hosts(json.loads(text)["status"]) == ["a"]
    _, text = run(command, "jobset-s", *cluster, *known, "--cluster", file)
    assert hosts(json.loads(text)["status"]) == ["b"]


def test_the_service_expects_the_workers_of_a_driver_that_it_explains() -> None:
    engine = engine_of(read_snapshot({"nodes": NODES}), read_settings(settings("rack", HOSTNAME)))
    question = {"name": "s", "objects": [job_set(status="Ready")]}
    found = json.loads(answer_explain(engine, json.dumps(question).encode()))
    assert hosts(found["status"]) == ["b"]
