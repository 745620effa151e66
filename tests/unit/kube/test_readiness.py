"""A Node's taints and conditions: ours, and nobody else's, whoever else writes at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.kube.client import NODES, Client
from nri_policy.kube.connection import access
from nri_policy.kube.errors import APIError
from nri_policy.kube.readiness import CONDITION, TAINT, condition_of, set_condition, set_taint
from tests.support.cluster_api import ClusterAPI
from tests.support.patience import HANGS

Object = dict[str, Any]

OURS = {"key": TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.com/other", "effect": "NoSchedule", "value": "x"}
EVICTING = {"key": TAINT, "effect": "NoExecute"}
VALUED = OURS | {"value": "x", "timeAdded": "2026-01-01T00:00:00Z"}


@asynccontextmanager
async def node(
    folder: Path, *taints: Object, **status: Any
) -> AsyncIterator[tuple[ClusterAPI, Client]]:
    async with ClusterAPI(folder) as api:
        spec = {"taints": [*taints]} if taints else {}
        await api.put("nodes", {"metadata": {"name": "a"}, "spec": spec, "status": status})
        connect = access(api.kubeconfig)
        assert connect is not None
        client = Client(connect, patience=2 * HANGS)
        yield api, client
        await client.close()


def writes(api: ClusterAPI) -> list[str]:
    return [path for method, path, _ in api.requests if method != "GET"]


@pytest.mark.parametrize(
    ("before", "present", "after"),
    [
        ([OURS], False, None),
        ([OTHER, VALUED, EVICTING], False, [OTHER, EVICTING]),
        ([], True, [OURS]),
        ([OTHER, EVICTING], True, [OTHER, EVICTING, OURS]),
    ],
)
async def test_a_taint_comes_and_goes_and_the_others_stay(
    tmp_path: Path, before: list[Object], present: bool, after: list[Object] | None
) -> None:
    async with node(tmp_path, *before) as (api, client):
        assert await set_taint(client, "a", present=present)
        assert api.objects["nodes"]["a"]["spec"].get("taints") == after
        assert not await set_taint(client, "a", present=present)
        assert writes(api) == ["/api/v1/nodes/a"], "what is so already is not written"


async def test_a_taint_that_somebody_sets_meanwhile_stays(tmp_path: Path) -> None:
    async with node(tmp_path, OURS) as (api, client):
        get = client.get

        async def overtaken(*arguments: Any, **options: Any) -> Object:
            found = await get(*arguments, **options)
            if not writes(api):
                changed = api.objects["nodes"]["a"] | {"spec": {"taints": [OURS, OTHER]}}
                await api.put("nodes", changed | {"metadata": {"name": "a"}})
            return found

        client.get = overtaken  # type: ignore[method-assign]
        assert await set_taint(client, "a", present=False)
        assert api.objects["nodes"]["a"]["spec"]["taints"] == [OTHER]
        assert len(writes(api)) == 2


async def test_a_node_that_is_always_written_by_others_is_given_up(tmp_path: Path) -> None:
    async with node(tmp_path, OURS) as (api, client):
        api.refuse = lambda method, _path: 409 if method == "PATCH" else 0
        with pytest.raises(APIError, match="409"):
            await set_taint(client, "a", present=False)
        assert len(writes(api)) == 5


async def test_a_condition_keeps_the_time_of_its_last_change(tmp_path: Path) -> None:
    ready = {"type": "Ready", "status": "True"}

    async with node(tmp_path, conditions=[ready]) as (api, client):

        async def write(status: str, message: str, now: float) -> bool:
            found = await client.get(NODES, "a")
            return await set_condition(
                client, found, status=status, reason="R", message=message, now=now
            )

        assert await write("True", "m", 0.0)
        assert not await write("True", "m", 60.0)
        assert await write("True", "n", 120.0)
        shown = condition_of(api.objects["nodes"]["a"])
        assert shown["lastTransitionTime"] == "1970-01-01T00:00:00Z"
        assert shown["lastHeartbeatTime"] == "1970-01-01T00:02:00Z"
        assert await write("False", "n", 180.0)
        shown = condition_of(api.objects["nodes"]["a"])
        assert shown["lastTransitionTime"] == "1970-01-01T00:03:00Z"
        conditions = api.objects["nodes"]["a"]["status"]["conditions"]
        assert [each["type"] for each in conditions] == ["Ready", CONDITION]
