"""The admission check `numa-fit`: a Workload of Kueue is admitted if its pods fit the zones now.

Answers AdmissionChecks whose controller is CONTROLLER. What follows from a Workload's state:

| the Workload | its check |
|---|---|
| has its quota, the check is Pending, all pods find a zone | Ready; their places are kept until they come, MOST_SECONDS at the latest |
| has its quota, the check is Pending, a pod finds none | Retry, with a message: Kueue evicts it at once, and the check is Pending again |
| the same, and the pod finds none in empty nodes either | Rejected, with a message: Kueue deactivates it |
| is evicted for our Retry, the check is Pending | Retry with a time, which doubles with each Retry: Kueue takes it back into its queue after that time |
| is evicted, and Kueue knows the time | Pending, so that Kueue may reserve its quota then |
| has no quota, is over, or has another answer | what was kept is given back |
| is Ready, and nothing is kept: another replica answered | places are kept for the pods that have not come, if there are any left |

Kueue 0.17 keeps the quota as long as it waits for the time of a Retry, and only then evicts: so the
time comes after the eviction. Without it, Kueue would reserve the quota again at once, before it
tries those that waited for it.

It does no I/O. What it wants written is refused if the object has changed meanwhile.
"""  # noqa: E501 - a table

from __future__ import annotations

import logging

from msgspec import Struct

from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.workload_places import WorkloadPlaces
from nri_policy.cluster.objects.document import Object
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.workloads.kueue import AdmissionCheck, KueueWorkload, ResourceFlavor
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.units import format_time

log = logging.getLogger(__name__)

CONTROLLER = "placement.nri/numa-fit"
RETRY_LEAST, RETRY_MOST = 15, 300  # seconds until Kueue tries again
_PENDING, _READY, _RETRY, _REJECTED = "Pending", "Ready", "Retry", "Rejected"
_MAX_MESSAGE = 1024  # of a condition and of a check; Kueue takes 32 KiB


class WriteCheck(Struct, frozen=True):
    """The state of checks in the status of a Workload as it was at *revision*."""

    key: Key
    revision: str
    checks: tuple[Object, ...]
    answer: str = ""  # Ready, Retry or Rejected; nothing where only Kueue's time is set

    def patch(self) -> Object:
        """Return the merge patch of the Workload's status."""
        metadata = {"resourceVersion": self.revision}
        return {"metadata": metadata, "status": {"admissionChecks": [*self.checks]}}


class WriteActive(Struct, frozen=True):
    """Set the Active condition of an AdmissionCheck, which had this *revision*."""

    name: str
    revision: str
    conditions: tuple[Object, ...]

    @property
    def key(self) -> Key:
        """The key of the AdmissionCheck, which no Workload has."""
        return "", self.name

    def patch(self) -> Object:
        """Return the merge patch of the AdmissionCheck's status."""
        metadata = {"resourceVersion": self.revision}
        return {"metadata": metadata, "status": {"conditions": [*self.conditions]}}


