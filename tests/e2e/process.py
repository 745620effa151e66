"""A child process whose log the tests read: started, awaited by a line of its log, ended by pid."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tests.support.patience import HANGS


class Process:
    """One run of a program that logs on stderr; stdout is joined to it."""

    #: Those that run, and those that ran in the present test: a failure shows what they logged.
    recent: ClassVar[list[Process]] = []

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, noise: str = ""
    ) -> None:
        """Run it; lines that have *noise* are left out of its log."""
        self.name = command[0]
        self._noise = noise
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.recent.append(self)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._child.pid

    @classmethod
    def forget_ended(cls) -> None:
        """Drop from the recent ones those that have ended: their test is over."""
        cls.recent[:] = [each for each in cls.recent if each._child.poll() is None]

    def await_line(self, text: str, *, after: int = 0) -> int:
        """Return the number of the first line later than *after* that has *text*; count from 1.

        Raises TimeoutError, with the end of the log, if the time or the log ends before that.
        """

        def found() -> int:
            return next(
                (n for n, line in enumerate(self.lines, 1) if n > after and text in line), 0
            )

        with self._news:
            self._news.wait_for(lambda: self._ended or found(), HANGS)
            number = found()
        if not number:
            raise TimeoutError(f"{self.name}: no {text!r} in its log, which ends:\n{self.tail()}")
        return number

    def tail(self, count: int = 60) -> str:
        """Return the last *count* lines of the log."""
        return "\n".join(self.lines[-count:])

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """End the process as kill -9 does, and wait for it."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask the process to end, wait for it, kill it if it does not; return its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        self._child.send_signal(how)
        try:
            status = self._child.wait(60)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        self._reader.join(5)  # a left-over child of the process may hold the pipe open
        return status

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as log:
            for line in log:
                if self._noise and self._noise in line:
                    continue
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
