"""Objects of a real API server over TLS, and what it may answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.kube import list_watch
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.settings_sources.cluster_settings import ClusterError
from nri_policy.settings_sources.kubernetes import LABEL, Kubernetes
from nri_policy.settings_sources.policy_objects import PolicyObject
from tests.support.apiserver import CUT, GARBLED, NOT_HTTP, Answer, APIServer, Request

OBJECTS = "/apis/config.nri/v1alpha1/namespaces/kube-system/topologyawarepolicies"
FORBIDDEN = Answer(
    status=403,
    body={"kind": "Status", "code": 403, "message": "it is forbidden", "apiVersion": "v1"},
)
GONE = Answer(
    status=404, body={"kind": "Status", "code": 404, "message": "not found", "apiVersion": "v1"}
)

ANOTHER = Answer(
    status=200, body={"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "x"}}]}
)


@asynccontextmanager
async def reached(
    folder: Path, *disturbances: Callable[[Request], Answer | None], label: str = LABEL
) -> AsyncIterator[tuple[Kubernetes, APIServer]]:
    async with APIServer(folder) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        cluster = Kubernetes(client, "kube-system", label)
        server.disturb = lambda request: next(
            (answer for each in disturbances if (answer := each(request))), None
        )
        try:
            yield cluster, server
        finally:
            await client.close()


def object_(generation: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "TopologyAwarePolicy",
        "metadata": {
            "name": "default",
            "namespace": "kube-system",
            "generation": generation,
            "resourceVersion": str(10 * generation),
        },
        "spec": {"reservedResources": {"cpu": generation}},
        **more,
    }


def serving(*items: dict[str, Any], watched: list[Answer]) -> Callable[[Request], Answer | None]:
    """Answer lists with *items*, and each watch with the next of *watched*."""

    def answer(request: Request) -> Answer | None:
        if request.path != OBJECTS or request.method != "GET":
            return None
        assert request.query["fieldSelector"] == "metadata.name=default"
        if request.query.get("watch") != "true":
            metadata = {"resourceVersion": "7"}
            body = {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": [*items]}
            return Answer(status=200, body=body)
        return watched.pop(0)

    return answer


def events(*watched: tuple[str, dict[str, Any]]) -> Answer:
    lines = (json.dumps({"type": kind, "object": each}) + "\n" for kind, each in watched)
    return Answer(status=200, body="".join(lines))


def expected(generation: int, *nodes: str) -> PolicyObject:
    return PolicyObject(
        name="default",
        generation=generation,
        spec={"reservedResources": {"cpu": generation}},
        nodes=frozenset(nodes),
    )


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_watch, "_PAUSE", 0)


async def test_an_object_is_listed_and_then_watched_from_there(tmp_path: Path) -> None:
    status = {"nodes": {"a": {"status": "Success"}}}
    first = events(("MODIFIED", object_(2, status=status)), ("DELETED", object_(2)))
    server_side = serving(object_(1), watched=[first, events(("ADDED", object_(3))), CUT])
    said: list[PolicyObject | None] = []
    async with reached(tmp_path, server_side) as (cluster, server):
        with pytest.raises(ClusterError, match="TopologyAwarePolicy default: "):
            await cluster.follow("default", said.append)
        versions = [each.query.get("resourceVersion") for each in server.requests]
    assert said == [expected(1), expected(2, "a"), None, expected(3)]
    assert [policy.nodes for policy in said if policy] == [set(), {"a"}, set()]
    assert versions[1:] == ["7", "20", "30"]


async def test_an_object_that_is_not_there_is_none(tmp_path: Path) -> None:
    said: list[PolicyObject | None] = []
    async with reached(tmp_path, serving(watched=[events(), CUT])) as (cluster, _):
        with pytest.raises(ClusterError):
            await cluster.follow("default", said.append)
    assert said == [None]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (FORBIDDEN, "it is forbidden"),
        (GONE, "settings-crd.yaml defines it"),
        (CUT, "default: "),
        (GARBLED, "default: "),
        (NOT_HTTP, "default: "),
        (ANOTHER, "something else"),
    ],
)
async def test_whatever_goes_wrong_says_nothing_of_the_object(
    answer: Answer, text: str, tmp_path: Path
) -> None:
    said: list[PolicyObject | None] = []
    async with reached(tmp_path, lambda _: answer) as (cluster, _):
        with pytest.raises(ClusterError, match=text) as error:
            await cluster.follow("default", said.append)
        with pytest.raises(ClusterError, match=r"Node node-a: "):
            await cluster.group("node-a")
        if answer in (FORBIDDEN, CUT, NOT_HTTP):
            with pytest.raises(ClusterError):
                await cluster.set_status("default", "node-a", None)
    assert said == []
    assert len(str(error.value)) < 400


async def test_a_watch_that_ends_in_an_error_is_one(tmp_path: Path) -> None:
    broken = {"kind": "Status", "apiVersion": "v1", "code": 500, "message": "etcd is away"}
    server_side = serving(object_(), watched=[events(("ERROR", broken))])
    said: list[PolicyObject | None] = []
    async with reached(tmp_path, server_side) as (cluster, _):
        with pytest.raises(ClusterError, match="etcd is away"):
            await cluster.follow("default", said.append)
    assert said == [expected(1)]


async def test_a_watch_from_too_long_ago_begins_with_a_list_again(tmp_path: Path) -> None:
    gone = {"kind": "Status", "apiVersion": "v1", "code": 410, "message": "too old"}
    expired = Answer(status=410, body=gone)
    server_side = serving(object_(), watched=[events(("ERROR", gone)), expired, CUT])
    said: list[PolicyObject | None] = []
    async with reached(tmp_path, server_side) as (cluster, server):
        with pytest.raises(ClusterError):
            await cluster.follow("default", said.append)
        lists = [each for each in server.requests if "watch" not in each.query]
    assert said == [expected(1)] * 3
    assert len(lists) == 3


@pytest.mark.parametrize(
    ("labels", "group"),
    [
        ({"config.nri/group": "big"}, "big"),
        ({"other": "x"}, ""),
        (None, ""),
        ({"config.nri/group": "", "group.config.nri": "old"}, "old"),
        ({"resource-policy.nri.io/group": "older", "config.nri/group": "big"}, "big"),
        ({"resource-policy.nri.io/group": "older"}, "older"),
    ],
)
async def test_the_group_is_a_label_of_the_node(
    labels: dict[str, str] | None, group: str, tmp_path: Path
) -> None:
    def node(request: Request) -> Answer:
        assert request.path == "/api/v1/nodes/node-a"
        metadata = {"name": "node-a", "labels": labels}
        return Answer(status=200, body={"kind": "Node", "apiVersion": "v1", "metadata": metadata})

    async with reached(tmp_path, node) as (cluster, _):
        assert await cluster.group("node-a") == group


async def test_another_label_can_name_the_group(tmp_path: Path) -> None:
    metadata = {"name": "node-a", "labels": {"config.nri/group": "big", "example.com/g": "own"}}
    body = {"kind": "Node", "apiVersion": "v1", "metadata": metadata}
    answer = Answer(status=200, body=body)
    async with reached(tmp_path, lambda _: answer, label="example.com/g") as (cluster, _):
        assert await cluster.group("node-a") == "own"


@pytest.mark.parametrize("status", [{"status": "Success", "generation": 2, "errors": None}, None])
async def test_a_status_is_merged_under_the_nodes_name(
    status: dict[str, Any] | None, tmp_path: Path
) -> None:
    async with reached(tmp_path, lambda _: Answer(status=200, body=object_())) as (cluster, server):
        await cluster.set_status("default", "node-a.example", status)
        (request,) = server.requests
    assert (request.method, request.path) == ("PATCH", f"{OBJECTS}/default/status")
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.body == {"status": {"nodes": {"node-a.example": status}}}


async def test_an_object_that_is_gone_needs_no_status(tmp_path: Path) -> None:
    async with reached(tmp_path, lambda _: GONE) as (cluster, server):
        await cluster.set_status("default", "node-a", {"status": "Success"})
        assert len(server.requests) == 1
