"""The live view: what `top` shows of the daemon, second by second.

Owns what becomes of a daemon that goes away and comes back, and what is left out where the terminal
is small: of the picture first the boxes, then the end, as of the containers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

from msgspec import Struct, field
from msgspec.structs import replace
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from nri_policy.cli.node.current_scene import CurrentScene, read_current_scene
from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.live_view import HELP, ViewOptions
from nri_policy.cli.node.occupants import occupants
from nri_policy.cli.terminal.keyboard import Moment
from nri_policy.control.client import ControlClient, DeclinedError, UnreachableError, connected
from nri_policy.foundation.wording import counted, natural
from nri_policy.picture.occupant import Occupant
from nri_policy.picture.scene import Scene
from nri_policy.picture.terminal import Drawing, Rows
from nri_policy.proto.control_pb2 import Decision
from nri_policy.report import Containers

_MOST_DECISIONS = 100  # kept
_SHOWN_DECISIONS = 5  # where there is room
_SHOWN_REFUSALS = 3
_ROOMY = 24  # lines of a terminal on which blank ones stand between the parts
_FEWEST_ROWS = 6  # of the containers' table, before the picture gets all it needs

_Line = list[Segment]
_Told = tuple[datetime, Decision]


class DaemonSnapshot(Struct, frozen=True, kw_only=True):
    """The daemon's visible state at one moment."""

    scene: Scene | None  # the last one known, None if there was none yet
    decisions: tuple[_Told, ...]  # the latest first
    problem: str  # why the scene is not of now; empty if it is
    used: Mapping[str, float] = field(default_factory=dict)  # CPUs in use, by container
    used_in: Mapping[str, float] = field(default_factory=dict)  # and by pool, those below it too


class DaemonWatcher:
    """Asks the daemon at a socket; whether it is there or not, there is something to be seen."""

    def __init__(self, socket: Path, now: Callable[[], datetime]) -> None:
        self._socket = socket
        self._now = now
        self._connection = ExitStack()
        self._client: ControlClient | None = None
        self._watching: Thread | None = None
        self._running: CurrentScene | None = None  # of the latest look
        self._outdated = Event()  # whether machine and pools may differ from it
        self._scene: Scene | None = None
        self._looked: tuple[datetime, Containers] | None = None  # before
        self._decisions: deque[_Told] = deque(maxlen=_MOST_DECISIONS)

    def look(self) -> DaemonSnapshot:
        """Return what is to be seen now, connecting anew where that is needed."""
        problem, used, used_in = "", dict[str, float](), dict[str, float]()
        try:
            if self._client is None:
                self._client = self._connection.enter_context(connected(self._socket))
            if self._watching is None or not self._watching.is_alive():
                decisions = self._connection.enter_context(self._client.watching())
                self._watching = Thread(target=self._take_down, args=(decisions,), daemon=True)
                self._watching.start()
                self._outdated.set()
            if self._running is None or self._outdated.is_set():
                self._outdated.clear()
                self._running = read_current_scene(self._client, usage=True)
            else:
                containers = self._client.containers(usage=True)
                self._running = replace(self._running, containers=containers)
            self._scene = self._running.scene(self._scene)
            used = self._usage(self._running.containers)
            used_in = _by_pool(used, self._running)
        except (UnreachableError, DeclinedError) as error:
            problem = str(error)
            self.close()
        return DaemonSnapshot(
            scene=self._scene,
            decisions=tuple(self._decisions),
            problem=problem,
            used=used,
            used_in=used_in,
        )

    def _usage(self, containers: Containers) -> dict[str, float]:
        """Return how many CPUs each container has used on average since the last look."""
        now, before = self._now(), self._looked
        self._looked = now, containers
        if before is None or (seconds := (now - before[0]).total_seconds()) <= 0:
            return {}
        return {
            name: max(0.0, each.cpu_seconds - earlier.cpu_seconds) / seconds
            for name, each in containers.items()
            if each.cpu_seconds is not None
            and (earlier := before[1].get(name)) is not None
            and earlier.cpu_seconds is not None
        }

    def close(self) -> None:
        """End the connection."""
        self._client = None
        self._connection.close()
        if self._watching is not None:
            self._watching.join()

    def _take_down(self, decisions: Iterator[Decision]) -> None:
        """Keep the decisions, until there will be no more; `look` watches anew then."""
        with suppress(UnreachableError, DeclinedError):
            for decision in decisions:
                self._decisions.appendleft((self._now(), decision))
                if decision.event == "reconfigured":
                    self._outdated.set()


def _by_pool(used: Mapping[str, float], current: CurrentScene) -> dict[str, float]:
    """Return the CPUs in use in each pool, those of the pools below it included."""
    pools = {pool.id: pool for pool in current.pools}
    ids = {pool.name: pool.id for pool in current.pools}
    totals: dict[str, float] = {}
    for name, cpus in used.items():
        at = ids.get(current.containers[name].pool or "")
        while at is not None:
            totals[pools[at].name] = totals.get(pools[at].name, 0.0) + cpus
            at = pools[at].parent
    return totals


def show(look: Callable[[], DaemonSnapshot], console: Console, moments: Iterable[Moment]) -> None:
    """Show a new snapshot every second, on the whole screen, until q is pressed."""
    view, snapshot = ViewOptions(), None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for now, key in moments:
            if key == "q" and not view.typing:
                return
            if snapshot is None or not key:
                snapshot = look()
            rows = len(snapshot.scene.occupants) if snapshot.scene is not None else 0
            view = view.pressed(key, rows)
            live.update(Frame(now, snapshot, view), refresh=True)


