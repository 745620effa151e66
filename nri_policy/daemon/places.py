"""Where a daemon finds and leaves its files, unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

CONFIG = Path("/etc/nri-policy/config.yaml")
NRI_SOCKET = Path("/var/run/nri/nri.sock")  # the runtime's
STATE_DIR = Path("/var/lib/nri-policy")
CONTAINERS_DIR = Path("/run/nri-policy/containers")
CONTROL_SOCKET = Path("/run/nri-policy/control.sock")
SOCKET_VARIABLE = "NRI_POLICY_CONTROL_SOCKET"  # names another one, for all commands
