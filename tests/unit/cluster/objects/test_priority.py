"""The priority of a group from what people write: the highest of its pods'."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.workloads.workload import read_groups
from tests.support.cluster_api import ClusterAPI
from tests.unit.cli.test_cluster_questions import job, named, run, write
from tests.unit.cluster.engine.test_preemption import NODES, filler
from tests.unit.cluster.workloads.test_workload import pod, template

CLASS = {"kind": "PriorityClass", "metadata": {"name": "gold"}, "value": 7}
DEFAULT = {**CLASS, "metadata": {"name": "all"}, "value": 2, "globalDefault": True}


def ranked(priority: int | str | None) -> Any:
    """A pod template of a priority, or of the class of a name."""
    made = template()
    key = "priorityClassName" if isinstance(priority, str) else "priority"
    made["spec"] |= {} if priority is None else {key: priority}
    return made


def workload(kind: str, first: int | str | None, second: int | str | None = None) -> Any:
    """An object that makes pods of one priority, or of two."""
    a, b = ranked(first), ranked(second)
    jobs = [
        {"name": name, "template": {"spec": {"template": each}}}
        for name, each in (("a", a), ("b", b))
    ]
    spec = {
        "Job": {"template": a},
        "JobSet": {"replicatedJobs": jobs},
        "LeaderWorkerSet": {
            "leaderWorkerTemplate": {"size": 2, "leaderTemplate": a, "workerTemplate": b}
        },
    }
    return {"kind": kind, "metadata": {"name": "w"}, "spec": spec[kind]}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (workload("Job", 9), 9),
        (workload("Job", "gold"), 7),
        (workload("Job", None), 0),
        (workload("Job", "system-cluster-critical"), 2_000_000_000),
        (workload("JobSet", 3, "gold"), 7),
        (workload("LeaderWorkerSet", 3, 4), 4),
    ],
)
def test_a_group_has_the_highest_priority_of_the_pods_that_it_is_to_have(
    asked: Any, expected: int
) -> None:
    assert read_groups([CLASS, asked])[0].priority == expected


def test_a_group_of_pods_has_the_highest_of_them_and_a_pod_its_own_before_its_class() -> None:
    made = [pod(f"p{n}", owner="j") for n in range(3)]
    made[1]["spec"] |= {"priority": 5, "priorityClassName": "of-the-cluster"}
    (group,) = read_groups(made)
    assert (group.priority, group.unknown_class) == (5, "")


def test_pods_without_a_class_have_the_default_one() -> None:
    groups = read_groups([workload("Job", None), DEFAULT, pod("p")])
    assert [each.priority for each in groups] == [2, 2]


@pytest.mark.parametrize("value", [2**31, "high", None])
def test_a_class_without_a_proper_value_is_refused(value: Any) -> None:
    with pytest.raises(DocumentError, match="value"):
        read_groups([{**CLASS, "value": value}, workload("Job", "gold")])


@pytest.mark.parametrize("by", ["priority", "class", "class of the cluster"])
def test_a_job_is_told_who_would_have_to_leave_for_it(tmp_path: Path, by: str) -> None:
    fillers = [filler(name, priority=rank) for name, rank in (("a", 6), ("b", 1), ("c", 7))]
    for each, rack in zip(fillers, "abc", strict=True):
        domains = [{"values": [f"{rack}{n}"], "count": 4} for n in (1, 2)]
        levels = ["kubernetes.io/hostname"]
        each["status"] = {
            "state": "Placed",
            "assignments": [{"podSet": "main", "levels": levels, "domains": domains}],
        }
    items = [
        *(named("Node", each) for each in NODES),
        *(named("PlacementGroup", each) for each in fillers),
    ]
    cluster = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    asked = job("j", 8, required="example.com/rack")
    spec = asked["spec"]["template"]["spec"]
    spec |= {"priority": 7} if by == "priority" else {"priorityClassName": "gold"}
    by_rack = ("--levels", "example.com/rack,kubernetes.io/hostname")
    known = ["explain", "-f", write(tmp_path / "job.yaml", asked), *by_rack]
    known += ["--cluster", cluster, "-o", "json"]
    if by != "priority":
        found = json.loads(run(*known)[1])
        note = "its PriorityClass 'gold' is not known, so priority 0 counts"
        assert found["notes"] == [f"default/j: {note}"]
        assert [each for each in found["changes"] if "leaving" in each] == []
        known += ["-f" if by == "class" else "--cluster", write(tmp_path / "class.yaml", CLASS)]
    found = json.loads(run(*known)[1])
    assert found["notes"] == []
    assert found["changes"][0] == {"leaving": ["default/b"]}


@pytest.mark.parametrize("status", [0, 403, 404, 500])
def test_a_live_cluster_is_asked_for_its_classes_where_it_may_be(
    tmp_path: Path, status: int
) -> None:
    asked = job("j", 1)
    asked["spec"]["template"]["spec"]["priorityClassName"] = "gold"
    file = write(tmp_path / "job.yaml", asked)

    async def place() -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            await api.put("nodes", NODES[0])
            await api.put("priorityclasses", CLASS)
            api.refuse = lambda _, path: status if "priorityclasses" in path else 0
            where = ("--kubeconfig", str(api.kubeconfig), "--levels", "kubernetes.io/hostname")
            return await asyncio.to_thread(run, "place", "-f", file, *where)

    code, text = asyncio.run(place())
    assert (code == 0) == (status != 500)
    assert ("PriorityClass 'gold' is not known" in text) == (status in {403, 404})


def test_the_file_of_a_wrong_class_is_named(tmp_path: Path) -> None:
    files = [
        *("-f", write(tmp_path / "job.yaml", job("j", 1))),
        *("-f", write(tmp_path / "class.yaml", {**CLASS, "value": "high"})),
    ]
    code, text = run("place", *files, "--synthetic", "rack:2 host:2 cpu:4")
    assert (code, "class.yaml: value: " in text) == (2, True)
