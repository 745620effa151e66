"""Allocations: reads our devices from a ResourceClaim; spec dra.md §2.3, §4.

Refuses claims that cannot be prepared, with texts for their authors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nri_policy.dra.cpu_devices import pools_by_device
from nri_policy.dra.resource_slice import CPU
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.mismatch import json_problem
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.units import parse_cpu
from nri_policy.manifests.resource_claim import AllocationResult, ClaimConsumer, ResourceClaim
from nri_policy.workload.claim import DRIVER, ClaimPart

MAX_PARTS = 32  # results of one claim: what the API allows


class AllocationError(Refused):
    """A claim cannot be prepared."""


def read_allocation(
    found: Mapping[str, Any], uid: str, node: str, layout: Layout
) -> tuple[ClaimPart, ...]:
    """Return the parts of a claim, by its object, that are allocated of our devices on *node*.

    AllocationError for a claim of another uid, or without a valid allocation.
    """
    try:
        claim = msgspec.convert(found, ResourceClaim)
    except msgspec.ValidationError as error:
        raise AllocationError(f"the claim is malformed: {json_problem(error, found)}") from error
    about = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    if claim.metadata.uid != uid:
        raise AllocationError(f"{about} is another one by now: its uid is {claim.metadata.uid}")
    if claim.status.allocation is None:
        raise AllocationError(f"{about} is not allocated")
    devices = claim.status.allocation.devices
    if any(each.opaque is not None and each.opaque.driver == DRIVER for each in devices.config):
        raise AllocationError(f"{about} has a config for {DRIVER}: it takes none")
    pods = _pods(about, claim.status.reserved_for)
    own = [each for each in devices.results if each.driver == DRIVER]
    if not own:
        raise AllocationError(f"{about} has no device of {DRIVER}")
    if len(own) > MAX_PARTS:
        raise AllocationError(f"{about} has more than {MAX_PARTS} devices")
    twice = [
        each for each, number in Counter((r.request, r.device) for r in own).items() if number > 1
    ]
    if twice:
        request, device = twice[0]
        raise AllocationError(f"{about} has the device {device} twice for {request}")
    pools = pools_by_device(layout)
    others = (each for each in devices.results if each.driver != DRIVER and not each.admin_access)
    beside = tuple(dict.fromkeys(f"{each.driver} {each.device}" for each in others))
    return tuple(
        ClaimPart(
            claim=uid,
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            request=each.request,
            device=each.device,
            pool=_pool(about, each, node, pools),
            milli=_milli(about, each),
            share=each.share or "",
            pods=pods,
            beside=beside,
        )
        for each in own
    )


def _pods(about: str, consumers: Sequence[ClaimConsumer]) -> tuple[str, ...]:
    """Return the uid of the pod that a claim is reserved for."""
    others = [each for each in consumers if each.resource != "pods"]
    if others:
        raise AllocationError(f"{about} is reserved for {others[0].resource}: only pods are known")
    if len(consumers) > 1:
        names = ", ".join(sorted(each.name for each in consumers))
        raise AllocationError(f"{about} is shared by several pods: {names}")
    if not consumers:
        raise AllocationError(f"{about} is reserved for no pod")
    return tuple(each.uid for each in consumers)


def _pool(about: str, result: AllocationResult, node: str, pools: Mapping[str, str]) -> str:
    if result.pool != node:
        raise AllocationError(f"{about} is allocated on {result.pool}, and this node is {node}")
    if result.admin_access:
        raise AllocationError(f"{about} asks for adminAccess, which passes by what is counted")
    if result.device not in pools:
        raise AllocationError(f"{about} has the device {result.device}, which this node has not")
    return pools[result.device]


def _milli(about: str, result: AllocationResult) -> int:
    amount = result.consumed.get(CPU)
    if amount is None:
        raise AllocationError(
            f"{about} consumes no {CPU} of {result.device}: the scheduler or the API server lacks"
            " the gate DRAConsumableCapacity"
        )
    try:
        milli = parse_cpu(amount)
    except ValueError as error:
        raise AllocationError(f"{about}: {CPU} of {result.device}: {error}") from error
    if not milli:
        raise AllocationError(f"{about} asks for nothing of {result.device}")
    return milli
