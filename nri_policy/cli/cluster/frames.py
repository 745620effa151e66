"""The cluster after each step of a simulation, as its page shows it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from nri_policy.cli.cluster.picture import cluster_map, group_lines, pods_of
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.report.tree_report import make_tree_report
from nri_policy.cluster.requests.group import GroupStatus
from nri_policy.cluster.simulation.played import Played
from nri_policy.picture.racks import Legend, Map, Path, legend_of
from nri_policy.picture.racks_page import GroupLine, Moment

_MOST = 50  # pictures; a page with more takes long to open


class Frames:
    """The last states of a cluster, the groups of all of them in the same colours."""

    def __init__(self, engine: Engine) -> None:
        """Have none yet."""
        self._engine = engine
        self._largest: Counter[str] = Counter()  # the most pods that each group had
        self._maps: deque[Map] = deque(maxlen=_MOST)
        self._lines: deque[list[GroupLine]] = deque(maxlen=_MOST)
        self._pods: dict[Path, dict[str, int]] = {}  # by host, in the last state

    def take(self) -> None:
        """Take the state that there is now."""
        engine = self._engine
        groups: list[tuple[str, GroupStatus]] = [
            (each.full_name, each.status) for each in engine.state.groups.values()
        ]
        self._largest |= pods_of(groups)
        failed = {node.host for node in engine.state.nodes.values() if not node.ready}
        report = make_tree_report(engine.state, engine.state.settings.topologies[0].name)
        cluster = cluster_map(report, groups, failed)
        pods = {each.path: dict(each.pods) for each in cluster.hosts() if each.pods}
        hosts = self._pods.keys() | pods.keys()
        changed = {path[-1] for path in hosts if self._pods.get(path) != pods.get(path)}
        self._pods = pods
        self._maps.append(cluster_map(report, groups, failed, changed))
        self._lines.append(group_lines(cluster, groups))

    @property
    def legend(self) -> Legend:
        """Colours of all groups, past ones included."""
        return legend_of(self._largest)

    @property
    def last(self) -> tuple[Map, list[GroupLine]]:
        """The last state, and its groups."""
        return self._maps[-1], self._lines[-1]

    def moments(self, played: Sequence[Played], titles: Sequence[str]) -> Iterator[Moment]:
        """Yield steps with the states after them; the first of many have none."""
        touched = {host.path for each in self._maps for host in each.hosts() if host.is_touched}
        without = len(played) - len(self._maps)
        for at, (each, title) in enumerate(zip(played, titles, strict=True)):
            lines = {} if at < without else {one.name: one for one in self._lines[at - without]}
            yield Moment(
                heading=f"Step {at + 1}: {title}",
                problems=[f"not as expected: {problem}" for problem in each.problems],
                groups=[
                    GroupLine(
                        name=group.name,
                        state=group.state,
                        domains=lines[group.name].domains if group.name in lines else {},
                        elsewhere=lines[group.name].elsewhere if group.name in lines else 0,
                        message=group.message,
                        change=group.change,
                    )
                    for group in each.groups
                ],
                cluster=None if at < without else self._maps[at - without],
                touched=touched,
            )
