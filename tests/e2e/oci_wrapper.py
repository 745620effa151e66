"""An OCI runtime that plays any host on a small one: runc, minus what only that host could give.

usage: oci_wrapper.py RUNC LOG ARGUMENT...

Appends the cpuset, the cgroup's files (`unified`) and the scheduling attributes of every `create`
(from the bundle's config.json) and `update` (--resources) to LOG as one line of JSON, drops them,
and lets RUNC do the rest. Runs on the standard library alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Be runc for one call."""
    runc, log, *arguments = sys.argv[1:]
    command = next((a for a in arguments if a in {"create", "update"}), None)
    if command == "create":
        config = Path(_option(arguments, "--bundle", "-b") or ".", "config.json")
        document = json.loads(config.read_bytes())
        resources = document["linux"].get("resources", {})
        _record(log, arguments[-1], command, resources, document["process"])
        config.write_text(json.dumps(document))
    elif command == "update" and (source := _option(arguments, "--resources", "-r")):
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        resources = json.loads(text)
        _record(log, arguments[-1], command, resources)
        stripped = json.dumps(resources)
        if source == "-":
            done = subprocess.run([runc, *arguments], input=stripped, text=True, check=False)
            sys.exit(done.returncode)
        Path(source).write_text(stripped)
    os.execv(runc, [runc, *arguments])


def _option(arguments: list[str], *names: str) -> str | None:
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else arguments[i + 1]
    return None


def _record(
    log: str,
    container: str,
    command: str,
    resources: dict[str, Any],
    process: dict[str, Any] | None = None,
) -> None:
    """Move what is recorded out of *resources* and *process* into a line of the log."""
    cpu = resources.get("cpu") or {}
    process = {} if process is None else process
    entry = {
        "container": container,
        "command": command,
        "cpus": cpu.pop("cpus", ""),
        "mems": cpu.pop("mems", ""),
        "unified": resources.pop("unified", None) or {},
        "scheduler": process.pop("scheduler", None),
        "io_priority": process.pop("ioPriority", None),
    }
    # One write to a file opened for appending: lines of concurrent calls do not mix.
    with Path(log).open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
