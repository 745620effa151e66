"""One life of the daemon as a value: the real plugin with all its parts, in a loop that is stepped.

A life is the tables of a moment at which nothing was under way, and what came to it since then. So
it can be taken up again at any time: the tables are put back, and what came comes again, with what
the kernel answered then. What the daemon does by itself (`TASKS`) may come at any moment at which
there is something to do: its pauses are not part of the model, its rules on the time that has
passed are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Action, ActionBegan, ActionEnded, TimePassed
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.delivery.partition_files import Settled
from nri_policy.delivery.pod_quotas import PodQuotas
from nri_policy.engine.grant import Changes
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.plugin import Call
from nri_policy.nri.versions import Runtime
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.daemon_events import DaemonEvents
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.policy_plugin import PolicyPlugin
from nri_policy.plugin.sources import Sources
from nri_policy.proto import nri_pb2
from nri_policy.workload.pod import ContainerState, Resources
from tests.model.engines import EMPTY_ENGINE, Engines, ModelNode
from tests.model.objects import PASS, Objects, Tables
from tests.model.stepped_loop import Job, SteppedLoop

NO_ACTIONS = frozenset(
    (Action.QUOTAS, Action.OVERLAPS)
)  # the model has no pods' cgroups, and its own reasons

MOST_KNOWN = 300_000  # steps that are remembered


class Files:
    """The cgroups as the daemon reads and writes them: `kernel`'s, or what that once answered."""

    def __init__(self, *, systemd: bool) -> None:
        self.kernel: Any = None
        self.answers: list[Any] = []  # that come again, before the kernel is asked
        self.asked: list[tuple[str, tuple[Any, ...], Any]] = []  # with each answer
        self._systemd = systemd

    def _ask(self, name: str, *arguments: Any) -> Any:
        answer = self.answers.pop(0) if self.answers else getattr(self.kernel, name)(*arguments)
        self.asked.append((name, arguments, answer))
        return answer

    def are_usable(self) -> bool:
        """Return True: that some containers have none is found out later."""
        return True

    def resources(self, cgroup: str) -> Resources | None:
        """Return what a cgroup has."""
        found: Resources | None = self._ask("resources", cgroup)
        return found

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        """Change the CPUs of cgroups."""
        done: Mapping[str, Confined] = self._ask("confine", wanted, change)
        return done

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of cgroups."""
        found: Mapping[str, CPUSet] = self._ask("cpusets", tuple(cgroups))
        return found

    def partition(
        self,
        wanted: Mapping[str, Partition | None],
        above: Collection[str] | None,
        kept: Mapping[str, CPUSet],
    ) -> Settled:
        """Make cgroups the partitions wanted, or none."""
        done: Settled = self._ask("partition", wanted, above, kept)
        return done

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the processes in a cgroup."""
        found: Collection[int] = self._ask("processes", cgroup)
        return found

    def cpuset_files(self, cgroups: Iterable[str], partitions: Iterable[str]) -> None:
        """Return nothing: the kernel tells of no writes."""

    def kept_by_systemd(self, cgroup: str) -> bool:  # noqa: ARG002 - as of every cgroup
        """Return whether systemd writes a cgroup again."""
        return self._systemd

    def limit(self, wanted: Mapping[str, int]) -> Mapping[str, Any]:  # noqa: ARG002 - no pods
        """Return nothing: the pods' cgroups are not part of the model."""
        return {}


