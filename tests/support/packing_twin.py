"""Packing in plain Python: the rules of the spec, for tests and as what benchmarks compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import log2

MOST = 2**31 - 1
Path = tuple[str, ...]
Row = Mapping[str, int]


@dataclass(eq=False)
class Domain:
    path: Path
    children: list[Domain] = field(default_factory=list)
    leaf: int = -1
    pods: int = 0
    slices: int = 0
    pods_l: int = 0
    slices_l: int = 0
    leaders: int = 0
    score: int = 0


def grow(paths: Sequence[Path]) -> list[list[Domain]]:
    """Return the domains of every level, by path."""
    found: dict[Path, Domain] = {}
    for leaf, path in enumerate(paths):
        for end in range(1, len(path) + 1):
            if path[:end] not in found:
                domain = found[path[:end]] = Domain(path[:end])
                if end > 1:
                    found[path[: end - 1]].children.append(domain)
        found[path].leaf = leaf
    return [[d for d in found.values() if len(d.path) == n + 1] for n in range(len(paths[0]))]


def fits(free: Row, pod: Row) -> int:
    return min((max(0, free.get(r, 0)) // n for r, n in pod.items() if n), default=MOST)


def count(  # what a leaf holds, then what is above
    levels: list[list[Domain]],
    rows: Sequence[Row],
    pod: Row,
    *,
    leader: Row | None,
    mask: Sequence[int],
    scores: Sequence[int],
    size: int,
    slice_level: int,
    inner: Mapping[int, int],
) -> None:
    for leaf in levels[-1]:
        free = rows[leaf.leaf]
        leaf.pods = 0 if mask[leaf.leaf] else fits(free, pod)
        leaf.leaders = int(leader is not None and not mask[leaf.leaf] and fits(free, leader) > 0)
        rest = {r: n - (leader or {}).get(r, 0) for r, n in free.items()}
        leaf.pods_l = fits(rest, pod) if leaf.leaders else leaf.pods
        leaf.score = 0 if mask[leaf.leaf] else scores[leaf.leaf]
    for level in reversed(range(len(levels))):
        for domain in levels[level]:
            if domain.children:
                roll_up(domain, inner.get(level + 1, 1), led=leader is not None)
            if level == slice_level:
                domain.slices, domain.slices_l = domain.pods // size, domain.pods_l // size


def roll_up(domain: Domain, unit: int, *, led: bool) -> None:
    own = [(c, c.pods // unit * unit, c.pods_l // unit * unit) for c in domain.children]
    domain.pods = min(MOST, sum(pods for _, pods, _ in own))
    domain.slices = min(MOST, sum(c.slices for c in domain.children))
    domain.leaders = max(c.leaders for c in domain.children)
    domain.score = sum(c.score for c in domain.children)
    hosts = [each for each in own if each[0].leaders or not led]
    domain.pods_l = domain.pods - min((p - pl for _, p, pl in hosts), default=domain.pods)
    losses = (c.slices - c.slices_l for c, _, _ in hosts)
    domain.slices_l = domain.slices - min(losses, default=domain.slices)


def order(domains: Sequence[Domain], *, led: bool, ascending: bool) -> list[Domain]:
    def key(d: Domain) -> tuple[object, ...]:
        slices = d.slices_l if led else d.slices
        pods = d.pods_l if led else d.pods
        return (-d.leaders if led else 0, -d.score, slices if ascending else -slices, pods, d.path)

    return sorted(domains, key=key)


def room(d: Domain, *, led: bool, sliced: bool) -> int:
    if sliced:
        return d.slices_l if led else d.slices
    return d.pods_l if led else d.pods


def best_fit(domains: list[Domain], wanted: int, *, led: bool, sliced: bool) -> Domain:
    tier = [d for n, d in enumerate(domains) if all(e.score == d.score for e in domains[:n])]
    able = [d for d in tier if d.leaders or not led]
    able = [d for d in able if room(d, led=led, sliced=sliced) >= wanted]
    return min(able, key=lambda d: room(d, led=led, sliced=sliced)) if able else domains[0]


def prioritize(domains: list[Domain], wanted: int, need: int, *, sliced: bool) -> list[Domain]:
    whole = sum(room(d, led=False, sliced=sliced) for d in domains)
    for d in domains if need else []:
        loss = room(d, led=False, sliced=sliced) - room(d, led=True, sliced=sliced)
        if d.leaders and whole - loss >= wanted:
            return [d, *(other for other in domains if other is not d)]
    return domains


Given = list[tuple[Domain, int, int]]  # domain, pods, leaders


def give(
    domains: list[Domain], pods: int, need: int, unit: int, *, sliced: bool, ascending: bool
) -> Given:
    """Give pods in units to domains in order, the last one the smallest that can."""
    left, out = pods // unit, []
    domains = prioritize(domains, left, need, sliced=sliced)
    for n, each in enumerate(domains):
        d, led = each, need > 0
        if not ascending and room(d, led=led, sliced=sliced) >= left and d.leaders >= need:
            d = best_fit(domains[n:], left, led=led, sliced=sliced)
        taken = min(room(d, led=led, sliced=sliced), left)
        leader = int(led and d.leaders)
        out.append((d, taken * unit, leader))
        left, need = left - taken, need - leader
        if left <= 0 and not need:
            return out
    raise AssertionError("domains were chosen that cannot hold all")


class Unfit(Exception):  # noqa: N818 - an answer
    pass


def choose(
    levels: list[list[Domain]],
    level: int,
    wanted: int,
    need: int,
    *,
    required: bool,
    unconstrained: bool,
    ascending: bool,
    within: Path = (),
) -> tuple[int, list[Domain]]:
    while True:
        inside = [d for d in levels[level] if d.path[: len(within)] == within]
        domains = order(inside, led=True, ascending=ascending)
        able = [d for d in domains if d.leaders >= need and d.slices_l >= wanted]
        if able and ascending:
            return level, [able[0]]
        if able and (required or able[0].score == domains[0].score):
            start = domains.index(able[0])
            return level, [best_fit(domains[start:], wanted, led=need > 0, sliced=True)]
        if required:
            raise Unfit(domains[-1].pods if ascending else domains[0].slices, level)
        if unconstrained or level == max(0, len(within) - 1):
            return level, gather(domains, wanted, need, level, ascending=ascending)
        level -= 1


def gather(
    domains: list[Domain], wanted: int, need: int, level: int, *, ascending: bool
) -> list[Domain]:
    out, left = [], wanted
    if need:
        domains = prioritize(domains, wanted, need, sliced=True)
        if not domains[0].leaders:
            raise Unfit(0, level)
        fits_one = not ascending and domains[0].slices_l >= left
        host = best_fit(domains, left, led=True, sliced=True) if fits_one else domains[0]
        out.append(host)
        left -= host.slices_l
        domains = order(domains[1:], led=False, ascending=ascending)
    for n, each in enumerate(domains):
        if left <= 0:
            break
        fits_one = not ascending and each.slices >= left
        d = best_fit(domains[n:], left, led=False, sliced=True) if fits_one else each
        out.append(d)
        left -= d.slices
    if left > 0:
        raise Unfit(wanted - left, level)
    return out


def descend(
    levels: list[list[Domain]],
    level: int,
    chosen: list[Domain],
    pods: int,
    need: int,
    *,
    size: int,
    slice_level: int,
    inner: Mapping[int, int],
    ascending: bool,
    compact: bool = False,
    apart: bool = False,
) -> tuple[list[tuple[int, int]], int]:
    given = give(chosen, pods, need, size, sliced=True, ascending=ascending)
    while level < len(levels) - 1:
        if level < slice_level and apart:
            parts: Given = []
            for d, own, leader in given:
                below = order(d.children, led=False, ascending=ascending)
                parts += give(below, own, leader, size, sliced=True, ascending=ascending)
            given = parts
        elif level < slice_level:
            below = order(
                [c for d, _, _ in given for c in d.children], led=False, ascending=ascending
            )
            given = give(below, pods, need, size, sliced=True, ascending=ascending)
        else:
            unit = inner.get(level + 1, 1)
            parts = []
            for d, own, leader in given:
                upward = ascending and not compact
                below = d.children if compact else order(d.children, led=False, ascending=ascending)
                for child in below if unit > 1 or compact else []:
                    child.slices, child.slices_l = child.pods // unit, child.pods_l // unit
                below = order(below, led=False, ascending=False) if compact else below
                sliced = unit > 1 or compact
                parts += give(below, own, leader, unit, sliced=sliced, ascending=upward)
            given = parts
        level += 1
    leader = max((d.leaf for d, _, leader in given if leader), default=-1)
    return sorted((d.leaf, own) for d, own, _ in given if own), leader


def balance(
    levels: list[list[Domain]], level: int, wanted: int, need: int, *, size: int, slice_level: int
) -> tuple[int, list[Domain]] | None:
    """Return lower domains, which hold what each is to get, and their level; None if none do."""
    both = level == len(levels) - 1
    if not both and level + 1 > slice_level:
        return None
    best, threshold, used = list[Domain](), 0, 0
    for siblings in [d.children for d in levels[level - 1]] if level else [levels[0]]:
        lowers = siblings if both else [c for d in siblings for c in d.children]
        for goal in thresholds(greedy(lowers, wanted, need), wanted, need):
            if not goal or goal < threshold:
                break
            uppers = [trimmed(d, goal, need, both=both) for d in siblings]
            fit = greedy(uppers, wanted, need)
            if fit and (goal > threshold or len(fit) < used):
                best, threshold, used = uppers, goal, len(fit)
            if fit:
                break
    chosen: list[Domain] | None = best or None
    if chosen and not both:
        by_entropy = sorted(chosen, key=lambda d: (-d.leaders, -d.slices_l, -entropy(d), d.path))
        chosen = smallest_fit(by_entropy, wanted, need, size)
        chosen = chosen and [c for d in chosen for c in d.children]
    chosen = chosen and smallest_fit(sorted(chosen, key=lambda d: d.path), wanted, need, size)
    if not chosen or len(chosen) * threshold > wanted:
        return None
    extra = wanted - len(chosen) * threshold
    chosen = order(chosen, led=True, ascending=False)
    for number, d in enumerate(chosen):
        d.leaders = int(need > 0 and number == 0)
        more = min((d.slices_l if d.leaders else d.slices) - threshold, extra)
        d.slices = d.slices_l = threshold + more
        d.pods, d.pods_l = d.slices * size, d.slices * size - d.leaders
        extra -= more
    return None if extra else (level if both else level + 1, chosen)


def greedy(domains: Sequence[Domain], wanted: int, need: int) -> list[Domain]:
    """Return the domains that are used, the leader's first, then the largest; none if not all."""
    used, left = list[Domain](), wanted
    rest = order(domains, led=True, ascending=False)
    if need:
        if not rest or not rest[0].leaders:
            return []
        used, left, rest = rest[:1], left - rest[0].slices_l, rest[1:]
    for d in order(rest, led=False, ascending=False):
        if left <= 0 or not d.slices:
            break
        used.append(d)
        left -= d.slices
    return used if left <= 0 else []


