"""What must hold: S1 and S2 at an instant, S3, L1 and L2 once nothing disturbs any more.

(Spec delivery.md §3.) S1: when the answer to START is given, the container and the others that run
have none of each other's own CPUs, unless a cgroup could not be written. S2: the daemon gives no
CPU to a container that another still occupies, if it is to be either's own. What nothing can rule
out is excused if it ends with what is under way, and one look: docs/design/delivery.md §3.
Without more faults a bounded number of rounds leads to where nothing is left to do (L2: no round
comes again that has changed something), and then all is as decided (L1), and the books have what
exists (S3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tests.model.life import CPUSETS
from tests.model.objects import LONG_PASS
from tests.model.world import EXISTS, NONE, RUNS, UNSEEN, Broken, Model, Step, World

MOST_ROUNDS = 60


class Invariants:
    """What must hold of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._settled: set[int] = set()  # keys of worlds that are known to come to rest

    def wrong(self, after: World) -> str:
        """Return what does not hold of a move, S1 and S2, or nothing."""
        if self._model.scene.cgroups in ("read-only", *UNSEEN):
            return ""
        for broken in self._broken(after):
            if not (broken.excused and self._ends(after)):
                return broken.text
        return ""

    def _broken(self, world: World) -> Iterator[Broken]:
        yield from world.broken
        if world.given != NONE:
            yield from self._given(world)

    def _given(self, world: World) -> Iterator[Broken]:
        """Look at the instant at which an answer is given that lets a container run or grow."""
        index, boxes, daemon = world.given, world.had, world.daemon
        asked = boxes[index]
        if asked.step not in (Step.ASKS_START, Step.ASKS_UPDATE):
            return
        if daemon is None or daemon.tried:
            return
        due, own, names = self._model.due(world), self._model.own(world), self._model.names
        starts = asked.step == Step.ASKS_START
        # the runtime does that before it goes on
        will_have = dict(world.reply[1]) if world.reply is not None else {}
        for other, box in enumerate(boxes):
            if other == index or other not in due or index not in due:
                continue
            excused = world.hurried or box.slow
            if starts and self._model.runs_on(world, index, asked.cgroup) & own.get(other, 0):
                text = f"S1: {names[index]} starts on CPUs of {names[other]}'s own"
                yield Broken(text, excused=excused)
            runs_on = self._model.runs_on(world, other, will_have.get(other, box.cgroup))
            if box.step in RUNS and runs_on & own.get(index, 0):
                does = "S1: {} starts" if starts else "S2: {} is resized"
                text = f"{does.format(names[index])} while {names[other]} runs on its own CPUs"
                yield Broken(text, excused=excused)

    def _ends(self, world: World) -> bool:
        """Whether what nothing can rule out ends with the daemon's next look."""
        return not self._model.astray(self._model.look(_undisturbed(world), []))

    def settles(self, world: World) -> tuple[str, Sequence[str]]:
        """Return what does not hold in the end if nothing disturbs any more, and how it comes."""
        world = _undisturbed(world)
        if world.daemon is not None and world.daemon.inputs:
            return "", ()  # what is under way ends in a world that is looked at
        met: list[int] = []
        texts: list[str] = []
        calm = False  # nothing has changed, be it for a minute
        for _ in range(MOST_ROUNDS):
            world = self._model.finish(world, texts)
            key = hash(world.key)
            if key in self._settled:
                self._settled.update(met)
                return "", ()
            if met and key == met[-1]:
                if calm:
                    broken = "; ".join(self._left(world))
                    if not broken:
                        self._settled.update(met)
                    return broken, texts
                calm = True
                assert world.daemon is not None
                daemon = self._model.step(world.daemon, ("pass", LONG_PASS))
                world = self._model.round(replace(world, daemon=daemon), texts)
                continue
            if key in met:
                return "L2: the same comes again and again", texts
            met.append(key)
            world, calm = self._model.round(world, texts), False
        return f"L2: it does not come to rest in {MOST_ROUNDS} rounds", texts

    def _left(self, world: World) -> Iterator[str]:
        """Yield a text for everything that differs from what is due."""
        model, daemon = self._model, world.daemon
        assert daemon is not None
        due = model.due(world)
        untold = model.daemon.untold(daemon)
        for index, box in enumerate(world.boxes):
            name = model.names[index]
            if index in due and box.step not in EXISTS:
                yield f"S3: {name} is gone, and in the books"
            if box.step not in RUNS:
                continue
            if index not in due:
                yield f"S3: {name} runs, and is in no books"
                continue
            wanted = due[index]
            if box.cgroup != wanted:
                yield f"L1: {name} has {CPUSETS[box.cgroup]}, and is due {CPUSETS[wanted]}"
            elif box.recorded != wanted and index not in untold and not box.missed:
                recorded = CPUSETS[box.recorded]
                yield f"L1: the runtime has {recorded} of {name}, is due {CPUSETS[wanted]}"
            elif box.kept not in (NONE, box.cgroup) and not box.missed:
                yield f"L1: systemd does not keep what {name} has"
        for each in model.partitions_left(world):
            yield f"L1: {each}"
        if model.runtime.unsolicited_updates_safe and untold:
            yield "L1: the runtime is not told what was written"


def _undisturbed(world: World) -> World:
    """Return a world in which nothing more happens than what follows from what was."""
    return replace(world, faults=0, changes=0, settings=0, plugs=0, late=False)
