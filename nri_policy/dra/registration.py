"""What the kubelet knows of the driver: where it looks for it, and what it has said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nri_policy.workload.claim import DRIVER


class Registration:
    """What the kubelet has said of us."""

    def __init__(self) -> None:
        self.registered = False
        self.error = ""  # why it has refused us
        self.heard: Callable[[], None] = lambda: None  # called when the kubelet has said something


def registration_socket(kubelet: Path) -> Path:
    """Return where the kubelet whose folder is *kubelet* finds the driver."""
    return kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
