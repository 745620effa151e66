"""Metric families, the parts of a scrape.

Owns when prometheus_client is imported: at the first scrape, because nothing needs it before.
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
    """Return a counter with one *value*, or with *labels* and no values yet."""
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - see above

    return CounterMetricFamily(name, text, value, labels or None)


def gauge(
    name: str, text: str, value: float | None = None, *, labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    """Return a gauge with one *value*, or with *labels* and no values yet."""
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see above

    return GaugeMetricFamily(name, text, value, labels or None)


def histogram(name: str, text: str, *, labels: Sequence[str]) -> HistogramMetricFamily:
    """Return a histogram with *labels* and no series yet."""
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 - see above

    return HistogramMetricFamily(name, text, labels=labels)


def info(name: str, text: str, value: dict[str, str]) -> InfoMetricFamily:
    """Return a metric with its information in labels."""
    from prometheus_client.core import InfoMetricFamily  # noqa: PLC0415 - see above

    return InfoMetricFamily(name, text, value)
