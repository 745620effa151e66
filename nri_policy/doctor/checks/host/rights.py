"""Whether the daemon has the permissions it needs, and other users cannot write its state."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from nri_policy.doctor.facts import Facts, FolderFacts
from nri_policy.doctor.finding import Finding, Verdict


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong with users and permissions."""
    if facts.user:
        found = f"the doctor runs as user {facts.user}: it does not see all that the daemon sees"
        yield Finding("rights", Verdict.WARNING, found, "run it as root, as the daemon")
    if facts.kernel is not None and facts.kernel.own_processes:
        yield Finding(
            "rights",
            Verdict.WARNING,
            "the host's processes cannot be seen here: the audit does not compare threads, and a"
            " container that ends or starts without an event of the runtime is not noticed",
            "hostPID: true for the daemon's pod, as in configs/kubernetes/daemonset.yaml",
        )
    if facts.state is None:
        return
    wrong = _wrong(facts.state, facts.user)
    if wrong:
        remedy = "make it a folder that only the daemon's user can write, or remove it"
        yield Finding("rights", Verdict.ERROR, f"{facts.state.path}: {wrong}", remedy)
    elif facts.state.mode is None:
        found = f"{facts.state.path} does not exist yet: the daemon creates it"
        yield Finding("rights", Verdict.OK, found)
    else:
        yield Finding("rights", Verdict.OK, f"{facts.state.path} is the daemon's own")


def _wrong(folder: FolderFacts, user: int) -> str:
    """Return why the daemon would not keep its state in a folder, empty if it would."""
    if folder.mode is None:
        return ""
    if not stat.S_ISDIR(folder.mode):
        return "this is not a folder"
    if folder.owner != user and not user:
        return f"it belongs to user {folder.owner}"
    if folder.mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to it (mode {stat.S_IMODE(folder.mode):04o})"
    return ""
