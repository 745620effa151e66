"""`nri-policy` as a command that is ready at once: a server that has imported all of it forks.

A script of commands takes a fraction of the time so. Each call has its own process, folder,
environment, files 0 to 2 and exit status, and hears SIGINT.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

PROJECT = Path(__file__).parents[2]
#: What stands in for the program; it must start fast, so it imports next to nothing.
_STUB = """\
#!{python} -IS
import _signal, _socket, os, sys
_signal.signal(2, _signal.default_int_handler)  # shells have jobs ignore it
server = _socket.socket(_socket.AF_UNIX)
server.connect({socket!r})
files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
call = repr((os.getcwd(), sys.argv[1:], dict(os.environ), {defaults!r})).encode()
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
server.sendmsg([len(call).to_bytes(4, "big")], rights)
server.sendall(call)
pid = int.from_bytes(server.recv(4), "big")
while True:
    try:
        sys.exit((server.recv(1) or b"\\xff")[0])
    except KeyboardInterrupt:
        os.kill(pid, 2)
"""


class ForkedProgram:
    """What is served at a socket."""

    def __init__(self, address: Path) -> None:
        self._address = address

    def write(self, path: Path, defaults: dict[str, Any]) -> None:
        """Write a command to *path*; *defaults* is click's default_map."""
        stub = _STUB.format(python=sys.executable, socket=str(self._address), defaults=defaults)
        path.write_text(stub)
        path.chmod(0o755)


@contextmanager
def forked_program() -> Iterator[ForkedProgram]:
    """Serve as long as the block lasts."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        address = Path(folder, "socket")
        listening.bind(str(address))
        listening.listen(16)
        command = [sys.executable, "-m", __name__, str(listening.fileno())]
        with subprocess.Popen(command, cwd=PROJECT, pass_fds=[listening.fileno()]) as server:
            listening.close()  # so that a connection fails at once if the server has ended
            try:
                yield ForkedProgram(address)
            finally:
                server.kill()


def _serve(listening: socket.socket) -> NoReturn:
    package = import_module("nri_policy.cli")
    for module in pkgutil.walk_packages(package.__path__, "nri_policy.cli."):
        if module.name != "nri_policy.cli.__main__":
            import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        call, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _run(call, package.main)
        call.close()


def _run(call: socket.socket, program: Any) -> NoReturn:
    """Be the program for one call, and say how it ended."""
    status = 1
    try:
        size, files, _, _ = socket.recv_fds(call, 4, 3)
        text = call.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        folder, arguments, environment, defaults = ast.literal_eval(text.decode())
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww")
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        call.sendall(os.getpid().to_bytes(4, "big"))
        program(arguments, prog_name="nri-policy", default_map=defaults)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter shows it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        call.sendall(bytes([status]))
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
