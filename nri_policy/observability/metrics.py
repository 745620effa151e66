"""Metrics: the counters, with a method for each thing to count.

Owns the names and labels of all counters. Values of the engine's state are not counted: `inventory`
reads them. For the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.event import KINDS, Created, Event, Resized, kind
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Decision
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import NodeView, Outcome
from nri_policy.nri.service import METHODS, RequestResult
from nri_policy.observability import families
from nri_policy.observability.counting import Counter, Durations
from nri_policy.observability.gauges import Shortcoming, find_shortcomings
from nri_policy.workload.pod import AmountsError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# seconds: from hardly measurable answers to those that are near a runtime's timeout
REQUEST_BOUNDS = (
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0),
)
LAG_BOUNDS = (1e-3, 5e-3, 10e-3, 50e-3, 0.1, 0.5, 1.0, 5.0)  # seconds


_REASONS = {outcome: outcome.name.lower().replace("_", "-") for outcome in DecisionKind}
_ANNOTATION = "annotation"
_AMOUNTS = "amounts"


class ExternalCounts(Struct, frozen=True, kw_only=True):
    """Counters of other modules."""

    generation: int  # decisions so far
    late_answers: Mapping[str, int]  # answers without a decision, by method
    publish_errors: int  # failed attempts to publish the node's topology
    unrecorded: int  # containers that run in place, and the runtime records another
    volatile: int  # cpusets that were written, and that systemd may undo
    unwritable: int  # containers whose cgroups could not be written
    partitions: Mapping[str, int]  # kernel partitions by state
    tunables: Mapping[tuple[str, str], int]  # by kind and state
    tunable_writes: Mapping[tuple[str, str], int]  # by kind and result, since the tuner's start


class Metrics:
    """All counters since the daemon started."""

    def __init__(
        self,
        version: str,
        now: float,
        *,
        external: Callable[[], ExternalCounts],
    ) -> None:
        """Take the time of the first settings, in seconds since the epoch, and other counters.

        *external* returns the counters of other modules.
        """
        self._version = version
        self._external = external
        self._settings_taken = now
        self._settings_refused = False
        self._requests = Counter(
            "nri_policy_nri_requests",
            "Requests of the runtime; refused: the answer is an error meant for it,"
            " failed: an error of ours.",
            event=METHODS,
            result=RequestResult,
        )
        self._request_seconds = Durations(
            "nri_policy_nri_request_duration_seconds",
            "From a request's arrival to its answer, waiting for its turn included.",
            REQUEST_BOUNDS,
            event=METHODS,
        )
        self._decision_seconds = Durations(
            "nri_policy_decision_duration_seconds",
            "How long the engine took for an event.",
            REQUEST_BOUNDS,
            event=KINDS,
        )
        reasons = {*_REASONS.values(), *Lack, _ANNOTATION, _AMOUNTS} - {
            _REASONS[DecisionKind.REFUSED]
        }
        self._allocations = Counter(
            "nri_policy_allocations",
            "Containers placed or resized, and how that came about; those refused, and why.",
            **{"class": QoS, "result": ("placed", "refused"), "reason": reasons},
        )
        self._degraded = Counter(
            "nri_policy_degraded_placements",
            "Containers placed or resized that got less than they should.",
            kind=Shortcoming,
        )
        self._moves = Counter(
            "nri_policy_moves",
            "Containers that share CPUs booked on a wider pool for another one, or back.",
            direction=("up", "back"),
        )
        self._drift = Counter(
            "nri_policy_drift",
            "Running containers found to run differently from what was decided.",
            what=("cpus", "mems", "threads", "class", "io", "company", "partition"),
        )
        self._enforced = Counter(
            "nri_policy_enforced",
            "Cpusets written by the daemon itself, where the runtime had lost them or was slow.",
        )
        self._written = Counter(
            "nri_policy_cpusets_written",
            "Cpusets written by the daemon itself before the runtime was told.",
        )
        self._write_seconds = Durations(
            "nri_policy_cpuset_batch_duration_seconds",
            "How long it took to write the cpusets that changed by one event.",
            REQUEST_BOUNDS,
        )
        self._findings = Counter(
            "nri_policy_findings",
            "Containers found on another one's exclusive CPUs, without a process, or unknown.",
            what=("overlap", "company", "ended-without-event", "unknown-container"),
        )
        self._store_errors = Counter(
            "nri_policy_store_errors", "Decisions that could not be stored at once."
        )
        self._reloads = Counter(
            "nri_policy_config_reloads", "Changes of the settings.", result=("taken", "refused")
        )
        self._lag = Durations(
            "nri_policy_loop_lag_seconds",
            "How late the daemon's event loop ran.",
            LAG_BOUNDS,
        )

        self._claims = Counter(
            "nri_policy_dra_claims",
            "Resource claims that the kubelet had prepared or given back.",
            method=("prepare", "unprepare"),
            result=("done", "refused"),
        )
        self._claim_seconds = Durations(
            "nri_policy_dra_prepare_duration_seconds",
            "From a claim in the kubelet's request to its answer, the API server's part included.",
            REQUEST_BOUNDS,
        )
        self._slice_writes = Counter(
            "nri_policy_dra_slice_writes",
            "Writes of the node's ResourceSlice; dropped: the API server left fields out.",
            result=("written", "failed", "dropped"),
        )

    def count_request(self, event: str, result: str, seconds: float) -> None:
        """Count a request of the runtime: *event* is the method, *result* a RequestResult."""
        self._requests.add(event, result)
        self._request_seconds.add(event, seconds=seconds)

    def time_decision(self, event: Event, seconds: float) -> None:
        """Count the duration of the engine's decision on *event*."""
        self._decision_seconds.add(kind(event), seconds=seconds)

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Count the outcome of *event*, as an observer of the node."""
        if not isinstance(outcome, Decision):
            self._count_refusal(event, outcome, view)
            return
        for each in outcome.moved:
            self._moves.add("up" if each.after > each.before else "back")  # ids are in post-order
        if outcome.container_id is None or outcome.explanation is None:
            return
        placed = view.placed[outcome.container_id]
        self._allocations.add(placed.request.qos, "placed", _REASONS[outcome.explanation.kind])
        for shortcoming in find_shortcomings(placed, view.bookings, _lacks(outcome)):
            self._degraded.add(shortcoming)

    def _count_refusal(self, event: Event, error: Exception, view: NodeView) -> None:
        if isinstance(event, Created):
            qos = event.container.pod.qos
        elif isinstance(event, Resized):
            qos = view.held_by(event.container_id).request.qos
        else:
            return
        match error:
            case PlacementError():
                reason: str = error.lack
            case AmountsError():
                reason = _AMOUNTS
            case _:
                reason = _ANNOTATION
        self._allocations.add(qos, "refused", reason)

    def count_claim(self, method: str, result: str, seconds: float) -> None:
        """Count a claim that was prepared or unprepared, `done` or `refused`."""
        self._claims.add(method, result)
        if method == "prepare":
            self._claim_seconds.add(seconds=seconds)

    def count_slice_write(self, result: str) -> None:
        """Count a write of the node's slice: `written`, `failed` or `dropped`."""
        self._slice_writes.add(result)

    def count_drift(self, what: str) -> None:
        """Count a new drift by its kind."""
        self._drift.add(what)

    def count_enforcement(self) -> None:
        """Count a cpuset that the daemon wrote because the runtime had not."""
        self._enforced.add()

    def count_writes(self, cpusets: int, seconds: float) -> None:
        """Count a batch of cpusets that were written before the runtime was notified."""
        self._written.add(amount=cpusets)
        self._write_seconds.add(seconds=seconds)

    def count_finding(self, what: str) -> None:
        """Count a finding in the cgroups that should not be."""
        self._findings.add(what)

    def count_store_failure(self) -> None:
        """Count a decision that could not be stored at once."""
        self._store_errors.add()

    def count_taken_reload(self, now: float) -> None:
        """Count an accepted reload at *now*, in seconds since the epoch."""
        self._reloads.add("taken")
        self._settings_taken, self._settings_refused = now, False

    def count_refused_reload(self) -> None:
        """Count a refused reload, which leaves the old settings in force."""
        self._reloads.add("refused")
        self._settings_refused = True

    def count_lag(self, seconds: float) -> None:
        """Record how late the loop ran."""
        self._lag.add(seconds=seconds)

    def collect(self) -> tuple[Callable[[], Metric], ...]:
        """Copy all counters; return functions, for any thread, that make metrics of the copies."""
        counted = (
            self._requests,
            self._request_seconds,
            self._decision_seconds,
            self._allocations,
            self._degraded,
            self._moves,
            self._drift,
            self._enforced,
            self._written,
            self._write_seconds,
            self._findings,
            self._store_errors,
            self._reloads,
            self._lag,
            self._claims,
            self._claim_seconds,
            self._slice_writes,
        )
        return (*(each.copy() for each in counted), *self._single())

    def _single(self) -> Iterator[Callable[[], Metric]]:
        """Yield functions that make the metrics with one value each."""
        external = self._external()
        yield partial(
            families.info,
            "nri_policy_build",
            "The version of the daemon.",
            {"version": self._version},
        )
        yield partial(
            families.counter,
            "nri_policy_reconnects",
            "How often the plugin registered again.",
            max(0, self._requests.total("Configure", RequestResult.OK) - 1),
        )
        yield partial(_late, dict(external.late_answers))
        yield partial(
            families.counter,
            "nri_policy_nrt_publish_errors",
            "Failed attempts to publish the node's topology.",
            external.publish_errors,
        )
        yield partial(
            families.gauge,
            "nri_policy_unrecorded_containers",
            "Containers that run where they should, and whose cpuset the runtime has not recorded.",
            external.unrecorded,
        )
        yield partial(
            families.gauge,
            "nri_policy_volatile_cpusets",
            "Cpusets that were written, and that systemd may undo.",
            external.volatile,
        )
        yield partial(
            families.gauge,
            "nri_policy_unwritable_cgroups",
            "Containers whose cgroups could not be written.",
            external.unwritable,
        )
        yield partial(_partitions, external.partitions)
        yield partial(_tunables, dict(external.tunables))
        yield partial(_tunable_writes, dict(external.tunable_writes))
        yield partial(
            families.gauge,
            "nri_policy_config_last_reload_successful",
            "Whether the latest settings were accepted.",
            float(not self._settings_refused),
        )
        yield partial(
            families.gauge,
            "nri_policy_config_last_reload_success_timestamp_seconds",
            "When the settings in force were accepted, in seconds since the epoch.",
            self._settings_taken,
        )
        yield partial(
            families.gauge,
            "nri_policy_state_generation",
            "Decisions since the daemon started.",
            external.generation,
        )


def _lacks(decision: Decision) -> Container[str]:
    lacking = decision.classes is not None and decision.classes.lacking
    return (decision.container_id or "",) if lacking else ()


def _partitions(by_state: Mapping[str, int]) -> Metric:
    family = families.gauge(
        "nri_policy_partitions",
        "Containers that are kernel partitions, by kind; missing: that should be one and are not.",
        labels=("state",),
    )
    for state, number in by_state.items():
        family.add_metric((state,), number)
    return family


def _late(answers: Mapping[str, int]) -> Metric:
    family = families.counter(
        "nri_policy_late_answers",
        "Requests answered safely because the decision would have missed the deadline.",
        labels=("event",),
    )
    for method in METHODS:
        family.add_metric((method,), answers.get(method, 0))
    return family


def _tunables(counts: Mapping[tuple[str, str], int]) -> Metric:
    text = "Kernel tunables that are set for containers and settings, by how they are."
    family = families.gauge("nri_policy_tunables", text, labels=("kind", "state"))
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


def _tunable_writes(counts: Mapping[tuple[str, str], int]) -> Metric:
    text = "Writes of kernel tunables since the tuner started."
    family = families.counter("nri_policy_tunable_writes", text, labels=("kind", "result"))
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family
