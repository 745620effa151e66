"""The DaemonSet that gives kernel tunables back, on a real node with its real interrupts.

The image has an entrypoint and `sleep`; the folders with the program are mounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.hardware.interrupts import read_interrupts
from nri_policy.tuning.files import KernelFiles
from nri_policy.tuning.interrupts import item_of
from nri_policy.tuning.items import Item, Wish
from nri_policy.tuning.server import open_tuner
from tests.cluster.node import CONTROLLERS, Node
from tests.cluster.shop import SCHEDULER
from tests.e2e import image, packages
from tests.e2e.daemon import PROGRAM
from tests.e2e.test_peer_pod import IMAGE

HARDWARE = ""  # the host's
MORE_PROGRAMS = ("kube-scheduler",)
NAME = "nri-policy-restore"
MANIFEST = Path(__file__).parents[2] / "configs/kustomize/restore/daemonset.yaml"
DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
PODS = f"/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name={NAME}"
NAMED = "localhost/nri-policy:e2e"  # the image
ROOT = Path("/")


@pytest.fixture
def movable() -> Iterator[tuple[Item, str]]:
    """An interrupt that can be moved, with its affinity, which it has again afterwards."""
    files = KernelFiles(ROOT)
    for each in read_interrupts(ROOT).each:
        item, before = item_of(each.number), str(each.affinity)
        if len(each.affinity) > 1:
            with suppress(OSError):
                files.write(item, str(each.affinity.first(1)))
                files.write(item, before)
                break
    else:
        pytest.skip("no interrupt of this host can be moved")
    yield item, before
    if files.read(item) != before:
        files.write(item, before)


def daemon_set(state: Path) -> dict[str, Any]:
    """Return our DaemonSet with the test's image, and a journal in *state*."""
    made: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    spec = made["spec"]["template"]["spec"]
    (command,) = spec["initContainers"]
    for number, path in enumerate(each for each in (*IMAGE, PROGRAM.parent) if each.exists()):
        spec["volumes"].append({"name": f"program-{number}", "hostPath": {"path": str(path)}})
        mount = {"name": f"program-{number}", "mountPath": str(path), "readOnly": True}
        command["volumeMounts"].append(mount)
    for each in spec["volumes"]:
        if each["name"] == "tuner-state":
            each["hostPath"]["path"] = str(state)
    for each in (*spec["initContainers"], *spec["containers"]):
        each["image"] = NAMED
    return made


def statuses(node: Node) -> list[dict[str, Any]]:
    """Return the states of the init containers of the DaemonSet's pods."""
    pods = node.cluster.asked("GET", PODS)["items"]
    return [status for pod in pods for status in pod["status"].get("initContainerStatuses", ())]


def test_originals_are_given_back_on_a_node_as_soon_as_its_tuner_has_ended(
    node: Node, movable: tuple[Item, str], tmp_path: Path
) -> None:
    archive, cluster, files = tmp_path / "image.tar", node.cluster, KernelFiles(ROOT)
    image.write(
        packages.busybox(), archive, name=NAMED, entrypoint=[str(PROGRAM)], programs=["sleep"]
    )
    node.runtime.load(archive, NAMED)
    cluster.asked("DELETE", f"{DAEMON_SETS}/nri-policy")  # without an image
    cluster.stop("kube-controller-manager")
    cluster.start_controllers(*CONTROLLERS, "daemonset-controller")
    cluster.start_scheduler(SCHEDULER)
    item, before = movable
    with open_tuner(ROOT, tmp_path / "state") as tuner:
        tuner.set({item: Wish("0")}, repair=False)
        assert files.read(item) == "0" != before
        cluster.asked("POST", DAEMON_SETS, daemon_set(tmp_path / "state"))
        cluster.until(
            lambda: any(each["restartCount"] for each in statuses(node)), "it was tried again"
        )
        assert files.read(item) == "0", "the tuner runs"
    cluster.until(lambda: any(each["ready"] for each in statuses(node)), "it has ended well")
    assert files.read(item) == before
    (status,) = statuses(node)
    (proc,) = [each for each in status["volumeMounts"] if each["name"] == "proc"]
    assert proc["recursiveReadOnly"] == "Enabled", "all of /proc but what is mounted on it"
    cluster.kubectl("-n", "kube-system", "rollout", "status", f"daemonset/{NAME}")
