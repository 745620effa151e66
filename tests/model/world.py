"""The model's world: containers, their runtime, the kernel, and the daemon's lives.

A world is a value; `moves` yields all that can happen next, each with the world after it. What a
runtime does with an update in each phase is the table of docs/runtime.md ("When a change is in
force"), what differs between releases are the answers of `nri.versions` and `nri.release`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.audit.cgroup_paths import folder_of, settle_partitions
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.inputs import Action
from nri_policy.delivery.partition_files import Settled
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.nri.release import Release
from nri_policy.nri.versions import Runtime
from nri_policy.proto import nri_pb2
from nri_policy.settings import Settings
from nri_policy.simulation.cpusets import CpusetTree
from nri_policy.workload.pod import ContainerState, Resources, shares_of
from tests.model.engines import Engines
from tests.model.life import CPUSETS, REFUSED, Daemon, State, mask_of
from tests.model.objects import LONG_PASS, PASS
from tests.model.partition_tree import EVERY, Tree, TreeFiles
from tests.support import nodes

ALL = 0b1111  # the CPUs of the machine: 0 is reserved
PLUGGED = 0b0010  # the one that goes offline
NONE = -1  # there is no cgroup, or nothing of the kind
UNSEEN = ("invisible", "hidden")  # cgroups that no look finds
MOST_STEPS = 1000  # until what is begun has ended
MOST_INPUTS = 8  # that come to a daemon before what is under way has ended


class Step(IntEnum):
    """How far the runtime is with a container; `ASKS_…` while it waits for the daemon."""

    ABSENT = 0
    ASKS_CREATE = 1
    CREATING = 2
    CREATED = 3
    PREPARED = 4  # it has a cgroup, and is about to start
    ASKS_START = 5
    STARTING = 6
    ASKS_POST_START = 7  # where the daemon has asked for it
    RUNNING = 8
    ASKS_UPDATE = 9
    UPDATING = 10
    UPDATED = 11  # what the resize sets is in force
    ASKS_POST_UPDATE = 12
    ASKS_STOP = 13
    GONE = 14


# the daemon's own actions, in the order of one round
_ACTIONS = ("write", "partitions", "read", "overlaps", "persist", "resizes", "inform", "send")

ASKING = {
    Step.ASKS_CREATE: Step.CREATING,
    Step.ASKS_START: Step.STARTING,
    Step.ASKS_POST_START: Step.RUNNING,
    Step.ASKS_UPDATE: Step.UPDATING,
    Step.ASKS_POST_UPDATE: Step.RUNNING,
    Step.ASKS_STOP: Step.GONE,
}
# with a process, or about to have one
RUNS = frozenset(range(Step.STARTING, Step.ASKS_STOP))
EXISTS = frozenset(range(Step.ASKS_CREATE, Step.GONE))
_LISTED = frozenset(range(Step.CREATED, Step.ASKS_STOP))
_HIDDEN = frozenset((Step.ASKS_CREATE, Step.CREATING))
_METHODS = {
    Step.ASKS_CREATE: "create_container",
    Step.ASKS_START: "start_container",
    Step.ASKS_POST_START: "post_start_container",
    Step.ASKS_UPDATE: "update_container",
    Step.ASKS_POST_UPDATE: "post_update_container",
    Step.ASKS_STOP: "stop_container",
}
_STATES = {
    **dict.fromkeys(Step, nri_pb2.CONTAINER_RUNNING),
    **dict.fromkeys((Step.ASKS_CREATE, Step.CREATING), nri_pb2.CONTAINER_UNKNOWN),
    **dict.fromkeys(
        (Step.CREATED, Step.PREPARED, Step.ASKS_START, Step.STARTING),
        nri_pb2.CONTAINER_CREATED,
    ),
}


class Kind(Struct, frozen=True, kw_only=True):
    """A container of a scene."""

    name: str
    milli: int  # 0: BestEffort
    resized: int = 0  # milli-CPU after a resize; 0: never resized
    pod: str = ""  # name of its pod; empty: a pod of its own


class Scene(Struct, frozen=True, kw_only=True):
    """The initial state, and how many changes and faults may follow."""

    name: str
    kinds: tuple[Kind, ...]
    cgroups: str = "writable"  # or read-only, invisible, hidden (there are files of none), systemd
    running: int = 0  # how many of the containers run at the beginning
    faults: int = 0  # how many faults may happen, of all kinds
    changes: int = 3  # how many the kubelet makes: creations, resizes, ends
    settings: int = 0  # how often the settings change the reserved CPU
    plugs: int = 0  # how often a CPU goes offline or returns; files of cgroup v2 keep it
    partitions: str = "off"  # the setting exclusivePartitions


class Box(Struct, frozen=True, cache_hash=True):
    """A container in the runtime and the kernel; CPUs as bits."""

    step: int = Step.ABSENT
    recorded: int = 0  # by the runtime; 0: none
    planned: int = NONE  # what the resize under way will set
    cgroup: int = NONE
    kept: int = NONE  # systemd's property; NONE: not set
    size: int = 0  # 1: as resized, by the runtime's record
    in_force: int = 0  # the same by the cgroup
    missed: bool = False  # the runtime failed to update it, and reported no error
    slow: bool = False  # resized after the look that preceded the reverted resize


class Broken(NamedTuple):
    """What does not hold of a move."""

    text: str
    excused: bool  # nothing can rule it out: but it ends with what is begun, and the next look


class World(Struct, frozen=True, kw_only=True):
    """One moment."""

    boxes: tuple[Box, ...]
    daemon: State | None  # None: it does not run
    stored: int | None = None  # the engine's state that the store has, while none runs
    connected: bool = False
    listing: bool = False  # the runtime waits for the answer to its list
    reply: tuple[Any, ...] | None = None  # an answer that the runtime acts on: what is left of it
    faults: int = 0
    changes: int = 0
    settings: int = 0
    plugs: int = 0
    late: bool = False  # the request that is asked did not wait any longer for files
    overtaken: int = 0  # the first jobs of the daemon: something has stopped waiting for them
    tree: Tree | None = None  # the files of partitions; None: they are not part of the scene
    # of the move that led here alone:
    broken: tuple[Broken, ...] = ()
    hurried: bool = False  # the answer was given to a request that did not wait any longer
    given: int = NONE  # whom an answer was given about
    had: tuple[Box, ...] = ()  # the containers when it was given

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it apart from others."""
        return (
            self.boxes,
            None if self.daemon is None else self.daemon.key,
            self.stored,
            self.connected,
            self.listing,
            self.reply,
            self.faults,
            self.changes,
            self.settings,
            self.plugs,
            self.late,
            self.overtaken,
            None if self.tree is None else self.tree.key,
        )


