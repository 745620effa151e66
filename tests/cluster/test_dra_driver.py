"""The tests' kubelet serves a driver on upstream's kubeletplugin as it serves ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.apiserver import APIServer
from tests.support.dra_kubelet import DRAKubelet, PrepareError
from tests.support.resources import claim
from tests.unit.dra.waiting import until
from tools import dra_programs

DRIVER = "driver.example.com"  # of tools/dra_driver.go


@pytest.fixture(scope="module")
def program() -> Path:
    if not dra_programs.is_built("driver"):
        pytest.skip("the driver is not built: python -m tools.dra_programs")
    return dra_programs.program("driver")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short name: the paths of sockets have 107 bytes at most."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "plugins_registry").mkdir()  # as a kubelet does
        yield Path(folder)


@asynccontextmanager
async def running(program: Path, server: APIServer, folder: Path) -> AsyncIterator[list[str]]:
    """Run the driver; yield the requests that it prints."""
    process = await asyncio.create_subprocess_exec(
        program,
        server.kubeconfig,
        folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said: list[str] = []

    async def read(output: asyncio.StreamReader) -> None:
        async for line in output:
            said.append(line.decode().strip())  # noqa: PERF401 - each as it comes

    reading = asyncio.create_task(read(process.stdout))
    yield said
    process.stdin.close()
    await reading
    assert await process.wait() == 0


async def test_it_registers_prepares_again_after_a_restart_and_gives_back(
    program: Path, folder: Path
) -> None:
    async with APIServer(folder) as server:
        server.resources.gates |= {"DRAConsumableCapacity"}
        made = claim(
            "fast",
            {"request": "cpu", "driver": DRIVER, "pool": "node-a", "device": "d0"},
            {"request": "sub/near", "driver": DRIVER, "pool": "node-a", "device": "d1"},
        )
        await server.resources.put("resourceclaims", made)
        stored = server.resources.one("resourceclaims", "fast", "default")
        assert stored is not None
        async with running(program, server, folder) as said:
            kubelet = DRAKubelet(folder)
            await kubelet.register()
            assert kubelet.driver == DRIVER
            await kubelet.prepare("pod", stored)
            await kubelet.prepare("another", stored)
            await kubelet.restart()
            devices = kubelet.claims[stored["metadata"]["uid"]].devices
            shown = [(each.device_name, *each.request_names) for each in devices]
            assert shown == [("d0", "cpu"), ("d1", "sub")]
            await kubelet.unprepare("pod")
            await kubelet.unprepare("another")
            await until(lambda: len(said) == 3)
            assert said == ["prepare fast", "prepare fast", "unprepare fast"]
            await server.resources.delete("resourceclaims", "fast", "default")
            with pytest.raises(PrepareError, match="retrieve claim default/fast"):
                await kubelet.prepare("pod", stored)
