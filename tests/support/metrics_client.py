"""An endpoint's answers, as a client of HTTP sees them."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from nri_policy.daemon.daemon import Daemon
from nri_policy.observability.endpoint import Endpoint
from nri_policy.observability.metrics import ExternalCounts, Metrics
from nri_policy.settings import Address, Instrumentation
from tests.support.patience import HANGS

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def counted(now: float = 0.0) -> Metrics:
    """Return metrics of which nothing is counted yet but what others count."""
    others = ExternalCounts(
        generation=1,
        late_answers={"CreateContainer": 3},
        publish_errors=2,
        unrecorded=4,
        volatile=5,
        unwritable=6,
        partitions={"root": 7, "isolated": 8, "missing": 9},
        tunables={("cpufreq", "pending"): 7},
        tunable_writes={("cpufreq", "failed"): 8},
    )
    return Metrics("1", now, external=lambda: others)


def anywhere(*, export: bool = True) -> Instrumentation:
    """Return settings for a port that the kernel chooses."""
    return Instrumentation(http_endpoint=Address("127.0.0.1", 0), prometheus_export=export)


@asynccontextmanager
async def exposed(daemon: Daemon, settings: Instrumentation | None = None) -> AsyncIterator[int]:
    """Serve *daemon*'s endpoint and yield its port."""
    endpoint = daemon.endpoint()
    async with endpoint.following(settings or anywhere()):
        pass
    try:
        yield port_of(endpoint)
    finally:
        await endpoint.close()


def port_of(endpoint: Endpoint) -> int:
    """Return the port that an endpoint listens on."""
    assert endpoint.address is not None
    return endpoint.address[1]


def asked(port: int, path: str) -> tuple[int, str]:
    """Return the status and the text at *path*."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def ask(port: int, path: str) -> tuple[int, str]:
    """Return the status and the text at *path*, while the loop goes on."""
    return await asyncio.to_thread(asked, port, path)


async def scrape(port: int) -> Samples:
    """Return the samples of a scrape by name and sorted labels."""
    status, text = await ask(port, "/metrics")
    assert status == 200, text
    return parsed(text)


def parsed(text: str) -> Samples:
    """Return the samples of a text by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return one sample; `class_` stands for the label `class`."""
    plain = {label.rstrip("_"): text for label, text in labels.items()}
    return samples[name, tuple(sorted(plain.items()))]
