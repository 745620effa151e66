"""The pool tree: which CPUs and memory nodes belong together; spec placement.md §1.

Owns the structure only: what a pool has left is `supply`'s business. Built once from a Machine and
the available CPUs, then frozen. Invariants: a pool's children are disjoint strict subsets of it,
ids are in post-order (so a child's id is below its parent's and the top pool's id is the highest),
every available CPU is in the top pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.wording import counted
from nri_policy.hardware.machine import REQUESTABLE, Machine, MemoryKind, MemoryNode
from nri_policy.settings import Level

# The first of these levels names a pool of several levels (§1.5); packages decide on `root`.
ROOT = "root"  # the name of the top pool of several sockets
_NAMING = (Level.SYSTEM, Level.PACKAGE, Level.NUMA, Level.DIE, Level.L3CACHE)
_LEAST_CORES = 4  # of a part of a NUMA node that is a pool (§1.9)
_TOO_SMALL = "too small for pools: containers share wider ones"
_SMALL = {  # level -> its name, and what so small ones mean
    Level.PACKAGE: (
        "package",
        "a virtual machine whose sockets are not real; pools begin at the NUMA node",
    ),
    Level.DIE: ("die", _TOO_SMALL),
    Level.L3CACHE: ("L3 cache", _TOO_SMALL),
}


class Pool(Struct, frozen=True, kw_only=True):
    """A set of CPUs that lie together, and the memory near them."""

    id: int
    name: str
    levels: tuple[Level, ...]  # what it stands for, coarsest first
    parent: int | None
    children: tuple[int, ...]
    depth: int  # links from the top pool
    cpus: CPUSet
    memory: Mapping[MemoryKind, CPUSet]  # node ids by requestable kind: dram, pmem, hbm


class PoolTree(Struct, frozen=True, kw_only=True):
    """All pools, indexed by id; the last one is the top."""

    pools: tuple[Pool, ...]
    # the same and sets that are too small for pools, for picking CPUs (§1.9); ids are their own
    domains: tuple[Pool, ...]
    notes: tuple[str, ...]  # on sets that did not fit into the tree

    @property
    def top(self) -> Pool:
        """The pool of all available CPUs."""
        return self.pools[-1]

    def path(self, pool: Pool) -> Iterable[Pool]:
        """Yield *pool* and its ancestors, the top last."""
        while True:
            yield pool
            if pool.parent is None:
                return
            pool = self.pools[pool.parent]

    def first_below(self, pool: int) -> int:
        """Return the lowest id in *pool*'s subtree: those from it to *pool*, all without a gap."""
        while self.pools[pool].children:
            pool = self.pools[pool].children[0]
        return pool

    def domains_of(self, level: Level) -> tuple[CPUSet, ...]:
        """Return the sets of CPUs at *level*, pools or not."""
        return tuple(each.cpus for each in self.domains if level in each.levels)

    def within_numa(self, pool: Pool) -> bool:
        """Return whether *pool* lies within one NUMA node."""
        return not self._crosses(Level.NUMA, pool)

    def one_package_holds(self, pool: Pool) -> int:
        """Return how many milli-CPU a package has at most; 0 if *pool* does not span several.

        Only packages with a pool count.
        """
        if not self._crosses(Level.PACKAGE, pool):
            return 0
        sizes = (len(each.cpus) for each in self.pools if Level.PACKAGE in each.levels)
        return 1000 * max(sizes, default=0)

    def _crosses(self, level: Level, pool: Pool) -> bool:
        return all(level not in above.levels for above in self.path(pool))

    def around(self, cpus: CPUSet) -> Pool:
        """Return the smallest pool with all of *cpus*; the top has them."""
        return next(pool for pool in self.pools if cpus <= pool.cpus)

    def at_level(self, pool: Pool, level: Level) -> Pool:
        """Return the deepest pool on *pool*'s path at *level* or the next coarser one (§1.8)."""
        coarser = tuple(Level)[: tuple(Level).index(level) + 1]
        for wanted in reversed(coarser):
            for candidate in self.path(pool):
                if wanted in candidate.levels:
                    return candidate
        return self.top


class _Candidate(Struct, frozen=True):
    """A set that a pool can be made of."""

    level: Level
    name: str  # "" where it depends on the parent
    cpus: CPUSet  # the available ones


