"""The API server of these tests does what its users rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.cluster_api import ClusterAPI
from tests.support.patience import HANGS


class CutAtOnce(ClusterAPI):
    """It cuts each connection before it has read anything from it."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super()._accept(reader, writer)
        for task in self._serving:
            task.cancel()


def test_a_connection_that_is_cut_before_its_first_request_ends(tmp_path: Path) -> None:
    """Or a client that has just connected waits for an answer until it loses its patience."""

    async def play() -> None:
        async with CutAtOnce(tmp_path) as api:
            reader, writer = await asyncio.open_connection("127.0.0.1", api._port)
            async with asyncio.timeout(HANGS):
                assert await _read(reader) == b""
            writer.close()

    asyncio.run(play())


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:  # it was aborted
        return b""
