"""Picker: which CPUs of a set to take; spec placement.md §6.

The kernels choose the domains and do the picking; this module is their Python face and says what
the domains and groups of a machine are.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.native._cpu_domains import Domains
from nri_policy.native._picker import Picker
from nri_policy.pools.tree import PoolTree, build
from nri_policy.settings import Level

__all__ = ["CPUDomain", "DomainTree", "Domains", "Picker", "domain_tree", "picker_of"]

_LEVELS = (Level.PACKAGE, Level.NUMA, Level.L3CACHE)
_NONE = -1


def picker_of(machine: Machine, tree: PoolTree | None = None) -> Picker:
    """Return the picker for the CPUs of *tree*, a pool tree of *machine*, or else for all online.

    A group is idle only if all its online CPUs are candidates: CPUs outside the tree break it.
    """
    l3 = [
        c.cpus & machine.online for c in machine.caches if c.level == 3 and c.type != "instruction"
    ]
    tree = tree or build(machine, machine.online)
    return Picker(
        _domains(domain_tree(tree), [core.cpus for core in machine.cores]),
        [*filter(None, l3), *(cluster.cpus for cluster in machine.clusters)],
    )


class CPUDomain(Struct, kw_only=True):
    """A pool, a set too small for one, or their CPUs outside of all children."""

    pool: int  # _NONE for what is no pool
    parent: int = _NONE
    levels: tuple[Level, ...]
    below: frozenset[Level]  # levels of what lies inside of it
    leaf: CPUSet | None


class DomainTree(Struct, frozen=True, kw_only=True):
    """The domains of a machine: all CPUs in leaves, each with one domain of every level."""

    domains: Sequence[CPUDomain]  # the top last
    at: Sequence[
        Sequence[int]
    ]  # by level and domain: the domain of this level around it, or itself


def domain_tree(tree: PoolTree) -> DomainTree:
    """Return the domains of *tree*, those that are too small for pools included."""
    domains: list[CPUDomain] = []
    ids: dict[int, int] = {}  # set -> its domain
    pools = {pool.cpus: pool.id for pool in tree.pools}
    for pool in tree.domains:
        own = pool.cpus - CPUSet.union(tree.domains[child].cpus for child in pool.children)
        inner = [ids[child] for child in pool.children]
        if inner and own:
            inner.append(len(domains))
            domains.append(CPUDomain(pool=_NONE, levels=(), below=frozenset(), leaf=own))
        ids[pool.id] = len(domains)
        for child in inner:
            domains[child].parent = len(domains)
        below = frozenset(
            level for child in inner for level in (*domains[child].levels, *domains[child].below)
        )
        leaf = None if inner else own
        id_ = pools.get(pool.cpus, _NONE)
        domains.append(CPUDomain(pool=id_, levels=pool.levels, below=below, leaf=leaf))
    at = [[_NONE] * len(domains) for _ in _LEVELS]
    for id_, domain in enumerate(domains):
        if domain.leaf is not None:
            _place(domains, at, id_)
    return DomainTree(domains=domains, at=at)


def _domains(made: DomainTree, cores: list[CPUSet]) -> Domains:
    return Domains(
        [domain.parent for domain in made.domains],
        [domain.pool for domain in made.domains],
        made.at,
        [domain.leaf for domain in made.domains],
        cores,
    )


def _place(domains: Sequence[CPUDomain], at: list[list[int]], leaf: int) -> None:
    """Enter in *at* the domain of each level around *leaf*, and around the domains above it.

    It is the domain of the level on the path from *leaf* up, within the one of the level before. If
    there is none, it is the widest domain there without one of the level inside.
    """
    path = [leaf]
    while domains[path[-1]].parent != _NONE:
        path.append(domains[path[-1]].parent)
    for level, homes in zip(_LEVELS, at, strict=True):
        home = next((d for d in path if level in domains[d].levels), None)
        if home is None:
            home = [d for d in path if d == leaf or level not in domains[d].below][-1]
        path = path[: path.index(home) + 1]
        for d in path:
            homes[d] = home
