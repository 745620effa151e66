"""Tables of a machine and its pool tree, for `topology`.

Made for at least 80 columns and machines of any size. A note says what is left out; the JSON form
has everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nri_policy.cli.node.device_groups import groups_of
from nri_policy.cli.terminal.breakable_text import cpu_list
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import counted, natural
from nri_policy.hardware.machine import (
    REQUESTABLE,
    Cache,
    CoreKind,
    Machine,
    MemoryKind,
    MemoryNode,
)
from nri_policy.pools.capacity import Capacity
from nri_policy.pools.tree import Pool, PoolTree

_MOST_DISTANCES = 16  # nodes whose matrix fits in 80 columns
_MOST_NOTES = 20
_MOST_DEVICES = 40  # lines


def machine_tables(
    machine: Machine, tree: PoolTree, capacity: Capacity, free: Mapping[int, int]
) -> Iterator[RenderableType]:
    """Draw tables of *machine* and its pools, from whole to parts.

    *free* has the unused bytes by memory node, if known.
    """
    yield _section("CPUs", _cpu_sets(machine, capacity))
    yield _section("Pools", _pools(machine, tree))
    yield _section("Memory nodes", _nodes(machine, free))
    if machine.devices:
        yield _section("Devices", _devices(machine))
    if machine.caches:
        yield _section("Caches", _caches(machine.caches))
    if len(machine.distances.nodes) > 1:
        yield _section("Distances", _distances(machine))
    if notes := [*machine.notes, *tree.notes, *capacity.notes]:
        yield _section("Notes", _notes(notes))


def _section(title: str, content: RenderableType) -> Group:
    return Group("", Text(title, style="bold cyan"), Padding(content, (0, 0, 0, 2)))


def _cpu_sets(machine: Machine, capacity: Capacity) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    sets = {
        "online": machine.online,
        "offline": machine.offline,
        "not available": machine.online - capacity.available,
        "reserved": capacity.reserved,
        "isolated": machine.isolated,
        "nohz_full": machine.nohz_full,
    }
    for kind in CoreKind:
        if kind is not CoreKind.STANDARD:
            sets[kind.value] = CPUSet.union(c.cpus for c in machine.cores if c.kind is kind)
    for name, cpus in sets.items():
        if cpus:
            table.add_row(Text(name), Text(str(len(cpus)), justify="right"), cpu_list(cpus))
    return table


def _pools(machine: Machine, tree: PoolTree) -> Columns:
    kinds = [kind for kind in REQUESTABLE if tree.top.memory[kind]]
    table = Columns(
        *("pool", "stands for", "count", "CPUs", *kinds),
        right=("count",),
        whole=("pool", *kinds),  # the lines of the tree would break
        dispensable=("stands for", *kinds, "count"),
    )
    sizes = {node.id: node.memory for node in machine.nodes}
    for pool, guide in _with_guides(tree, tree.top, "", ""):
        above = "" if pool.parent is None else f"{tree.pools[pool.parent].name}/"
        table.add_row(
            Text(guide + pool.name.removeprefix(above)),
            Text(", ".join(pool.levels)),
            str(len(pool.cpus)),
            cpu_list(pool.cpus),
            *(_format_size(pool.memory[kind], sizes) for kind in kinds),
        )
    return table


def _format_size(nodes: CPUSet, sizes: dict[int, int]) -> str:
    return f"{nodes}: {format_bytes(sum(sizes[node] for node in nodes))}" if nodes else ""


def _with_guides(tree: PoolTree, pool: Pool, first: str, rest: str) -> Iterator[tuple[Pool, str]]:
    """Yield *pool* and all below it, parents first, each with the lines that lead to it."""
    yield pool, first
    children = sorted(pool.children, key=lambda child: natural(tree.pools[child].name))
    for child in children:
        last = child == children[-1]
        yield from _with_guides(
            tree,
            tree.pools[child],
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
        )


def _nodes(machine: Machine, free: Mapping[int, int]) -> Columns:
    table = Columns(
        "node",
        "kind",
        "memory",
        *(["free"] if free else []),
        "CPUs",
        "remarks",
        right=("node", "memory", "free"),
        whole=("memory", "free"),
        dispensable=("remarks",),
    )
    for node in machine.nodes:
        table.add_row(
            str(node.id),
            node.kind.value,
            format_bytes(node.memory),
            *([format_bytes(free[node.id]) if node.id in free else "-"] if free else []),
            cpu_list(node.cpus),
            Text("; ".join(_remarks(node))),
        )
    return table


def _remarks(node: MemoryNode) -> Iterator[str]:
    if not node.cpus and node.nearest:
        yield f"nearest to node {node.nearest}"
    if node.memory and (node.kind is not MemoryKind.DRAM or not node.cpus):
        yield node.kind_reason
    if node.access is not None and node.access.read_latency is not None:
        yield f"latency {node.access.read_latency} ns"
    if node.access is not None and node.access.read_bandwidth is not None:
        yield f"bandwidth {node.access.read_bandwidth} MB/s"
    if node.memory and not node.normal:
        yield "movable only"
    for size, pages in node.hugepages:
        if pages:
            yield f"{pages} huge pages of {format_bytes(size)}"


def _devices(machine: Machine) -> RenderableType:
    groups = groups_of(machine.devices)
    table = Columns(
        *("kind", "count", "node", "CPUs", "name", "address"),
        right=("count",),
        whole=("address",),
        dispensable=("CPUs", "name"),
    )
    for group in groups[:_MOST_DEVICES]:
        first, *others = group.addresses
        table.add_row(
            group.kind,
            str(len(group.addresses)),
            str(group.nodes) or "-",
            "all" if group.cpus == machine.online else cpu_list(group.cpus),
            Text(group.name),
            f"{first} …" if others else first,
        )
    left = len(machine.devices) - sum(len(group.addresses) for group in groups[:_MOST_DEVICES])
    rest = f"{counted(left, 'other function')}, such as bridges: see -o json"
    return Group(*([table] if groups else []), *([rest] if left else []))


def _caches(caches: Iterable[Cache]) -> Columns:
    """Draw one row per group of caches that differ only in CPUs."""
    alike: dict[tuple[int, str, int], list[int]] = {}
    for cache in caches:
        alike.setdefault((cache.level, cache.type, cache.size), []).append(len(cache.cpus))
    table = Columns("level", "type", "count", "size", "shared by", right=("count", "size"))
    for (level, type_, size), sharers in sorted(alike.items()):
        least, most = min(sharers), max(sharers)
        table.add_row(
            f"L{level}",
            type_,
            str(len(sharers)),
            format_bytes(size) if size else "unknown",
            counted(most, "CPU") if least == most else f"{least} to {most} CPUs",
        )
    return table


def _distances(machine: Machine) -> RenderableType:
    distances = machine.distances
    if len(distances.nodes) > _MOST_DISTANCES:
        return Text(f"between {len(distances.nodes)} nodes: see -o json")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("", *map(str, distances.nodes)):
        table.add_column(name, justify="right")
    for node, row in zip(distances.nodes, distances.matrix, strict=True):
        table.add_row(Text(str(node), style="dim"), *map(str, row))
    return table


def _notes(notes: list[str]) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    for note in notes[:_MOST_NOTES]:
        table.add_row("-", Text(note, overflow="fold"))
    if len(notes) > _MOST_NOTES:
        table.add_row("", Text(f"and {len(notes) - _MOST_NOTES} more: see -o json"))
    return table
