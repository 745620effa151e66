"""Amounts of a cluster's domains, as tables and pictures write them: one unit in a column."""

from __future__ import annotations

from collections.abc import Sequence

from nri_policy.cluster.objects.document import is_bytes
from nri_policy.cluster.report.tree_report import Domain, TreeReport

FIRST = ("cpu", "memory", "pods")  # which all pods use
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Quantity:
    """A resource in the unit in which its amounts in some domains are written."""

    def __init__(self, resource: str, domains: Sequence[Domain]) -> None:
        """Choose the largest unit of which the smallest of *domains* has one or more."""
        self.resource = resource
        self.unit = ""
        self._scale = 1000 if resource == "cpu" else 1
        if is_bytes(resource):
            least = min(filter(None, (each.total.get(resource, 0) for each in domains)), default=0)
            step = max(0, (least.bit_length() - 1) // 10)
            self.unit, self._scale = _BINARY[step], 1024**step

    @property
    def heading(self) -> str:
        """The head of a column of it: `memory used (GiB)`."""
        return f"{self.resource} used ({self.unit})" if self.unit else f"{self.resource} used"

    def use(self, domain: Domain) -> str:
        """Return how much is used of how much: `1.5 of 8`; nothing where a domain has none."""
        if self.resource not in domain.total:
            return ""
        total = self._number(domain.total[self.resource])
        return f"{self._number(domain.used.get(self.resource, 0))} of {total}"

    def sentence(self, domain: Domain) -> str:
        """Return how much is used, with the name: `memory 1.5 of 8 GiB`."""
        return f"{self.resource} {self.use(domain)} {self.unit}".rstrip()

    def _number(self, amount: int) -> str:
        return f"{amount / self._scale:.1f}".removesuffix(".0")


def quantities(report: TreeReport) -> list[Quantity]:
    """Return every resource that a domain has, and those that all nodes have, first."""
    named = {name for each in report.domains for name, value in each.total.items() if value}
    names = [*FIRST, *sorted(named - {*FIRST})]
    return [Quantity(name, report.domains) for name in names]


def fullest(domain: Domain) -> tuple[str, float]:
    """Return the resource with the largest share in use, and the share; above 1 if overbooked."""
    shares = [
        (domain.used[name] / total, name) for name, total in sorted(domain.total.items()) if total
    ]
    share, name = max(shares, key=lambda each: each[0], default=(0.0, ""))
    return name, share
