"""A plain-Python twin of the affinity evaluation: every affinity looks at every container."""

from __future__ import annotations

from fractions import Fraction

from nri_policy.pools.tree import PoolTree
from nri_policy.workload.affinity import Affinity
from nri_policy.workload.expression import Expression
from nri_policy.workload.expression import Operator as Op
from nri_policy.workload.pod import Container


def weights(asked: Container, affinities: list[Affinity], peers: list[Container]) -> dict[str, int]:
    """Return W(c, x) by container id, without zeros."""
    found: dict[str, int] = {}
    for peer in peers:
        for affinity in affinities:
            if peer.id != asked.id and holds(affinity.scope, peer) and holds(affinity.match, peer):
                found[peer.id] = found.get(peer.id, 0) + affinity.weight
    return {peer: weight for peer, weight in found.items() if weight}


def holds(expression: Expression, x: Container) -> bool:
    """Return whether an expression holds for a container."""
    op, values = expression.operator, expression.values
    if op is Op.ALWAYS_TRUE or expression.key is None:
        return True
    parts = [lookup(part, x) for part in expression.key.parts]
    exists = any(part is not None for part in parts)
    value = expression.key.separator.join(part or "" for part in parts)
    if op in {Op.EXISTS, Op.NOT_EXISTS}:
        return exists is (op is Op.EXISTS)
    if op in {Op.EQUALS, Op.NOT_EQUAL, Op.IN, Op.NOT_IN}:
        found = exists and (value in values or "*" in values)
        return found is (op in {Op.EQUALS, Op.IN})
    found = exists and any(glob.matches(value) for glob in expression.globs)
    return found is (op in {Op.MATCHES, Op.MATCHES_ANY})


def lookup(part: str, x: Container) -> str | None:
    """Return the value of one key."""
    if part == "pod":
        return f"{x.pod.namespace}/{x.pod.name}"
    of_pod, part = part.startswith("pod/"), part.removeprefix("pod/")
    if part.startswith("labels/"):
        return (x.pod if of_pod else x).labels.get(part.removeprefix("labels/"))
    named = x.pod if of_pod or part in {"namespace", "qosclass", "uid"} else x
    return None if part.startswith("tags/") else str(getattr(named, part.removesuffix("class")))


def scores(tree: PoolTree, booked: dict[int, int]) -> list[Fraction]:
    """Return affinity(P) by the formula, from the weight booked on each pool."""
    found = []
    for pool in tree.pools:
        related = [q for q in tree.pools if q in tree.path(pool) or pool in tree.path(q)]
        links = {q.id: abs(q.depth - pool.depth) for q in related}
        found.append(Fraction(sum(Fraction(3, 4) ** links[q] * booked.get(q, 0) for q in links)))
    return found
