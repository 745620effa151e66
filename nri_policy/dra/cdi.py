"""CDI: how a container shows which claims it uses; spec dra.md §2.3.

A CDI device for each request of a claim sets a variable in the container's environment. The runtime
reads them from files, one a claim, that only root writes: a variable is believed only if the claim
is held, and reserved for the pod.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Placed
from nri_policy.workload.claim import CDI_KIND, DRIVER, ClaimPart, cdi_device, variable

log = logging.getLogger(__name__)

FOLDER = Path("/var/run/cdi")
_VERSION = "0.5.0"  # the oldest whose devices may have names that begin with a digit, as uids do
_FILE = re.compile(rf"{re.escape(DRIVER)}-(?P<claim>[0-9A-Za-z.-]+)\.json")


def _name(part: ClaimPart) -> str:
    return cdi_device(part).partition("=")[2]


class Files:
    """The CDI files of claims below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, held: Iterable[Placed]) -> None:
        """Write the file of one claim, by its parts; OSError."""
        cpus: dict[str, tuple[ClaimPart, CPUSet]] = {}
        for placed in held:
            part = placed.container.claim_part
            _, before = cpus.get(_name(part), (part, CPUSet()))
            cpus[_name(part)] = part, before | placed.grant.exclusive
        claim = next(part.claim for part, _ in cpus.values())
        text = json.dumps(
            {
                "cdiVersion": _VERSION,
                "kind": CDI_KIND,
                "devices": [
                    {"name": name, "containerEdits": {"env": [f"{variable(part)}={own}"]}}
                    for name, (part, own) in cpus.items()
                ],
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

    def restart(self, claims: Mapping[str, Collection[Placed]]) -> None:
        """Write the files of all *claims*, by uid, and remove those of others."""
        try:
            for held in claims.values():
                self.write(held)
            for path in self._folder.glob(f"{DRIVER}-*"):
                match = _FILE.fullmatch(path.name)
                if match is None or match["claim"] not in claims:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cdi-not-written", extra={"error": str(error)})

    def _path(self, claim: str) -> Path:
        return self._folder / f"{DRIVER}-{claim}.json"
