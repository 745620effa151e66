"""Writing to a real API server over TLS, and everything that it may answer."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.node import Node
from nri_policy.nrt.cluster_object import ClusterSink
from nri_policy.nrt.publisher import PublishError, Trouble
from nri_policy.nrt.reading import Feed, Object
from tests.support import nodes
from tests.support.apiserver import CUT, GARBLED, NOT_HTTP, Answer, APIServer, Request


async def topology(**spec: Any) -> Object:
    """Return the object of an idle node."""
    engine = Engine(nodes.machine(), nodes.settings(**spec))
    feed = Feed(Node(engine), name="node-a", synchronized=asyncio.Event())
    return (await feed.read()).object()


@asynccontextmanager
async def reached(
    server: APIServer, node: str = "node-a", **options: Any
) -> AsyncIterator[ClusterSink]:
    connect = access(server.kubeconfig)
    assert connect is not None
    client = Client(connect, **options)
    try:
        yield ClusterSink(client, node)
    finally:
        await client.close()


async def failing(cluster: ClusterSink, new: Object) -> PublishError:
    with pytest.raises(PublishError) as error:
        await cluster.put(new, fresh=False)
    return error.value


def only(method: str, answer: Answer) -> Any:
    return lambda request: answer if request.method == method else None


async def test_the_object_is_made_and_belongs_to_the_node(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        new = await topology()
        written = await cluster.put(new, fresh=True)
        assert (written.version, written.rivals) == ("v1alpha2", ())
        assert server.topology["zones"] == new["zones"]
        assert server.topology["attributes"] == new["attributes"]
        assert server.topology["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-of-the-node"}
        ]
        assert server.owners["node-a"].keys() == {"nri-policy"}
        await cluster.put(new, fresh=False)
        assert [request.method for request in server.requests] == ["GET", "GET", "PATCH", "PATCH"]
        assert server.topology["metadata"]["resourceVersion"] == "1", "the same is no change"


async def test_where_only_the_old_version_is_served_it_is_written(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        server.versions = {"v1alpha1"}
        written = await cluster.put(await topology(alignment="numa"), fresh=True)
        assert written.version == "v1alpha1"
        assert server.topology["topologyPolicies"] == ["SingleNUMANodeContainerLevel"]
        assert "attributes" not in server.topology
        await cluster.put(await topology(), fresh=False)
        assert server.topology["topologyPolicies"] == ["None"]
        assert "v1alpha1" in server.requests[-1].path
        server.versions = {"v1alpha1", "v1alpha2"}
        assert (await cluster.put(await topology(), fresh=True)).version == "v1alpha2"
        assert "topologyPolicies" not in server.topology


async def test_a_cluster_without_the_kind_is_told_how_to_get_it(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        served, server.versions = server.versions, set()
        error = await failing(cluster, await topology())
        assert error.trouble is Trouble.NO_CRD
        assert "crd.yaml" in str(error)
        server.versions = served
        assert (await cluster.put(await topology(), fresh=True)).version == "v1alpha2"
        server.versions = set()
        assert (await failing(cluster, await topology())).trouble is Trouble.NO_CRD


async def test_a_node_that_the_cluster_does_not_know_is_named(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server, "elsewhere") as cluster:
        error = await failing(cluster, await topology())
        assert error.trouble is Trouble.NO_NODE
        assert "'elsewhere'" in str(error)
        assert "--node-name" in str(error)
        assert server.objects == {}


async def test_a_node_that_came_anew_is_the_owner_from_the_next_fresh_write_on(
    tmp_path: Path,
) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        server.nodes["node-a"] = "another-uid"
        await cluster.put(await topology(), fresh=True)
        (owner,) = server.topology["metadata"]["ownerReferences"]
        assert owner["uid"] == "another-uid"


async def test_an_object_that_went_with_its_node_is_made_for_the_new_one(tmp_path: Path) -> None:
    """Else the garbage collector would remove it at once: its owner is gone."""
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        server.delete_node()
        with pytest.raises(PublishError, match="no Node"):
            await cluster.put(await topology(alignment="numa"), fresh=False)
        server.nodes["node-a"] = "another-uid"
        await cluster.put(await topology(), fresh=False)
        (owner,) = server.topology["metadata"]["ownerReferences"]
        assert owner["uid"] == "another-uid"


async def test_an_object_that_is_gone_is_missed(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        assert not await cluster.is_gone(), "there was none"
        await cluster.put(await topology(), fresh=True)
        assert not await cluster.is_gone()
        server.delete_node()
        assert await cluster.is_gone()


async def test_another_writer_of_the_zones_is_overruled_and_told_of(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        new = await topology()
        await cluster.put(new, fresh=True)
        server.meddle("exporter", zones=[{"name": "node-0", "type": "Node"}])
        assert (await cluster.put(new, fresh=False)).rivals == ("exporter",)
        assert server.topology["zones"] == new["zones"]
        assert server.owners["node-a"]["exporter"] == set()
        assert (await cluster.put(new, fresh=False)).rivals == ()


async def test_who_writes_other_fields_of_ours_is_no_rival_for_the_zones(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        new = await topology()
        await cluster.put(new, fresh=True)
        server.meddle("exporter", attributes=[{"name": "a", "value": "b"}])
        assert (await cluster.put(new, fresh=False)).rivals == ()
        assert server.topology["attributes"] == new["attributes"]


async def test_what_others_add_stays(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        server.meddle("exporter", topologyPolicies=["Restricted"])
        await cluster.put(await topology(alignment="numa"), fresh=False)
        assert server.topology["topologyPolicies"] == ["Restricted"]


async def test_a_conflict_that_is_nobodys_field_is_tried_again_later(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        body = {"kind": "Status", "code": 409, "reason": "Conflict", "message": "was modified"}
        server.disturb = only("PATCH", Answer(status=409, body=body))
        error = await failing(cluster, await topology())
        assert (error.trouble, str(error)) == (Trouble.CONFLICT, "409: was modified")
        assert len(server.writes()) == 1
        assert (await failing(cluster, await topology())).trouble is Trouble.CONFLICT


async def test_a_token_that_was_rotated_is_read_again(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        server.tokens = {"second"}
        assert (await failing(cluster, await topology())).trouble is Trouble.UNAUTHORIZED
        server.token_file.write_text("second")
        await cluster.put(await topology(alignment="numa"), fresh=False)
        assert server.requests[-1].headers["authorization"] == "Bearer second"
        assert {"name": "topologyManagerPolicy", "value": "single-numa-node"} in server.topology[
            "attributes"
        ]


@pytest.mark.parametrize("verb", ["get", "create", "patch"])
async def test_each_permission_is_missed_by_name(tmp_path: Path, verb: str) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        server.forbidden = {verb}
        error = await failing(cluster, await topology())
        assert error.trouble is Trouble.FORBIDDEN
        assert f"cannot {verb}" in str(error)
        assert "rbac.yaml" in str(error)


async def test_no_permission_is_more_than_needed(tmp_path: Path) -> None:
    """The role of configs/kubernetes allows all that is done, the removal included."""
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        await cluster.remove()
        assert server.objects == {}
        await cluster.remove()
        server.forbidden = {"delete"}
        with pytest.raises(PublishError, match="cannot delete"):
            await cluster.remove()


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (400, Trouble.REFUSED),
        (422, Trouble.REFUSED),
        (429, Trouble.THROTTLED),
        (500, Trouble.SERVER_ERROR),
        (503, Trouble.SERVER_ERROR),
        (504, Trouble.SERVER_ERROR),
    ],
)
async def test_an_error_is_told_by_its_number(
    tmp_path: Path, status: int, trouble: Trouble
) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        server.disturb = lambda _: Answer(
            status=status, body="not now", headers={"Retry-After": "7"}
        )
        error = await failing(cluster, await topology())
        assert (error.trouble, error.wait) == (trouble, 7.0)
        assert str(status) in str(error)
        server.disturb = lambda _: None
        await cluster.put(await topology(), fresh=True)


async def test_a_server_cannot_ask_for_ever(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        for asked, waited in (
            ("99999999", 120.0),
            ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
            ("-3", 0.0),
        ):
            server.disturb = _throttled(asked)
            assert (await failing(cluster, await topology())).wait == waited


def _throttled(wait: str) -> Any:
    return lambda _: Answer(status=429, body="later", headers={"Retry-After": wait})


async def test_a_refused_object_is_told_with_the_reason(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        new = await topology()
        new["zones"][0]["resources"][0]["capacity"] = "4x"
        error = await failing(cluster, new)
        assert error.trouble is Trouble.REFUSED
        assert "zones[0].resources[0].capacity" in str(error)


async def test_a_denial_by_the_admission_policy_is_a_missing_permission(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server, "node-b") as cluster:
        server.nodes["node-b"] = "another-uid"
        error = await failing(cluster, {**await topology(), "metadata": {"name": "node-b"}})
        assert error.trouble is Trouble.FORBIDDEN
        assert "may not write the topology of 'node-b'" in str(error)


@pytest.mark.parametrize("answer", [CUT, GARBLED, NOT_HTTP, Answer(status=500, body=["x"])])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_a_connection_that_breaks_or_makes_no_sense_is_tried_again(
    tmp_path: Path, answer: Answer, method: str
) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        server.disturb = only(method, answer)
        assert (await failing(cluster, await topology())).trouble is not Trouble.FORBIDDEN
        server.disturb = lambda _: None
        await cluster.put(await topology(), fresh=True)
        assert server.topology["zones"]


async def test_an_answer_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server, patience=0.05) as cluster:
        server.before = lambda _: asyncio.Event().wait()
        error = await failing(cluster, await topology())
        assert (error.trouble, str(error)) == (Trouble.UNREACHABLE, "no answer within 0.05 s")


async def test_a_write_that_was_given_up_never_follows_a_newer_one(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server, patience=0.5) as cluster:
        await cluster.put(await topology(), fresh=True)
        late, arrived = asyncio.Event(), asyncio.Event()

        async def hold(request: Request) -> None:
            if request.method == "PATCH":
                server.before = pass_on
                await late.wait()
                arrived.set()

        async def pass_on(_: Request) -> None:
            pass

        server.before = hold
        older = await topology(reservedResources={"cpu": "5"})
        with pytest.raises(PublishError, match="no answer"):
            await cluster.put(older, fresh=False)
        newer = await topology(alignment="numa")
        await cluster.put(newer, fresh=True)
        late.set()
        await arrived.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.topology["zones"] == newer["zones"]


async def test_who_removes_the_object_gets_it_again(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        server.objects.clear()
        server.owners.clear()
        await cluster.put(await topology(alignment="numa"), fresh=False)
        assert server.topology["metadata"]["uid"].endswith("2")


async def test_a_server_that_went_and_came_is_reached_again(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        await cluster.put(await topology(), fresh=True)
        await server.stop()
        assert (await failing(cluster, await topology())).trouble is Trouble.UNREACHABLE
        await server.start()
        await cluster.put(await topology(alignment="numa"), fresh=True)
        assert server.requests[-1].method == "PATCH"


async def test_a_server_with_another_authority_is_not_believed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with APIServer(tmp_path) as server, APIServer(other) as stranger:
        shutil.copy(stranger.ca, server.ca)
        async with reached(server) as cluster:
            error = await failing(cluster, await topology())
            assert error.trouble is Trouble.UNREACHABLE
            assert "certificate is not trusted" in str(error).lower()
            assert server.requests == []


class WithoutPatch:
    """Answers as the API server does where the role lacks `patch`, but lets create and replace."""

    def __init__(self, server: APIServer, *, also: bool = False) -> None:
        self._server = server
        self.stale = False  # somebody else is first once more
        self._also = also  # lacks these, too

    def __call__(self, request: Request) -> Answer | None:
        if "noderesourcetopologies" not in request.path or request.method in {"GET", "DELETE"}:
            return None
        if request.method == "PATCH" or self._also:
            body = {"kind": "Status", "message": f"cannot {request.method}", "reason": "Forbidden"}
            return Answer(status=403, body=body)
        assert request.query == {"fieldManager": "nri-policy"}
        sent = request.body["metadata"]
        if request.method == "PUT" and (self.stale or sent != self._current() | sent):
            self.stale = False
            return Answer(status=409, body={"kind": "Status", "reason": "Conflict"})
        marks = {"uid": "7", "resourceVersion": f"{len(self._server.requests)}"}
        self._server.objects["node-a"] = {**request.body, "metadata": sent | marks}
        return Answer(status=201, body=self._server.topology)

    def _current(self) -> Object:
        marks: Object = self._server.topology["metadata"]
        return {each: marks[each] for each in ("uid", "resourceVersion")}


async def test_without_the_right_to_patch_it_is_created_and_replaced(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        denied = WithoutPatch(server)
        server.disturb = denied
        first, second = await topology(), await topology(alignment="numa")
        written = await cluster.put(first, fresh=True)
        assert (written.version, written.rivals) == ("v1alpha2", ())
        assert server.topology["zones"] == first["zones"]
        server.topology["metadata"] |= {
            "annotations": {"seen": "yes"},
            "labels": {"of": "others"},
        }
        denied.stale = True
        await cluster.put(second, fresh=False)
        assert server.topology["attributes"] == second["attributes"]
        assert server.topology["metadata"]["annotations"] == {"seen": "yes"}
        assert (
            server.topology["metadata"]["labels"] == {"of": "others"} | first["metadata"]["labels"]
        )
        (owner,) = server.topology["metadata"]["ownerReferences"]
        assert owner["uid"] == "uid-of-the-node"
        methods = [request.method for request in server.requests]
        assert methods == [
            *("GET", "GET", "PATCH", "POST"),
            *("PATCH", "GET", "PUT"),  # somebody else was first
            *("GET", "GET", "PATCH", "GET", "PUT"),
        ]


async def test_without_any_right_to_write_the_missing_one_is_that_of_our_own_role(
    tmp_path: Path,
) -> None:
    async with APIServer(tmp_path) as server, reached(server) as cluster:
        server.disturb = WithoutPatch(server, also=True)
        error = await failing(cluster, await topology())
        assert error.trouble is Trouble.FORBIDDEN
        assert "cannot PATCH" in str(error)
        assert "rbac.yaml" in str(error)
