"""Runs inside the box: leads the service through its packages, and writes down how it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.simulation.embedded import EmbeddedRuntime

UNIT = "nri-policy.service"
RESULTS = Path("/run/results")
NRI_SOCKET = Path("/var/run/nri/nri.sock")
OLD, NEW = RESULTS / "old.deb", RESULTS / "new.deb"


async def run(*command: str | Path) -> str:
    """Return what the command prints, however it ends; the runtime is served meanwhile."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().strip()


async def how() -> dict[str, str]:
    """Return how the service is."""
    return {
        "enabled": await run("systemctl", "is-enabled", UNIT),
        "active": await run("systemctl", "is-active", UNIT),
    }


async def running() -> dict[str, str]:
    """Return how the service is while its daemon can be asked."""
    show = ("systemctl", "show", "--value", "--property")
    status = json.loads(await run("nri-policy", "status", "-o", "json"))
    return await how() | {
        "pid": await run(*show, "MainPID", UNIT),
        "restarts": await run(*show, "NRestarts", UNIT),
        "version": status["version"],
    }


async def lead() -> dict[str, object]:
    """Return how the service was after each step."""
    seen: dict[str, object] = {"installed": await how()}
    NRI_SOCKET.parent.mkdir(parents=True)
    async with EmbeddedRuntime(NRI_SOCKET, online_cpus=CPUSet(range(4)), memory_nodes=CPUSet([0])):
        await run("systemctl", "enable", "--now", UNIT)
        seen["started"] = await running()
        await run("dpkg", "--install", NEW)
        seen["upgraded"] = await running()
        await run("systemctl", "stop", UNIT)
        await run("dpkg", "--install", OLD)
        seen["stopped, then upgraded"] = await how()
        await run("systemctl", "start", UNIT)
        await run("dpkg", "--remove", "nri-policy")
        seen["removed"] = await how()
        await run("dpkg", "--purge", "nri-policy")
        folders = "/etc/nri-policy /var/lib/nri-policy /usr/lib/nri-policy"
        links = "/etc/systemd/system/*.wants/nri-policy.service"
        left = await run("sh", "-c", f"ls -d {folders} {links} 2>/dev/null")
        seen["purged"] = {"left": left.splitlines()}
    return seen


(RESULTS / "seen.json").write_text(json.dumps(asyncio.run(lead())))
