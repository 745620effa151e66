"""`nri-policy run` as a child process, on a host and a runtime of the test's choice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.e2e.process import Process

#: What the daemon logs when it has answered a Synchronize: from then on it takes part.
SYNCHRONIZED = "event=synchronized"

PROGRAM = Path(sys.executable).with_name("nri-policy")

_OFTEN_AUDITED = f"""\
#!{sys.executable}
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from nri_policy.audit import auditor, orphans
auditor.PERIOD, orphans.MAX_CREATION = 1.0, 30.0
from nri_policy.cli import main
sys.exit(main())
"""


def often_audited(folder: Path) -> Path:
    """Return the daemon's program, but for its patience, in that folder.

    It looks every second for who has ended, and gives creations up after 30 s.
    """
    program = folder / "nri-policy"
    program.write_text(_OFTEN_AUDITED)
    program.chmod(0o755)
    return program


class Daemon:
    """One daemon on one folder of its own; started again, it finds the state it left there."""

    #: What asks a daemon that is this PROGRAM.
    command: ClassVar[Path] = PROGRAM

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, Any],
        host_root: Path,
        nri_socket: Path,
        program: Path = PROGRAM,
        inside: Sequence[str] = (),
        **more: object,
    ) -> None:
        """Give it *more* options; what its command begins with is *inside*."""
        self._config = config = folder / "settings.yaml"
        self.control = folder / "control.sock"
        self.state = folder / "state"
        self.configure(settings)
        options = {
            "--settings": config,
            "--host-root": host_root,
            "--nri-socket": nri_socket,
            "--nri-plugin-name": "nri-policy",
            "--nri-plugin-index": "90",
            "--state-dir": self.state,
            "--containers-dir": folder / "containers",
            "--control-socket": self.control,
            **{f"--{name.replace('_', '-')}": value for name, value in more.items()},
        }
        self._program = str(program)
        self._run = [*inside, self._program, "run"]
        self._run += [str(part) for option in options.items() for part in option]
        self._process: Process | None = None
        self._seen = 0  # lines of the log before the latest synchronization awaited

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Write the file of its settings."""
        document = {
            "apiVersion": "config.nri/v1alpha1",
            "kind": "TopologyAwarePolicy",
            "metadata": {"name": "default"},
            "spec": settings,
        }
        self._config.write_text(json.dumps(document))  # JSON is YAML

    def start(self) -> None:
        """Start it and wait until it takes part."""
        self.launch()
        self.await_synchronized()

    def launch(self) -> None:
        """Start it, and do not wait for anything."""
        self._process = Process(self._run, os.environ)
        self._seen = 0

    def await_synchronized(self) -> None:
        """Wait until it is synchronized once more than when this was last waited for."""
        assert self._process is not None
        self._seen = self._process.await_line(SYNCHRONIZED, after=self._seen)

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> list[str]:
        """The lines that it has logged."""
        assert self._process is not None
        return [*self._process.lines]

    def ask(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return what a sub-command that asks the daemon prints, and how it ended."""
        program = self.command if self._program == str(PROGRAM) else self._program
        return subprocess.run(
            [program, command, "--control-socket", str(self.control), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    def await_line(self, text: str, *, after: int = 0) -> int:
        """Return the number of the first line of the log later than *after* that has *text*."""
        assert self._process is not None
        return self._process.await_line(text, after=after)

    def reload(self, settings: Mapping[str, Any]) -> None:
        """Give it new settings, which it takes or refuses."""
        assert self._process is not None
        self.configure(settings)
        before = len(self._process.lines)
        self._process.send(signal.SIGHUP)
        self._process.await_line("event=reload", after=before)

    def containers(self) -> dict[str, Any]:
        """Return its report of the containers, by name."""
        done = self.ask("containers", "-o", "json")
        done.check_returncode()
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown

    def counted(self, text: str) -> int:
        """Return how many lines of the log have *text*."""
        assert self._process is not None
        return sum(text in line for line in self._process.lines)

    def kill(self) -> None:
        """End it without notice."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Ask it to end; raise where it does not end well."""
        assert self._process is not None
        if status := self._process.terminate():
            raise RuntimeError(f"the daemon ended with {status}; its log:\n{self.tail()}")

    @contextmanager
    def running(self) -> Iterator[Daemon]:
        """Start the daemon, yield it, and end it, by force after an error."""
        try:
            self.start()
            yield self
            self.stop()
        finally:
            self.close()

    def close(self) -> None:
        """End it, in whatever state it is."""
        if self._process is not None:
            self._process.kill()

    def tail(self) -> str:
        """Return the end of the log of the present run."""
        return self._process.tail() if self._process else ""
