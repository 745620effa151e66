"""How `cluster run` ends: at a signal, and when what it follows fails."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.cluster.service.lease import LeaseName
from nri_policy.cluster.service.live_settings import PlacementFile
from nri_policy.cluster.service.server import Listen
from nri_policy.cluster.service.service import run
from nri_policy.cluster.service.watch import Watch
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.support.cluster_api import ClusterAPI
from tests.support.patience import HANGS

DOCUMENT: dict[str, Any] = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "ClusterPlacement",
    "metadata": {"name": "default"},
    "spec": {},
}


async def running(api: ClusterAPI, folder: Path) -> None:
    """The service with a file and a Lease, until it ends."""
    path = folder / "placement.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    file = PlacementFile(path)
    connect = access(api.kubeconfig)
    assert connect is not None
    lease = LeaseName("kube-system", "x", "one")
    settings = file.load()
    await run(
        settings,
        Client(connect),
        Listen(port=0),
        file=file,
        lease=lease,
        readiness=False,
        kueue=False,
        groups=False,
    )


def test_at_sigterm_it_lets_the_lease_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def play() -> None:
        async with asyncio.timeout(HANGS), ClusterAPI(tmp_path) as api:
            task = asyncio.create_task(running(api, tmp_path))
            while "event=leading" not in caplog.text:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
            assert api.objects["leases"]["kube-system/x"]["spec"]["holderIdentity"] == "one"
            signal.raise_signal(signal.SIGTERM)
            await task
            assert api.objects["leases"]["kube-system/x"]["spec"]["holderIdentity"] == ""

    asyncio.run(play())


def test_it_ends_with_the_error_of_what_it_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is started again: it must not stay, and answer from what it no longer follows."""

    async def fail(_: Watch) -> None:
        raise RuntimeError("a mistake of ours")

    async def play() -> None:
        async with asyncio.timeout(HANGS), ClusterAPI(tmp_path) as api:
            await running(api, tmp_path)

    monkeypatch.setattr(Watch, "run", fail)
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(play())
    assert raised.group_contains(RuntimeError, match="a mistake of ours")
