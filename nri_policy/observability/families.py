"""Metric families: what a scrape is made of.

Owns when prometheus_client is imported: at the first scrape, for nobody needs it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )


def counter(
    name: str, text: str, value: float | None = None, *, labels: Sequence[str] = ()
) -> CounterMetricFamily:
    """Return a counter of one *value*, or one of *labels* that has none yet."""
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - see above

    return CounterMetricFamily(name, text, value, labels or None)


def gauge(
    name: str, text: str, value: float | None = None, *, labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    """Return a gauge of one *value*, or one of *labels* that has none yet."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see above

    return GaugeMetricFamily(name, text, value, labels or None)


def histogram(name: str, text: str, *, labels: Sequence[str]) -> HistogramMetricFamily:
    """Return a histogram of *labels* that has no series yet."""
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 - see above

    return HistogramMetricFamily(name, text, labels=labels)


def info(name: str, text: str, value: dict[str, str]) -> InfoMetricFamily:
    """Return what says something in its labels."""
    from prometheus_client.core import InfoMetricFamily  # noqa: PLC0415 - see above

    return InfoMetricFamily(name, text, value)
