"""The live view: what fits, and daemons that go away and come back."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from nri_policy.cli import main
from nri_policy.cli.node.live import DaemonSnapshot, DaemonWatcher, Frame, show
from nri_policy.cli.node.live_view import KEYS, ViewOptions
from nri_policy.cli.output import Canvas
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.picture.scene import DrawnUse, Purpose, Scene
from nri_policy.proto.control_pb2 import Change, Decision
from nri_policy.report import refusal_report
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support import nodes
from tests.support.daemon import pod, served
from tests.support.patience import HANGS
from tests.support.pictures import holding, made_up

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LARGE = "package:2 numa:4 l3:4 core:8 pu:2"


def scene(spec: str = nodes.SMALL, containers: int = 2) -> Scene:
    """Return a scene of containers with a CPU each, while there are any."""
    engine = nodes.engine(spec)
    held = {f"default/c{n}/main": holding(exclusive=str(n + 1)) for n in range(containers)}
    return made_up(engine, held)


def snapshot(shown: Scene | None, *, decisions: int = 0, problem: str = "") -> DaemonSnapshot:
    decision = Decision(
        event="created",
        container="default/\x1bc/main",
        summary="placed: 1 CPU",
        changes=[Change()],
        released=["default/old/main"],
    )
    return DaemonSnapshot(scene=shown, decisions=((START, decision),) * decisions, problem=problem)


def lines(seen: DaemonSnapshot, width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of a frame, which must fit."""
    out = StringIO()
    console = Canvas(file=out, width=width, height=height, color_system=None, _environ={})
    console.print(Frame(START, seen), end="")
    shown = [line.rstrip() for line in out.getvalue().splitlines()]
    assert len(shown) <= height
    assert max(map(len, shown)) <= width
    return shown


def test_a_frame_has_the_picture_the_containers_and_the_latest_decisions() -> None:
    shown = lines(snapshot(scene(), decisions=3), width=100, height=40)
    assert shown[0] == "nri-policy 03:04:05 · 2 containers"
    assert shown[1] == "2 sockets · 4 NUMA nodes · 8 cores · 16 CPUs · 16 GiB dram"
    assert any(line.startswith("B  c1/main") for line in shown)
    assert shown[-1] == KEYS
    assert shown[-5:-1] == [
        "latest decisions",
        *["03:04:05 created �c/main · placed: 1 CPU · 1 other changed · released old/main"] * 3,
    ]
    assert not any("more" in line for line in shown)


def test_who_made_way_is_shown_with_the_pool_that_it_goes_back_to() -> None:
    held = {"default/db/main": holding(exclusive="", cpus="1-3", home="socket #1")}
    shown = lines(snapshot(made_up(nodes.engine(), held)), width=132, height=40)
    assert any("db/main" in line and "root, from socket #1" in line for line in shown)


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (70, 18), (60, 15), (40, 10), (30, 6), (132, 50)]
)
@pytest.mark.parametrize("spec", [nodes.SMALL, LARGE])
def test_a_frame_of_many_containers_fits_any_terminal(spec: str, width: int, height: int) -> None:
    shown = lines(snapshot(scene(spec, containers=15), decisions=9), width, height)
    assert shown[0].startswith("nri-policy 03:04:05")
    assert any("more" in line for line in shown) == (height < 50)
    assert "latest decisions" in shown
    assert shown[-1] == KEYS or width < len(KEYS)
    assert shown[-1].startswith("q quit · ? keys · / filter")


def test_a_small_terminal_has_no_blank_lines_but_more_containers() -> None:
    seen = snapshot(scene(containers=5), decisions=5)
    small, large = lines(seen, 70, 18), lines(seen, 80, 24)
    assert not any(not line.strip() for line in small)
    assert sum(not line.strip() for line in large) == 2
    assert all(any(f"c{n}/main" in line for line in small) for n in range(5))


def test_where_there_is_not_room_for_all_those_with_cpus_of_their_own_come_first() -> None:
    held = {f"default/guest{n}/main": holding(exclusive="", cpus="2-15") for n in range(30)}
    shown = made_up(nodes.engine(), {**held, "default/own/main": holding()})
    assert any("own/main" in line for line in lines(snapshot(shown)))


