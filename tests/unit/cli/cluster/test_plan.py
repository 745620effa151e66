"""`nri-policy cluster plan`: which pods would have to move."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import yaml
from msgspec.structs import replace

from nri_policy.cluster.objects.settings import read_settings
from tests.support.cluster_api import ClusterAPI
from tests.unit.cli.test_cluster_questions import job, run, write
from tests.unit.cluster.numa.test_extender import replica

CROWDED = Path(__file__).parents[4] / "configs/groups/crowded.yaml"
HEAD = ["Moving 2 pods would let default/render start:"]
ROWS = [
    "pod of from to",
    "default/web-5 ReplicaSet/web b1 a2",
    "default/web-6 ReplicaSet/web b1 a1",
]


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_it_names_the_pods_and_where_they_would_go() -> None:
    code, text = run("plan", "render", "--cluster", str(CROWDED))
    assert (code, lines(text)) == (0, HEAD + ROWS)
    code, text = run("plan", "default/render", "--cluster", str(CROWDED), "-o", "json")
    found = json.loads(text)
    assert (code, found["movable"], found["staying"]) == (0, 7, {})
    assert found["moves"][0] == {
        "namespace": "default",
        "name": "web-5",
        "owner": "ReplicaSet/web",
        "from": "b1",
        "to": "a2",
    }


def test_it_says_when_there_is_none(tmp_path: Path) -> None:
    code, text = run("plan", "render", "--cluster", str(CROWDED), "--moves", "1")
    assert (code, lines(text)[0]) == (
        1,
        "default/render: no plan with at most 1 move would let it start",
    )
    assert lines(text)[-1] == "7 pods could move"
    fixed = CROWDED.read_text().replace("placement.nri/movable", "example.com/other")
    (tmp_path / "fixed.yaml").write_text(fixed)
    code, text = run("plan", "render", "--cluster", str(tmp_path / "fixed.yaml"))
    assert lines(text)[-1] == 'no pod may move: none has placement.nri/movable: "true"'
    asked = write(tmp_path / "job.yaml", job("small", 1))
    code, text = run("plan", "-f", asked, "--cluster", str(CROWDED))
    assert (code, text) == (0, "default/small fits without any move\n")
    changed = CROWDED.read_text().replace("disruptionsAllowed: 3", "disruptionsAllowed: 0")
    (tmp_path / "crowded.yaml").write_text(changed)
    code, text = run("plan", "render", "--cluster", str(tmp_path / "crowded.yaml"))
    assert (code, lines(text)[-1]) == (
        1,
        "7 movable pods must stay: PodDisruptionBudget web allows none now",
    )


def test_a_request_that_no_move_can_help_is_refused_without_a_word_on_moves(tmp_path: Path) -> None:
    asked = write(tmp_path / "job.yaml", job("train", 1, required="rack"))
    code, text = run("plan", "-f", asked, "--cluster", str(CROWDED))
    assert code == 2
    assert text.startswith("default/train: no requested topology level: rack; did you mean")
    assert "move" not in text


def test_one_group_is_to_be_named(tmp_path: Path) -> None:
    code, text = run("plan", "--cluster", str(CROWDED))
    assert (code, "name one group" in text) == (2, True)
    two = write(tmp_path / "two.yaml", job("small", 1), job("large", 200))
    for command in ("plan", "explain"):
        where = (command, "--cluster", str(CROWDED), "-f", two)
        code, text = run(*where)
        names = f"2 groups in {two}: name one of default/large, default/small"
        assert (code, names in text) == (2, True)
        assert [run(*where, name)[0] for name in ("small", "default/large")] == [0, 1]
        code, text = run(*where, "tiny")
        assert (code, f"there is no group 'tiny' in {two}" in text) == (2, True)


def test_a_live_cluster_is_asked_for_its_budgets(tmp_path: Path) -> None:
    """Other commands do not list budgets, which not every user may read."""
    kinds = {
        "Node": "nodes",
        "Pod": "pods",
        "PodDisruptionBudget": "poddisruptionbudgets",
        "PlacementGroup": "placementgroups",
    }
    levels = ("--levels", "example.com/rack,kubernetes.io/hostname")

    async def asked() -> list[tuple[int, str]]:
        async with ClusterAPI(tmp_path) as api:
            for each in yaml.safe_load_all(CROWDED.read_text()):
                if each["kind"] != "Node":
                    each["metadata"]["namespace"] = "default"
                if each["kind"] in kinds:
                    await api.put(kinds[each["kind"]], each)
            where = ("--kubeconfig", str(api.kubeconfig), *levels)
            found = [await asyncio.to_thread(run, "plan", "render", *where)]
            api.refuse = lambda _, path: 403 if "disruption" in path else 0
            found.append(await asyncio.to_thread(run, "explain", "render", *where))
            found.append(await asyncio.to_thread(run, "plan", "render", *where))
            return found

    (code, text), (other, _), (refused, why) = asyncio.run(asked())
    assert (code, lines(text)) == (0, HEAD + ROWS)
    assert other == 1
    assert refused != 0
    assert "403" in why


def test_defaults_that_count_on_a_live_cluster_are_noted(tmp_path: Path) -> None:
    """A service may have its settings from a file, which the cluster does not know."""
    nodes = [each for each in yaml.safe_load_all(CROWDED.read_text()) if each["kind"] == "Node"]
    asked = write(tmp_path / "job.yaml", job("small", 1))
    settings = tmp_path / "settings.yaml"
    own = {"apiVersion": "config.nri/v1alpha1", "kind": "ClusterPlacement"}
    settings.write_text(yaml.safe_dump(own))
    placement = {**own, "metadata": {"name": "default"}}

    async def notes() -> list[bool]:
        async with ClusterAPI(tmp_path) as api:
            for each in nodes:
                await api.put("nodes", each)

            async def noted(*more: str) -> bool:
                where = ("-f", asked, "--kubeconfig", str(api.kubeconfig), *more)
                _, text = await asyncio.to_thread(run, "plan", *where)
                assert "default/small" in text
                return "has no ClusterPlacement object" in text

            found = [await noted(), await noted("--settings", str(settings))]
            found.append(await noted("--levels", "kubernetes.io/hostname"))
            await api.put("clusterplacements", placement)
            return [*found, await noted()]

    assert asyncio.run(notes()) == [True, False, False, False]


def test_a_live_cluster_is_planned_with_the_settings_of_its_service(tmp_path: Path) -> None:
    """It has them from a file; budgets are read from the cluster all the same."""
    kinds = {"Node": "nodes", "Pod": "pods", "PlacementGroup": "placementgroups"}
    kinds["PodDisruptionBudget"] = "poddisruptionbudgets"
    settings, *objects = yaml.safe_load_all(CROWDED.read_text())
    own = read_settings(settings)
    file = write(tmp_path / "settings.json", settings)

    async def asked() -> list[tuple[int, str]]:
        async with ClusterAPI(tmp_path) as api:
            for each in objects:
                if each["kind"] != "Node":
                    each["metadata"]["namespace"] = "default"
                await api.put(kinds[each["kind"]], each)
            async with replica(api, groups=True) as at:
                groups = replace(own.groups, timeout=90.0)
                at.service.settings.current = replace(own, groups=groups)
                where = ("--service", f"http://127.0.0.1:{at.port}")
                command = ("plan", "render", "--kubeconfig", str(api.kubeconfig))
                found = [
                    await asyncio.to_thread(run, *command, *where, *more)
                    for more in ((), ("--settings", file), ("--synthetic", "host:2 cpu:4"))
                ]
                (budget,) = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
                await api.put(
                    "poddisruptionbudgets", budget | {"status": {"disruptionsAllowed": 0}}
                )
                found.append(await asyncio.to_thread(run, *command, *where))
                return found

    (code, text), *twice, (_, again) = asyncio.run(asked())
    assert (code, lines(text)) == (0, HEAD + ROWS)
    assert [each[0] for each in twice] == [2, 2]
    assert lines(again)[-1] == "7 movable pods must stay: PodDisruptionBudget web allows none now"


def test_it_says_what_zones_keep_the_group_from(tmp_path: Path) -> None:
    limits = {"cpu": "12", "memory": "1Gi"}
    job_of = job("big", 9)
    job_of["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    asked = write(tmp_path / "job.yaml", job_of)
    zones = "zone:1 rack:2 host:2 cpu:32 memory:128Gi socket:2 numa:2"  # of 8 CPUs, for 8 pods
    code, text = run("plan", "-f", asked, "--synthetic", zones)
    assert code == 1
    assert " ".join(text.split()).endswith(
        "note: default/big, pod set main: 4 of 4 nodes would refuse its pods even when empty, as"
        " they align pods to one NUMA node (host-1-1-1: cannot align container: cpu: 12 asked,"
        " 8 in an empty zone)"
    )
