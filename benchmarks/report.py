"""The whole report: all that is measured, in one run, for the terminal or the documentation."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    bars,
    claims,
    cluster,
    curves,
    local_memory,
    making_way,
    peer,
    pod_start,
    quality,
    synchronize,
)
from benchmarks.decisions import LARGEST, TYPICAL, Decisions, compared
from benchmarks.profile import profiled
from benchmarks.requests import CREATE, PARTS, SIZES, Requests
from benchmarks.startup import Startup
from benchmarks.table import Section, additions, number
from tests.support.busy_node import COUNTS, MACHINES

DOCS = Path(__file__).parent.parent / "docs"
GROWTH = DOCS / "dev" / "growth.svg"
WHOLE = DOCS / "request.svg"
_PAGES = {  # by the file with the text of each
    Path(__file__).with_name("page.md"): DOCS / "performance.md",
    Path(__file__).with_name("figures.md"): DOCS / "dev" / "figures.md",
}
_PACKAGES = ("nri-policy", "protobuf", "grpcio", "msgspec")


def main(*, write: bool = False) -> None:
    """Measure everything and print it; with *write*, put it into the documentation."""
    logging.disable(logging.WARNING)
    head = _head()
    print(head)
    marked, pictures = _measured()
    if write:
        for text, path in _PAGES.items():
            page = text.read_text().replace("{head}", head)
            for mark, sections in marked.items():
                shown = "\n".join(section.markdown() for section in sections).strip()
                page = page.replace(f"{{{mark}}}", shown)
            path.write_text(page)
        for path, picture in pictures.items():
            path.write_text(picture)
    cluster.measure(write=write)


def _measured() -> tuple[dict[str, list[Section]], dict[Path, str]]:
    """Return what was measured, by its mark in the texts, and the pictures by their files."""
    answers = _printed(claims.section(), peer.section(), pod_start.section())
    memory = _printed(local_memory.section())
    requests, startup, decisions = Requests(), Startup(), Decisions()
    # for developers: not on the page
    _printed(*compared(), making_way.section(), profiled())
    details = _printed(
        _targets(requests, startup, decisions),
        *requests.sections(),
        *decisions.sections(requests.protocol.p50),
        *quality.sections(),
        _synchronized(),
        *startup.sections(),
    )
    marked = {"answers": answers, "memory": memory, "details": details}
    return marked, {GROWTH: _growth(decisions), WHOLE: _whole(requests)}


def _printed(*sections: Section) -> list[Section]:
    for section in sections:
        print(section.plain())
    return [*sections]


def _head() -> str:
    """Describe the machine and what runs on it."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    found = {each: _version(each) for each in _PACKAGES}
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    return (
        f"{datetime.now(UTC):%Y-%m-%d}: {model}, {os.cpu_count()} CPUs, load"
        f" {os.getloadavg()[0]:.1f} at the start, ten million additions in a Python loop in"
        f" {additions():.2g} s; Linux {platform.release()},"
        f" Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, {versions}."
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _targets(requests: Requests, startup: Startup, decisions: Decisions) -> Section:
    floor = requests.protocol.p50
    typical, largest = (decisions.p50(*size) / floor for size in (TYPICAL, LARGEST))
    whole = requests.timing(TYPICAL, CREATE, "request")
    assert whole is not None
    few, many = (decisions.p50(TYPICAL[0], COUNTS[at]) for at in (0, -1))
    more, grown = COUNTS[-1] // COUNTS[0], many / few
    p99 = whole.p99 / 1e3
    rows = [
        (f"decision at {_size(TYPICAL)}, of the floor", "0.5", f"{typical:.2f}", typical <= 0.5),
        (f"decision at {_size(LARGEST)}, of the floor", "2", f"{largest:.2f}", largest <= 2),
        (f"CreateContainer at {_size(TYPICAL)}, p99", "3 ms", f"{p99:.1f} ms", p99 <= 3),
        (f"decision, {more} times the containers", "sub-linear", f"{grown:.1f}", grown < more),
        ("start to READY at 256 CPUs", "1 s", f"{startup.ready:.2f} s", startup.ready <= 1),
        (
            "resident memory without containers",
            "60 MiB",
            f"{startup.rss:.0f} MiB",
            startup.rss <= 60,
        ),
    ]
    return Section(
        title="Targets",
        text=f"The floor is the protocol's: a request to a plugin that only answers, {floor:.0f} µs"
        " in this run.",
        head=("what", "target", "measured", "met"),
        rows=[(*row, "yes" if met else "no") for *row, met in rows],
    )


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} CPUs, {size[1]} containers"


def _synchronized() -> Section:
    rows = [
        (str(count), what, number(median), number(most))
        for count in (100, 500)
        for what, median, most in _synchronizations(count)
    ]
    return Section(
        title="Synchronisation",
        text="Time to answer Synchronize, from receiving it to sending the answer, in ms."
        " The runtime waits for two seconds.",
        head=("containers", "daemon", "median", "most"),
        rows=rows,
    )


def _synchronizations(count: int) -> Iterator[tuple[str, float, float]]:
    for what, (median, most, _) in asyncio.run(synchronize.measure(count)).items():
        yield what, median, most


def _whole(requests: Requests) -> str:
    """Draw the parts of whole creations."""
    drawn = []
    for size in SIZES:
        whole = requests.timing(size, CREATE, "request")
        assert whole is not None
        parts = {part: requests.timing(size, CREATE, part) for part in PARTS[1:]}
        known = {part: timing.p50 for part, timing in parts.items() if timing is not None}
        known["rest"] = whole.p50 - sum(known.values())
        drawn.append(bars.Bar(_size(size), known, whole.p99))
    return bars.svg(drawn, requests.protocol.p50)


def _growth(decisions: Decisions) -> str:
    """Draw the time of a new container's decision against CPUs, pools and containers."""
    by_cpus = {
        f"{count} containers": [(float(cpus), decisions.p50(cpus, count)) for cpus in MACHINES]
        for count in COUNTS
    }
    by_pools = {
        name: [(float(decisions.pools[int(cpus)]), took) for cpus, took in curve]
        for name, curve in by_cpus.items()
    }
    by_count = {
        f"{cpus} CPUs": [(float(count), decisions.p50(cpus, count)) for count in COUNTS]
        for cpus in (16, 256, max(MACHINES))  # the slowest time is the common scale of all charts
    }
    title = "decision on a new container"
    return curves.svg(
        [(title, "CPUs", by_cpus), (title, "pools", by_pools), (title, "containers", by_count)]
    )
