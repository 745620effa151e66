"""The daemon: wires the adapters to the engine; the only place that knows them all.

Everything runs on one asyncio loop. Requests reach the engine one at a time, whichever way they
come: over NRI or over the daemon's own socket.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from nri_policy.engine.engine import Engine
from nri_policy.hardware.discovery import discover
from nri_policy.nri.clock import Clock
from nri_policy.nri.grpc_server import grpc_server
from nri_policy.nri.plugin import Identity
from nri_policy.nri.policy import Policy
from nri_policy.nri.service import Service
from nri_policy.nri.session import Session
from nri_policy.nri.singleton import only_instance
from nri_policy.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where the daemon finds and leaves things."""

    host_root: Path
    nri_socket: Path
    identity: Identity
    state_dir: Path
    control_socket: Path | None  # None for no socket of our own
    once_synchronized_exit: bool = False


async def run(settings: Settings, options: Options) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises TopologyError or CapacityError where the machine or the settings allow no start,
    AlreadyRunningError where another daemon holds the state folder, OSError for folders, sockets.
    """
    options.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_instance(options.state_dir / "lock"):
        machine = discover(options.host_root, memory_kinds=settings.memory_kinds)
        for note in machine.notes:
            log.info("event=hardware note=%r", note)
        engine = Engine(machine, settings)
        for note in engine.layout.tree.notes:
            log.warning("event=pools note=%r", note)
        log.info(
            "event=started cpus=%s reserved=%s isolated=%s pools=%d",
            machine.online,
            engine.layout.capacity.reserved,
            engine.layout.capacity.isolated or "none",
            len(engine.layout.tree.pools),
        )
        await _serve(engine, options)


async def _serve(engine: Engine, options: Options) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    turn = asyncio.Lock()
    policy = Policy(engine, synchronized=ended.set if options.once_synchronized_exit else None)
    async with AsyncExitStack() as stack:
        if options.control_socket is not None:
            options.control_socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            options.control_socket.unlink(missing_ok=True)
            server = grpc_server(Service(policy, turn, Clock()), options.control_socket)
            await server.start()
            stack.push_async_callback(server.stop, None)
        gc.collect()
        gc.freeze()  # what exists now lives as long as the daemon: collections need not look at it
        session = Session(policy, options.identity, turn=turn)
        serving = asyncio.create_task(session.run(str(options.nri_socket)), name="nri session")
        ending = asyncio.create_task(ended.wait(), name="end")
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            serving.cancel()
            outcome = (await asyncio.gather(serving, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
    log.info("event=ended")