class NumaAdmission:
    """The Workloads, checks and flavors of Kueue, and the writes to their statuses."""

    def __init__(self, zones: LiveZones, clock: Clock = SYSTEM_CLOCK) -> None:
        self.places = WorkloadPlaces(zones)
        self.workloads: dict[Key, KueueWorkload] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        self.flavors: dict[str, ResourceFlavor] = {}
        self.errors = 0  # of ours, each about one Workload
        self._zones = zones
        self._clock = clock
        self._dirty: dict[Key, None] = {}  # Workloads to look at
        self._asked: dict[Key, str] = {}  # the revision that a write rests on, by object

    def set_workload(self, workload: KueueWorkload) -> None:
        """Take in that a Workload came or changed."""
        self.workloads[workload.key] = workload
        self._dirty[workload.key] = None

    def remove_workload(self, key: Key) -> None:
        """Take in that a Workload went."""
        self.workloads.pop(key, None)
        self._dirty.pop(key, None)
        self._asked.pop(key, None)
        self.places.forget(key)

    def set_check(self, check: AdmissionCheck) -> None:
        """Take in that an AdmissionCheck came or changed."""
        self.checks[check.name] = check
        self.begin()

    def remove_check(self, name: str) -> None:
        """Take in that an AdmissionCheck went."""
        self.checks.pop(name, None)
        self._asked.pop(("", name), None)

    def set_flavor(self, flavor: ResourceFlavor) -> None:
        """Take in that a ResourceFlavor came or changed."""
        self.flavors[flavor.name] = flavor
        self.begin()

    def remove_flavor(self, name: str) -> None:
        """Take in that a ResourceFlavor went."""
        self.flavors.pop(name, None)

    def begin(self) -> None:
        """Look at all Workloads anew: we lead from now on, or something that they rest on came."""
        self._dirty |= dict.fromkeys(self.workloads)

    def note_failure(self, write: WriteCheck | WriteActive) -> bool:
        """Forget a failed write and decide again, if the object still exists."""
        self._asked.pop(write.key, None)
        if isinstance(write, WriteActive):
            return write.name in self.checks
        if write.key in self.workloads:
            self._dirty[write.key] = None
        return write.key in self.workloads

    def step(self) -> list[WriteCheck | WriteActive]:
        """Return what is to be written now."""
        self._zones.expire()
        writes: list[WriteCheck | WriteActive] = [
            active
            for check in self.checks.values()
            if check.controller == CONTROLLER and (active := self._active(check)) is not None
        ]
        looked_at = [self.workloads[key] for key in self._dirty]
        self._dirty.clear()
        # First those that give places back, then by Kueue's order.
        for workload in sorted(
            looked_at,
            key=lambda one: (one.reserved and not one.over, -one.priority, one.created, one.key),
        ):
            try:
                write = self._decide(workload)
            except Exception:  # an error of ours about one Workload stops no other
                log.exception("workload-failed", extra={"workload": "/".join(workload.key)})
                self.errors += 1
                self.places.give_back(workload.key)
                continue
            if write is not None:
                writes.append(write)
        for each in writes:
            self._asked[each.key] = each.revision
        return writes

    def _active(self, check: AdmissionCheck) -> WriteActive | None:
        """Return the condition of a check, None where it says so already."""
        wanted = {
            "type": "Active",
            "status": "False" if check.has_parameters else "True",
            "reason": "Parameters" if check.has_parameters else "Active",
            "message": "it takes no parameters" if check.has_parameters else "it is answered",
            "observedGeneration": check.generation,
        }
        others = [each for each in check.conditions if each.get("type") != "Active"]
        for each in check.conditions:
            if wanted.items() <= each.items():
                return None
        active = {**wanted, "lastTransitionTime": self._now()}
        write = WriteActive(check.name, check.revision, (*others, active))
        return None if self._asked.get(write.key) == check.revision else write

    def _decide(self, workload: KueueWorkload) -> WriteCheck | None:
        ours = {
            each.name
            for each in workload.checks
            if (check := self.checks.get(each.name)) is not None
            and check.controller == CONTROLLER
            and not check.has_parameters
        }
        states = {each.state for each in workload.checks if each.name in ours}
        if not ours or not workload.reserved or workload.over or states & {_RETRY, _REJECTED}:
            self.places.give_back(workload.key)
            return self._delay(workload, ours) if workload.evicted else None
        if self._is_asked(workload):
            return None
        if any(name not in self.flavors for each in workload.pod_sets for name in each.flavors):
            return None  # it will be looked at when the flavor comes
        if states == {_READY}:
            if not self.places.keeps(workload.key):
                self.places.keep(workload, self.flavors, again=True)
            return None
        problem, answer = self.places.keep(workload, self.flavors), _READY
        if problem:
            never = self.places.never_fits(workload, self.flavors)
            problem, answer = never or problem, _REJECTED if never else _RETRY
        answered = self._answered(workload, ours, answer, problem)
        return WriteCheck(workload.key, workload.revision, answered, answer)

    def _is_asked(self, workload: KueueWorkload) -> bool:
        """Whether the writes for this revision of a Workload are already under way."""
        return self._asked.get(workload.key) == workload.revision

    def _delay(self, workload: KueueWorkload, ours: set[str]) -> WriteCheck | None:
        """Return what has Kueue wait before it tries an evicted Workload again."""
        found = []
        for check, stored in zip(workload.checks, workload.stored_checks, strict=True):
            changed: Object = {}
            if check.name in ours and check.state == _PENDING and check.retries and not check.waits:
                wait = min(RETRY_LEAST * 2 ** min(check.retries - 1, 10), RETRY_MOST)
                message = f"a pod found no NUMA zone; it is tried again after {wait} s"
                changed = {"state": _RETRY, "requeueAfterSeconds": wait, "message": message}
            elif check.name in ours and check.state == _RETRY and check.waits and workload.delayed:
                changed = {"state": _PENDING}
            found.append(
                stored | changed | ({"lastTransitionTime": self._now()} if changed else {})
            )
        checks = tuple(found)
        if checks == workload.stored_checks or self._is_asked(workload):
            return None
        return WriteCheck(workload.key, workload.revision, checks)

    def _answered(
        self, workload: KueueWorkload, ours: set[str], state: str, problem: str
    ) -> tuple[Object, ...]:
        """Return the checks of a Workload with our answer."""
        found = []
        for check, stored in zip(workload.checks, workload.stored_checks, strict=True):
            if check.name not in ours or check.state not in (_PENDING, _READY):
                found.append(stored)
                continue
            answer: Object = {
                "name": check.name,
                "state": state,
                "lastTransitionTime": self._now(),
                "message": problem[:_MAX_MESSAGE] or "all pods fit the zones of the nodes",
            }
            if check.retries:
                answer["retryCount"] = check.retries
            found.append(answer)
        return tuple(found)

    def _now(self) -> str:
        return format_time(self._clock.date())
