"""The domains that could hold all pod sets of a group that is to be together; spec cluster.md §3.

Each pod set is counted by itself: a domain that holds each of them may still not hold all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nri_policy.cluster.engine.search.domain_search import UnitCounts
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.objects.document import Amounts, with_place
from nri_policy.cluster.requests.request import Unit
from nri_policy.native._counts import rank

MAX_FULLEST = 16  # that are tried before the emptiest ones
_AMOUNT = 8  # bytes of an amount in `Rows.dump`


def sum_requests(units: Iterable[Unit]) -> Amounts:
    """Return what all pods of units request together, by resource."""
    sums: Counter[str] = Counter()
    for pod_set in (each for unit in units for each in unit.pod_sets):
        for name, amount in with_place(pod_set.amounts).items():
            sums[name] += amount * pod_set.count
    return dict(sums)


def find_shared_domains(
    units: Sequence[Unit], rooms: Sequence[UnitCounts], level: int
) -> tuple[Iterator[Path], Path]:
    """Return the paths of domains of *level* that hold each unit, the fullest then first.

    If many of those hold each, but not all, the emptiest are next. Domains that are equal down to
    their leaves count once, by the first path. Also return the one that holds the most units.
    """
    tree = rooms[0].tree
    pairs = zip(units, rooms, strict=True)
    own = [(unit, room) for unit, room in pairs if room.tree.shape is tree.shape]
    every = [room.counts for _, room in own]
    counts = [unit.workers.count for unit, _ in own]
    found, closest = rank(every, counts, sum_requests(unit for unit, _ in own), level)

    def paths() -> Iterator[Path]:
        order = (*found[:MAX_FULLEST], *reversed(found[MAX_FULLEST:]))
        yield from (tree.shape.path(domain, level) for domain in order[:1])
        left = tree.rows.dump().values() if order[1:] else ()
        seen = set[object]()
        for domain in order:
            leaves = tree.shape.domains.leaves_below(domain)
            low, high = leaves.start * _AMOUNT, leaves.stop * _AMOUNT
            fits = [(each.of(domain), each.below(domain)) for each in every]
            room = *(each[low:high] for each in left), *fits
            if domain != order[0] and (len(own) < len(units) or room not in seen):
                yield tree.shape.path(domain, level)
            seen.add(room)

    return paths(), tree.shape.path(closest, level)
