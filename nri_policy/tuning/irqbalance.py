"""irqbalance: its list of banned interrupts, which it does not move, at the socket of each process.

A command takes one connection. Setting the list replaces it, and has no answer.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

_FOLDER = "run/irqbalance"
_SOCKET = re.compile(r"irqbalance([1-9][0-9]{0,8})\.sock")
_BANNED = re.compile(r"\bIRQ ([0-9]+) ")
_PATIENCE = 1.0  # seconds; it is busy for some milliseconds now and then
_MOST = 16383  # bytes of a command; it drops longer ones without a word
_MAX_ANSWER = 1 << 20


def list_sockets(root: Path) -> Iterator[str]:
    """Yield the process ids that the sockets of irqbalance below *root* are for."""
    with suppress(OSError):  # the folder is there while it runs
        for path in (root / _FOLDER).iterdir():
            if found := _SOCKET.fullmatch(path.name):
                yield found[1]


def read_banned(root: Path, process: str) -> str:
    """Return the banned interrupts of a process as `24,25`; OSError."""
    return join_numbers(_BANNED.findall(_ask(root, process, "setup")))


def write_banned(root: Path, process: str, numbers: str) -> None:
    """Replace the banned interrupts of a process; OSError."""
    _ask(root, process, f"settings ban irqs {numbers.replace(',', ' ') or 'NONE'}")


def join_numbers(numbers: Iterable[int | str]) -> str:
    """Return interrupts as `24,25`."""
    return ",".join(str(each) for each in sorted({int(each) for each in numbers}))


def split_numbers(text: str) -> set[int]:
    """Return the interrupts of a text as `24,25`."""
    return {int(each) for each in text.split(",") if each}


def _ask(root: Path, process: str, command: str) -> str:
    """Return the answer to a command; OSError."""
    line = command.encode()
    if len(line) > _MOST:
        raise OSError(errno.E2BIG, "irqbalance takes no list as long as this")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(root / _FOLDER / f"irqbalance{process}.sock"))
        connection.sendall(line)
        answer = bytearray()
        while (chunk := connection.recv(1 << 16)) and len(answer) < _MAX_ANSWER:
            answer += chunk
    return answer.decode("ascii", "replace")
