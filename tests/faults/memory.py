"""The memory of a daemon after many pods that came and went."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.host import host
from tests.support.daemon import pod

MOST_GROWTH = 3_000_000  # bytes between a thousand pods and ten thousand: noise of the allocator
_PAGE = os.sysconf("SC_PAGE_SIZE")
_AT_ONCE = 10


async def resident(folder: Path, lifecycles: int, every: int) -> list[int]:
    """Return the bytes that a daemon has in memory after each *every* pods that came and went."""
    sizes = []
    spec = {"reservedResources": {"cpu": 1}}
    with host(folder, "package:2 numa:2(memory=4GiB) core:4 pu:2", spec, plain=True) as node:
        async with node.runtime:
            node.start()
            await node.synchronized(0)
            for number in range(0, lifecycles, _AT_ONCE):
                if number and number % every == 0:
                    sizes.append(_resident(node.process.pid))
                for one in range(number, number + _AT_ONCE):
                    cpu, shared = (("1", False), ("100m", True), ("1500m", False))[one % 3]
                    await node.runtime.start_pod(pod(f"pod-{one}", cpu, shared=shared))
                for each in node.runtime.pods:
                    await node.runtime.delete_pod(each)
            sizes.append(_resident(node.process.pid))
    return sizes


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
