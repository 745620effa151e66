"""The targets of an audit: what the node decided for each running container."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from nri_policy.audit.deviations import Target
from nri_policy.audit.orphans import KnownContainer, KnownContainers
from nri_policy.node import NodeView, list_company
from nri_policy.workload.pod import ContainerState


def list_targets(view: NodeView, unsent: Collection[str]) -> tuple[Target, ...]:
    """Return the targets of the running containers that are pinned to anything.

    *unsent* are the ids of containers whose latest decision the runtime does not have yet.
    """
    return tuple(
        each
        for each in _list_running(view, unsent)
        if each.cpus or each.mems or each.scheduling or each.limits
    )


def list_unpinned(view: NodeView) -> tuple[Target, ...]:
    """Return the running containers whose CPUs or memory nodes are not pinned."""
    return tuple(each for each in _list_running(view, ()) if not (each.cpus and each.mems))


def list_known(
    view: NodeView,
    pids: Mapping[str, int],
    *,
    may_be_given_up: Callable[[str], bool],
    pods_have_processes: bool,
) -> KnownContainers:
    """Return the containers that run or were created; *pids* are first processes by container.

    Containers that did not start are included only if they *may be given up* without a word from
    the runtime; empty rooms only if *pods have processes* for sure.
    """

    def in_state(state: ContainerState) -> list[KnownContainer]:
        return [
            KnownContainer(
                container_id=each,
                name=placed.container.full_name,
                cgroup=placed.container.cgroup,
                pid=pids.get(each, 0),
            )
            for each, placed in view.placed.items()
            if placed.container.state is state
        ]

    folders = {each: pod.folder for each, pod in view.pods.items()}
    occupied = {each.container.pod.id for each in view.placed.values() if each.grant.tenant}
    rooms = view.rooms.keys() & folders.keys() - occupied if pods_have_processes else ()
    return KnownContainers(
        running=in_state(ContainerState.RUNNING),
        created=[
            each for each in in_state(ContainerState.CREATED) if may_be_given_up(each.container_id)
        ],
        known={*view.placed, *folders},
        folders={folder for folder in folders.values() if folder},
        rooms={each: folders[each] for each in rooms if folders[each]},
    )


def _list_running(view: NodeView, unsent: Collection[str]) -> Iterator[Target]:
    pinned = view.layout.settings.pin_cpu
    company = {each.container_id: each for each in list_company(view)} if pinned else {}
    return (
        Target(
            container_id=container_id,
            name=placed.container.full_name,
            cgroup=placed.container.cgroup,
            cpus=cpus,
            mems=mems,
            sent=container_id not in unsent,
            scheduling=None if classes is None else classes.scheduling,
            rdt_group=None if classes is None or classes.rdt is None else classes.rdt.group,
            limits=() if classes is None else tuple(classes.limits.items()),
            partition=None if isinstance(partition, str) else partition,
            company=company.get(container_id),
        )
        for container_id, placed in view.placed.items()
        for partition in [view.partition(container_id)]
        for cpus, mems in [view.sent[container_id]]
        for classes in [view.classes.get(container_id)]
        if placed.container.state is ContainerState.RUNNING
    )
