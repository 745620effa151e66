"""The API server of the tests answers as a real one does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.apiserver import APIServer
from tests.support.exchanges import RECORDED, Answered, Conversation, ask
from tests.support.resources import exchanged_claim, exchanged_slice


class Admin:
    def __init__(self, server: APIServer) -> None:
        self._server = server

    async def take_zones(self) -> None:
        self._server.meddle("exporter", zones=[])

    async def put_settings(self, cpu: int) -> None:
        self._server.put_settings("default", reservedResources={"cpu": cpu})

    async def put_slice(self, generation: int) -> None:
        await self._server.resources.put("resourceslices", exchanged_slice(generation))

    async def put_claim(self) -> None:
        await self._server.resources.put("resourceclaims", exchanged_claim())


async def answers(folder: Path) -> dict[str, Any]:
    async with APIServer(folder) as server:
        address = "https://" + ":".join(server.address)

        async def asking(method: str, path: str, body: Any = None, **more: str) -> Answered:
            options: Any = {"token": "first", **more}
            return await asyncio.to_thread(ask, address, server.ca, method, path, body, **options)

        return await Conversation(asking, Admin(server)).take()


def test_each_answer_is_that_of_a_real_server(tmp_path: Path) -> None:
    ours, theirs = asyncio.run(answers(tmp_path)), json.loads(RECORDED.read_text())
    wrong = {name: (ours[name], theirs[name]) for name in theirs if ours[name] != theirs[name]}
    assert ours.keys() == theirs.keys()
    assert not wrong, json.dumps(wrong, indent=1)
