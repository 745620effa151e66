"""CDI: how a container shows which claims it uses; spec dra.md §2.3.

A CDI device for each request of a claim sets a variable in the container's environment. The runtime
reads them from files, one per claim, that only root writes: a variable counts only if the claim is
held, and reserved for the pod. An annotation of each device has the held CPUs: if the store is
lost, claims in use are restored from it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from nri_policy.engine.event import StoredGrant
from nri_policy.engine.placement.resource_claims import stored_claim
from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.wording import problem_of
from nri_policy.node import Placed
from nri_policy.workload.claim import CDI_KIND, DRIVER, ClaimPart, cdi_device, variable

log = logging.getLogger(__name__)

FOLDER = Path("/var/run/cdi")
# The oldest version with annotations of devices; it allows names that begin with a digit, as uids.
# containerd 1.7.24 reads files up to 0.7.0; containerd 2 and CRI-O 1.36 read newer ones.
_VERSION = "0.6.0"
_HELD = f"{DRIVER}/held"  # the annotation: a JSON list of _Held
_MAX_FILE = 1 << 20  # bytes; annotations may have 256 KiB
_FILE = re.compile(rf"{re.escape(DRIVER)}-(?P<claim>[0-9A-Za-z.-]+)\.json")


class _Held(Struct, frozen=True):
    """A part of a claim, and its CPUs."""

    part: ClaimPart
    cpus: str


class _Device(Struct, frozen=True):
    annotations: dict[str, str] = {}


class _Spec(Struct, frozen=True):
    devices: list[_Device]


def _name(part: ClaimPart) -> str:
    return cdi_device(part).partition("=")[2]


class CDIFiles:
    """The CDI files of claims below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, held: Iterable[Placed]) -> None:
        """Write the file of one claim, by its parts; OSError."""
        devices: dict[str, list[Placed]] = {}
        for placed in held:
            devices.setdefault(_name(placed.container.claim_part), []).append(placed)
        claim = next(iter(devices.values()))[0].container.claim_part.claim
        text = json.dumps(
            {
                "cdiVersion": _VERSION,
                "kind": CDI_KIND,
                "devices": [_device(name, parts) for name, parts in devices.items()],
            }
        )
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self._path(claim)
        if path.exists() and path.read_text() == text:
            return
        new = path.with_suffix(".tmp")
        new.write_text(text)
        new.chmod(0o644)
        new.replace(path)

    def remove(self, claim: str) -> None:
        """Remove the file of a claim, if there is one; OSError."""
        self._path(claim).unlink(missing_ok=True)

    def stored(self, layout: Layout) -> Iterator[StoredGrant]:
        """Yield the grants of claims that the files name; skip unreadable files."""
        for path in sorted(self._folder.glob(f"{DRIVER}-*.json")):
            try:
                yield from _read(path, layout)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.warning("cdi-not-read", extra={"path": str(path), "error": problem_of(error)})

    def rewrite(self, claims: Mapping[str, Collection[Placed]]) -> None:
        """Write the files of all *claims*, by uid."""
        try:
            for held in claims.values():
                self.write(held)
        except OSError as error:
            log.warning("cdi-not-written", extra={"error": problem_of(error)})

    def restart(self, claims: Mapping[str, Collection[Placed]]) -> None:
        """Write the files of all *claims*, by uid, and remove all other files."""
        self.rewrite(claims)
        try:
            for path in self._folder.glob(f"{DRIVER}-*"):
                match = _FILE.fullmatch(path.name)
                if match is None or match["claim"] not in claims:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cdi-not-written", extra={"error": problem_of(error)})

    def _path(self, claim: str) -> Path:
        return self._folder / f"{DRIVER}-{claim}.json"


def _device(name: str, parts: Iterable[Placed]) -> dict[str, object]:
    """Return the CDI device of one request of a claim."""
    held = [_Held(each.container.claim_part, str(each.grant.exclusive)) for each in parts]
    own = CPUSet.union(CPUSet.parse(each.cpus) for each in held)
    return {
        "name": name,
        "annotations": {_HELD: msgspec.json.encode(held).decode()},
        "containerEdits": {"env": [f"{variable(held[0].part)}={own}"]},
    }


def _read(path: Path, layout: Layout) -> list[StoredGrant]:
    """Return the grants in one file; raises OSError, ValueError and msgspec's errors."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise ValueError("it is another user's")
        spec = msgspec.json.decode(file.read(_MAX_FILE), type=_Spec)
    return [
        stored_claim(each.part, CPUSet.parse(each.cpus), layout)
        for device in spec.devices
        for each in msgspec.json.decode(device.annotations.get(_HELD, "[]"), type=list[_Held])
    ]
