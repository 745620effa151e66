"""What the daemon serves at its own socket: imported, and gRPC with it, for the first caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from nri_policy.control.administration import Administration
from nri_policy.control.endpoint import serving
from nri_policy.control.health import SERVICE as HEALTH
from nri_policy.control.health import Health
from nri_policy.control.reflection import Reflection
from nri_policy.daemon.control import SERVICE, Control
from nri_policy.nri.grpc_service import PATHS, plugin_handler
from nri_policy.nri.service import PluginService
from nri_policy.settings import ReloadResult


@asynccontextmanager
async def serving_all(  # noqa: PLR0913 - keywords: what is served
    path: Path,
    control: Control,
    *,
    plugin: PluginService,
    reload: Callable[[], Awaitable[ReloadResult]],
    ready: asyncio.Event,
    owner_only: bool,
) -> AsyncIterator[None]:
    """Serve at *path*; also *plugin* and *reload* if only the owner can call."""
    handlers = [
        control.handler(),
        Health(ready, [SERVICE.full_name]).handler(),
        Reflection([SERVICE, HEALTH]).handler(),
    ]
    if owner_only:
        handlers += plugin_handler(plugin), Administration(reload).handler()
    async with serving(path, handlers, large=[f"/{SERVICE.full_name}/WhatIf", *PATHS]):
        yield
