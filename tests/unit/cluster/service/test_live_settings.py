"""Settings that change while the service runs: from the file, from the cluster, and bad ones."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from http.client import FORBIDDEN
from pathlib import Path

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.service.live_settings import LiveSettings, PlacementFile
from nri_policy.foundation.clock import Clock
from tests.support.cluster_api import ClusterAPI
from tests.unit.cluster.numa.test_extender import asking, cluster, replica
from tests.unit.cluster.written import HOSTNAME, Object

FILE = """
apiVersion: config.nri/v1alpha1
kind: ClusterPlacement
spec: {algorithm: ALGORITHM}
"""
TOPOLOGY = {
    "metadata": {"name": "blocks"},
    "spec": {"levels": [{"nodeLabel": "example.com/block"}]},
}


def placement(generation: int = 1, **spec: object) -> Object:
    return {"metadata": {"name": "default", "generation": generation}, "spec": spec}


class Reread:
    """Live settings from a file, and what was reread of them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "placement.yaml"
        self.write("BestFit")
        file = PlacementFile(self.path)
        self.changes: list[str] = []
        self.live = LiveSettings(
            file.load(), file, self._take, Clock(date=datetime(2026, 8, 1, tzinfo=UTC).timestamp)
        )

    def write(self, algorithm: str) -> None:
        self.path.write_text(FILE.replace("ALGORITHM", algorithm))

    def _take(self, settings: ClusterSettings) -> None:
        self.changes.append(settings.algorithm)


def test_another_file_counts_once_it_is_read_and_a_bad_one_does_not(tmp_path: Path) -> None:
    reread = Reread(tmp_path)
    reread.live.reload()
    assert reread.changes == []
    reread.write("LeastFree")
    reread.live.reload()
    assert reread.changes == ["LeastFree"]
    reread.write("WorstFit")
    reread.live.reload()
    assert "'WorstFit' is not one of" in reread.live.rejected
    reread.path.unlink()
    reread.live.reload()
    assert "configs/cluster/settings.yaml is a sample" in reread.live.rejected
    assert (reread.changes, reread.live.current.algorithm) == (["LeastFree"], "LeastFree")
    reread.write("Mixed")
    reread.live.reload()
    assert (reread.changes[1:], reread.live.rejected) == (["Mixed"], "")


def test_the_object_comes_before_the_file_until_it_goes(tmp_path: Path) -> None:
    reread = Reread(tmp_path)
    reread.live.set_object(placement(algorithm="LeastFree"))
    reread.write("Mixed")
    reread.live.reload()
    assert reread.changes == ["LeastFree"]
    reread.live.remove_object("default")
    assert reread.changes == ["LeastFree", "Mixed"]


def test_only_one_object_counts(tmp_path: Path) -> None:
    reread = Reread(tmp_path)
    other = placement(algorithm="LeastFree") | {"metadata": {"name": "mine"}}
    with pytest.raises(DocumentError, match="only the ClusterPlacement default counts"):
        reread.live.set_object(other)
    assert [*reread.live.objects()] == [("", "mine")]
    reread.live.remove_object("mine")
    assert (reread.changes, [*reread.live.objects()]) == ([], [])


def test_topologies_of_kueue_are_added_where_the_settings_have_none_of_that_name(
    tmp_path: Path,
) -> None:
    reread = Reread(tmp_path)
    reread.live.set_topology(TOPOLOGY)
    assert [each.name for each in reread.live.current.topologies] == ["default", "blocks"]
    own = {"name": "blocks", "levels": ["example.com/rack", HOSTNAME]}
    reread.live.set_object(placement(topologies=[own]))
    assert [each.levels for each in reread.live.current.topologies] == [own["levels"]]
    reread.live.remove_object("default")
    reread.live.remove_topology("blocks")
    assert [each.name for each in reread.live.current.topologies] == ["default"]


def test_what_becomes_of_the_object_is_in_its_status_and_takes_effect(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as api, replica(api) as at:
            scheduler = await at.connect()

            async def fitting() -> list[str]:
                answer = await scheduler.ask("/filter", asking(4, "b", "c"))
                return list(answer["NodeNames"])

            def status() -> Object:
                found: Object = api.objects["clusterplacements"]["default"].get("status", {})
                return found

            assert await fitting() == ["b", "c"]
            await api.put("clusterplacements", placement(1, extender={"choose": True}))
            await at.until(lambda: status().get("status") == "Success")
            assert (len(await fitting()), status()["generation"]) == (1, 1)
            await api.put("clusterplacements", placement(2, extender={"choose": 3}))
            await at.until(lambda: status().get("generation") == 2)
            assert status()["status"] == "Failure"
            assert status()["errors"] == "spec.extender.choose: 3 is not true or false"
            assert len(await fitting()) == 1
            _, metrics = await scheduler.get("/metrics")
            assert "nri_policy_cluster_settings_rejected 1.0" in metrics
            await api.delete("clusterplacements", "default")
            await at.until(lambda: not at.service.settings.objects())
            assert await fitting() == ["b", "c"]
            written = [each for each in api.requests if "/status" in each[1]]
            assert len(written) == 2  # our own writes are no news

    asyncio.run(play())


def test_a_cluster_without_the_kind_has_no_settings(tmp_path: Path) -> None:
    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            api.refuse = lambda _method, path: 404 if "clusterplacements" in path else 0
            async with replica(api) as at:
                assert not at.service.watch.lost_seconds()

    asyncio.run(play())


def test_settings_stay_while_the_api_server_forbids_to_read_them(tmp_path: Path) -> None:
    """As it does for moments after its restart, before it knows the roles."""

    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await api.put("clusterplacements", placement(algorithm="LeastFree"))
            refused = []

            def forbid(method: str, path: str) -> int:
                if not path.endswith("/clusterplacements"):
                    return 0
                refused.append(method)
                return FORBIDDEN

            async with replica(api) as at:
                live = at.service.settings
                await at.until(lambda: live.current.algorithm == "LeastFree")
                api.refuse = forbid
                api.forget()
                await api.cut()
                await at.until(lambda: len(refused) > 2)
                assert live.current.algorithm == "LeastFree"
                assert "clusterplacements" in at.service.watch.lost_seconds()
                api.refuse = lambda _method, _path: 0
                await at.until(lambda: not at.service.watch.lost_seconds())
                await api.put("clusterplacements", placement(2, algorithm="BestFit"))
                await at.until(lambda: live.current.algorithm == "BestFit")
            api.refuse = forbid
            async with replica(api, ready=False) as at:  # who begins then does not guess
                await at.until(lambda: "clusterplacements" in at.service.watch.lost_seconds())
                assert "clusterplacements are not listed yet" in at.service.problem()

    asyncio.run(play())
