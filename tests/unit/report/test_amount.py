from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.report import cpu_amount, format_cpus
from nri_policy.workload.request import Sort
from tests.support.daemon import pod, served
from tests.support.nodes import SMALL


@pytest.mark.parametrize(
    ("sort", "exclusive", "shared", "isolated", "text"),
    [
        (Sort.NORMAL, 0, 0, False, "0"),
        (Sort.NORMAL, 0, 2000, False, "2"),
        (Sort.NORMAL, 2, 0, False, "2"),
        (Sort.NORMAL, 2, 0, True, "2 isolated"),
        (Sort.NORMAL, 1, 500, False, "1 + 500m"),
        (Sort.RESERVED, 0, 100, False, "100m reserved"),
        (Sort.RESERVED, 0, 0, False, "0 reserved"),
        (Sort.PRESERVE, 0, 0, False, "preserved"),
    ],
)
def test_an_amount_reads(
    sort: Sort, exclusive: int, shared: int, *, isolated: bool, text: str
) -> None:
    assert cpu_amount(sort, exclusive, shared, isolated=isolated) == text


def test_every_command_says_it_in_the_same_words(tmp_path: Path) -> None:
    preserve = {"cpu.preserve.resource-policy.nri.io": "true"}
    pods = (
        pod("dns", "100m", shared=True, namespace="kube-system"),
        pod("kept", "1", annotations=preserve),
    )

    def said(socket: Path, *args: str) -> str:
        run = CliRunner(env={"COLUMNS": "120"})
        return run.invoke(main, [*args, "--control-socket", str(socket)]).stdout

    async def asked() -> list[str]:
        async with served(tmp_path, SMALL) as node:
            await node.start(*pods)
            ask = asyncio.to_thread
            pages = [await ask(said, node.socket, "pools", "-o", each) for each in ("svg", "html")]
            names = ("kube-system/dns", "kept")
            explained = [await ask(said, node.socket, "explain", each) for each in names]
            return [await ask(said, node.socket, "containers"), *pages, "".join(explained)]

    for text in asyncio.run(asked()):
        assert "100m reserved" in text
        assert "preserved" in text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (range(0, 112, 2), "0-110:2"),
        (range(1, 9, 2), "1-7:2"),
        ((0, 2, 4), "0,2,4"),
        ((0, 2, 4, 5), "0,2,4-5"),
        (range(4), "0-3"),
        ((), ""),
    ],
)
def test_interleaved_ids_are_written_with_their_step(ids: Iterable[int], text: str) -> None:
    assert format_cpus(CPUSet(ids)) == text