class Frame(Struct, frozen=True):
    """A snapshot, cut to the terminal."""

    tick: datetime
    snapshot: DaemonSnapshot
    view: ViewOptions = ViewOptions()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def lines(*parts: RenderableType) -> list[_Line]:
            flowing = options.update(height=None)
            return [
                line for part in parts for line in console.render_lines(part, flowing, pad=False)
            ]

        room = options.size.height - 1  # the last line has the keys
        scene, problem = self.snapshot.scene, self.snapshot.problem
        shown = lines(self._headline())
        if self.view.helping:
            scene, problem = None, ""
            shown += lines("", *(Text(f"{keys:8} {does}") for keys, does in HELP))
        if problem:
            shown += lines(Text(f"waiting for the daemon: {problem}", "bold yellow"))
        gap = lines("") if options.size.height >= _ROOMY else []
        decisions = [*gap, *lines(*self._decisions())]
        decisions = decisions[: max(2, min(_SHOWN_DECISIONS, room // 4 - 1) + len(gap))]
        if scene is not None:
            shown += lines(*self._pools())
            refused = lines(*_render_refused(scene))
            room -= len(shown) + len(decisions) + len(refused)
            table = [*gap, *lines(occupants(self._choose(scene, room), self.snapshot.used))]
            most = max(room - min(len(table), _FEWEST_ROWS), room // 2)
            picture = lines(Drawing(scene))
            picture = picture if len(picture) <= most else _cut(lines(Rows(scene)), most, lines)
            shown += picture + _cut(table, room - len(picture), lines) + refused
        every = [] if self.view.helping else decisions
        last = Text(self.view.line, "dim", no_wrap=True, overflow="ellipsis")
        for line in [*[*shown, *every][: options.size.height - 1], *lines(last)]:
            yield from line
            yield Segment.line()

    def _headline(self) -> Text:
        scene = self.snapshot.scene
        text = Text.assemble(("nri-policy", "bold"), f" {self.tick:%H:%M:%S}")
        text.no_wrap, text.overflow = True, "ellipsis"
        if scene is not None:
            text.append(f" · {counted(len(scene.occupants), 'container')}")
            if scene.refused:
                text.append(f" · {len(scene.refused)} refused", "red")
            if self.view.order != ViewOptions().order:
                text.append(f" · by {self.view.order}")
            if self.view.wanted:
                text.append(f" · only {self.view.wanted}")
        return text

    def _choose(self, scene: Scene, room: int) -> Scene:
        """Return the scene with the rows of its table as the reader wants them."""
        if self.view in {ViewOptions(), ViewOptions(typing=True)}:
            return replace(scene, occupants=_most_telling_first(scene, room))
        calm = tuple(replace(each, change="") for each in scene.occupants)
        rows = self.view.sorted(calm, self.snapshot.used)
        return replace(scene, occupants=rows[self.view.first :])

    def _pools(self) -> Iterator[RenderableType]:
        """Yield the CPUs in use in each pool, where they are known."""
        if used := self.snapshot.used_in:
            named = sorted(used.items(), key=lambda pool: natural(pool[0]))
            shown = " · ".join(f"{name} {cpus:.1f}" for name, cpus in named)
            yield Text(f"CPUs in use: {shown}", no_wrap=True, overflow="ellipsis")

    def _decisions(self) -> Iterator[RenderableType]:
        yield Text(
            "latest decisions" if self.snapshot.decisions else "no decisions since top started",
            "dim",
        )
        for tick, each in self.snapshot.decisions[:_SHOWN_DECISIONS]:
            line = Text(f"{tick:%H:%M:%S} ", no_wrap=True, overflow="ellipsis")
            yield line.append(" · ".join(_decision_lines(each)))


def _render_refused(scene: Scene) -> Iterator[RenderableType]:
    """List refused containers with the reasons."""
    names = list(scene.refused.items())
    for name, reason in names[:_SHOWN_REFUSALS]:
        line = f"refused: {short(name)}: {reason}"
        yield Text(line, "red", no_wrap=True, overflow="ellipsis")
    if len(names) > _SHOWN_REFUSALS:
        yield Text(f"and {len(names) - _SHOWN_REFUSALS} more refused", "red")


def _decision_lines(decision: Decision) -> Iterator[str]:
    """Describe a decision: its event, its summary, its changes."""
    yield " ".join(filter(None, (decision.event, short(decision.container))))
    if decision.summary:
        yield decision.summary
    if decision.changes:
        yield f"{counted(len(decision.changes), 'other')} changed"
    if decision.released:
        yield f"released {', '.join(map(short, decision.released))}"


def _most_telling_first(scene: Scene, room: int) -> tuple[Occupant, ...]:
    """Return the occupants, where there is not room for all those with CPUs of their own first.

    What happened to them stands among the decisions, for longer than until the next snapshot.
    """
    calm = [replace(each, change="") for each in scene.occupants]
    if len(calm) > room:
        calm.sort(key=lambda each: not each.exclusive)
    return tuple(calm)


def _cut(lines: list[_Line], room: int, render: Callable[..., list[_Line]]) -> list[_Line]:
    """Return the first *lines*, with a remark instead of those for which there is no room."""
    if len(lines) <= room:
        return lines
    more = len(lines) - room + 1
    return lines[: room - 1] + render(Text(f"… {counted(more, 'line')} more", "dim"))[:room]