Move = tuple[str, World]


class Model:
    """All that can happen in a scene with one runtime."""

    def __init__(self, scene: Scene, name: str, version: str) -> None:
        self.scene = scene
        self.release = Release.of(name, version)
        configuration = self.release.configuration(registration_timeout=5.0, request_timeout=2.0)
        self.runtime = Runtime.from_request(configuration)
        machine = nodes.machine("package:1 core:4 pu:1")
        self.machines = [machine.restricted(CPUSETS[ALL & ~PLUGGED]), machine]
        self.reserved = [_settings(each, scene.partitions) for each in ("cpuset:0", "cpuset:3")]
        self.engines = Engines(machine, self.reserved[0])
        self.names = tuple(each.name for each in scene.kinds)
        self.daemon = Daemon(
            self.engines,
            self.runtime,
            self.names,
            blind=scene.cgroups == "invisible",
            systemd=scene.cgroups == "systemd",
            partitions=scene.partitions != "off",
        )
        self.pods = [self._pod(each) for each in scene.kinds]
        self._paths = {
            f"{pod.linux.cgroup_parent}/{kind.name}": index
            for index, (pod, kind) in enumerate(zip(self.pods, scene.kinds, strict=True))
        }
        self._message = cache(self._make_message)

    def first(self) -> World:
        """Return the world at the beginning: a daemon that has to register."""
        scene, texts = self.scene, list[str]()
        boxes = tuple(Box() for _ in scene.kinds)
        tree = None
        if scene.partitions != "off":
            pods = [folder_of(each.linux.cgroup_parent) or "" for each in self.pods]
            tree = Tree.of(CPUSETS[ALL], pods)
        world = World(boxes=boxes, daemon=self.daemon.begin(None), tree=tree)
        world = self.finish(world, texts)
        for index in range(scene.running):
            asks = replace(world, changes=1)
            _, world = next(self._container_moves(asks, index, world.boxes[index]))
            world = self.finish(world, texts)
            _, world = next(self._own_moves(world, index, world.boxes[index]))
            world = self.round(self.finish(world, texts), texts)
        if scene.running:  # the daemon has found out whether it can write
            world = self.finish(self._disconnect(world, "")[1], texts)
        while (after := self.round(world, texts)).key != world.key:
            world = after
        return replace(
            world,
            faults=scene.faults,
            changes=scene.changes,
            settings=scene.settings,
            plugs=scene.plugs,
        )

    def finish(self, world: World, texts: list[str]) -> World:
        """Run all steps that are under way to their end; append their texts to *texts*."""
        for _ in range(MOST_STEPS):
            move = next(self._due_moves(world), None)
            if move is None:
                return world
            texts.append(move[0])
            world = move[1]
        raise AssertionError("what was begun does not end")

    def round(self, world: World, texts: list[str]) -> World:
        """Let the daemon do each thing once that it can, and some seconds pass."""
        world = self._act_all(world, _ACTIONS, texts)
        for index, created in self._ended(world):
            texts.append(f"the daemon misses a process of {self.names[index]}")
            assert world.daemon is not None, "what is begun has ended"
            world = replace(world, daemon=self.step(world.daemon, ("release", index, created)))
            world = self.finish(world, texts)
        assert world.daemon is not None, "what is begun has ended"
        return replace(world, daemon=self.step(world.daemon, ("pass", PASS)))

    def look(self, world: World, texts: list[str]) -> World:
        """Let what is begun end, and the daemon write what is due and look once for overlaps."""
        world = self.finish(world, texts)
        return self._act_all(world, ("write", "overlaps"), texts)

    def _act_all(self, world: World, names: Iterable[str], texts: list[str]) -> World:
        """Let the daemon do each of these things that there is a reason for."""
        for name in names:
            assert world.daemon is not None, "what is begun has ended"
            if name == Action.OVERLAPS.value:
                if not self.astray(world):
                    continue
            elif name not in world.daemon.able and not (
                name == Action.PARTITIONS.value and self.partitions_left(world)
            ):
                continue
            texts.append(f"the daemon's turn: {name}")
            world = replace(world, daemon=self.step(world.daemon, (name,)))
            world = self.finish(world, texts)
        return world

    def _ended(self, world: World) -> Iterator[tuple[int, bool]]:
        """Yield the containers that the check for processes finds to have ended."""
        assert world.daemon is not None, "what is begun has ended"
        for each, placed in self.engines.view(world.daemon.engine).placed.items():
            index = self.names.index(each)
            created = placed.container.state is ContainerState.CREATED
            hidden = self.runtime.hides_creations
            if world.boxes[index].step not in EXISTS and (hidden or not created):
                yield index, created

    # ---- what is true of a moment

    def own(self, world: World) -> dict[int, int]:
        """Return the CPUs that are containers' own, as bits, by container."""
        engine = world.stored if world.daemon is None else world.daemon.engine
        return {} if engine is None else self._own(engine)

    def due(self, world: World) -> Mapping[int, int]:
        """Return where containers are to be."""
        assert world.daemon is not None
        return self._due(world.daemon.engine)

    @cache  # noqa: B019 - a model lives as long as its process
    def _own(self, engine: int) -> dict[int, int]:
        placed = self.engines.view(engine).placed
        return {
            self.names.index(each): mask_of(held.grant.own)
            for each, held in placed.items()
            if held.grant.own
        }

    def runs_on(self, world: World, index: int, cpus: int) -> int:
        """Return where a container runs that has, or gets, these CPUs."""
        if world.tree is None or cpus == NONE:
            return cpus
        return mask_of(world.tree.runs_on(self.path(index), CPUSETS[cpus]))

    def partitions_left(self, world: World) -> Sequence[str]:
        """Return the partition files that differ from what is due, by the kernel."""
        if world.tree is None or world.daemon is None:
            return ()
        due = self._partitions(world.daemon.engine)
        there = {n for n, box in enumerate(world.boxes) if box.cgroup != NONE}
        if not there:
            return ()  # what is left above harms nothing, and goes with the next container
        pods = [folder_of(each.linux.cgroup_parent) or "" for each in self.pods]
        return [*world.tree.differences({self.path(n): due.get(n) for n in there}, pods)]

    @cache  # noqa: B019 - the same
    def _partitions(self, engine: int) -> dict[int, Partition]:
        view = self.engines.view(engine)
        found = {self.names.index(each): view.partition(each) for each in view.placed}
        return {n: each for n, each in found.items() if isinstance(each, Partition)}

    @cache  # noqa: B019 - the same
    def path(self, index: int) -> str:
        """Return the path of a container's cgroup."""
        return folder_of(next(path for path, n in self._paths.items() if n == index)) or ""

    @cache  # noqa: B019 - the same
    def _due(self, engine: int) -> dict[int, int]:
        view = self.engines.view(engine)
        return {self.names.index(each): mask_of(view.sent[each][0]) for each in view.placed}

    # ---- what can happen

    def moves(self, world: World) -> Iterator[Move]:
        """Yield what can happen next."""
        world = replace(world, broken=(), hurried=False, given=NONE, had=())
        yield from self._runtime_moves(world)
        if world.daemon is None:
            yield (
                "a new daemon starts",
                replace(world, daemon=self.daemon.begin(world.stored), stored=None),
            )
            return
        yield from self._daemon_moves(world, world.daemon)

    def _due_moves(self, world: World) -> Iterator[Move]:
        """Yield how what is begun goes on, one after the other, if nothing disturbs it."""
        daemon = world.daemon
        if daemon is None:
            yield from self.moves(world)
            return
        if daemon.registers:
            yield self._disconnect(world, "the daemon ends its connection to register again")
            return
        for number, kind in enumerate(daemon.jobs):
            if not kind:
                yield "the daemon hears of it", self._tell(world, daemon, number)
            elif kind != "call" or self._free(world):
                yield self._do(world, daemon, number, fails=False)
        for text, after in self._runtime_moves(world):
            if not any(box.step == Step.PREPARED for box in after.boxes) or any(
                box.step == Step.PREPARED for box in world.boxes
            ):
                yield text, after

    def _free(self, world: World) -> bool:
        """Whether the runtime can ask something."""
        return (
            world.reply is None
            and not world.listing
            and not any(each.step in ASKING for each in world.boxes)
        )

    def _runtime_moves(self, world: World) -> Iterator[Move]:
        free = self._free(world)
        if world.reply is not None:
            yield self._act(world, world.reply)
            # where cgroups are invisible, nobody can know (docs/runtime.md)
            if world.faults and world.reply[1] and self.scene.cgroups not in UNSEEN:
                index, _ = world.reply[1][0]
                rest = (world.reply[0], world.reply[1][1:])
                missed = replace(world.boxes[index], missed=True)
                yield (
                    f"the runtime fails to update {self.names[index]}",
                    replace(self._with(world, index, missed), reply=rest, faults=world.faults - 1),
                )
        elif world.daemon is not None and world.daemon.answer is not None:
            yield self._heard(world)
        for index, box in enumerate(world.boxes):
            if free or not (world.connected or world.listing):
                yield from map(self._at_once, self._container_moves(world, index, box))
            yield from self._own_moves(world, index, box)
        if free and not world.connected and world.daemon is not None and not world.daemon.asking:
            barred = not self.runtime.hides_creations and any(
                each.step in _HIDDEN for each in world.boxes
            )
            if not barred:
                yield self._at_once(self._list(world))

    def _at_once(self, move: Move) -> Move:
        """Have a question be answered at once that is, and that changes no other container."""
        text, world = move
        daemon = world.daemon
        if daemon is None or daemon.answer in (None, REFUSED) or daemon.answer[1]:
            return move
        answered, world = self._heard(world)
        return f"{text}; {answered}", world

    def _container_moves(self, world: World, index: int, box: Box) -> Iterator[Move]:
        """Yield how the kubelet and the runtime can go on with a container."""
        name, step = self.names[index], box.step
        if step == Step.ABSENT and world.changes:
            spent = replace(world, changes=world.changes - 1)
            yield self._ask(spent, index, box, Step.ASKS_CREATE, f"{name} is to be created")
        elif step == Step.CREATING and world.faults:
            if self.release.makes_cgroups_early:
                box = self._make_cgroup(box)
            yield self._failed_creation(world, index, box)
        elif step == Step.PREPARED:
            yield self._ask(world, index, box, Step.ASKS_START, f"{name} starts")
        elif step == Step.STARTING and self._hears_starts(world):
            yield self._ask(world, index, box, Step.ASKS_POST_START, f"{name} has started")
        elif step == Step.RUNNING:
            yield from self._changes(world, index, box)
        elif step == Step.UPDATED:
            text = f"the resize of {name} has ended"
            yield self._ask(world, index, box, Step.ASKS_POST_UPDATE, text)

    def _failed_creation(self, world: World, index: int, box: Box) -> Move:
        world = replace(world, faults=world.faults - 1)
        gone = replace(box, cgroup=NONE, kept=NONE)
        text = f"the creation of {self.names[index]} fails"
        if self.release.tells_failed_creations:
            return self._ask(world, index, gone, Step.ASKS_STOP, text)
        return text, self._with(world, index, replace(gone, step=Step.GONE))

    def _changes(self, world: World, index: int, box: Box) -> Iterator[Move]:
        """Yield what the kubelet can have done with a container that runs."""
        if not world.changes:
            return
        name, world = self.names[index], replace(world, changes=world.changes - 1)
        if self.scene.kinds[index].resized:
            yield self._ask(world, index, box, Step.ASKS_UPDATE, f"{name} is to be resized")
        gone = replace(box, cgroup=NONE, kept=NONE)
        yield self._ask(world, index, gone, Step.ASKS_STOP, f"{name} ends")

    def _own_moves(self, world: World, index: int, box: Box) -> Iterator[Move]:
        """Yield what the runtime does with a container without asking anybody."""
        name = self.names[index]
        if box.step == Step.CREATING:
            made = self._make_cgroup(box) if self.release.makes_cgroups_early else box
            created = self._with(world, index, replace(made, step=Step.CREATED))
            yield f"{name} is created", created
        elif box.step == Step.STARTING and not self._hears_starts(world):
            yield f"{name} has started", self._with(world, index, replace(box, step=Step.RUNNING))
        elif box.step == Step.CREATED:
            made = box if box.cgroup != NONE else self._make_cgroup(box)
            yield (
                f"the runtime prepares the start of {name}",
                self._with(world, index, replace(made, step=Step.PREPARED)),
            )
        elif box.step == Step.UPDATING:
            planned = box.recorded if box.planned <= 0 else box.planned
            size, cgroup = 1 - box.size, planned or ALL
            done = replace(
                box,
                step=Step.UPDATED,
                recorded=planned,
                cgroup=cgroup,
                kept=self._kept(cgroup),
                planned=NONE,
                size=size,
                in_force=size,
                slow=world.daemon is not None and self._has_looked(world.daemon, index),
            )
            yield f"the runtime resizes {name}: {CPUSETS[cgroup]}", self._with(world, index, done)
            if world.faults:
                refused = replace(box, step=Step.RUNNING, planned=NONE)
                yield (
                    f"the runtime fails to resize {name}, and says nothing",
                    self._with(replace(world, faults=world.faults - 1), index, refused),
                )

    def _hears_starts(self, world: World) -> bool:
        """Whether the daemon has asked the runtime to tell the end of each start."""
        registered = world.connected or world.listing
        return registered and world.daemon is not None and world.daemon.hears_starts

    def _make_cgroup(self, box: Box) -> Box:
        cgroup = box.recorded or ALL
        return replace(box, cgroup=cgroup, kept=self._kept(cgroup), in_force=box.size)

    def _resizes(self, engine: int, index: int) -> bool:
        """Whether the daemon waits for the end of a resize."""
        return self.names[index] in self.engines.view(engine).resizing

    def _has_looked(self, daemon: State, index: int) -> bool:
        """Whether the daemon has taken a resize back, or may do so by what it has read already."""
        return "" in daemon.jobs or not self._resizes(daemon.engine, index)

    def _kept(self, cpus: int) -> int:
        return cpus if self.scene.cgroups == "systemd" else NONE

    def _ask(self, world: World, index: int, box: Box, step: Step, text: str) -> Move:
        """Ask the daemon about a container; without one the runtime goes on at once."""
        daemon = world.daemon
        if not world.connected or daemon is None:
            after = replace(box, step=ASKING[step])
            if step is Step.ASKS_UPDATE:
                after = replace(after, planned=box.recorded)
            return f"{text}, without the daemon", self._with(world, index, after)
        asked = replace(box, step=step)
        asks = ("ask", _METHODS[step], Question(self, _METHODS[step], index, asked))
        daemon = self.step(daemon, asks, ("ask", _METHODS[step], index, asked))
        return text, replace(self._with(world, index, asked), daemon=daemon)

    def _list(self, world: World) -> Move:
        assert world.daemon is not None
        boxes = world.boxes
        asks = ("ask", "synchronize", Question(self, "synchronize", NONE, boxes))
        daemon = self.step(world.daemon, asks, ("ask", "synchronize", NONE, boxes))
        return "the runtime lists its containers", replace(world, daemon=daemon, listing=True)

    def _heard(self, world: World) -> Move:
        """Let the runtime read the daemon's answer; one without updates it acts on at once."""
        assert world.daemon is not None, "it has answered"
        answer = world.daemon.answer
        given = NONE
        if not world.listing:
            given = next(n for n, each in enumerate(world.boxes) if each.step in ASKING)
        heard = self.daemon.hear(world.daemon)
        after = replace(world, daemon=heard, hurried=world.late, late=False)
        if answer == REFUSED:
            box = world.boxes[given]
            step = Step.GONE if box.step == Step.ASKS_CREATE else Step.RUNNING
            return "the daemon refuses", self._with(after, given, replace(box, step=step))
        after = replace(after, reply=answer, given=given, had=world.boxes)
        if not answer[1]:
            text, after = self._act(after, answer)
            return f"the daemon answers: {text}", after
        said = ", ".join(f"{self.names[n]} on {CPUSETS[c]}" for n, c in answer[1])
        return f"the daemon answers with {said}", after

    def _act(self, world: World, reply: tuple[Any, ...]) -> Move:
        """Do the next thing that an answer says."""
        own, updates = reply
        if updates:
            (index, cpus), *rest = updates
            world = replace(world, reply=(own, tuple(rest)))
            return f"the runtime updates {self.names[index]}", self._update(world, index, cpus)
        world = replace(world, reply=None)
        if world.listing:
            return "the daemon is registered", replace(world, listing=False, connected=True)
        index = next(n for n, each in enumerate(world.boxes) if each.step in ASKING)
        box = world.boxes[index]
        after = replace(box, step=ASKING[Step(box.step)])
        if box.step == Step.ASKS_CREATE and own is not None:
            after = replace(after, recorded=own)
        elif box.step == Step.ASKS_UPDATE:
            after = replace(after, planned=box.recorded if own is None else own)
        return f"the runtime goes on with {self.names[index]}", self._with(world, index, after)

    def _update(self, world: World, index: int, cpus: int) -> World:
        """Apply an update, as far as the runtime applies it in this phase."""
        box = world.boxes[index]
        if box.step not in _LISTED or not cpus:
            return world
        early = self.release.makes_cgroups_early
        into_cgroup = box.step in RUNS and (early or box.step > Step.ASKS_POST_START - 1)
        if early and box.cgroup != NONE:
            into_cgroup = True
        if into_cgroup:
            box = replace(box, cgroup=cpus, kept=self._kept(cpus), slow=False)
        return self._with(world, index, replace(box, recorded=cpus, missed=False))

    # ---- what the daemon does

    def _daemon_moves(self, world: World, daemon: State) -> Iterator[Move]:
        if daemon.registers:
            yield self._disconnect(world, "the daemon ends its connection to register again")
            return
        yield from self._job(world, daemon)
        if len(daemon.inputs) >= MOST_INPUTS:
            return
        yield from self._tasks(world, daemon)
        if not daemon.inputs and daemon.patient and world.reply is None and daemon.answer is None:
            later = self.step(daemon, ("pass", PASS))
            yield "some seconds pass", replace(world, daemon=later)
            if not daemon.able:
                later = self.step(daemon, ("pass", LONG_PASS))
                yield "a minute passes", replace(world, daemon=later)
        if world.settings and not daemon.asking and world.connected:
            settings = self.reserved[world.settings % 2]
            after = self.step(daemon, ("settings", settings), ("settings", world.settings % 2))
            text = "the reserved CPU is another"
            yield text, replace(world, daemon=after, settings=world.settings - 1)
        if world.plugs and not daemon.asking and daemon.answer is None and world.connected:
            on = world.plugs % 2
            after = self.step(daemon, ("machine", self.machines[on]), ("machine", on))
            text = "a CPU comes back" if on else "a CPU goes offline"
            yield text, replace(world, daemon=after, plugs=world.plugs - 1)
        if world.faults:
            yield from self._faults(replace(world, faults=world.faults - 1), daemon)

    def _job(self, world: World, daemon: State) -> Iterator[Move]:
        """Yield how the first job goes on that can: one after the other, for there is one lock.

        The files of partitions have a lock of their own.
        """
        for number, kind in enumerate(daemon.jobs):
            if not kind:
                yield "the daemon hears of it", self._tell(world, daemon, number)
            elif kind == "call" and not self._free(world):
                continue
            else:
                yield self._do(world, daemon, number, fails=False)
                if world.faults and kind == "files" and self.scene.cgroups != "read-only":
                    yield self._do(world, daemon, number, fails=True)
                    yield from self._crashes_in(world, daemon, number)
            if world.tree is None:
                return

    def _crashes_in(self, world: World, daemon: State, number: int) -> Iterator[Move]:
        """Yield how the daemon is killed between any two writes of a pass over partitions."""
        for most in range(1, EVERY):
            kernel = Kernel(self, world, fails=False, most=most)
            self.daemon.do(daemon, number, kernel)
            if not kernel.ends_early:
                return
            after = replace(kernel.world, faults=world.faults - 1)
            text, after = self._crash(after, daemon)
            yield f"{'; '.join(kernel.texts)}; then {text}", after

    def _faults(self, world: World, daemon: State) -> Iterator[Move]:
        """Yield what can go wrong at any moment."""
        yield self._crash(world, daemon)
        yield self._disconnect(world, "the connection is lost")
        if daemon.waits:
            fired = self.step(daemon, ("fire",))
            after = replace(world, daemon=fired, overtaken=len(daemon.jobs))
            for index, box in enumerate(world.boxes):
                waited, waits = (self._resizes(n, index) for n in (daemon.engine, fired.engine))
                if box.step == Step.UPDATED and waited and not waits:  # it believes the list
                    after = self._with(after, index, replace(box, slow=True))
            late = world.late or daemon.asking
            yield "the daemon waits for files no longer", replace(after, late=late)
        if self.scene.cgroups != "systemd" or daemon.answer is not None:
            return  # an answer on its way is given: what is undone then is undone after it
        for index, box in enumerate(world.boxes):
            if box.step in RUNS and box.kept not in (NONE, box.cgroup):
                text = f"systemd undoes what was written to {self.names[index]}"
                yield text, self._with(world, index, replace(box, cgroup=box.kept))

    def _tasks(self, world: World, daemon: State) -> Iterator[Move]:
        for name in daemon.able:
            if daemon.busy:
                continue  # the others would wait for its lock
            if name in ("send", "inform") and not world.connected:
                continue
            if name == "inform" and not self._free(world):
                continue
            if name == Action.PARTITIONS.value and world.tree is not None:
                continue  # below: when there is a reason
            yield f"the daemon's turn: {name}", replace(world, daemon=self.step(daemon, (name,)))
        if not daemon.inputs and self.partitions_left(world):
            looks = self.step(daemon, (Action.PARTITIONS.value,))
            yield "the daemon looks at partitions", replace(world, daemon=looks)
        if not daemon.inputs and self.astray(world):
            yield (
                "the daemon looks for overlaps",
                replace(world, daemon=self.step(daemon, ("overlaps",))),
            )

    def astray(self, world: World) -> bool:
        """Whether some cgroup has CPUs of another's own."""
        if self.scene.cgroups in UNSEEN or world.daemon is None:
            return False
        own, due = self.own(world), self._due(world.daemon.engine)
        taken = 0
        for each in own.values():
            taken |= each
        return any(
            world.boxes[index].cgroup != NONE and world.boxes[index].cgroup & ~cpus & taken
            for index, cpus in due.items()
        )

    def _tell(self, world: World, daemon: State, number: int) -> World:
        after = self.step(daemon, ("tell", number))
        for index, box in enumerate(world.boxes):
            if box.slow and self._resizes(after.engine, index):  # it still waits for the end
                world = self._with(world, index, replace(box, slow=False))
        overtaken = world.overtaken - (number < world.overtaken)
        return replace(world, daemon=after, overtaken=overtaken)

    def _do(self, world: World, daemon: State, number: int, *, fails: bool) -> Move:
        fails_now = fails or self.scene.cgroups == "read-only"
        kernel = Kernel(self, world, fails=fails_now, overtaken=number < world.overtaken)
        daemon = self.daemon.do(daemon, number, kernel)
        text = "; ".join(kernel.texts)
        if not text:  # nothing has changed, so the order of this event does not matter
            return "files are read", self._tell(world, daemon, number)
        faults = world.faults - fails
        broken = tuple(kernel.broken)
        return text, replace(kernel.world, daemon=daemon, faults=faults, broken=broken)

    def _crash(self, world: World, daemon: State) -> Move:
        world = replace(self._without(world), overtaken=0)
        return "the daemon is killed", replace(world, daemon=None, stored=daemon.engine)

    def _disconnect(self, world: World, text: str) -> Move:
        assert world.daemon is not None
        before = world.daemon
        daemon = self.step(before, ("lose",))
        overtaken = len(before.jobs) if before.asking else world.overtaken
        return text, replace(self._without(world), daemon=daemon, overtaken=overtaken)

    def _without(self, world: World) -> World:
        """Return the world whose runtime waits for no plugin any more."""
        boxes = list(world.boxes)
        for index, box in enumerate(boxes):
            if box.step in ASKING:
                after = replace(box, step=ASKING[Step(box.step)])
                if box.step == Step.ASKS_UPDATE:
                    after = replace(after, planned=box.recorded)
                boxes[index] = after
        return replace(
            world, boxes=tuple(boxes), connected=False, listing=False, reply=None, late=False
        )

    # ---- parts

    def step(self, daemon: State, what: tuple[Any, ...], key: tuple[Any, ...] = ()) -> State:
        """Have something come to the daemon; the same comes to the same."""
        return self.daemon.step(daemon, what, key or what)

    def _with(self, world: World, index: int, box: Box) -> World:
        boxes, tree = (*world.boxes[:index], box, *world.boxes[index + 1 :]), world.tree
        if tree is not None and box.cgroup != world.boxes[index].cgroup:
            cpus = None if box.cgroup == NONE else CPUSETS[box.cgroup]
            tree = tree.with_cpus(self.path(index), 2 + index, cpus)
        return replace(world, boxes=boxes, tree=tree)

    def index_of(self, cgroup: str) -> int:
        """Return the index of the container with this cgroup; NONE for a pod's cgroup."""
        return self._paths.get(cgroup, NONE)

    def _pod(self, kind: Kind) -> nri_pb2.PodSandbox:
        name = kind.pod or kind.name
        parent = "/kubepods" + ("" if kind.milli else "/besteffort") + f"/pod{name}"
        pod = nri_pb2.PodSandbox(id=f"pod-{name}", uid=name, name=name, namespace="default", pid=1)
        pod.linux.cgroup_parent = parent
        pod.linux.cgroups_path = f"{parent}/pause"
        pod.linux.namespaces.add(type="pid", path="/proc/1/ns/pid")
        return pod

    def resources(self, index: int, size: int) -> Resources:
        """Return what a container asks for."""
        kind = self.scene.kinds[index]
        milli = kind.resized if size else kind.milli
        return Resources(
            cpu_shares=shares_of(milli),
            cpu_quota=100 * milli,
            cpu_period=100_000,
            memory_limit=(1 << 20) if milli else 0,
        )

    def message(self, index: int, box: Box) -> nri_pb2.Container:
        """Return a container as the runtime shows it; not to be changed."""
        return self._message(index, box.recorded, _STATES[Step(box.step)], box.size)

    def _make_message(
        self, index: int, recorded: int, state: nri_pb2.ContainerState, size: int
    ) -> nri_pb2.Container:
        kind, pod = self.scene.kinds[index], self.pods[index]
        message = nri_pb2.Container(
            id=kind.name, pod_sandbox_id=pod.id, name=kind.name, state=state, pid=2 + index
        )
        message.linux.cgroups_path = f"{pod.linux.cgroup_parent}/{kind.name}"
        asked = self.resources(index, size)
        fill(message.linux.resources, asked)
        message.linux.resources.cpu.cpus = str(CPUSETS[recorded])
        message.linux.resources.cpu.mems = "0" if recorded else ""
        return message


