"""History: answers from the journal, as documents.

Each question opens the journal again. So any thread can ask, and it works after the store was set
aside or failed. Unreadable records are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from nri_policy.engine.event import (
    Created,
    Event,
    PodStopped,
    Prepared,
    Resized,
    ResizeEnded,
    Started,
    Stopped,
    Synchronized,
    Unprepared,
    kind,
)
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Placement
from nri_policy.foundation.units import format_time
from nri_policy.report import (
    ChangeReport,
    ExplanationReport,
    JournalChange,
    JournalPage,
    JournalRecord,
    class_items,
    explanation_report,
)
from nri_policy.store.database import RecordLink
from nri_policy.store.errors import StoreError
from nri_policy.store.journal import Journal, Record, open_journal
from nri_policy.workload.request import Sort

log = logging.getLogger(__name__)

MAX_CHANGES = 5  # of one container
MAX_PAGE = 500  # of a page

_Answer = TypeVar("_Answer")


class History:
    """The journal of the store at *path*, for questions."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> frozenset[str]:
        """Return the containers with a recorded decision, as namespace/pod/name."""
        return self._query(Journal.names, frozenset())

    def explanation(self, full_name: str) -> ExplanationReport | None:
        """Return the latest decision about a container."""
        return self._query(lambda journal: _find_explanation(journal, full_name), None)

    def refused_resize(self, full_name: str, report: ExplanationReport) -> ExplanationReport:
        """Return the *report* of a container's latest refused resize, with its times."""

        def question(journal: Journal) -> ExplanationReport:
            record = journal.latest(full_name)
            if record is None or record.refusal is None:
                return report
            at = format_time(record.time)
            return replace(report, decided_at=at, count=record.count, last=_last(record))

        return self._query(question, report)

    def placement(self, full_name: str, container_id: str) -> ExplanationReport | None:
        """Return the decision that placed the container with this id.

        None if there is a later decision about a container of the same name.
        """
        return self._query(lambda journal: _find_placement(journal, full_name, container_id), None)

    def changes(self, container_id: str, pod_id: str) -> tuple[ChangeReport, ...]:
        """Return the latest changes of a container, latest first: time, cause and CPUs."""
        return self._query(lambda journal: _list_changes(journal, container_id, pod_id)[0], ())

    def page(self, after: int, limit: int, full_name: str) -> JournalPage:
        """Return records with higher numbers than *after*, oldest first.

        With *full_name*, only the decisions about that container.
        """
        limit = min(limit or MAX_PAGE, MAX_PAGE)
        nothing = JournalPage(records=(), more=False)
        return self._query(lambda journal: _page(journal, after, limit, full_name), nothing)

    def _query(self, question: Callable[[Journal], _Answer], nothing: _Answer) -> _Answer:
        try:
            with open_journal(self._path) as journal:
                return question(journal)
        except StoreError as error:
            log.warning("journal-unreadable", extra={"error": str(error)})
            return nothing


def _find_explanation(journal: Journal, full_name: str) -> ExplanationReport | None:
    record = journal.latest(full_name)
    if record is None:
        return None
    changes: tuple[ChangeReport, ...] = ()
    ended = None
    if (asked := _ids_of(record)) is not None:
        changes, ended = _list_changes(journal, *asked)
    return replace(
        explanation_report(_explanation(record, full_name), record.decision.grant),
        unset=_is_unset(record),
        classes=class_items(record.decision.classes, {}),
        decided_at=format_time(record.time),
        count=record.count,
        last=_last(record),
        ended_at=ended,
        changes=changes,
    )


def _find_placement(
    journal: Journal, full_name: str, container_id: str
) -> ExplanationReport | None:
    record = journal.latest(full_name)
    if record is None or record.refusal is not None or record.decision.explanation is None:
        return None
    asked = _ids_of(record)
    if asked is None or asked[0] != container_id:
        return None
    return explanation_report(record.decision.explanation, record.decision.grant)


def _explanation(record: Record, full_name: str) -> Explanation:
    """Return the explanation in *record*; for a refused annotation, one with only its text."""
    return record.decision.explanation or Explanation(
        container=full_name,
        kind=DecisionKind.REFUSED,
        request=None,
        tree=record.layout.tree,
        pool=None,
        scores=None,
        notes=(record.refusal or "",),
    )


def _is_unset(record: Record) -> bool:
    """Return whether a place was decided but its CPUs were not set, because CPUs are not pinned."""
    placement, explanation = record.decision.placement, record.decision.explanation
    if placement is None or explanation is None or explanation.request is None:
        return False
    unset = not (placement.cpus or record.layout.settings.pin_cpu)
    return unset and explanation.request.sort is not Sort.PRESERVE


