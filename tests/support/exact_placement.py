"""Whether pod sets fit together on a small tree, by trying everything: an oracle for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

Path = tuple[str, ...]
Amounts = tuple[int, ...]


@dataclass(frozen=True)
class Pods:
    """Equal pods that share one domain of a level if that is required, in slices of a level."""

    count: int
    pod: Amounts
    required: int | None = None
    size: int = 1
    slice_level: int = -1
    kept: Mapping[int, int] = field(default_factory=dict)  # leaf -> pods that stay there


def fit_together(paths: Sequence[Path], free: Sequence[Amounts], sets: Sequence[Pods]) -> bool:
    """Whether all *sets* fit on leaves at *paths*, which are sorted and have so much *free*."""
    hopeless = set[tuple[int, tuple[Amounts, ...]]]()

    def rest_fits(number: int, left: tuple[Amounts, ...]) -> bool:
        if number == len(sets):
            return True
        if (number, left) in hopeless:
            return False
        for places in _places(paths, left, sets[number]):
            if any(places.get(leaf, 0) < pods for leaf, pods in sets[number].kept.items()):
                continue
            after = [*left]
            for leaf, pods in places.items():
                after[leaf] = tuple(
                    has - pods * one for has, one in zip(left[leaf], sets[number].pod, strict=True)
                )
            if rest_fits(number + 1, tuple(after)):
                return True
        hopeless.add((number, left))
        return False

    return rest_fits(0, tuple(free))


def _places(paths: Sequence[Path], free: Sequence[Amounts], pods: Pods) -> Iterator[dict[int, int]]:
    """Yield all ways to place *pods*: leaf -> pods."""
    level = -1 if pods.required is None else pods.required
    for _, leaves in groupby(range(len(paths)), key=lambda leaf: paths[leaf][: level + 1]):
        slice_level = len(paths[0]) - 1 if pods.size == 1 else pods.slice_level
        domains = [
            [*each] for _, each in groupby(leaves, key=lambda leaf: paths[leaf][: slice_level + 1])
        ]
        yield from _in_domains(domains, free, pods, pods.count)


def _in_domains(
    domains: Sequence[Sequence[int]], free: Sequence[Amounts], pods: Pods, count: int
) -> Iterator[dict[int, int]]:
    if not domains:
        if not count:
            yield {}
        return
    room = sum(_fits(free[leaf], pods.pod) for leaf in domains[0])
    for own in range(0, min(count, room) + 1, pods.size):
        for rest in _in_domains(domains[1:], free, pods, count - own):
            for here in _in_leaves(domains[0], free, pods, own):
                yield here | rest


def _in_leaves(
    leaves: Sequence[int], free: Sequence[Amounts], pods: Pods, count: int
) -> Iterator[dict[int, int]]:
    if not leaves:
        if not count:
            yield {}
        return
    first, *others = leaves
    for own in range(min(count, _fits(free[first], pods.pod)) + 1):
        for rest in _in_leaves(others, free, pods, count - own):
            yield {first: own, **rest} if own else rest


def _fits(free: Amounts, pod: Amounts) -> int:
    return min(has // one for has, one in zip(free, pod, strict=True) if one)
