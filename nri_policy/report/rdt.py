"""What RDT classes come to on the caches of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.resctrl import Resctrl, format_share
from nri_policy.tuning.rdt import RDTClass


class RDTShareReport(Struct, frozen=True, kw_only=True):
    """The share that a class has of some caches, or of the memory bandwidth behind them."""

    name: str  # of the class
    resource: str  # as in schemata
    ids: CPUSet  # of the caches
    share: str  # a mask in hexadecimal, percents or MB/s
    bytes: int | None  # of each cache; None for bandwidth, and if the size is unknown


def rdt_reports(classes: Iterable[RDTClass], resctrl: Resctrl) -> tuple[RDTShareReport, ...]:
    """Return the shares of classes, caches with the same share together."""
    ways = {
        resource: cache.way
        for cache in (resctrl.l2, resctrl.l3)
        if cache is not None
        for resource in cache.resources.values()
    }
    return tuple(report for each in classes for report in _shares(each, ways))


def _shares(of: RDTClass, ways: dict[str, int]) -> Iterator[RDTShareReport]:
    for resource, shares in of.shares.items():
        for share in dict.fromkeys(shares.values()):
            way = ways.get(resource)
            yield RDTShareReport(
                name=of.name,
                resource=resource,
                ids=CPUSet(id_ for id_, each in shares.items() if each == share),
                share=format_share(resource, share),
                bytes=way * share.bit_count() if way else None,
            )
