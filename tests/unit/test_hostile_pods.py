"""Pods that no API server lets through but a runtime might: a clear error, or a bounded cost."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.foundation.clock import Clock
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.service import PluginService
from nri_policy.proto import nri_pb2 as pb
from tests.support import nodes

DOMAIN = "resource-policy.nri.io"


@dataclass(frozen=True, slots=True)
class Door:
    """A daemon, and the service that a runtime sees of it."""

    daemon: Daemon
    service: PluginService

    def ask(self, method: str, payload: bytes) -> bytes:
        answer = self.service.answer(method, payload, budget=math.inf)
        return asyncio.run(answer)

    def create(self, pod: pb.PodSandbox, container_id: str = "c1") -> str:
        """Announce a pod and create a container of it; return its CPUs."""
        container = pb.Container(id=container_id, pod_sandbox_id=pod.id, name="main")
        container.linux.resources.cpu.shares.value = 1024
        request = pb.CreateContainerRequest(pod=pod, container=container)
        self.ask("RunPodSandbox", pb.RunPodSandboxRequest(pod=pod).SerializeToString())
        answer = self.ask("CreateContainer", request.SerializeToString())
        return pb.CreateContainerResponse.FromString(answer).adjust.linux.resources.cpu.cpus


@contextmanager
def door(folder: Path) -> Iterator[Door]:
    daemon = Daemon(nodes.machine(), nodes.settings(), Environment(state_dir=folder))
    opened = Door(daemon, PluginService(daemon.plugin, daemon.node.turn, Clock()))
    opened.ask("Synchronize", b"")
    yield opened
    daemon._store.close()


def sandbox(
    id_: str = "p1", name: str = "pod", uid: str = "u1", namespace: str = "default"
) -> pb.PodSandbox:
    pod = pb.PodSandbox(id=id_, name=name, uid=uid, namespace=namespace)
    pod.linux.cgroup_parent = "/kubepods/burstable/pod"
    return pod


def annotated(annotations: Mapping[str, str]) -> pb.PodSandbox:
    pod = sandbox()
    pod.annotations.update(annotations)
    return pod


CROWDS = {
    "unknown ones": {f"x{number}.{DOMAIN}/pod": "true" for number in range(100_000)},
    "of other containers": {
        f"prefer-isolated-cpus.{DOMAIN}/container.{number}": "?" for number in range(100_000)
    },
    "of others": {f"x{number}.example.com/pod": "x" for number in range(100_000)},
}


@pytest.mark.parametrize("annotations", CROWDS.values(), ids=CROWDS.keys())
def test_a_hundred_thousand_annotations_are_looked_up_and_not_kept(
    annotations: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with door(tmp_path) as opened:
        assert opened.create(annotated(annotations))
    assert len(caplog.records) < 40
    written = sum(file.stat().st_size for file in (tmp_path / "store").iterdir())
    assert written < 1 << 20


HUGE = {
    "text": {f"prefer-shared-cpus.{DOMAIN}/pod": "x" * 1_000_000},
    "yaml": {f"{DOMAIN}/affinity": "main: [" + "a," * 400_000 + "]"},
    "nested": {f"cold-start.{DOMAIN}/pod": "[" * 1_000_000},
    "json": {"noderesource.dev/resources": "[" * 1_000_000},
    "bomb": {
        f"{DOMAIN}/affinity": "a0: &a0 [x, x]\n"
        + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
    },
}


@pytest.mark.parametrize("annotations", HUGE.values(), ids=HUGE.keys())
def test_a_huge_value_is_refused_in_a_few_words(
    annotations: dict[str, str], tmp_path: Path
) -> None:
    with door(tmp_path) as opened:
        with pytest.raises(CallRefused) as refused:
            opened.create(annotated(annotations))
        assert refused.value.message.startswith(f"annotation {next(iter(annotations))}")
        assert len(refused.value.message) < 400
        assert opened.create(sandbox("p2", "other"), "c2")


@pytest.mark.parametrize(
    "name", ["../../../etc", "/etc/passwd", "..", ".", "a/b", "\0", "\n", "x" * 100_000]
)
def test_a_name_is_never_a_path(name: str, tmp_path: Path) -> None:
    with door(tmp_path / "state") as opened:
        assert opened.create(sandbox("p1", name, name, name))
        assert opened.create(sandbox(name, "pod2"), name)
        assert len(opened.daemon.node.view.placed) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    shown = [each.name for each in (tmp_path / "state" / "containers").iterdir()]
    assert shown == ["c1"]


def test_names_with_slashes_are_nobody_elses(tmp_path: Path) -> None:
    pods = [
        sandbox("p1", name="c", namespace="a/b"),
        sandbox("p2", name="b/c", namespace="a"),
        sandbox("p3", name="b%2Fc", namespace="a"),
    ]
    with door(tmp_path) as opened:
        for number, pod in enumerate(pods):
            assert opened.create(pod, f"c{number}")
        assert opened.daemon.node.view.placed.keys() == {"c0", "c1", "c2"}


def test_text_that_is_no_text_is_garbled(tmp_path: Path) -> None:
    whole = pb.RunPodSandboxRequest(pod=sandbox(name="NAME")).SerializeToString()
    with door(tmp_path) as opened, pytest.raises(CallRefused, match="malformed") as refused:
        opened.ask("RunPodSandbox", whole.replace(b"NAME", b"\xff\xfe\xc0\x80"))
    assert refused.value.code == Code.INVALID_ARGUMENT
