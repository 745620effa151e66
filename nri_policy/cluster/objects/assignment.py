"""Where the pods of a pod set are: leaves by their values, and how an object stores many of them.

A PlacementGroup of 100,000 pods has to fit into one object of 1 MiB. Up to `MAX_PLAIN` domains are
stored one by one, as people read them; more as *runs* of neighbours: of each level the value that
all of a run share, or the shared prefix and suffix once, and what differs for each domain.

    values: [{prefix: node-01, names: ["23", "24", "25"], suffix: .example.com}]
    counts: [8]            # one for each domain, or one for all
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, each_at, join
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.foundation.wording import quoted

MAX_COUNT = 2**31 - 1  # pods; counts are int32
MAX_PLAIN = 256  # domains stored one by one
_RUN = 64  # domains; longer ones share shorter prefixes


class DomainAssignment(Struct, frozen=True):
    """Pods in a leaf, by its values at the levels of its assignment."""

    values: list[str]
    count: int


class Assignment(Struct, frozen=True, rename="camel"):
    """Where the pods of a pod set are, by path."""

    pod_set: str
    levels: list[str]
    domains: list[DomainAssignment]

    def by_host(self) -> Iterator[tuple[str, DomainAssignment]]:
        """Yield each place with its host; none where hosts are no level."""
        if HOSTNAME in self.levels:
            at = self.levels.index(HOSTNAME)
            yield from ((each.values[at], each) for each in self.domains)


class RunValues(Struct, frozen=True, omit_defaults=True):
    """The values that a run has at one level: the prefix alone where all have the same."""

    prefix: str = ""
    names: list[str] = []
    suffix: str = ""


class Run(Struct, frozen=True):
    """Neighbouring domains: their values by level, and their pods."""

    values: list[RunValues]
    counts: list[int]


class StoredAssignment(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An assignment in an object: single domains, then domains in runs."""

    pod_set: str
    levels: list[str]
    domains: list[DomainAssignment] = []
    runs: list[Run] = []


def store(assignment: Assignment) -> StoredAssignment:
    """Return the form that an object has."""
    domains, runs = assignment.domains, list[Run]()
    if len(domains) > MAX_PLAIN:
        runs = [_run(domains[at : at + _RUN]) for at in range(0, len(domains), _RUN)]
        domains = []
    return StoredAssignment(
        pod_set=assignment.pod_set, levels=assignment.levels, domains=domains, runs=runs
    )


def _run(domains: Sequence[DomainAssignment]) -> Run:
    counts = [each.count for each in domains]
    if len(set(counts)) == 1:
        counts = counts[:1]
    columns = zip(*(each.values for each in domains), strict=True)
    return Run(values=[_values(column) for column in columns], counts=counts)


def _values(column: Sequence[str]) -> RunValues:
    if len(set(column)) == 1:
        return RunValues(prefix=column[0])
    prefix = _prefix(column)
    rest = [value[len(prefix) :] for value in column]
    suffix = _prefix([value[::-1] for value in rest])[::-1]
    names = [value[: len(value) - len(suffix)] for value in rest]
    return RunValues(prefix=prefix, names=names, suffix=suffix)


def _prefix(texts: Sequence[str]) -> str:
    """Return what all begin with: what the first and the last in order have in common."""
    first, last = min(texts), max(texts)
    length = 0
    while length < len(first) and first[length] == last[length]:
        length += 1
    return first[:length]


def restore(stored: StoredAssignment, path: str) -> Assignment:
    """Return what was stored; raises DocumentError for what makes no sense."""
    domains = [*stored.domains]
    for run, place in each_at(stored.runs, join(path, "runs")):
        domains += _domains(run, place)
    for number, each in enumerate(domains):
        if 0 <= each.count <= MAX_COUNT and len(each.values) == len(stored.levels):
            continue  # paths take longer than the checks
        place = join(join(path, "domains"), number)
        check_count(each.count, 0, join(place, "count"))
        levels = ", ".join(stored.levels)
        raise DocumentError(
            join(place, "values"), f"{len(each.values)} values do not name levels {levels}"
        )
    return from_host(Assignment(stored.pod_set, stored.levels, domains))


def from_host(given: Assignment) -> Assignment:
    """Return an assignment without the levels above hosts: a hostname says where these are."""
    at = given.levels.index(HOSTNAME) if HOSTNAME in given.levels else 0
    if not at:
        return given
    domains = [DomainAssignment(each.values[at:], each.count) for each in given.domains]
    return Assignment(given.pod_set, given.levels[at:], domains)


def _domains(run: Run, path: str) -> Iterator[DomainAssignment]:
    lengths = {len(each.names) for each in run.values if each.names} or {1}
    number = max(lengths)
    if len(lengths) > 1 or len(run.counts) not in (1, number):
        raise DocumentError(path, "names and counts are not one for each domain")
    for at in range(number):
        yield DomainAssignment(
            values=[
                each.prefix + (each.names[at] if each.names else "") + each.suffix
                for each in run.values
            ],
            count=run.counts[at if len(run.counts) > 1 else 0],
        )


def check_count(count: int, least: int, path: str) -> None:
    """Raise DocumentError for an invalid number of pods."""
    if not least <= count <= MAX_COUNT:
        raise DocumentError(path, f"{quoted(count)} is not from {least} to {MAX_COUNT}")