def fill(resources: nri_pb2.LinuxResources, asked: Resources) -> None:
    """Enter what a container asks for."""
    cpu = resources.cpu
    cpu.shares.value, cpu.quota.value = asked.cpu_shares, asked.cpu_quota
    cpu.period.value = asked.cpu_period
    resources.memory.limit.value = asked.memory_limit


def _settings(cpu: str, partitions: str) -> Settings:
    return nodes.settings(
        reservedResources={"cpu": cpu}, exclusiveQuota="keep", exclusivePartitions=partitions
    )


class Question:
    """The arguments of one of the plugin's methods, made when they are needed."""

    def __init__(self, model: Model, method: str, index: int, about: Any) -> None:
        self.index = index
        self._model = model
        self._method = method
        self._about = about

    def arguments(self) -> tuple[Any, ...]:
        """Return them."""
        model, index = self._model, self.index
        if self._method == "synchronize":
            hides = model.runtime.hides_creations
            listed = [
                model.message(n, box)
                for n, box in enumerate(self._about)
                if box.step in _LISTED or (box.step in _HIDDEN and not hides)
            ]
            return [*{each.id: each for each in model.pods}.values()], listed
        pod, box = model.pods[index], self._about
        message = model.message(index, box)
        if self._method == "update_container":
            asked = nri_pb2.LinuxResources()
            fill(asked, model.resources(index, 1 - box.size))
            return pod, message, asked
        return pod, message


