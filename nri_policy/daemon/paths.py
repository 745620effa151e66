"""The default paths of the daemon's files."""

from __future__ import annotations

from pathlib import Path

from nri_policy.foundation.mounts import mount_point

CONFIG = Path("/etc/nri-policy/config.yaml")
NRI_SOCKET = Path("/var/run/nri/nri.sock")  # the runtime's
STATE_DIR = Path("/var/lib/nri-policy")
CONTAINERS_DIR = Path("/run/nri-policy/containers")
KUBELET_DIR = Path("/var/lib/kubelet")
CONTROL_SOCKET = Path("/run/nri-policy/control.sock")
SOCKET_VARIABLE = "NRI_POLICY_CONTROL_SOCKET"  # names another one, for all commands

# What nri-plugins' DaemonSet mounts of the host to write there; the second is in memory.
PEER_STATE = Path("/var/lib/nri-resource-policy")
PEER_RUN = Path("/run/nri-resource-policy")


def find_state_dir() -> Path:
    """Return the state folder: in a pod of nri-plugins' manifests, below its mounted folder.

    There it has a name of its own, and nothing of the other program.
    """
    return PEER_STATE / "nri-policy" if _in_peers_pod() else STATE_DIR


def find_containers_dir() -> Path:
    """Return the folder that containers mount parts of, so the host must have it too."""
    return PEER_RUN / "nri-policy/containers" if _in_peers_pod() else CONTAINERS_DIR


def _in_peers_pod() -> bool:
    return not STATE_DIR.exists() and mount_point(PEER_STATE) == PEER_STATE
