"""What a real API server answers to all that the daemon asks."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from tests.cluster.control_plane import ADMIN, ControlPlane
from tests.cluster.installation import daemon_token
from tests.support.exchanges import (
    CLAIMS,
    MERGE,
    NRT,
    RECORDED,
    SETTINGS,
    SLICES,
    Answered,
    Conversation,
)
from tests.support.resources import exchanged_claim, exchanged_slice


class Admin:
    """Others, by the admin's token."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster

    async def take_zones(self) -> None:
        path = f"{NRT}/node-a?fieldManager=exporter"
        self._cluster.asked("PATCH", path, {"zones": []}, content=MERGE)

    async def put_settings(self, cpu: int) -> None:
        spec = {"spec": {"reservedResources": {"cpu": cpu}}}
        head = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
        new = {**head, "metadata": {"name": "default"}, **spec}
        if self._cluster.ask("POST", SETTINGS, new).status == 409:
            self._cluster.asked("PATCH", f"{SETTINGS}/default", spec, content=MERGE)

    async def put_slice(self, generation: int) -> None:
        new = exchanged_slice(generation)
        if self._cluster.ask("POST", SLICES, new).status == 409:
            path = f"{SLICES}/{new['metadata']['name']}"
            self._cluster.asked("PATCH", path, {"spec": new["spec"]}, content=MERGE)

    async def put_claim(self) -> None:
        new = exchanged_claim()
        made = self._cluster.asked("POST", CLAIMS, new)
        self._cluster.asked("PUT", f"{CLAIMS}/gpus/status", {**made, "status": new["status"]})


async def test_the_answers_are_those_that_the_tests_server_is_held_against(
    cluster: ControlPlane,
) -> None:
    """With NRI_POLICY_RECORD=1 they are recorded anew."""
    daemon = daemon_token(cluster, "node-a")
    cluster.asked("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})

    async def ask(method: str, path: str, body: Any = None, **more: str) -> Answered:
        options: Any = {"token": daemon, **more}
        return await asyncio.to_thread(cluster.ask, method, path, body, **options)

    answers = await Conversation(ask, Admin(cluster)).take()
    assert ADMIN not in json.dumps(answers)
    if os.environ.get("NRI_POLICY_RECORD"):
        RECORDED.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
    assert answers == json.loads(RECORDED.read_text())
