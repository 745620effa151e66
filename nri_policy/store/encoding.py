"""The stored forms of events, decisions, grants, settings and machines: JSON text.

Owns which parts are left out, and reading the forms back. Types are checked on reading, so any text
gives a value or ValueError. A stored type may gain a field with a default, and a Table, which names
its columns, a column; any other change needs another `database.VERSION`.

A field with its default value is left out. Of a pod's annotations only ours are kept, because
decisions use no others. A map with more than `MAX_TEXTS` characters is cut: a replay may then
differ, but the journal stays small. Requests are kept without affinities and hints, explanations
with the `MAX_PULLS` strongest pulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import groupby
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from nri_policy.classes import Classes
from nri_policy.engine.event import Created, Event, Reconfigured, StoredGrant, Synchronized
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Changes, Decision, Grant, Moved, Placement
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.mismatch import json_problem
from nri_policy.hardware.machine import Machine
from nri_policy.pools.supply import Table
from nri_policy.settings import Settings, from_spec, to_spec
from nri_policy.workload.annotations import any_ours, is_ours
from nri_policy.workload.peers import Pull, Pulls
from nri_policy.workload.pod import Container, Pod
from nri_policy.workload.request import Request

MAX_TEXTS = 64 << 10  # characters of the keys and values of one map
MAX_PULLS = 16
GONE = b"null"  # the form of a grant that was released


class _Reconfigured(Struct, frozen=True, kw_only=True, tag="reconfigured"):
    settings: dict[str, Any] | None
    machine: Machine | None


class _Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    container: str
    outcome: DecisionKind
    request: Request | None
    room: Request | None = None
    pool: int | None
    pulls: tuple[Pull, ...] | None
    notes: tuple[str, ...]


class _Placement(Placement, frozen=True, kw_only=True, omit_defaults=True):
    """A placement with its containers."""

    container_id: str
    others: tuple[str, ...] = ()  # ids of more containers with the same placement

    @classmethod
    def of(cls, placement: Placement, container_id: str, *others: str) -> _Placement:
        return cls(**asdict(placement), container_id=container_id, others=others)

    def read(self) -> Placement:
        return Placement(**{each: getattr(self, each) for each in Placement.__struct_fields__})


class ResizeRepeats(Struct, frozen=True, kw_only=True):
    """How often an identical resize was decided again, without a record of each."""

    count: int
    last: float  # seconds since the epoch


class _Decision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    container_id: str | None
    grant: Grant | None
    placement: _Placement | None
    changes: tuple[_Placement, ...]
    warnings: tuple[str, ...]
    refusal: str | None
    explanation: _Explanation | None
    classes: Classes | None = None
    moved: tuple[Moved, ...] = ()
    repeats: ResizeRepeats | None = None


def _plain(value: object) -> object:
    if isinstance(value, CPUSet):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value)} has no stored form")


def _decode_cpus(kind: type, value: Any) -> CPUSet:
    if kind is not CPUSet:
        raise TypeError(f"{kind} has no stored form")
    return CPUSet.parse(value)


_encoder = msgspec.json.Encoder(enc_hook=_plain)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a kind, made at the first use: a new node needs none."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_cpus)


_EVENTS = {
    each.__struct_config__.tag: _Reconfigured if each is Reconfigured else each
    for each in get_args(Event)
}


def encode(value: StoredGrant | Machine) -> bytes:
    """Return the form of a grant or a machine."""
    return _encoder.encode(value)


def encode_held(held: Mapping[str, StoredGrant | None]) -> bytes:
    """Return the form of grants by container id; None for a grant that was released."""
    return _encoder.encode(held)


def encode_settings(settings: Settings) -> bytes:
    """Return the form of settings: an equivalent spec."""
    return _encoder.encode(to_spec(settings))


def encode_event(event: Event) -> bytes:
    """Return the form of an event."""
    match event:
        case Created():
            return _encoder.encode(replace(event, container=_trim(event.container)))
        case Synchronized():
            containers = tuple(map(_trim, event.containers))
            pods = tuple(map(_trim_pod, event.pods))
            return _encoder.encode(replace(event, containers=containers, pods=pods))
        case Reconfigured():
            spec = None if event.settings is None else to_spec(event.settings)
            return _encoder.encode(_Reconfigured(settings=spec, machine=event.machine))
        case _:
            return _encoder.encode(event)


def encode_decision(
    decision: Decision, refusal: str | None, explanation: Explanation | None
) -> bytes:
    """Return the form of a decision or a refusal, with the explanation but without its table."""
    why = None
    if explanation is not None:
        pulls, request, room = explanation.pulls, explanation.request, explanation.room
        why = _Explanation(
            container=explanation.container,
            outcome=explanation.kind,
            request=None if request is None else _trim_request(request),
            room=None if room is None else _trim_request(room),
            pool=explanation.pool,
            pulls=pulls.named()[:MAX_PULLS] if isinstance(pulls, Pulls) else pulls,
            notes=explanation.notes,
        )
    placement = None
    if decision.placement is not None:
        assert decision.container_id is not None, "the decision is for a container"
        placement = _Placement.of(decision.placement, decision.container_id)
    form = _Decision(
        container_id=decision.container_id,
        grant=decision.grant,
        placement=placement,
        changes=_group(decision.changes),
        warnings=decision.warnings,
        refusal=refusal,
        explanation=why,
        classes=decision.classes,
        moved=decision.moved,
    )
    return _encoder.encode(form)


def repeat_decision(text: str | bytes, now: float) -> bytes:
    """Return the form of a decision that was made once more; raises ValueError."""
    form: _Decision = _decode(_Decision, text)
    count = form.repeats.count if form.repeats else 0
    return _encoder.encode(replace(form, repeats=ResizeRepeats(count=count + 1, last=now)))


def decode_grant(text: str | bytes) -> StoredGrant:
    """Return the grant in *text*; raises ValueError."""
    grant: StoredGrant = _decode(StoredGrant, text)
    return grant


def decode_held(text: str | bytes) -> dict[str, bytes]:
    """Return the forms of the grants in *text* by container id; raises ValueError."""
    held: dict[str, msgspec.Raw] = _decode(dict[str, msgspec.Raw], text)
    return {container_id: bytes(form) for container_id, form in held.items()}


def decode_machine(text: str | bytes) -> Machine:
    """Return the machine in *text*; raises ValueError."""
    machine: Machine = _decode(Machine, text)
    return machine


def decode_settings(text: str | bytes, origin: str) -> Settings:
    """Return the settings in *text*; raises ValueError."""
    return from_spec(_decode(dict[str, Any], text), origin)


def decode_event(kind: str, text: str | bytes, origin: str) -> Event:
    """Return the event in *text*, *origin* where it has settings; raises ValueError."""
    if kind not in _EVENTS:
        raise ValueError("no such kind of event")
    event: Event | _Reconfigured = _decode(_EVENTS[kind], text)
    if isinstance(event, _Reconfigured):
        settings = None if event.settings is None else from_spec(event.settings, origin)
        return Reconfigured(settings=settings, machine=event.machine)
    return event


def decode_decision(
    text: str | bytes, scores: bytes | None, layout: Layout
) -> tuple[Decision, str | None, ResizeRepeats | None]:
    """Return the decision in *text*, made on *layout*, its refusal if any, and its repeats.

    Raises ValueError.
    """
    form: _Decision = _decode(_Decision, text)
    tree, explanation = layout.tree, None
    if form.explanation is not None:
        why = form.explanation
        for pool in (why.pool, *(pull.pool for pull in why.pulls or ())):
            if pool is not None and not 0 <= pool < len(tree.pools):
                raise ValueError(f"there is no pool {pool}")
        if scores is not None:
            Table.unpack(scores, len(tree.pools))  # find a malformed table now, not at its use
        explanation = Explanation(
            container=why.container,
            kind=why.outcome,
            request=why.request,
            room=why.room,
            tree=tree,
            pool=why.pool,
            scores=scores,
            pulls=why.pulls,
            notes=why.notes,
        )
    decision = Decision(
        container_id=form.container_id,
        grant=form.grant,
        placement=None if form.placement is None else form.placement.read(),
        classes=form.classes,
        changes=_ungroup(form.changes),
        moved=form.moved,
        explanation=explanation,
        warnings=form.warnings,
    )
    return decision, form.refusal, form.repeats


def _group(changes: Changes) -> tuple[_Placement, ...]:
    """Return *changes* with one entry for each run of containers with the same placement."""
    alike = groupby(changes, changes.__getitem__)
    return tuple([_Placement.of(placement, *ids) for placement, ids in alike])


def _ungroup(forms: tuple[_Placement, ...]) -> Changes:
    changes: dict[str, Placement] = {}
    for form in forms:
        changes.update(dict.fromkeys((form.container_id, *form.others), form.read()))
    return changes


def _trim_request(request: Request) -> Request:
    steering = request.steering
    if not (steering.affinities or steering.hints or steering.zone or steering.device_folders):
        return request
    bare = replace(steering, affinities=(), hints=(), zone=None, device_folders=())
    return replace(request, steering=bare)


def _decode(kind: Any, text: str | bytes) -> Any:
    """Decode *text*; any error is a ValueError."""
    try:
        return _decoder(kind).decode(text)
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise ValueError(f"not a stored value: {json_problem(error)}") from None


def _trim(container: Container) -> Container:
    """Return *container* with only the texts that decisions use."""
    return replace(container, pod=_trim_pod(container.pod), labels=_shorten(container.labels))


def _trim_pod(pod: Pod) -> Pod:
    ours = {}
    if any_ours(pod.annotations):
        ours = {key: text for key, text in pod.annotations.items() if is_ours(key)}
    return replace(pod, annotations=_shorten(ours), labels=_shorten(pod.labels))


def _shorten(texts: Mapping[str, str]) -> Mapping[str, str]:
    """Return as many of *texts* as fit."""
    if sum(map(len, texts)) + sum(map(len, texts.values())) <= MAX_TEXTS:
        return texts
    kept, room = {}, MAX_TEXTS
    for key, text in texts.items():
        room -= len(key) + len(text)
        if room < 0:
            break
        kept[key] = text
    return kept