def thresholds(used: list[Domain], wanted: int, need: int) -> list[int]:
    """Return what each domain could get at least, and less where the leader takes its room."""
    if not used:
        return []
    bounds = [wanted // len(used)] + [d.slices_l for d in used[:need]]
    bounds += [used[-1].slices] if len(used) > need else []
    with_room = min(*bounds, used[-1].slices_l) if len(used) > need > 0 else min(bounds)
    return [min(bounds)] + ([with_room] if with_room < min(bounds) else [])


def trimmed(domain: Domain, threshold: int, need: int, *, both: bool) -> Domain:
    """Return a copy without children that hold less than the threshold, empty if it does itself."""
    out = replace(domain)
    if not both:
        out.children = [emptied(replace(c), threshold, need) for c in domain.children]
        roll_up(out, 1, led=need > 0)
    return emptied(out, threshold, need)


def emptied(domain: Domain, threshold: int, need: int) -> Domain:
    if domain.slices < threshold:
        domain.pods = domain.slices = domain.pods_l = domain.slices_l = domain.leaders = 0
    elif need and domain.slices_l < threshold:
        domain.pods_l = domain.slices_l = domain.leaders = 0
    return domain


def entropy(domain: Domain) -> float:
    total = sum(c.pods for c in domain.children)
    parts = [c.pods / total for c in domain.children if c.pods]
    return sum(-part * log2(part) for part in parts)


def smallest_fit(
    domains: Sequence[Domain], wanted: int, need: int, size: int
) -> list[Domain] | None:
    """Return as many as a greedy fit uses, with the least in sum; on ties the earliest last one,
    rather without the leader, and so on for those before."""
    number = len(greedy(domains, wanted, need))
    found = []
    for places in combinations(range(len(domains)), number) if number else []:
        chosen = [domains[n] for n in places]
        for leader in range(number) if need else [-1]:
            held = [d.pods_l if n == leader else d.pods for n, d in enumerate(chosen)]
            able = all(d.leaders if n == leader else d.slices for n, d in enumerate(chosen))
            early = any(sum(held[:n]) >= wanted * size for n in range(leader + 1, number))
            if able and not early and sum(held) >= wanted * size:
                key = [(place, n == leader) for n, place in enumerate(places)][::-1]
                found.append((sum(held), key, chosen))
    return min(found)[2] if found else None


def smallest_set(held: Sequence[int], wanted: int) -> list[int] | None:
    """Return the fewest of *held* that hold *wanted*, with the least in sum, then earliest last."""
    for number in range(1, len(held) + 1):
        sets = [list(each) for each in combinations(range(len(held)), number)]
        able = [each for each in sets if sum(held[n] for n in each) >= wanted]
        if able:
            return min(able, key=lambda each: (sum(held[n] for n in each), each[::-1]))
    return None