class _Set(Struct):
    """A candidate set while the tree is made."""

    cpus: CPUSet
    names: dict[Level, str]  # what it stands for; the name is "" where it depends on the parent
    children: list[_Set]
    id: int = -1


def build(machine: Machine, available: CPUSet) -> PoolTree:
    """Return the tree over the *available* CPUs, a non-empty part of the online ones."""
    packages = [package for package in machine.packages if package.cpus & available]
    top = _Set(available, {}, [])
    if len(packages) > 1:  # else the top is that package's (§1.5)
        top.names[Level.SYSTEM] = ROOT
    large, small = _split_by_size(machine, available)
    notes = [note for each in large if (note := _insert(top, each))]
    top.names.setdefault(Level.SYSTEM, top.names.get(Level.PACKAGE, ROOT))
    memory = _Memory(machine)
    pools = domains = _frozen(top, memory)
    if small:
        for each in small:
            _insert(top, each)
        domains = _frozen(top, memory)
        names = {each.cpus: each.name for each in domains}  # which count the small ones (§1.5)
        pools = tuple(replace(pool, name=names[pool.cpus]) for pool in pools)
    notes += describe_small(machine, available)
    return PoolTree(pools=pools, domains=domains, notes=tuple(notes))


def _candidates(machine: Machine, available: CPUSet) -> Iterable[_Candidate]:
    """Yield the sets that pools are made of (§1.1), the coarsest level first."""
    for package in machine.packages:
        yield _Candidate(Level.PACKAGE, f"socket #{package.id}", package.cpus & available)
    for die in machine.dies:
        yield _Candidate(Level.DIE, f"die #{die.package}/{die.id}", die.cpus & available)
    for node, cpus in numa_cpus(machine).items():
        yield _Candidate(Level.NUMA, f"NUMA node #{node}", cpus & available)
    for cache in machine.caches:
        if cache.level == 3 and cache.type != "instruction":
            yield _Candidate(Level.L3CACHE, "", cache.cpus & available)


def _split_by_size(
    machine: Machine, available: CPUSet
) -> tuple[list[_Candidate], list[_Candidate]]:
    """Return the candidates, and apart from them those in a NUMA node that are too small (§1.9).

    A shared container would be confined to a CPU or two there, out of all that its node has.
    """
    nodes = [cpus & available for cpus in numa_cpus(machine).values()]
    large: list[_Candidate] = []
    small: list[_Candidate] = []
    for each in _candidates(machine, available):
        is_small = any(each.cpus < node for node in nodes) and (
            _count_cores(machine, each.cpus) < _LEAST_CORES
        )
        (small if is_small else large).append(each)
    return large, small


def _count_cores(machine: Machine, cpus: CPUSet) -> int:
    return sum(not core.cpus.isdisjoint(cpus) for core in machine.cores)


def describe_small(machine: Machine, available: CPUSet) -> tuple[str, ...]:
    """Say which sets are too small for pools; each counts at its coarsest level."""
    _, small = _split_by_size(machine, available)
    levels = {each.cpus: each.level for each in reversed(small) if each.cpus}
    texts = []
    for level, (what, meaning) in _SMALL.items():
        sizes = [_count_cores(machine, cpus) for cpus, of in levels.items() if of is level]
        if sizes:
            least, most = min(sizes), max(sizes)
            fewer = f"{least} to " * (least < most)
            texts.append(
                f"{counted(len(sizes), what)} of {fewer}{counted(most, 'core')}: {meaning}"
            )
    return tuple(texts)


def numa_cpus(machine: Machine) -> dict[int, CPUSet]:
    """Return the CPUs of each memory node's NUMA pool.

    CPUs of a node without memory count with the nearest node that has both CPUs and memory, else
    with the nearest that has memory (§1.2): no CPU is left without memory near it unless none has
    memory. Among equally near ones a node of the same package comes first, so that the set does not
    cross packages.
    """
    with_memory = [
        node for node in machine.nodes if node.memory and node.kind is not MemoryKind.DEVICE
    ]
    homes = [node for node in with_memory if node.cpus] or with_memory
    cpus = {node.id: node.cpus for node in homes}
    for node in machine.nodes:
        if node.cpus and not node.memory:
            home = min(homes, key=_distance_from(machine, node), default=node)
            cpus[home.id] = cpus.get(home.id, EMPTY) | node.cpus
    return cpus


