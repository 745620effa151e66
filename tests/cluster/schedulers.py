"""Configurations of kube-scheduler: with the plugin that reads zones, or with our extender."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from nri_policy.cluster.objects.settings import ClusterSettings, Extender, Topology
from nri_policy.cluster.service.server import Listen, make_server
from nri_policy.cluster.service.service import Service
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.cluster.control_plane import ADMIN, ControlPlane

CACHE = {"foreignPodsDetect": "None", "resyncMethod": "Autodetect", "informerMode": "Shared"}


def configuration(resync: int) -> dict[str, Any]:
    """Return the scheduler's, with a cache that looks for news every *resync* seconds; 0: none."""
    api = "kubescheduler.config.k8s.io/v1"
    name = "NodeResourceTopologyMatch"
    arguments = {
        "apiVersion": api,
        "kind": f"{name}Args",
        "cacheResyncPeriodSeconds": resync,
        "cache": CACHE,
    }
    enabled = {"enabled": [{"name": name}]}
    plugins = {"filter": enabled, "score": enabled, "reserve": enabled}
    profile = {
        "schedulerName": "default-scheduler",
        "plugins": plugins,
        "pluginConfig": [{"name": name, "args": arguments}],
    }
    return {
        "apiVersion": api,
        "kind": "KubeSchedulerConfiguration",
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "profiles": [profile],
    }


def configuration_of_extender(port: int, *, bind: bool = False) -> dict[str, Any]:
    """Return that of a scheduler without the plugin, which asks our service."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
        **({"bindVerb": "bind"} if bind else {}),
    }
    made = configuration(0)
    return {**made, "profiles": [{"schedulerName": "default-scheduler"}], "extenders": [extender]}


@asynccontextmanager
async def extending(
    cluster: ControlPlane, *, choose: bool, levels: Sequence[str] = ()
) -> AsyncIterator[tuple[int, Service]]:
    """Run the cluster's service in this process; yield its port. With *levels* it places groups."""
    connect = access(cluster.kubeconfig(ADMIN))
    assert connect is not None
    client = Client(connect)
    settings = ClusterSettings(extender=Extender(choose=choose))
    if levels:
        settings = replace(settings, topologies=[Topology(levels=[*levels])])
    service = Service(settings, client, None, groups=bool(levels))
    http = make_server(Listen(port=0), service.answers())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tasks = [
            asyncio.create_task(http.serve([listener])),
            asyncio.create_task(service.run()),
        ]
        try:
            while service.problem():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
            yield listener.getsockname()[1], service
        finally:
            http.should_exit = True
            tasks[1].cancel()
            await asyncio.wait(tasks)
            await client.close()
