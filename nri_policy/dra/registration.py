"""Registration: the socket on which the kubelet finds the driver, and the kubelet's answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nri_policy.workload.claim import DRIVER


class Registration:
    """The state of the registration with the kubelet."""

    def __init__(self) -> None:
        self.registered = False
        self.error = ""  # the reason of the last refusal
        self.heard: Callable[[], None] = lambda: None  # called after each answer


def registration_socket(kubelet: Path) -> Path:
    """Return the socket on which a kubelet with the folder *kubelet* finds the driver."""
    return kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