def test_a_daemon_that_is_away_is_waited_for_with_the_last_picture() -> None:
    shown = lines(snapshot(scene(), problem="nobody answers"), height=40)
    assert shown[1] == "waiting for the daemon: nobody answers"
    assert any("socket #0" in line for line in shown)
    assert lines(snapshot(None, problem="nobody answers"))[1].endswith("nobody answers")


def test_every_tick_shows_what_is_seen_then() -> None:
    out = StringIO()
    console = Canvas(file=out, width=80, height=24, force_terminal=True, _environ={})
    glimpses = iter([snapshot(None, problem="not yet"), snapshot(scene())])
    show(lambda: next(glimpses), console, [(START, ""), (START + timedelta(seconds=1), "")])
    text = out.getvalue()
    assert text.index("not yet") < text.index("03:04:06") < text.index("c1/main")
    assert text.startswith("\x1b[?1049h"), "a screen of its own"
    assert text.rstrip("\x1b[?25h").endswith("\x1b[?1049l"), "left as it was"


async def seen(feed: DaemonWatcher, until: str) -> DaemonSnapshot:
    """Look until *until* is decided."""
    async with asyncio.timeout(HANGS):
        while True:
            snapshot = await asyncio.to_thread(feed.look)
            if any(decision.container == until for _, decision in snapshot.decisions):
                return snapshot
            await asyncio.sleep(0.01)


def test_the_feed_outlives_the_daemon(tmp_path: Path) -> None:
    async def play() -> None:
        feed = DaemonWatcher(tmp_path / "control.sock", lambda: START)
        away = feed.look()
        assert away.scene is None
        assert "No such file" in away.problem
        async with served(tmp_path) as node:
            first = await asyncio.to_thread(feed.look)
            assert first.scene is not None
            assert not first.scene.occupants
            await node.start(pod("one", "1"))
            one = await seen(feed, "default/one/main")
            assert one.scene is not None
            assert [each.name for each in one.scene.occupants] == ["default/one/main"]
        away = await asyncio.to_thread(feed.look)
        assert away.scene is one.scene
        assert away.problem
        async with served(tmp_path) as node:
            back = await asyncio.to_thread(feed.look)
            assert not back.problem
            await node.start(pod("two", "1"))
            two = await seen(feed, "default/two/main")
            assert "default/one/main" in [decision.container for _, decision in two.decisions]
            await asyncio.to_thread(feed.close)

    asyncio.run(play())


def test_the_feed_sees_a_machine_that_changes(tmp_path: Path) -> None:
    async def play() -> None:
        feed = DaemonWatcher(tmp_path / "control.sock", lambda: START)
        async with served(tmp_path) as node:
            first = await asyncio.to_thread(feed.look)
            assert first.scene is not None
            assert first.scene.places[15] == DrawnUse(Purpose.IDLE)
            machine = node.daemon.node.view.layout.machine
            await node.daemon.events.reconfigure(machine=machine.restricted(CPUSet(range(15))))
            async with asyncio.timeout(HANGS):
                while first.scene.places[15].use is not Purpose.OFFLINE:
                    first = await asyncio.to_thread(feed.look)
                    assert first.scene is not None
            await asyncio.to_thread(feed.close)

    asyncio.run(play())


def test_top_says_that_it_needs_a_terminal(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["top", "--control-socket", str(tmp_path / "x")])
    assert result.exit_code == 2
    assert "needs a terminal" in result.stderr


def output(terminal: int) -> Iterator[str]:
    """Yield what programs write to a terminal, until all of them have closed it."""
    while True:
        try:
            yield os.read(terminal, 1 << 16).decode(errors="replace")
        except OSError:
            return


