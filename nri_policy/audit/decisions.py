"""Where containers are to be, by the node, as an audit wants to know it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from nri_policy.audit.comparison import Target
from nri_policy.audit.presence import Population, Present
from nri_policy.node import NodeView, list_company
from nri_policy.workload.pod import ContainerState


def decisions(view: NodeView, unsent: Collection[str]) -> tuple[Target, ...]:
    """Return where each running container is to be that is pinned to anything.

    *unsent* are the ids of those that the runtime has not heard the latest of.
    """
    return tuple(
        each
        for each in _list_running(view, unsent)
        if each.cpus or each.mems or each.scheduling or each.limits
    )


def list_unpinned(view: NodeView) -> tuple[Target, ...]:
    """Return the running containers whose CPUs, or memory nodes, are left alone."""
    return tuple(each for each in _list_running(view, ()) if not (each.cpus and each.mems))


def books(
    view: NodeView,
    pids: Mapping[str, int],
    *,
    may_be_given_up: Callable[[str], bool],
    pods_have_processes: bool,
) -> Population:
    """Return who runs, or was created; *pids* are first processes by container.

    Of those that did not start, only who *may be given up*, without a word of the runtime, needs a
    look; an empty room, only where *pods have processes* for sure.
    """

    def in_state(state: ContainerState) -> list[Present]:
        return [
            Present(
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
    return Population(
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
            limits=() if classes is None else tuple(classes.limits.items()),
            company=company.get(container_id),
        )
        for container_id, placed in view.placed.items()
        for cpus, mems in [view.sent[container_id]]
        for classes in [view.classes.get(container_id)]
        if placed.container.state is ContainerState.RUNNING
    )
