"""Pictures of a cluster, from the tree of a topology and the groups in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from nri_policy.cli.cluster.amounts import fullest, quantities
from nri_policy.cli.output import print_page
from nri_policy.cluster.engine.search.unfit_message import describe_left_out
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.report.tree_report import Domain, TreeReport, count_placed_on_hosts
from nri_policy.cluster.requests.group import GroupStatus
from nri_policy.foundation.wording import some
from nri_policy.picture.racks import Map, Path, Place, document, legend_of
from nri_policy.picture.racks_page import GroupLine, Parts, cluster_page

Groups = Sequence[tuple[str, GroupStatus]]  # by namespace/name


def print_cluster(  # noqa: PLR0913 - what a page consists of
    report: TreeReport,
    groups: Groups,
    form: str,
    title: str,
    *,
    notes: Sequence[str],
    problems: Sequence[str] = (),
) -> None:
    """Print a topology with *groups*: the drawing alone (svg), or a page with the rest."""
    cluster, legend = cluster_map(report, groups), legend_of(pods_of(groups))
    if form == "svg":
        print_page(document(cluster, legend))
        return
    parts = Parts(
        problems=problems,
        groups=group_lines(cluster, groups),
        cluster=cluster,
        totals=totals(report),
        notes=notes,
    )
    print_page(cluster_page(title, legend, parts))


def cluster_map(
    report: TreeReport,
    groups: Groups,
    failed: Collection[str] = frozenset(),
    changed: Collection[str] = frozenset(),
) -> Map:
    """Return a topology with the pods of *groups*; hosts *failed* or *changed*, by name."""
    placed = count_placed_on_hosts(groups)
    known = quantities(report)
    return Map(
        name=report.topology,
        levels=[each.rpartition("/")[2] for each in report.levels],
        places=[
            Place(
                path=(*each.values,),
                share=fullest(each)[1],
                detail="; ".join([*_fullest(each), *(one.sentence(each) for one in known)]),
                fullest="".join(_fullest(each)),
                pods=(pods := _pods(each, placed) if each.level == report.levels[-1] else {}),
                others=max(0, each.used.get("pods", 0) - sum(pods.values())),
                failed=each.values[-1] in failed,
                changed=each.values[-1] in changed,
            )
            for each in report.domains
        ],
    )


def _fullest(domain: Domain) -> Iterator[str]:
    name, share = fullest(domain)
    if share > 0:
        yield f"{share:.0%} of {name}"


def _pods(host: Domain, placed: Mapping[Path, Mapping[str, int]]) -> Mapping[str, int]:
    path = (*host.values,)
    return placed.get(path[-1:], placed.get(path, {}))


def pods_of(groups: Groups) -> Counter[str]:
    """Return how many pods groups have."""
    pods: Counter[str] = Counter()
    for each in count_placed_on_hosts(groups).values():
        pods.update(each)
    return pods


def group_lines(cluster: Map, groups: Groups) -> list[GroupLine]:
    """Return a line for each group, with the domains above hosts where its pods are."""
    domains: dict[str, Counter[Path]] = {}
    for host in cluster.hosts():
        for name, pods in host.pods.items():
            domains.setdefault(name, Counter())[host.path[:-1] or host.path] += pods
    total = pods_of(groups)
    return [
        GroupLine(
            name=name,
            state=status.state,
            domains=domains.get(name, {}),
            elsewhere=total[name] - sum(domains.get(name, {}).values()),
            message=status.message,
        )
        for name, status in groups
    ]


def totals(report: TreeReport) -> list[list[str]]:
    """Return a row for each resource: in use, of how much, and the share."""
    whole: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for each in report.domains:
        if each.level == report.levels[0]:
            whole.update(each.total)
            used.update(each.used)
    cluster = Domain(level="", values=[], nodes=0, total=whole, used=used, free={}, groups=[])
    rows = []
    for quantity in quantities(report):
        if all_of_it := whole.get(quantity.resource):
            in_use, _, total = quantity.use(cluster).partition(" of ")
            share = f"{used[quantity.resource] / all_of_it:.1%}"
            rows.append([quantity.resource, in_use, f"{total} {quantity.unit}".rstrip(), share])
    return rows


def overbooked(report: TreeReport) -> list[str]:
    """Return a line for the hosts and zones whose pods request more than there is, if any."""
    resources = {each.resource: each for each in quantities(report)}
    levels = report.levels
    hosts = levels.index(HOSTNAME) if HOSTNAME in levels else len(levels) - 1
    found = []
    for each in report.domains:
        over = [resources[name].sentence(each) for name in each.overbooked()]
        if over and each.level in levels[hosts:]:
            found.append(f"{'/'.join(each.values[hosts:])} ({', '.join(over)})")
    return [f"overbooked, more is requested than there is: {some(found)}"] * bool(found)


def left(report: TreeReport) -> list[str]:
    """Return a line for each reason for which nodes are left out."""
    return [describe_left_out(each.reason, each.nodes) for each in report.left_out]