def _distance_from(
    machine: Machine, node: MemoryNode
) -> Callable[[MemoryNode], tuple[float, bool, int]]:
    """Return the order of other nodes as seen from *node*, nearest first."""
    own = CPUSet.union(p.cpus for p in machine.packages if not p.cpus.isdisjoint(node.cpus))
    return lambda home: (
        machine.distances.between(node.id, home.id),
        own.isdisjoint(home.cpus),
        home.id,
    )


def _insert(top: _Set, candidate: _Candidate) -> str | None:
    """Put a candidate below the smallest set that holds it; return a note if it crosses another.

    If an equal set exists, the candidate becomes another level of it (§1.3).
    """
    level, name, cpus = candidate.level, candidate.name, candidate.cpus
    if not cpus:
        return None
    at = top
    while at.cpus != cpus:
        inside = next((child for child in at.children if cpus <= child.cpus), None)
        if inside is not None:
            at = inside
            continue
        touched = [child for child in at.children if not child.cpus.isdisjoint(cpus)]
        crossing = next((child for child in touched if not child.cpus <= cpus), None)
        if crossing is not None:
            other = next(iter(crossing.names))
            return f"the {level} set {cpus} crosses the {other} set {crossing.cpus}: left out"
        new = _Set(cpus, {}, touched)
        at.children = [child for child in at.children if child not in touched] + [new]
        at = new
    at.names.setdefault(level, name)
    return None


def _post_order(at: _Set) -> Iterable[_Set]:
    """Yield *at* and all below it in the order of their ids (§1.6)."""
    at.children.sort(key=lambda child: child.cpus.lowest)
    for child in at.children:
        yield from _post_order(child)
    yield at


def _frozen(top: _Set, memory: _Memory) -> tuple[Pool, ...]:
    """Return the pools of *top* and all below it, by their ids."""
    for index, at in enumerate(_post_order(top)):
        at.id = index
    pools: list[Pool] = []
    _freeze(top, None, "", memory, pools)
    return tuple(sorted(pools, key=lambda pool: pool.id))


def _freeze(
    at: _Set, parent: Pool | None, l3_name: str, memory: _Memory, pools: list[Pool]
) -> None:
    """Append the pools of *at* and all below it."""
    naming = next(level for level in _NAMING if level in at.names)
    pool = Pool(
        id=at.id,
        name=at.names[naming] or l3_name,
        levels=tuple(level for level in Level if level in at.names),
        parent=None if parent is None else parent.id,
        children=tuple(child.id for child in at.children),
        depth=0 if parent is None else parent.depth + 1,
        cpus=at.cpus,
        memory=memory.all if parent is None else memory.near(at.cpus),
    )
    pools.append(pool)
    domain = 0  # of this parent, by lowest CPU (§1.5)
    for child in at.children:
        _freeze(child, pool, f"{pool.name}/L3 cache #{domain}", memory, pools)
        domain += tuple(child.names) == (Level.L3CACHE,)


class _Memory:
    """Which memory nodes are near which CPUs (§1.7).

    CPUs of a node without memory are near the node that they count with (§1.2).
    """

    def __init__(self, machine: Machine) -> None:
        self._nodes = machine.nodes
        self._homes = numa_cpus(machine)
        self.all = self._by_kind(machine.nodes)

    def near(self, cpus: CPUSet) -> dict[MemoryKind, CPUSet]:
        """Return the nodes that share a CPU with *cpus*, and the CPU-less ones nearest to these."""
        own = CPUSet(
            node.id
            for node in self._nodes
            if not node.cpus.isdisjoint(cpus)
            or not self._homes.get(node.id, EMPTY).isdisjoint(cpus)
        )
        return self._by_kind(
            [
                node
                for node in self._nodes
                if node.id in own or (not node.cpus and not node.nearest.isdisjoint(own))
            ]
        )

    @staticmethod
    def _by_kind(nodes: Iterable[MemoryNode]) -> dict[MemoryKind, CPUSet]:
        with_memory = [node for node in nodes if node.memory]
        return {
            kind: CPUSet(node.id for node in with_memory if node.kind in members)
            for kind, members in REQUESTABLE.items()
        }
