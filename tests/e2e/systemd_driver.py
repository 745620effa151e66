"""Runs inside the box: leads the unit through its life and writes down how systemd saw it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import traceback
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support.patience import HANGS

UNIT = "nri-policy.service"
RESULTS = Path("/run/results/seen.json")
NRI_SOCKET = Path("/var/run/nri/nri.sock")
PROBE = Path("/sys/fs/cgroup/probe")  # which the unit writes, as it starts
SCOPE = "cri-containerd-probe.scope"  # whose CPUs it sets
TIMEOUT_START = 15.0  # seconds, as in the unit's drop-in

_SHOWN = "ActiveState,SubState,StatusText,MainPID,NRestarts,Result"


def systemctl(*args: str) -> str:
    """Return what systemctl says."""
    done = subprocess.run(["systemctl", *args], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def shown(unit: str = UNIT, names: str = _SHOWN) -> dict[str, str]:
    """Return how a unit is."""
    lines = systemctl("show", unit, "--property", names).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def depth() -> str:
    """Return what the unit has written."""
    return (PROBE / "cgroup.max.depth").read_text()


async def until(**wanted: str) -> dict[str, str]:
    """Return how the unit is once it is as *wanted*: texts that its properties begin with."""
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        now = shown()
        if all(now.get(name, "").startswith(text) for name, text in wanted.items()):
            return now
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the unit is not {wanted}: {shown()}")


async def lead() -> dict[str, dict[str, str]]:
    """Return how the unit was after each step."""
    seen = {}
    began = time.monotonic()
    systemctl("start", "--no-block", UNIT)
    seen["waiting"] = await until(ActiveState="activating", StatusText="waiting")
    seen["probe"] = {"depth": depth()}
    seen["scope"] = shown(SCOPE, "AllowedCPUs")
    await asyncio.sleep(began + TIMEOUT_START + 2 - time.monotonic())
    seen["waiting beyond its time"] = shown()
    NRI_SOCKET.parent.mkdir(parents=True, exist_ok=True)
    async with EmbeddedRuntime(NRI_SOCKET, online_cpus=CPUSet(range(4)), memory_nodes=CPUSet([0])):
        seen["ready"] = await until(ActiveState="active", StatusText="1 pools, 0 containers")
        seen["reload"] = {"said": systemctl("reload", UNIT)}
        seen["reloaded"] = await until(ActiveState="active", SubState="running")
        os.kill(int(seen["ready"]["MainPID"]), signal.SIGSTOP)
        seen["replaced"] = await until(ActiveState="active", NRestarts="1", StatusText="1 pools")
        systemctl("stop", UNIT)
        seen["stopped"] = shown()
    return seen


PROBE.mkdir()
subprocess.Popen(["systemd-run", "--scope", f"--unit={SCOPE}", "sleep", "1000000"])
while systemctl("is-active", SCOPE) != "active\n":
    time.sleep(0.1)
try:
    RESULTS.write_text(json.dumps(asyncio.run(lead())))
except BaseException:
    RESULTS.write_text(json.dumps({"failed": traceback.format_exc()}))
    raise
finally:
    systemctl("--force", "exit")
