"""Jobs that do not exist, from a short specification: arrivals and durations by chance, seeded.

    load:0.8 for:7d; small share:80 pods:1 gpu:1 runs:30m; gang share:20 pods:2-16 gpu:8 runs:4h
    required:rack

Parts are divided by semicolons. The first is of all jobs: `for` is how long they keep coming, and
`load` the share of the cluster that they would use on average of the resource that they need most,
or `jobs` how many come. Each other part is a kind: its name, then NAME:VALUE words. `share` is how
many of its jobs come for each of the others', `pods` a number or a range (powers of two are as
likely as each other), `runs` the mean duration. `required`, `preferred`, `slices:LEVEL/SIZE` and
`spread` name levels as `--synthetic` does; `priority` is one; `tolerates:KEY,KEY` are taints. All
else are quantities for a pod. Pods tolerate taints that are named like a resource that they ask
for, as Kubernetes' admission plugin ExtendedResourceToleration has it.

Jobs come independently of each other (a Poisson process); durations are exponential, but not over
five times their mean.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from math import log2

from msgspec import Struct

from nri_policy.cluster.objects.document import Amounts, DocumentError, parse_amounts
from nri_policy.cluster.objects.matching import Toleration
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Container, PodSpec, Template
from nri_policy.cluster.requests.group import PlacementGroup, PlacementRequest, PodSet, Slice
from nri_policy.foundation.units import parse_duration
from nri_policy.foundation.wording import quoted

MAX_JOBS = 1_000_000
_OPTION = "--synthetic-jobs"
_LONGEST = 5  # times the mean duration
_DAY = 86_400.0


class SyntheticJob(Struct, frozen=True):
    """A group that comes, and ends some time after it was placed."""

    at: float  # seconds
    seconds: float
    kind: str
    group: PlacementGroup


class _Kind(Struct):
    name: str
    amounts: Amounts
    request: PlacementRequest | None
    share: float = 1.0
    fewest: int = 1
    most: int = 1
    mean: float = 3600.0  # seconds
    priority: int = 0
    step: int = 1  # pods are a multiple of it
    tolerations: tuple[Toleration, ...] = ()


def make_jobs(
    text: str, seed: int, nodes: Iterable[ClusterNode], levels: Sequence[str]
) -> list[SyntheticJob]:
    """Return the jobs that *text* specifies, by time; DocumentError says which word is wrong.

    *levels* are those that requests may name, in full or by what follows the slash.
    """
    first, *parts = [each.strip() for each in text.split(";") if each.strip()] or [""]
    says = 'the first part says how many jobs come and for how long, such as "load:0.8 for:1d;"'
    common = _words(first.split(), f"; {says}")
    kinds = [_kind(part.split(), levels) for part in parts]
    if not kinds or "for" not in common or ("load" in common) == ("jobs" in common):
        raise _wrong(text, "is not 'load:NUMBER for:TIME; KIND NAME:VALUE…', or jobs:NUMBER")
    if unknown := common.keys() - {"for", "load", "jobs"}:
        raise _wrong(min(unknown), "is not one of load, jobs, for")
    seconds = _duration(common["for"])
    draw = random.Random(seed)  # noqa: S311 - the same in every run
    if "jobs" in common:
        rate = _number(common["jobs"]) / seconds
    else:
        rate = _number(common["load"]) / _work(kinds, nodes)
    if rate * seconds > MAX_JOBS:
        raise _wrong(first, f"makes more than {MAX_JOBS} jobs")
    jobs: list[SyntheticJob] = []
    at = draw.expovariate(rate)
    while at < seconds:
        kind = draw.choices(kinds, [each.share for each in kinds])[0]
        jobs.append(_job(kind, at, len(jobs), draw))
        at += draw.expovariate(rate)
    return jobs


def _job(kind: _Kind, at: float, number: int, draw: random.Random) -> SyntheticJob:
    name = f"{kind.name}-{number:06}"
    spec = PodSpec(
        containers=(Container(name="c", requests=kind.amounts, limits={}),),
        tolerations=kind.tolerations,
    )
    count = _pods(kind, draw)
    pod_set = PodSet(name="main", count=count, template=Template(spec=spec), request=kind.request)
    group = PlacementGroup("default", name, (pod_set,), priority=kind.priority)
    seconds = min(draw.expovariate(1 / kind.mean), _LONGEST * kind.mean)
    return SyntheticJob(at, seconds, kind.name, group)


def _pods(kind: _Kind, draw: random.Random) -> int:
    """Return a number of pods: each power of two in the range is as likely as the others."""
    pods = round(2 ** draw.uniform(log2(kind.fewest), log2(kind.most)))
    return max(kind.step, pods // kind.step * kind.step)


def _work(kinds: Sequence[_Kind], nodes: Iterable[ClusterNode]) -> float:
    """Return for how many seconds a job uses the whole cluster, on average."""
    capacity: dict[str, int] = {}
    for node in nodes:
        for name, amount in node.allocatable.items():
            capacity[name] = capacity.get(name, 0) + amount
    draw = random.Random(0)  # noqa: S311 - the same in every run
    shares = sum(each.share for each in kinds)
    used: dict[str, float] = {}
    for kind in kinds:
        pods = sum(_pods(kind, draw) for _ in range(2000)) / 2000
        for name, amount in kind.amounts.items():
            work = kind.share / shares * pods * amount * kind.mean
            used[name] = used.get(name, 0.0) + work
    found = [work / capacity[name] for name, work in used.items() if capacity.get(name)]
    if not found:
        if not used:
            raise _wrong(kinds[0].name, "asks for no resource: say how much of one, such as gpu:1")
        raise _wrong(", ".join(sorted(used)), "is no resource of the cluster's nodes")
    return max(found)


def _kind(words: Sequence[str], levels: Sequence[str]) -> _Kind:
    name, *rest = words
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) is None:
        raise _wrong(name, "is no name of a kind of jobs: lower-case letters, digits and -")
    given = _words(rest, ", such as pods:2-16 or runs:4h")
    slices = given.pop("slices", "")
    level, _, size = slices.partition("/")
    spread = given.pop("spread", None)
    required, preferred = given.pop("required", None), given.pop("preferred", None)
    request = PlacementRequest(
        required=required and _level(required, levels),
        preferred=preferred and _level(preferred, levels),
        slices=[Slice(_level(level, levels), _count(size))] if slices else [],
        spread_over=[_level(spread, levels)] if spread else [],
    )
    tolerated = given.pop("tolerates", "")
    fewest, _, most = given.pop("pods", "1").partition("-")
    kind = _Kind(
        name=name,
        amounts={},
        request=None if request == PlacementRequest() else request,
        share=_number(given.pop("share", "1")),
        fewest=_count(fewest),
        most=_count(most or fewest),
        mean=_duration(given.pop("runs", "1h")),
        priority=int(_number(given.pop("priority", "0"), least=0)),
        step=_count(size) if slices else 1,
    )
    if kind.most < kind.fewest:
        raise _wrong(f"{fewest}-{most}", "is no range of pods")
    kind.amounts = parse_amounts(given, _OPTION)
    keys = [*filter(None, tolerated.split(",")), *kind.amounts]
    kind.tolerations = tuple(Toleration(key=each, operator="Exists") for each in keys)
    return kind


def _words(words: Iterable[str], otherwise: str) -> dict[str, str]:
    """Return values by name; the error of a word without one ends with *otherwise*."""
    found: dict[str, str] = {}
    for word in words:
        name, separator, value = word.rpartition(":")
        if not separator or not name or not value:
            raise _wrong(word, f"is not NAME:VALUE{otherwise}")
        if name in found:
            raise _wrong(word, f"names {name} again")
        found[name] = value
    return found


def _level(name: str, levels: Sequence[str]) -> str:
    for level in levels:
        if name in (level, level.rpartition("/")[2]):
            return level
    raise _wrong(name, f"is no level; there are: {', '.join(levels)}")


def _duration(text: str) -> float:
    """Return seconds: a duration, or a number of days such as 7d."""
    try:
        seconds = float(text[:-1]) * _DAY if text[-1] == "d" else parse_duration(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e10:
        raise _wrong(text, "is not a duration, such as 30m, 4h or 7d")
    return seconds


def _number(text: str, least: float = 1e-9) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= MAX_JOBS:
        raise _wrong(text, "is not a number, such as 0.8 or 20")
    return number


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_JOBS:
        raise _wrong(text, f"needs a count from 1 to {MAX_JOBS}")
    return int(text)


def _wrong(word: str, problem: str) -> DocumentError:
    return DocumentError(_OPTION, f"{quoted(word)} {problem}")