def test_top_ends_on_ctrl_c_and_leaves_the_terminal_as_it_was() -> None:
    ours, its = pty.openpty()
    heeding = ["env", "--default-signal=INT"]  # who runs the tests may have it ignored
    command = [*heeding, sys.executable, "-m", "nri_policy.cli", "top", "--control-socket", "no"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as top:
        os.close(its)
        parts = output(ours)
        text = ""
        while "waiting for the daemon" not in text:
            text += next(parts)
        top.send_signal(signal.SIGINT)
        text += "".join(parts)
    os.close(ours)
    assert top.returncode == 0
    assert "Traceback" not in text
    assert "\x1b[?1049l" in text


def test_top_ends_at_q_and_leaves_the_terminal_as_it_was() -> None:
    ours, its = pty.openpty()
    before = termios.tcgetattr(its)
    command = [sys.executable, "-m", "nri_policy.cli", "top", "--control-socket", "nowhere"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as top:
        parts = output(ours)
        text = ""
        while "waiting for the daemon" not in text:
            text += next(parts)
        os.write(ours, b"q")
        assert top.wait() == 0
    assert termios.tcgetattr(its) == before
    os.close(its)
    os.close(ours)


def pressed(keys: str) -> list[str]:
    """Return the lines of the screen after *keys* were pressed."""
    held = {
        "default/b/main": holding(exclusive="1"),
        "default/c/main": holding(exclusive="2-4"),
        "default/a/main": holding(exclusive="5"),
    }
    seen = replace(snapshot(made_up(nodes.engine(), held)), used={"default/a/main": 0.9})
    view = ViewOptions()
    for key in keys:
        view = view.pressed(key, 3)
    out = StringIO()
    Canvas(file=out, width=90, height=40, color_system=None, _environ={}).print(
        Frame(START, seen, view), end=""
    )
    return out.getvalue().splitlines()


def drawn(keys: str) -> list[str]:
    """Return the names in the table after *keys* were pressed."""
    rows = [line.split() for line in pressed(keys)]
    return [row[1] for row in rows if len(row) > 2 and row[1].endswith("/main")]


def test_keys_sort_and_scroll_the_containers() -> None:
    assert drawn("") == ["b/main", "c/main", "a/main"]
    assert drawn("n") == ["a/main", "b/main", "c/main"]
    assert drawn("c") == ["c/main", "a/main", "b/main"]
    assert drawn("u") == ["a/main", "b/main", "c/main"]
    assert drawn("njj") == ["c/main"]
    assert drawn("njjjk") == ["b/main", "c/main"]
    assert drawn("njp") == ["b/main", "c/main", "a/main"]


def test_an_order_that_was_chosen_is_in_the_headline() -> None:
    assert pressed("")[0].endswith(" · 3 containers")
    assert pressed("u")[0].endswith(" · 3 containers · by CPU in use")


def test_a_filter_is_typed_kept_and_ended() -> None:
    assert drawn("/b/m") == ["b/main"]
    assert pressed("/q")[-1] == "filter: q_  (Enter keeps it, Esc ends it)"
    assert drawn("/bx\x7f\n") == drawn("/b\nn") == ["b/main"]
    assert pressed("/b\n")[0].endswith(" · only b")
    assert pressed("/b\n")[-1] == KEYS
    assert drawn("/b\x1b") == drawn("/b\n\x1b") == drawn("")


def test_the_keys_are_listed() -> None:
    shown = pressed("?")
    assert any(line.startswith("p n c u  order by") for line in shown)
    assert drawn("?") == []
    assert drawn("?x") == drawn("")


def test_refused_containers_are_listed() -> None:
    refused = {f"default/huge{n}/main": refusal_report("no room") for n in range(5)}
    shown = lines(snapshot(made_up(nodes.engine(), refused)), height=40)
    assert [line for line in shown if line.startswith("refused:")] == [
        f"refused: huge{n}/main: no room" for n in range(3)
    ]
    assert "and 2 more refused" in shown


class Busy(SimulatedCgroups):
    """Each look finds that every container has used three seconds more."""

    seconds = 0.0

    def cpu_seconds(self, cgroups: Iterable[str]) -> dict[str, float]:
        self.seconds += 3.0
        return dict.fromkeys(cgroups, self.seconds)


def test_the_cpus_in_use_are_shown_by_pool(tmp_path: Path) -> None:
    async def play() -> None:
        clock = iter(START + timedelta(seconds=2 * n) for n in range(9))
        feed = DaemonWatcher(tmp_path / "control.sock", lambda: next(clock))
        async with served(tmp_path, cgroups=Busy) as node:
            await node.start(pod("one", "1"), pod("two", "1"))
            await asyncio.to_thread(feed.look)
            seen = await asyncio.to_thread(feed.look)
            await asyncio.to_thread(feed.close)
        assert seen.used == {"default/one/main": 1.5, "default/two/main": 1.5}
        assert seen.used_in["root"] == 3.0
        assert any("CPUs in use: NUMA node #1 1.5 · " in line for line in lines(seen, 120, 40))

    asyncio.run(play())
