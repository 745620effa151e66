"""Which of several replicas leads: the holder of a Lease.

Owns what is known of the Lease and until when we may act on it. A replica takes the Lease when its
holder has let it go, or has not renewed it for as long as it lasts by our own clock: the clocks of
other machines are never compared. A holder that cannot renew it stops leading before another
replica may begin: `leading` depends on time, not on events.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime
from http.client import CONFLICT, NOT_FOUND

from nri_policy.cluster.objects.document import Object
from nri_policy.cluster.objects.metadata import Namespaced
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.kube.client import LEASES, Client
from nri_policy.kube.errors import APIError

log = logging.getLogger(__name__)

LASTS = 8  # seconds from one renewal to when another replica takes it
LEADS = 5.0  # seconds that a replica leads after it began to renew
RETRY = 2.0


class LeaseName(Namespaced, frozen=True):
    """The Lease that replicas compete for, and our identity."""

    identity: str


class Lease:
    """Competes for a Lease while it runs."""

    def __init__(self, client: Client, name: LeaseName, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._until = clock.now()  # we lead until then
        self._seen = ""  # the resourceVersion that was read last, and when it was read first
        self._seen_at = clock.now()
        self._problem = "the lease is not read yet"

    @property
    def leading(self) -> bool:
        """Whether we lead, now."""
        return self._clock.now() < self._until

    def problem(self) -> str:
        """Return why we do not lead; nothing if we do."""
        return "" if self.leading else self._problem

    async def run(self) -> None:
        """Take the Lease when it is free, and renew it, until cancelled."""
        while True:
            try:
                await self.take()
            except APIError as error:
                if error.code != CONFLICT:  # another replica was faster
                    self._problem = f"the lease cannot be renewed: {error}"
                    log.warning("lease-not-renewed", extra={"reason": str(error)})
            await self._clock.sleep(RETRY)

    async def take(self) -> None:
        """Take the Lease, or renew it, unless another replica has it; raises APIError."""
        began, led = self._clock.now(), self.leading
        try:
            found = await self._client.get(LEASES, self._name.name, namespace=self._name.namespace)
        except APIError as error:
            if error.code != NOT_FOUND:
                raise
            metadata = {"name": self._name.name, "namespace": self._name.namespace}
            made = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": self._spec({}),
            }
            await self._client.create(LEASES, made, namespace=self._name.namespace)
        else:
            if not self._is_free(found):
                return
            await self._write(found, self._spec(found.get("spec") or {}))
        self._until = began + LEADS
        if not led:
            log.info("leading", extra={"lease": self._name.full_name})

    async def release(self) -> None:
        """Let the Lease go at once, if we have it: another replica need not wait for its end."""
        if not self.leading:
            return
        self._until = self._clock.now()
        with suppress(APIError):
            found = await self._client.get(LEASES, self._name.name, namespace=self._name.namespace)
            if (found.get("spec") or {}).get("holderIdentity") == self._name.identity:
                await self._write(found, {"holderIdentity": ""})

    def _is_free(self, found: Object) -> bool:
        """Whether the Lease is ours, or free."""
        spec, revision = found.get("spec") or {}, found["metadata"]["resourceVersion"]
        if revision != self._seen:
            self._seen, self._seen_at = revision, self._clock.now()
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._name.identity):
            return True
        self._until = self._clock.now()
        self._problem = f"{holder} leads"
        lasts = spec.get("leaseDurationSeconds") or LASTS
        return self._clock.now() >= self._seen_at + lasts

    async def _write(self, found: Object, spec: Object) -> None:
        """Write the Lease, unless another replica did since it was *found*."""
        patch = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "spec": spec,
        }
        await self._client.merge(LEASES, self._name.name, patch, namespace=self._name.namespace)

    def _spec(self, old: Object) -> Object:
        now = datetime.fromtimestamp(self._clock.date(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: Object = {
            "holderIdentity": self._name.identity,
            "leaseDurationSeconds": LASTS,
            "renewTime": now,
        }
        if old.get("holderIdentity") != self._name.identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = (old.get("leaseTransitions") or 0) + bool(old)
        return spec
