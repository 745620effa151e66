"""The resources of pods whose containers do not exist yet."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.event import Created
from nri_policy.nrt.pending_pods import with_pending_pods
from nri_policy.plugin.convert import container_of
from nri_policy.proto import nri_pb2
from nri_policy.workload.amounts import described
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.daemon_report import node_with
from tests.support.engine_driver import EngineDriver
from tests.support.pod_level import KUBELET, manifest, said, shown

SHOP = manifest()


def whole() -> Container:
    """Return the pod as one container, as the plugin has it from the sandbox."""
    sandbox = KUBELET.sandbox(SHOP, seen="")
    sandbox.id = SHOP.metadata.name
    linux = nri_pb2.LinuxContainer(resources=sandbox.linux.pod_resources)
    return container_of(sandbox, nri_pb2.Container(id=sandbox.id, linux=linux))


def test_what_a_pod_has_as_a_whole_is_set_aside_until_its_containers_come() -> None:
    driver = EngineDriver()
    left = []
    for container in (None, *shown(SHOP).values()):
        if container is not None:
            driver.handle(Created(container=described(container, said(SHOP))))
        view, counted = with_pending_pods(node_with(driver.engine, [whole()]))
        left.append(len(view.free))
        assert counted == {("default", "shop")}
    assert left == [11, 15, 13, 13], "they may never ask for all of it: main has 2"


def test_of_the_memory_only_what_no_container_has_yet_is_set_aside() -> None:
    driver = EngineDriver()
    main = nodes.container(1000)
    main = replace(main, resources=replace(main.resources, memory_limit=2 << 30))
    driver.create(main)
    both = replace(nodes.resources(3000, 3000), memory_limit=5 << 30)
    pod = replace(main, id=main.pod.id, resources=both)
    view, _ = with_pending_pods(node_with(driver.engine, [pod]))
    rest = view.placed[pod.id].container.resources
    assert (rest.cpu_limit, rest.memory_limit) == (2000, 3 << 30)