class State(Struct, frozen=True, kw_only=True):
    """One state of a life."""

    past: int  # a hash of all other state that decides what it can do
    start: Tables
    node: tuple[int, int, int | None]  # engine and pods at the start, and the engine in the store
    inputs: tuple[Any, ...] = ()  # since the start
    jobs: tuple[str, ...] = ()  # what each job does, "" once it is done
    calls: tuple[tuple[tuple[int, int], ...], ...] = ()  # the contents of jobs that are calls
    waits: bool = False  # a timer runs
    busy: frozenset[str] = frozenset()  # tasks that are under way
    able: tuple[str, ...] = ()  # tasks with work to do
    patient: bool = False  # it waits, or will retry
    asking: bool = False  # a request is being handled
    had_answered: Any = None  # then: an answer that was not heard yet
    answer: Any = None  # to the latest request, once it is there, until it is heard
    registers: bool = False  # it ends its connection, to register again
    engine: int = EMPTY_ENGINE  # now
    hears_starts: bool = False  # by what it has subscribed to
    tried: bool = False  # some cgroup could not be written

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it apart from others."""
        return self.past, self.answer, self.registers


class Link:
    """The ways to the runtime, as the executor sees them."""

    idle = True
    synchronized = True

    def __init__(self, daemon: Daemon, *, calls_are_safe: bool) -> None:
        self.calls_are_safe = calls_are_safe
        self.missing = asyncio.Event()
        self.left = False
        self._daemon = daemon

    def fitting(self, changes: Changes) -> Changes:
        """Return all: few fit into one message."""
        return changes

    async def call(self, changes: Changes, *, ignore_failures: bool) -> Collection[str]:
        """Call the runtime."""
        del ignore_failures
        loop, files, index = self._daemon.loop, self._daemon.files, self._daemon.index
        said = tuple((index(each), mask_of(new.cpus)) for each, new in changes.items())
        heard = loop.create_future()
        work = partial(files._ask, "update", said)
        loop.jobs.append(Job(work, heard, "call", said))
        failed: Collection[int] = await heard
        return [each for each in changes if index(each) in failed]

    def register(self, *, needed: bool) -> bool:
        """End the connection."""
        del needed
        self.left = True
        return True


class Scopes:
    """systemd."""

    def __init__(self, loop: SteppedLoop, files: Files) -> None:
        self._loop = loop
        self._files = files

    async def allow(self, cgroup: str, cpus: CPUSet) -> str:
        """Have systemd keep CPUs."""
        heard = self._loop.create_future()
        work = partial(self._files._ask, "allow", cgroup, cpus)
        self._loop.jobs.append(Job(work, heard, "scope"))
        trouble: str = await heard
        return trouble


class Daemon:
    """The objects of all lives, in which one at a time is taken up."""

    def __init__(
        self,
        engines: Engines,
        runtime: Runtime,
        names: tuple[str, ...],
        *,
        blind: bool = False,
        systemd: bool = False,
        partitions: bool = False,
    ) -> None:
        self.loop = SteppedLoop()  # type: ignore[abstract]  # the plugin uses no more
        self.files = Files(systemd=systemd)
        self.engines = engines
        self._names = names
        self._runtime = runtime
        self._systemd = systemd
        self._store: int | None = None
        self.node = ModelNode(engines)
        self.executor = Executor(
            self.node,
            None if blind else self.files,
            Scopes(self.loop, self.files) if systemd else None,
            clock=Clock(now=self.loop.time, date=lambda: 0.0, sleep=self._sleep),
        )
        self.components = PluginComponents(
            self.node,
            Exposure(Path("/nowhere"), on_host=False),
            self.executor,
            sources=Sources(held=lambda: engines.stored(self._store)),
        )
        if partitions:
            self.components.partitions._files = self.files
        for name in ("add", "show", "update", "restart", "remove"):  # no files for containers
            setattr(self.components.resources, name, lambda *_: None)
        self.plugin = PolicyPlugin(self.components, synchronized=self._synchronized)
        self.events = DaemonEvents(self.components)
        self.overlaps = Overlaps(self.node, self.executor, self.files)
        self.components.runtime = runtime
        self.link = Link(self, calls_are_safe=runtime.unsolicited_updates_safe)
        self.executor.state.calls_are_safe = runtime.unsolicited_updates_safe
        self._objects = Objects(
            self.components, self.plugin, self.executor, ignored=(ExposedResources, PodQuotas)
        )
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._asking: asyncio.Task[Any] | None = None
        self._answer: Any = None
        self._call: Call | None = None
        self._first = self._objects.take(0.0)
        self._now: State | None = None  # the state that the objects are in, if that is known
        # by what came to which state: the state after it; what a job asks after some answers
        self._known: dict[tuple[Any, ...], State] = {}
        self._questions: dict[tuple[Any, ...], tuple[str, tuple[Any, ...]]] = {}

    async def _sleep(self, _: float) -> None:
        raise AssertionError("nothing that is looked at sleeps")

    def _synchronized(self) -> None:
        self._store = None  # what an earlier life knew counts no more

    # ---- lives

    def begin(self, stored: int | None) -> State:
        """Return a new life; an earlier one has *stored* a state of the engine."""
        return State(past=hash(("new", stored)), start=self._first, node=(EMPTY_ENGINE, 0, stored))

    def hear(self, state: State) -> State:
        """Return the life after the runtime has read its answer."""
        if not state.inputs:
            heard = replace(state, answer=None, had_answered=None)
        else:
            inputs, past = (*state.inputs, ("heard",)), hash((state.past, "heard"))
            heard = replace(state, answer=None, inputs=inputs, past=past)
        if state is self._now:
            self._answer, self._now = None, heard
        return heard

    def step(self, state: State, what: tuple[Any, ...], key: tuple[Any, ...]) -> State:
        """Return the life after something more has come to it.

        *key* tells it apart from all else that could have come; the same comes to the same.
        """
        step = state.key, state.had_answered, key
        if step not in self._known:
            self._resume(state)
            self._now = None
            self._take(what)
            self._now = self._know(step, self._state(state, what, key))
        return self._known[step]

    def do(self, state: State, number: int, kernel: Any) -> State:
        """Return the life after a job, which asks the *kernel*: each answer leads to a question."""
        answers: list[Any] = []
        forms: tuple[Any, ...] = ()
        job = state.key, state.had_answered, "do", number
        while (question := self._questions.get((*job, forms))) is not None:
            name, arguments = question
            answers.append(getattr(kernel, name)(*arguments))
            forms = (*forms, _form(answers[-1]))
        if (*job, forms) in self._known:
            return self._known[*job, forms]
        self._resume(state)
        self._now, self.files.kernel, self.files.asked = None, kernel, []
        self._take(("do", number, answers))
        self.files.kernel, forms, answers = None, (), []
        for name, arguments, answer in self.files.asked:
            self._questions[*job, forms] = name, arguments
            # a table that was answered has the order of the question
            forms = (*forms, _form(answer))
            answers.append(answer)
        after = self._state(state, ("do", number, answers), ("do", number, forms))
        self._now = self._know((*job, forms), after)
        return after

    def _know(self, key: tuple[Any, ...], state: State) -> State:
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
            self._questions.clear()
        self._known[key] = state
        return state

    def _resume(self, state: State) -> None:
        if state is self._now:
            return
        self.loop.reset(state.start.now)
        engine, pods, self._store = state.node
        self.node.enter(engine, pods)
        self._objects.put(state.start)
        self._tasks.clear()
        self._asking = self._call = None
        self._answer = state.had_answered
        self.link.left = False
        for each in state.inputs:
            self._take(each)
        self._now = state

    def _take(self, what: tuple[Any, ...]) -> None:
        match what:
            case ("ask", method, question):
                self._answer = None
                self._asking = self.loop.create_task(self._ask(method, question))
            case ("do", number, answers):
                self.files.answers = [*answers]
                self.loop.jobs[number].do()
            case ("tell", number):
                self.loop.jobs.pop(number).tell()
            case ("fire",):
                self.loop.fire()
            case ("pass", seconds):
                self.loop.now += seconds
            case ("heard",):
                self._answer = None
            case ("lose",):
                self._lose()
            case _:
                self._tasks[what[0]] = self.loop.create_task(self._work(*what))
        self.loop.run()
        state = self.executor.state
        if not self._systemd and state.volatile and not (self.loop.tasks or self.loop.jobs):
            # there is nothing to ask systemd: it does not matter when that is found
            self.loop.create_task(self._work(Action.PERSIST.value))
            self.loop.run()
        state.apply(TimePassed(), self.loop.now)  # as the loop does

    def _lose(self) -> None:
        """Lose the connection."""
        self._answer, self.link.left = None, False
        if self._asking is not None:
            self._asking.cancel()

    def _state(self, before: State, what: tuple[Any, ...], key: tuple[Any, ...]) -> State:
        loop = self.loop
        if loop.errors:  # a bug in the daemon, or in the model
            raise AssertionError(loop.errors[0])
        for name, task in [*self._tasks.items()]:
            if task.done():
                task.result()
                del self._tasks[name]
        asking = self._asking is not None and not self._asking.done()
        node = self.node.number, self.node.pods, self._store
        answer, registers = self._answer, self.link.left
        able, state = tuple(self._able()), self.executor.state
        patient = bool(able or state.in_flight or state.unwritable or state.trouble)
        patient = patient or state.plan(loop.now).keys() - NO_ACTIONS != set()
        tried = bool(self.executor.state.unwritable or self.executor.state.trouble)
        if loop.tasks or loop.jobs:
            inputs = (*before.inputs, what)
            return State(
                past=hash((before.past, before.had_answered, key)),
                start=before.start,
                node=before.node,
                inputs=inputs,
                had_answered=before.had_answered,
                jobs=tuple("" if each.done else each.kind for each in loop.jobs),
                calls=tuple(each.call for each in loop.jobs),
                waits=loop.timer is not None,
                busy=frozenset(self._tasks),
                able=able,
                patient=patient,
                asking=asking,
                answer=answer,
                registers=registers,
                engine=node[0],
                hears_starts=state.hears_starts,
                tried=tried,
            )
        _forget_numbers(self.executor.state)
        tables = self._objects.take(loop.now)
        return State(
            past=hash((node, tables.key)),
            start=tables,
            node=node,
            had_answered=answer,
            able=able,
            patient=patient,
            answer=answer,
            registers=registers,
            engine=node[0],
            hears_starts=state.hears_starts,
            tried=tried,
        )

    # ---- what comes to it

    async def _ask(self, method: str, request: Any) -> None:
        arguments = request.arguments()
        async with self.node.turn:
            self._call = Call(
                method=method, came=0.0, received=0.0, deadline=0.0, clock=self.executor.clock
            )
            self.plugin.begin(self._call)
            if method == "synchronize":  # it was configured before
                self.components.subscribe(self._runtime)
            try:
                answer = await getattr(self.plugin, method)(*arguments)
            except CallRefused:
                self._answer = REFUSED
            else:
                self._answer = self._read(request, answer)
            finally:
                self.plugin.end()

    def _read(self, request: Any, answer: Any) -> tuple[Any, ...]:
        """Return an answer: the CPUs of who was asked about, None for any, and others' updates."""
        own: int | None = None
        updates: Iterable[nri_pb2.ContainerUpdate] = ()
        if isinstance(answer, nri_pb2.CreateContainerResponse):
            own = _mask(answer.adjust.linux.resources.cpu.cpus)
        if isinstance(answer, Message):
            updates = answer.update  # type: ignore[attr-defined]  # of each that has a container
        elif answer is not None:
            updates = answer
        read = [self.read_update(each) for each in updates]
        if isinstance(answer, nri_pb2.UpdateContainerResponse):
            own = next((cpus for index, cpus in read if index == request.index), None)
            read = [each for each in read if each[0] != request.index]
        return own, tuple(read)

    async def _work(self, name: str, *arguments: Any) -> None:
        match name:
            case "release":
                index, created = arguments
                state = ContainerState.CREATED if created else ContainerState.RUNNING
                await self.events.release([self._names[index]], state)
            case "settings":
                await self.events.reconfigure(settings=arguments[0])
            case "machine":
                await self.events.reconfigure(machine=arguments[0])
            case _:
                action, executor = Action(name), self.executor
                executor.apply(ActionBegan(action))
                pause = await executor._act(action, self.link)
                executor.apply(ActionEnded(action=action, pause=pause))

    def _able(self) -> Iterator[str]:
        """Yield which actions are due, or will be soon."""
        now = self.loop.now
        for action, at in self.executor.state.plan(now).items():
            tells_nobody = action is Action.INFORM and not self.link.calls_are_safe
            if at <= now + PASS and action not in NO_ACTIONS and not tells_nobody:
                yield action.value

    def untold(self, state: State) -> Collection[int]:
        """Return the containers that the runtime is still to hear of."""
        self._resume(state)
        return {self.index(each) for each in self.executor.state.unrecorded}

    # ---- names

    def index(self, container_id: str) -> int:
        """Return the number of a container."""
        return self._names.index(container_id)

    def read_update(self, update: nri_pb2.ContainerUpdate) -> tuple[int, int]:
        """Return the number of an update's container, and its CPUs."""
        return self.index(update.container_id), _mask(update.linux.resources.cpu.cpus)


REFUSED = "refused"


def _form(answer: Any) -> Any:
    """Return what tells an answer of the kernel apart."""
    if isinstance(answer, Settled):
        return tuple(answer.outcomes.items()), tuple(answer.above)
    return tuple(answer.items()) if isinstance(answer, dict) else answer


def _forget_numbers(state: DeliveryState) -> None:
    """Count requests anew: only whether there was one since something was sent matters."""
    for each in state.in_flight:
        flight = state.records[each].in_flight
        assert flight is not None, "it is in flight"
        request = int(flight.request >= state.requests)
        if request != flight.request:
            counted = replace(flight, request=request)
            state.records[each] = replace(state.records[each], in_flight=counted)
    state.requests = 1


_MASKS = {str(CPUSet(c for c in range(4) if mask >> c & 1)): mask for mask in range(16)}
CPUSETS = [CPUSet(c for c in range(4) if mask >> c & 1) for mask in range(16)]


def _mask(cpus: str) -> int:
    return _MASKS[cpus]


def mask_of(cpus: CPUSet) -> int:
    """Return CPUs as bits."""
    return _MASKS[str(cpus)]
