"""The host's processes by their command lines, as far as we may see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from nri_policy.doctor.host import Host


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the host."""

    id: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of its program."""
        return PurePosixPath(self.arguments[0]).name

    def option(self, *names: str) -> str | None:
        """Return the last value of an option, `--name value` or `--name=value`, by its *names*."""
        value, rest = None, iter(self.arguments[1:])
        for argument in rest:
            name, equals, after = argument.partition("=")
            if name in names:
                value = after if equals else next(rest, value)
        return value


def processes(host: Host) -> tuple[Process, ...]:
    """Return the processes that have a command line: kernel threads have none."""
    found = []
    for name in host.names("/proc"):
        line = host.read(f"/proc/{name}/cmdline") if name.isdecimal() else None
        if line and line.strip("\0"):
            found.append(Process(int(name), tuple(line.rstrip("\0").split("\0"))))
    return tuple(found)


def named(processes: Iterable[Process], *names: str) -> list[Process]:
    """Return the processes of programs with these names."""
    return [process for process in processes if process.name in names]
