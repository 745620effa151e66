"""Plays: one history from one seed, and a shorter one that breaks the same way."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from tests.loop.checks import NAMED, RESTORED, Checks
from tests.loop.deterministic import DeterministicLoop
from tests.loop.systemd import PARTY
from tests.loop.world import Chances, World, disk

QUIET, LONG_AFTER = 45.0, 850.0  # seconds
HANGS = 120.0  # seconds of virtual time that a worker may need for what it has begun


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one play."""

    chances: Chances
    setting: str  # machine, runtime and cgroups
    broken: tuple[str, ...]
    history: tuple[str, ...]
    starts: int  # owners whose start was looked at


def play(chances: Chances) -> Outcome:
    """Play a history; the same chances lead to the same one."""
    folder = Path(tempfile.mkdtemp(prefix="loop-"))
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        outcome = _outcome(chances, folder)
        with warnings.catch_warnings(action="ignore"):
            gc.collect()  # coroutines of killed lives would clean up; without a loop they cannot
    finally:
        sys.unraisablehook = unraisable
        shutil.rmtree(folder)
    return outcome


def _outcome(chances: Chances, folder: Path) -> Outcome:
    loop = DeterministicLoop(Random(chances.seed))
    asyncio.set_event_loop(loop)
    try:
        world = World(loop, folder, chances)
        checks = Checks(world)
        try:
            with disk(world):
                loop.run_until_complete(_play(world, checks))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what became of the play
            checks.broken.append(f"{type(error).__name__}: {error}")
        return Outcome(
            chances=chances,
            setting=world.setting,
            broken=(*checks.broken, *loop.errors),
            history=tuple(world.history),
            starts=checks.starts,
        )
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _play(world: World, checks: Checks) -> None:
    loop = world.loop
    await loop.spawn("runtime", world.runtime.__aenter__())
    if world.systemd is not None:
        await loop.spawn(PARTY, world.systemd.listen())
    world.start()
    watching = loop.spawn("checks", checks.watch())
    workers = [
        loop.spawn(f"kubelet {name}", world.worker(name))
        for name in "abcdefgh"[: world.chances.workers]
    ]
    mischief = [loop.spawn("mischief", world.mischief())]
    if world.systemd is not None:
        mischief.append(loop.spawn("mischief of systemd", world.mischief_of_systemd()))
    await asyncio.wait({*mischief, *workers}, timeout=world.chances.busy + HANGS)
    for each in (*mischief, *workers):
        if not each.done():
            checks.broken.append("what a kubelet has begun does not end")
            return
        each.result()
    world.calm = True
    world.note("all is quiet")
    await asyncio.sleep(QUIET)
    if not world.only_the_audit_sees:
        checks.in_force()
    watching.cancel()
    if not checks.broken:
        checks.rests()
        await asyncio.sleep(max(world.disk_freed + RESTORED - loop.time(), 0.0))
        checks.stored()
        if world.cgroups.narrowed:
            await asyncio.sleep(NAMED)
            checks.narrowed()
            world.widen_parents()
            await asyncio.sleep(NAMED)
            checks.narrowed()
        await asyncio.sleep(LONG_AFTER)
        checks.in_force()
        checks.books()


def shrunk(outcome: Outcome) -> Outcome:
    """Return the smallest play found that still breaks something."""
    smaller = True
    while smaller:
        smaller = False
        for chances in _smaller(outcome.chances):
            tried = play(chances)
            if tried.broken:
                outcome, smaller = tried, True
                break
    return outcome


def _smaller(chances: Chances) -> Iterator[Chances]:
    for kind in (
        "failures",
        "slow hooks",
        "kill",
        "freeze",
        "restart of the runtime",
        "lost store",
        "clock",
        "reload",
        "slow files",
        "files that cannot be written",
        "stale writes",
        "hotplug",
        "full disk",
        "narrowed parents",
        "systemd",
        "daemon-reload",
        "daemon-reexec",
        "set-property",
        "systemd is busy",
        "systemd is gone",
        "killed before it asks systemd",
    ):
        if kind not in chances.without:
            yield replace(chances, without=chances.without | {kind})
    if chances.workers > 1:
        yield replace(chances, workers=chances.workers - 1)
    if chances.faults:
        yield replace(chances, faults=chances.faults - 1)
    if chances.busy > 2:
        yield replace(chances, busy=chances.busy / 2)
