"""Statistics: the outcome for each container over many events, and a score of all.

Owns the counting of one engine's decisions. A container counts once, by name, with its last state
before it stopped.
"""

from __future__ import annotations

from msgspec import Struct

from nri_policy.engine.event import Created, Event, Resized
from nri_policy.engine.grant import Decision
from nri_policy.engine.state.state import Placed
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node.alignment import has_cpu_request, is_spilled, is_split
from nri_policy.node.view import NodeView


class ContainerOutcome(Struct, frozen=True, kw_only=True):
    """The latest outcome for one container."""

    pool: str | None  # None: it was refused
    exclusive: CPUSet
    cpus: CPUSet
    mems: CPUSet
    aligned: bool | None  # None if it has no CPU request
    spilled: int  # bytes requested, if some of its memory is not near its CPUs
    refusal: str | None


class Score(Struct, frozen=True, kw_only=True):
    """Counts over all containers."""

    placed: int
    refused: int  # containers that never got a place
    refused_resizes: int
    asking: int  # placed containers with a CPU request
    aligned: int  # of these, those inside one NUMA node
    spilled: int  # containers with memory that is not near their CPUs
    spilled_memory: int  # bytes that they request
    moves: int  # of running containers, for others: to another pool, exclusive CPUs or memory
    updates: int  # of running containers, for others; most only change their shared CPUs a little


class Statistics:
    """Records the decisions of one engine."""

    def __init__(self) -> None:
        self.outcomes: dict[
            str, ContainerOutcome
        ] = {}  # by namespace/pod/name, in order of appearance
        self._resizes = self._moves = self._updates = 0

    def record_all(self, view: NodeView) -> None:
        """Record all present containers as they are."""
        for placed in view.placed.values():
            self.outcomes[placed.container.full_name] = _outcome(view, placed)

    def observe(self, event: Event, outcome: Decision | Exception, view: NodeView) -> None:
        """Record the outcome of *event*; *view* is the one after it."""
        if isinstance(outcome, Exception):
            self._count_refusal(event, str(outcome))
            return
        asked = outcome.container_id
        for each in outcome.changes:
            self._updates += 1
            placed = view.placed[each]
            before = self.outcomes.get(placed.container.full_name)
            after = _outcome(view, placed)
            self.outcomes[placed.container.full_name] = after
            self._moves += before is not None and _place(before) != _place(after)
        if asked is not None and asked in view.placed and outcome.grant is not None:
            placed = view.placed[asked]
            self.outcomes[placed.container.full_name] = _outcome(view, placed)

    def _count_refusal(self, event: Event, reason: str) -> None:
        if isinstance(event, Resized):
            self._resizes += 1
        elif isinstance(event, Created):
            name, nothing = event.container.full_name, CPUSet()
            known = self.outcomes.get(name)
            if known is None or known.refusal is not None:
                self.outcomes[name] = ContainerOutcome(
                    pool=None,
                    exclusive=nothing,
                    cpus=nothing,
                    mems=nothing,
                    aligned=None,
                    spilled=0,
                    refusal=reason,
                )

    def score(self) -> Score:
        """Return the counts so far."""
        placed = [each for each in self.outcomes.values() if each.refusal is None]
        return Score(
            placed=len(placed),
            refused=len(self.outcomes) - len(placed),
            refused_resizes=self._resizes,
            asking=sum(each.aligned is not None for each in placed),
            aligned=sum(each.aligned is True for each in placed),
            spilled=sum(each.spilled > 0 for each in placed),
            spilled_memory=sum(each.spilled for each in placed),
            moves=self._moves,
            updates=self._updates,
        )


def _outcome(view: NodeView, placed: Placed) -> ContainerOutcome:
    grant = placed.grant
    return ContainerOutcome(
        pool=view.layout.tree.pools[grant.pool].name,
        exclusive=grant.exclusive,
        cpus=view.cpus(placed, hide_hyperthreads=placed.request.hide_hyperthreads),
        mems=grant.mems,
        aligned=not is_split(view, placed) if has_cpu_request(placed) else None,
        spilled=placed.request.memory if is_spilled(view, placed) else 0,
        refusal=None,
    )


def _place(each: ContainerOutcome) -> tuple[object, ...]:
    return each.pool, each.exclusive, each.mems
