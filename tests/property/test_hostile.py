"""Whatever comes in at any door of the daemon is taken, or is that door's one error."""

from __future__ import annotations

import asyncio
import io
import lzma
import math
import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import yaml
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from nri_policy.control.container_names import UnknownNameError, find_by_name
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.dra.hypothetical import allocator
from nri_policy.dra.objects import ObjectError, read_claim, read_pod, read_slice
from nri_policy.foundation.clock import Clock
from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.kubelet.manifest_pods import ContainerFactory, parse_manifests
from nri_policy.kubelet.pod_resources import _by_pod
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.service import METHODS, PluginService
from nri_policy.plugin.convert import container_of
from nri_policy.proto import nri_pb2, podresources_pb2
from nri_policy.settings import SettingsError, load
from nri_policy.simulation.scenario import ScenarioError, read_scenario
from nri_policy.store.errors import StoreError
from nri_policy.store.store import Store
from tests.property.messages import messages, odd
from tests.support import bookkeeping, nodes, stores

_CALLS = nri_pb2.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
requests = st.sampled_from(METHODS).flatmap(
    lambda method: st.tuples(st.just(method), messages(_CALLS[method].input_type))
)
slow = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@slow
@given(st.lists(requests, max_size=12))
def test_any_requests_leave_a_daemon_whose_books_are_right(
    requests: list[tuple[str, Message]],
) -> None:
    with TemporaryDirectory() as folder:
        daemon = Daemon(nodes.machine(), nodes.settings(), Environment(state_dir=Path(folder)))
        assert Code.INTERNAL not in asyncio.run(_asked(daemon, requests))
        engine = daemon.node._engine
        runtime = bookkeeping.Runtime()  # as if it had received every change
        for container_id in engine.state.placed:
            runtime.cpus[container_id], runtime.mems[container_id] = engine.state.sent[container_id]
        bookkeeping.check(engine, runtime)
        if daemon.synchronized.is_set():
            assert stores.on_disk(daemon._store.path) == stores.grants(engine)
        daemon._store.close()
        again = Store(Path(folder), nodes.machine())
        assert [each.name for each in Path(folder).glob("store*")] == ["store"]
        again.close()


async def _asked(daemon: Daemon, requests: list[tuple[str, Message]]) -> set[int]:
    """Make the requests; return how they were refused."""
    codes = set()
    service = PluginService(daemon.plugin, daemon.node.turn, Clock())
    for method, request in requests:
        try:
            await service.answer(method, request.SerializeToString(), budget=math.inf)
        except CallRefused as refusal:
            codes.add(refusal.code)
    updating = daemon.components.resources._updating
    if updating is not None:
        await updating
    return codes


# Documents that are nearly right reach deeper than text does.
_WORDS = st.sampled_from(
    [
        *("apply", "delete", "resize", "restart", "expect", "advance", "settings", "offline"),
        *("daemon", "60s", "0-3", "one", "default/one", "one/c0", "pod", "container", "resources"),
        *("apiVersion", "v1", "kind", "Pod", "List", "Deployment", "apps/v1", "metadata", "name"),
        *("spec", "containers", "initContainers", "template", "replicas", "items", "requests"),
        *(
            "limits",
            "cpu",
            "memory",
            "1",
            "500m",
            "1Gi",
            "1e400",
            "file",
            "pods.yaml",
            "config.nri",
        ),
        *("TopologyAwarePolicy", "config.nri/v1alpha1", "reservedResources", "pinCPU", "nan"),
    ]
)
_scalars = (
    _WORDS | st.none() | st.booleans() | st.integers() | st.floats() | odd | st.just(10**4000)
)
documents = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS | odd, inner, max_size=5),
    max_leaves=20,
)
_POD = st.fixed_dictionaries(
    {
        "apiVersion": st.just("v1"),
        "kind": st.just("Pod"),
        "metadata": st.fixed_dictionaries({"name": st.just("one") | _scalars}),
        "spec": st.fixed_dictionaries(
            {
                "containers": st.lists(
                    st.fixed_dictionaries(
                        {"name": st.just("c0") | _scalars, "resources": documents}
                    ),
                    max_size=2,
                )
            }
        ),
    },
    optional={"more": documents},
)
texts = (
    st.binary(max_size=100)
    | documents.map(lambda document: yaml.safe_dump(document).encode())
    | st.lists(_POD | documents, max_size=3).map(lambda each: yaml.safe_dump(each).encode())
    | st.lists(st.dictionaries(_WORDS, _POD | documents, max_size=1), max_size=3).map(
        lambda each: yaml.safe_dump(each).encode()
    )
)


