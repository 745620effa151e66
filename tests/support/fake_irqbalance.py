"""irqbalance's socket and what it does to interrupts, as recorded from irqbalance 1.9.2.

A command takes one connection. `settings ban irqs` replaces the list, and has no answer; a command
that fills the buffer of 16,384 bytes is dropped.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.support.patience import HANGS

_BUFFER = 16384


class FakeIrqbalance:
    """A process of irqbalance on a host of `make_host`, for a `with`."""

    def __init__(self, root: Path, process: int = 4711, banned: Iterable[int] = ()) -> None:
        self._root = root
        self.banned = [*banned]
        self.commands: list[str] = []
        self.path = root / f"run/irqbalance/irqbalance{process}.sock"

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.die()
        self.path.unlink()

    def die(self) -> None:
        """End as if killed: the socket's file stays."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(HANGS)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it was shut down
            with connection:
                data = connection.recv(_BUFFER)
                if len(data) < _BUFFER:
                    connection.sendall(self._answer(data.decode()).encode())

    def _answer(self, command: str) -> str:
        self.commands.append(command)
        if command == "setup":
            texts = [f"IRQ {irq} LOAD 0 DIFF 0 CLASS 0 " for irq in self.banned]
            return f"SLEEP 10 {''.join(texts)}BANNED 00000000"
        numbers = command.removeprefix("settings ban irqs ")
        self.banned = [] if numbers == "NONE" else [int(each) for each in numbers.split(" ")]
        return ""

    def balance(self, cpus: str) -> None:
        """Move all interrupts but the banned ones, as it does every ten seconds."""
        for path in (self._root / "proc/irq").glob("[0-9]*/smp_affinity_list"):
            if int(path.parent.name) not in self.banned:
                path.write_text(f"{cpus}\n")
