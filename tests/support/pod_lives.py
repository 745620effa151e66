"""The requests of a pod's life, as bytes, to a daemon without a loop of delivery.

All of a request's own work is done: from the bytes of its frame to those of the answer, with a
store, and the observers of its decision after it. Logs are not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from google.protobuf.message import Message

from nri_policy.delivery.executor import Executor
from nri_policy.engine.engine import Engine
from nri_policy.foundation.clock import Clock
from nri_policy.hardware.machine import Machine
from nri_policy.node import Node
from nri_policy.nri import mux
from nri_policy.nri.channel import Channel
from nri_policy.nri.connection import SERVICES
from nri_policy.nri.mux import Conn
from nri_policy.nri.pauses import Pauses
from nri_policy.nri.requests import Requests
from nri_policy.nri.service import PluginService
from nri_policy.nri.ttrpc import ClientConnection
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.decisions import log_decision
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.policy_plugin import PolicyPlugin
from nri_policy.plugin.sources import Sources
from nri_policy.proto import nri_pb2 as pb
from nri_policy.store.store import Store
from nri_policy.workload.pod import shares_of
from tests.support import nodes

CLOCK = Clock(now=lambda: 100.0, date=lambda: 1e9)
EVENTS = {  # sent as StateChange
    "RunPodSandbox": pb.RUN_POD_SANDBOX,
    "StartContainer": pb.START_CONTAINER,
    "PostStartContainer": pb.POST_START_CONTAINER,
    "RemoveContainer": pb.REMOVE_CONTAINER,
    "StopPodSandbox": pb.STOP_POD_SANDBOX,
    "RemovePodSandbox": pb.REMOVE_POD_SANDBOX,
}


class _Answers(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


class Daemon:
    """What handles the requests of one connection; within a running loop."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.store = Store(folder / "state", machine)
        self.node = Node(
            Engine(machine, nodes.settings()),
            commit=lambda event, outcome, view: self.store.commit(event, outcome, view, 1e9),
        )
        executor = Executor(self.node, None, clock=CLOCK)
        exposure = Exposure(folder / "containers")
        components = PluginComponents(self.node, exposure, executor, sources=Sources())
        plugin = PolicyPlugin(components, synchronized=lambda: None)
        self.node.add_observers(log_decision)
        requests = Requests(
            PluginService(plugin, self.node.turn, CLOCK),
            last_connection=False,
            pauses=Pauses(CLOCK),
            clock=CLOCK,
            patience=lambda: 1.0,
        )
        self.channel = Channel(Conn.PLUGIN, CLOCK, requests.take)
        self.transport = _Answers()
        self.channel.connection_made(self.transport)
        self._runtime = ClientConnection()
        self._ask("Configure", pb.ConfigureRequest(runtime_name="containerd"))
        self._ask("Synchronize", pb.SynchronizeRequest())

    def _bytes(self, method: str, request: Message) -> bytes:
        _, message = self._runtime.send_request(
            SERVICES[Conn.PLUGIN], method, request.SerializeToString(), timeout_nano=2 * 10**9
        )
        return mux.send(Conn.PLUGIN, message)

    def _ask(self, method: str, request: Message) -> None:
        self.channel.data_received(self._bytes(method, request))
        assert len(self.transport.written) == 1, f"{method} is answered at once"
        self.transport.written.clear()
        self.node.catch_up()

    def life(self, name: str, milli: int) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the requests of a Guaranteed pod with one container, in order."""
        pod = pb.PodSandbox(id=f"pod-{name}", uid=name, name=name, namespace="default")
        pod.linux.cgroup_parent = f"/kubepods/pod{name}"
        container = pb.Container(id=name, pod_sandbox_id=pod.id, name="main")
        cpu = container.linux.resources.cpu
        cpu.shares.value, cpu.quota.value = shares_of(milli), 100 * milli
        cpu.period.value = 100_000
        for method in (
            "RunPodSandbox",
            "CreateContainer",
            *("StartContainer", "PostStartContainer"),
            "StopContainer",
            *("RemoveContainer", "StopPodSandbox", "RemovePodSandbox"),
        ):
            if method in EVENTS:
                event = pb.StateChangeEvent(event=EVENTS[method], pod=pod)
                if "Container" in method:
                    event.container.CopyFrom(container)
                sent, request = "StateChange", cast("Message", event)
            else:
                made = {"CreateContainer": pb.CreateContainerRequest}
                sent = method
                request = made.get(method, pb.StopContainerRequest)(pod=pod, container=container)
            yield method, lambda sent=sent, request=request: self._ask(sent, request)  # type: ignore[misc]