@given(texts)
def test_any_settings_file_is_settings_or_an_error(text: bytes) -> None:
    with suppress(SettingsError):
        load(text, "here")


@slow
@given(texts)
def test_any_scenario_file_is_steps_or_an_error(text: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_bytes(text)
        with suppress(ScenarioError):
            read_scenario(path)


@given(st.lists(_POD | documents, max_size=3), st.integers(0, 2**32 - 1), odd)
def test_any_manifests_and_names_are_answered_or_declined(
    manifests: list[Any], replicas: int, name: str
) -> None:
    factory = ContainerFactory(
        kubelet=Kubelet(), convert=container_of, exact=False, allocator=allocator
    )
    with suppress(ValueError):
        for wanted in parse_manifests(yaml.safe_dump_all(manifests), replicas, factory).pods:
            wanted.starts(name)
    with suppress(UnknownNameError):
        find_by_name(name, {"default/one/c0", f"{name}/a/b", name})


_RESOURCE_OBJECT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["gpu", "gpu/big", "a/numaNode", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("metadata", "name", "uid", "spec", "status", "driver", "pool", "generation"),
                    *(
                        "resourceSliceCount",
                        "nodeName",
                        "devices",
                        "attributes",
                        "a/numaNode",
                        "int",
                    ),
                    *("ints", "string", "allocation", "results", "request", "device", "containers"),
                    *("resources", "claims", "resourceClaims", "resourceClaimName"),
                    *("extendedResourceClaimStatus", "requestMappings", "containerName"),
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(_RESOURCE_OBJECT)
def test_any_object_of_an_api_server_is_read_or_refused(found: Any) -> None:
    with suppress(ObjectError):
        read_slice(Raw(msgspec.json.encode(found)))
    with suppress(ObjectError):
        read_claim(found)
    with suppress(ObjectError):
        read_pod(found)


@given(messages(podresources_pb2.ListPodResourcesResponse.DESCRIPTOR))
def test_any_answer_of_the_kubelet_is_devices(
    answer: podresources_pb2.ListPodResourcesResponse,
) -> None:
    for found in _by_pod(answer.pod_resources).values():
        assert all(max(nodes, default=0) < 1024 for nodes in found.devices.values())


def _capture() -> bytes:
    """Return the archive of a small machine, links and all."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in (("sys/devices/system/cpu/online", b"0-1"), ("sys/x", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo("sys/link")
        link.type, link.linkname = tarfile.SYMTYPE, "x"
        archive.addfile(link)
    return packed.getvalue()


CAPTURE = _capture()


@slow
@given(
    st.lists(st.tuples(st.integers(0, len(CAPTURE) - 1), st.binary(max_size=40)), max_size=5),
    st.booleans(),
    st.integers(0, len(CAPTURE)),
)
def test_any_capture_is_a_folder_or_an_error(
    changes: list[tuple[int, bytes]], packed: bool, length: int
) -> None:
    data = bytearray(CAPTURE)
    if not packed:
        data = bytearray(lzma.compress(CAPTURE))
    for at, change in changes:
        data[at : at + len(change)] = change
    written = lzma.compress(data) if packed else bytes(data)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "capture.tar.xz"
        path.write_bytes(written[: max(length, 1)] if length % 2 else written)
        with suppress(TopologyError), open_capture(path) as root:
            discover(root)
        assert [each.name for each in Path(folder).iterdir()] == ["capture.tar.xz"]


def _store() -> bytes:
    with TemporaryDirectory() as folder:
        store, engine = stores.started(Path(folder))
        for event, _ in zip(stores.life(engine, 1), range(30), strict=False):
            stores.commit(store, engine, event)
        store.close()
        return store.path.read_bytes()


STORE = _store()


@slow
@given(
    st.lists(st.tuples(st.integers(0, len(STORE) - 1), st.binary(max_size=300)), max_size=4),
    st.integers(0, len(STORE)) | st.just(len(STORE)),
    st.binary(max_size=100),
)
def test_any_file_is_a_store_or_is_set_aside(
    changes: list[tuple[int, bytes]], length: int, log: bytes
) -> None:
    data = bytearray(STORE)
    for at, change in changes:
        data[at : at + len(change)] = change
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store" / "state.db"
        path.parent.mkdir(mode=0o700)
        path.write_bytes(data[:length])
        path.chmod(0o600)
        if log:
            path.with_name("state.db-wal").write_bytes(log)
        store, engine = stores.started(Path(folder))
        for event, _ in zip(stores.life(engine, 1), range(3), strict=False):
            with suppress(StoreError):
                stores.commit(store, engine, event)
        store.close()