def _ids_of(record: Record) -> tuple[str, str] | None:
    """Return the ids of the container asked about and of its pod, "" if unknown."""
    match record.event:
        case Created(container=container):
            return container.id, container.pod.id
        case Resized(container_id=container_id) | ResizeEnded(container_id=container_id):
            return container_id, ""
        case _:
            return None


def _list_changes(
    journal: Journal, container_id: str, pod_id: str
) -> tuple[tuple[ChangeReport, ...], str | None]:
    """Return the latest changes of a container and its end, None if unknown."""
    changes: list[ChangeReport] = []
    ended = None
    for record in journal.about(container_id, pod_id):
        match record.event:
            case Stopped(container_id=gone) if gone == container_id:
                ended = format_time(record.time)
            case PodStopped():
                ended = ended or format_time(record.time)
            case ResizeEnded(container_id=resized) if resized == container_id:
                continue  # it was refused, so nothing changed
            case _:
                pass
        change = record.decision.changes.get(container_id)
        if change is not None:
            changes.append(
                ChangeReport(
                    time=format_time(record.time),
                    cause=change.cause,
                    cpus=change.cpus,
                    mems=change.mems,
                )
            )
        if isinstance(record.event, Created) and record.event.container.id == container_id:
            break
        if len(changes) == MAX_CHANGES:
            break
    return tuple(changes), ended


def _page(journal: Journal, after: int, limit: int, full_name: str) -> JournalPage:
    records: list[JournalRecord] = []
    for record in list_documents(journal, after, full_name):
        if len(records) == limit:
            return JournalPage(records=tuple(records), more=True)
        records.append(record)
    return JournalPage(records=tuple(records), more=False)


def list_documents(
    journal: Journal, after: int = 0, full_name: str = ""
) -> Iterator[JournalRecord]:
    """Yield records as documents, selected and ordered as by `Journal.records`.

    Raises StoreError, DamagedStoreError.
    """
    names: dict[str, str] = {}
    for record in journal.introducing(after):
        names.update(_names_in(record.event))
    for record in journal.records(after, full_name):
        names.update(_names_in(record.event))
        yield _describe(record, names)


def _names_in(event: Event) -> Iterator[tuple[str, str]]:
    """Yield the ids of containers, pods and claims in an event, with their names."""
    match event:
        case Created(container=container):
            yield container.id, container.full_name
            yield container.pod.id, f"{container.pod.namespace}/{container.pod.name}"
        case Synchronized(containers=containers, pods=pods):
            yield from ((each.id, each.full_name) for each in containers)
            every = (*pods, *(each.pod for each in containers))
            yield from ((each.id, f"{each.namespace}/{each.name}") for each in every)
        case Prepared(parts=parts):
            yield from ((each.claim, f"{each.namespace}/{each.name}") for each in parts)
        case _:
            pass


def _subject(event: Event) -> str:
    """Return the id of the subject of an event, empty if it has none."""
    match event:
        case Created(container=container):
            return container.id
        case (
            Started(container_id=subject)
            | Resized(container_id=subject)
            | ResizeEnded(container_id=subject)
            | Stopped(container_id=subject)
            | PodStopped(pod_id=subject)
            | Unprepared(claim=subject)
        ):
            return subject
        case Prepared(parts=parts):
            return parts[0].claim
        case _:
            return ""


def _describe(record: Record, names: Mapping[str, str]) -> JournalRecord:
    decision, explanation = record.decision, record.decision.explanation
    name, summary = names.get(_subject(record.event)), record.refusal
    if explanation is not None:
        name = explanation.container
        unset = " (decided, not set)" if _is_unset(record) else ""
        summary = summary or f"{explanation_report(explanation, decision.grant).summary}{unset}"
    placement = decision.placement
    return JournalRecord(
        seq=record.seq,
        time=format_time(record.time),
        follows=record.link.name.lower(),
        event="base" if record.link is RecordLink.BASE else kind(record.event),
        container=name,
        summary=summary,
        refused=record.refusal is not None,
        pool=None if explanation is None else explanation.pool_name,
        cpus=None if placement is None else placement.cpus,
        mems=None if placement is None else placement.mems,
        changes=tuple(
            _describe_change(each, names.get(each), change)
            for each, change in decision.changes.items()
        ),
        warnings=decision.warnings,
        count=record.count,
        last=_last(record),
    )


def _last(record: Record) -> str | None:
    """Return the time of the last repetition of a record's event; None if it was not repeated."""
    return format_time(record.repeats.last) if record.repeats else None


def _describe_change(container_id: str, full_name: str | None, change: Placement) -> JournalChange:
    return JournalChange(
        container_id=container_id,
        cpus=change.cpus,
        mems=change.mems,
        cause=change.cause,
        container=full_name,
    )
