"""Scheduling classes of real containers: read back from the kernel, or "runtime too old".

The runtime that is new enough is built by `python3 -m tools.runtimes`; without it its tests skip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.audit.first_process import FirstProcess, io_priority_of, process_of
from tests.e2e import packages
from tests.e2e.conftest import NEWEST
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually

KEY = "scheduling-class.resource-policy.nri.io/pod"
CLASSES: list[dict[str, Any]] = [
    {"name": "background", "policy": "batch", "nice": 10, "ioClass": "be", "ioPriority": 7},
    {"name": "leftover", "policy": "idle", "ioClass": "idle"},
    {"name": "polite", "nice": 5},
    {"name": "realtime", "policy": "fifo", "priority": 10},
    {
        "name": "due",
        "policy": "deadline",
        "flags": ["reset-on-fork"],
        "runtime": "1ms",
        "deadline": "10ms",
    },
]


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "reservedResources": {"cpu": "750m"},
        "preferIsolatedCPUs": False,
        "schedulingClasses": CLASSES,
        "namespaceSchedulingClasses": {"ci": "polite"},
    }


@pytest.fixture
def host_root() -> Path:
    """This host itself: the daemon reads its kernel."""
    return Path("/")


def started(kubelet: Kubelet, name: str, class_: str, **options: Any) -> Container:
    return kubelet.run(name, BEST_EFFORT, annotations={KEY: class_} if class_ else {}, **options)


def in_kernel(
    container: Container, accept: Callable[[FirstProcess], bool] = lambda _: True
) -> FirstProcess:
    """Return what the container's first process runs with, by the kernel.

    It is read until that is to *accept*: the runtime may still be setting it up.
    """
    pid = container.pid()

    def read() -> FirstProcess:
        found = process_of(Path(f"/proc/{pid}/stat").read_text(), io_priority_of(pid))
        assert found is not None
        return found

    return eventually(read, accept)


def scheduled(container: Container, scheduler: str) -> str:
    """Return how the container's first process is scheduled, once that is as expected."""
    return in_kernel(container, lambda found: found.scheduler == scheduler).scheduler


def explained(daemon: Daemon, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(daemon.ask("explain", name, "-o", "json").stdout)
    return shown


@pytest.mark.parametrize("runtime", list(packages.SUITES), indirect=True)
def test_a_runtime_that_is_too_old_is_named(daemon: Daemon, kubelet: Kubelet) -> None:
    """And the container runs without its class."""
    plain = in_kernel(started(kubelet, "plain", ""))
    web = started(kubelet, "web", "background")
    assert in_kernel(web, lambda found: found == plain) == plain
    items = explained(daemon, "web/main")["classes"]
    assert [each["state"] for each in items] == ["unsupported", "unsupported"]
    assert "runtime too old: containerd" in items[0]["wanted"]
    assert json.loads(daemon.ask("status", "-o", "json").stdout)["lacking_classes"] == 1


@pytest.fixture
def runtime(request: pytest.FixtureRequest, start_runtime: Callable[[str], Runtime]) -> Runtime:
    """One of Debian's, or the newest where none is named: none of Debian's has such classes yet."""
    return start_runtime(getattr(request, "param", NEWEST))


@pytest.mark.parametrize(
    ("name", "class_", "scheduler", "io"),
    [
        ("web", "background", "batch, nice 10", "be 7"),
        ("scan", "leftover", "idle", "idle"),
        ("tidy", "polite", "other, nice 5", None),
    ],
)
def test_a_class_is_what_the_kernel_has(  # noqa: PLR0917 - fixtures and a row
    name: str, class_: str, scheduler: str, io: str | None, daemon: Daemon, kubelet: Kubelet
) -> None:
    found = in_kernel(
        started(kubelet, name, class_),
        lambda it: it.scheduler == scheduler and io in {None, it.io_priority},
    )
    assert found.scheduler == scheduler
    assert io in {None, found.io_priority}
    shown: Mapping[str, Any] = json.loads(daemon.ask("containers", "-o", "json").stdout)
    assert shown[f"default/{name}/main"]["classes"] == {"scheduling": class_}


def test_the_namespace_s_class_counts_where_there_is_no_annotation(
    daemon: Daemon, kubelet: Kubelet
) -> None:
    job = started(kubelet, "job", "", namespace="ci")
    assert scheduled(job, "other, nice 5") == "other, nice 5"
    (item,) = explained(daemon, "ci/job/main")["classes"]
    assert (item["origin"], item["wanted"]) == ("namespace", "other, nice 5")


def test_what_a_pinned_container_would_die_of_is_refused_before(
    daemon: Daemon, kubelet: Kubelet, refused: Callable[..., str]
) -> None:
    del daemon
    assert "pinned to some CPUs" in refused(kubelet, "due", "due")
    if Path("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").exists():
        assert "RT_GROUP_SCHED" in refused(kubelet, "fast", "realtime")
    else:
        fast = started(kubelet, "fast", "realtime")
        assert scheduled(fast, "fifo, priority 10") == "fifo, priority 10"


@pytest.fixture
def refused() -> Callable[[Kubelet, str, str], str]:
    """What returns the text with which a pod's container is refused."""

    def text(kubelet: Kubelet, name: str, class_: str) -> str:
        pod = kubelet.run_pod(name, {"main": BEST_EFFORT}, annotations={KEY: class_})
        with pytest.raises(grpc.RpcError) as refusal:
            pod.create("main")
        assert isinstance(refusal.value, grpc.Call)
        return str(refusal.value.details())

    return text


def test_what_was_read_back_is_shown(daemon: Daemon, kubelet: Kubelet) -> None:
    started(kubelet, "web", "background")
    items = eventually(
        lambda: explained(daemon, "web/main")["classes"],
        lambda found: all(each["state"] == "ok" for each in found),
    )
    found = {each["item"]: (each["found"], each["state"]) for each in items}
    assert found == {"scheduler": ("batch, nice 10", "ok"), "io_priority": ("be 7", "ok")}
