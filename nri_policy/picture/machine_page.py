"""What a page says of a machine beside its picture: pools, memory, distances, caches, devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nri_policy.cpuset import CPUSet
from nri_policy.picture.markup import Element
from nri_policy.picture.page import heat_map, listed, section, table
from nri_policy.picture.scene import Document
from nri_policy.units import format_bytes
from nri_policy.wording import counted


def machine_sections(machine: Document, pools: Sequence[Document]) -> Iterator[Element]:
    """Yield the parts of a page, from the whole to the parts."""
    yield section("Pools", _pools(pools))
    yield section("CPUs", _cpu_sets(machine, pools))
    yield section("Memory nodes", _nodes(machine))
    distances = machine["distances"]
    if len(distances["nodes"]) > 1:
        names = [str(node) for node in distances["nodes"]]
        yield section("Distances between memory nodes", heat_map(names, distances["matrix"]))
    if machine["caches"]:
        yield section("Caches", _caches(machine["caches"]))
    if machine["devices"]:
        yield section("Devices", _devices(machine["devices"]))
    if machine["notes"]:
        yield section("Notes", listed(machine["notes"]))


def _pools(pools: Sequence[Document]) -> Element:
    parents_first = sorted(
        pools, key=lambda pool: (CPUSet.parse(pool["cpus"]).lowest, pool["depth"])
    )
    rows = [
        [
            "· " * pool["depth"] + pool["name"],
            ", ".join(pool["levels"]),
            str(len(CPUSet.parse(pool["cpus"]))),
            pool["cpus"],
            "; ".join(f"{kind} {nodes}" for kind, nodes in pool["memory"].items() if nodes),
        ]
        for pool in parents_first
    ]
    return table(["pool", "stands for", "count", "CPUs", "memory nodes"], rows)


def _cpu_sets(machine: Document, pools: Sequence[Document]) -> Element:
    top = next(pool for pool in pools if pool["parent"] is None)
    sets = {
        **{name: machine["cpus"][name] for name in ("online", "offline", "isolated", "nohz_full")},
        "reserved": top["reserved"],
        "sharable": top["sharable"],
    }
    for core in machine["cores"]:
        if core["kind"] != "standard":
            sets[core["kind"]] = str(
                CPUSet.parse(sets.get(core["kind"], "")) | CPUSet.parse(core["cpus"])
            )
    rows = [[name, str(len(CPUSet.parse(cpus))), cpus] for name, cpus in sets.items() if cpus]
    return table(["", "count", "CPUs"], rows)


def _nodes(machine: Document) -> Element:
    rows = [
        [
            str(node["id"]),
            node["kind"],
            format_bytes(node["memory"]),
            node["cpus"] or "-",
            node["nearest"] if not node["cpus"] else "",
            "" if node["latency"] is None else f"{node['latency']} ns",
            "" if node["bandwidth"] is None else f"{node['bandwidth']} MB/s",
            node["kind_reason"],
        ]
        for node in machine["numa_nodes"]
    ]
    heads = ["node", "kind", "memory", "CPUs", "nearest to", "latency", "bandwidth", "because"]
    kept = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    return table([heads[at] for at in kept], [[row[at] for at in kept] for row in rows])


def _caches(caches: Sequence[Document]) -> Element:
    """Return one line for all caches that differ only in their CPUs."""
    alike: dict[tuple[int, str, int], list[int]] = {}
    for cache in caches:
        kind = cache["level"], cache["type"], cache["size"]
        alike.setdefault(kind, []).append(len(CPUSet.parse(cache["cpus"])))
    rows = []
    for (level, type_, size), sharers in sorted(alike.items()):
        least, most = min(sharers), max(sharers)
        rows.append(
            [
                f"L{level}",
                type_,
                str(len(sharers)),
                format_bytes(size) if size else "unknown",
                counted(most, "CPU") if least == most else f"{least} to {most} CPUs",
            ]
        )
    return table(["level", "type", "count", "size", "shared by"], rows)


def _devices(devices: Sequence[Document]) -> Element:
    rows = [
        [each["address"], each["class"], each["name"], each["numa_nodes"] or "-", each["cpus"]]
        for each in devices
    ]
    return table(["address", "class", "name", "NUMA nodes", "near CPUs"], rows)