class Kernel:
    """The kernel, systemd and the runtime's calls, asked once: by one job of the daemon."""

    def __init__(
        self,
        model: Model,
        world: World,
        *,
        fails: bool,
        overtaken: bool = False,
        most: int = EVERY,
    ) -> None:
        """Do *most* writes of a pass over partitions; those of cpusets fail, or all work.

        *overtaken* is whether something has stopped waiting for the job.
        """
        self.world = world
        self.texts: list[str] = []
        self.broken: list[Broken] = []
        self.ends_early = False  # the pass over partitions has more writes
        self._model = model
        self._fails = fails
        self._overtaken = overtaken
        self._most = most

    def resources(self, cgroup: str) -> Resources | None:
        """Return what a cgroup has."""
        model, index = self._model, self._model.index_of(cgroup)
        if index == NONE or (box := self.world.boxes[index]).cgroup == NONE:
            return None
        if model.scene.cgroups == "hidden":
            return None
        asked = model.resources(index, box.in_force)
        return replace(asked, cpus=str(CPUSETS[box.cgroup]), mems="0")

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> dict[str, Confined]:
        """Change the CPUs of cgroups."""
        return {each: self._confine(each, cpus, change) for each, cpus in wanted.items()}

    def _confine(self, cgroup: str, wanted: CPUSet, change: Change) -> Confined:
        index = self._model.index_of(cgroup)
        box = self.world.boxes[index]
        if box.cgroup == NONE or self._model.scene.cgroups == "hidden":
            return Confined(cpus=None)
        now = CPUSETS[box.cgroup]
        target = change.target(now, wanted)
        name = self._model.names[index]
        if target == now and change is not Change.REWRITE:
            return Confined(cpus=now)
        if self._fails:
            self.texts.append(f"{name} cannot be written")
            return Confined(cpus=now, error="Device or resource busy")
        if target != now:
            self.texts.append(f"{name} is written: {now} → {target}")
            after = replace(box, cgroup=mask_of(target), slow=False)
            self._check(index, after.cgroup & ~box.cgroup)
            self.world = self._model._with(self.world, index, after)
        return Confined(cpus=target, written=True)

    def _check(self, index: int, gained: int) -> None:
        """Look whether another container still occupies what one gets (S2)."""
        own, names = self._model.own(self.world), self._model.names
        for other, box in enumerate(self.world.boxes):
            if other == index or box.step not in RUNS or box.cgroup == NONE:
                continue
            occupied = self._model.runs_on(self.world, other, box.cgroup)
            if gained & occupied & (own.get(index, 0) | own.get(other, 0)):
                text = f"S2: {names[index]} gets CPUs that {names[other]} occupies"
                self.broken.append(Broken(text, excused=self._overtaken or box.slow))

    def partition(
        self,
        wanted: Mapping[str, Partition | None],
        above: Collection[str] | None,
        kept: Mapping[str, CPUSet],
    ) -> Settled:
        """Make cgroups the partitions wanted, or none."""
        done: Settled | None = None

        def settle(cpusets: CpusetTree) -> None:
            nonlocal done
            files = TreeFiles(cpusets, fails=self._fails, most=self._most)
            done = settle_partitions(files, wanted, above, kept)
            self.texts += files.writes
            self.ends_early = files.ends_early

        assert self.world.tree is not None, "it is part of the scene"
        tree = self.world.tree.after(settle)
        assert done is not None, "it was settled"
        self.world = replace(self.world, tree=tree)
        return done

    def cpusets(self, cgroups: tuple[str, ...]) -> dict[str, CPUSet]:
        """Return the CPUs of cgroups."""
        if self._model.scene.cgroups == "hidden":
            return {}
        boxes = {each: self.world.boxes[self._model.index_of(each)] for each in cgroups}
        return {each: CPUSETS[box.cgroup] for each, box in boxes.items() if box.cgroup != NONE}

    def processes(self, cgroup: str) -> tuple[int, ...]:
        """Return the processes in a cgroup."""
        index = self._model.index_of(cgroup)
        if self._model.scene.cgroups == "hidden":
            return ()
        if index == NONE:
            return (1,)
        return (2 + index,) if self.world.boxes[index].cgroup != NONE else ()

    def allow(self, cgroup: str, cpus: CPUSet) -> str:
        """Have systemd keep CPUs: it writes them, too."""
        index = self._model.index_of(cgroup)
        box = self.world.boxes[index]
        if box.cgroup == NONE:
            return "there is no such scope"
        mask = mask_of(cpus)
        self.texts.append(f"systemd keeps {cpus} for {self._model.names[index]}")
        after = replace(box, cgroup=mask, kept=mask)
        self.world = self._model._with(self.world, index, after)
        return ""

    def update(self, said: tuple[tuple[int, int], ...]) -> frozenset[int]:
        """Have the runtime do what a call says."""
        for index, cpus in said:
            self.texts.append(
                f"the runtime updates {self._model.names[index]}, as it was called to"
            )
            self.world = self._model._update(self.world, index, cpus)
        return frozenset()
