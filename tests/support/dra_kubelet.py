"""A kubelet's side of DRA, as strict as the real one (pkg/kubelet/cm/dra); a fake all the same.

It finds drivers in plugins_registry, asks who they are, chooses a version, prepares the claims of a
pod in one call, checks that each is in the answer and no other, keeps what it was told, prepares
all claims again after its restart, and gives the containers the CDI devices of their requests. What
it does not have: its checkpoint on disk, its limit of 45 s, and the health streams.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from nri_policy.proto import dra_pb2, pluginregistration_pb2
from nri_policy.workload.claim import CDI_KIND
from tests.support.patience import HANGS
from tests.unit.dra.waiting import until

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")  # newest first
_SERVICE = "k8s.io.kubelet.pkg.apis.dra"
_REGISTRATION = "pluginregistration.Registration"
_Answer = TypeVar("_Answer", bound=Message)


class PrepareError(Exception):
    """A pod that the kubelet does not start."""


@dataclass(slots=True)
class Prepared:
    """A claim that was prepared: its devices, and the pods that use it."""

    claim: dra_pb2.Claim
    devices: Sequence[dra_pb2.Device]
    pods: set[str] = field(default_factory=set)


class DRAKubelet:
    """A kubelet below *folder* that knows these *versions*."""

    def __init__(self, folder: Path, versions: Sequence[str] = VERSIONS) -> None:
        self.folder = folder
        self.cdi = folder / "cdi"
        self.claims: dict[str, Prepared] = {}  # by uid
        self.driver = ""  # name, once it is registered
        self._versions = versions
        self._endpoint = ""
        self._service = ""

    async def register(self) -> None:
        """Find the driver's socket, ask it, and say that it is registered."""
        registry = self.folder / "plugins_registry"
        await until(lambda: any(registry.glob("*.sock")))
        (socket,) = registry.glob("*.sock")
        info = await self._call(
            str(socket),
            _REGISTRATION,
            "GetInfo",
            pluginregistration_pb2.InfoRequest(),
            pluginregistration_pb2.PluginInfo,
        )
        assert info.type == "DRAPlugin"
        there = Path(info.endpoint).is_socket()  # noqa: ASYNC240 - a local folder
        assert there, "the service is there before its registration"
        known = [each for each in self._versions if each in info.supported_versions]
        assert known, "it serves a version that this kubelet knows"
        self._service, self._endpoint = f"{_SERVICE}.{known[0]}", info.endpoint
        status = pluginregistration_pb2.RegistrationStatus(plugin_registered=True)
        await self._call(
            str(socket),
            _REGISTRATION,
            "NotifyRegistrationStatus",
            status,
            pluginregistration_pb2.RegistrationStatusResponse,
        )
        self.driver = info.name

    async def prepare(self, pod: str, *claims: Mapping[str, Any]) -> None:
        """Prepare the claims of a pod, by their objects; PrepareError where it cannot start.

        A claim that is prepared for another pod already is not prepared again.
        """
        asked = [
            dra_pb2.Claim(
                namespace=each["metadata"]["namespace"],
                uid=each["metadata"]["uid"],
                name=each["metadata"]["name"],
            )
            for each in claims
        ]
        new = [each for each in asked if each.uid not in self.claims]
        if new:
            await self._prepare(new)
        for each in asked:
            self.claims[each.uid].pods.add(pod)

    async def restart(self) -> None:
        """Start again: find the driver, and prepare all claims again; answers must be the same."""
        before = {uid: [*each.devices] for uid, each in self.claims.items()}
        await self.register()
        for uid, each in self.claims.items():
            pods = each.pods
            await self._prepare([each.claim])
            self.claims[uid].pods = pods
        assert before == {uid: [*each.devices] for uid, each in self.claims.items()}

    async def unprepare(self, pod: str) -> None:
        """Give the claims back that only this pod has used; PrepareError: it stays Terminating."""
        for each in self.claims.values():
            each.pods.discard(pod)
        gone = [each.claim for each in self.claims.values() if not each.pods]
        if not gone:
            return
        answer = await self._call(
            self._endpoint,
            self._service,
            "NodeUnprepareResources",
            dra_pb2.NodeUnprepareResourcesRequest(claims=gone),
            dra_pb2.NodeUnprepareResourcesResponse,
        )
        assert {*answer.claims} == {each.uid for each in gone}
        for uid, result in answer.claims.items():
            if result.error:
                raise PrepareError(result.error)
            del self.claims[uid]

    def env(self, claim: Mapping[str, Any], request: str = "") -> list[dict[str, str]]:
        """Return the variables that a runtime sets by CDI for a container that uses a claim."""
        prepared, found = self.claims[claim["metadata"]["uid"]], []
        ids = {
            each
            for device in prepared.devices
            if not request or request in device.request_names
            for each in device.cdi_device_ids
        }
        for path in sorted(self.cdi.glob("*.json")):
            spec = json.loads(path.read_text())
            assert spec["kind"] == CDI_KIND
            version = tuple(map(int, spec["cdiVersion"].split(".")))
            assert version >= (0, 5), "before, no device's name began with a digit, as uids do"
            for device in spec["devices"]:
                if f"{spec['kind']}={device['name']}" in ids:
                    found += device["containerEdits"]["env"]
        assert len(found) == len(ids), "a CDI device of the answer is in no file"
        parts = (each.partition("=") for each in found)
        return [{"name": name, "value": value} for name, _, value in parts]

    async def _prepare(self, claims: Sequence[dra_pb2.Claim]) -> None:
        answer = await self._call(
            self._endpoint,
            self._service,
            "NodePrepareResources",
            dra_pb2.NodePrepareResourcesRequest(claims=claims),
            dra_pb2.NodePrepareResourcesResponse,
        )
        assert {*answer.claims} == {each.uid for each in claims}, "others than were asked for"
        errors = []
        for each in claims:
            result = answer.claims[each.uid]
            if result.error:
                errors.append(result.error)
                continue
            for device in result.devices:
                assert device.pool_name, "a device without a pool"
                assert device.device_name, "a device without a name"
            self.claims[each.uid] = Prepared(claim=each, devices=[*result.devices])
        if errors:
            raise PrepareError(errors[0])

    async def _call(
        self, socket: str, service: str, method: str, request: Message, kind: type[_Answer]
    ) -> _Answer:
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            call: Any = channel.unary_unary(
                f"/{service}/{method}",
                request_serializer=lambda each: each.SerializeToString(),
                response_deserializer=kind.FromString,
            )
            try:
                answer: _Answer = await call(request, timeout=HANGS)
            except grpc.aio.AioRpcError as error:  # of the whole batch, which drivers may give
                raise PrepareError(error.details()) from error
            return answer
