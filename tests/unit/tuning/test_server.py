"""The tuner's process: its socket, and what it leaves when it is killed."""

from __future__ import annotations

import errno
import random
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.items import Item, Kind, Wish
from nri_policy.tuning.protocol import (
    Tunable,
    TunerError,
    TunerRequest,
    WishedItem,
    ask,
    parse_request,
)
from nri_policy.tuning.server import listening
from tests.support.patience import HANGS
from tests.support.tunables import irq, make_host

# The tuner as its command runs it, on strict files, killed at the write that the first argument
# names: "before" or "after" it, or "reply" before the answer.
_PROGRAM = """
import os, signal, sys
from pathlib import Path
from nri_policy.tuning import server
from nri_policy.tuning.tuner import Tuner
from tests.support.tunables import StrictFiles
at, root, state, path = sys.argv[1], *map(Path, sys.argv[2:])
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
def files(root):
    hooks = {at: kill} if at in {"before", "after"} else {}
    return StrictFiles(root, **hooks)
if at == "reply":
    Tuner.list_tunables = kill
try:
    with server.open_tuner(root, state, files) as tuner, server.listening(path) as listener:
        print("listens", flush=True)
        server.serve(tuner, listener)
except Exception as error:
    sys.exit(str(error))
"""
WISH = {irq(24): Wish("1", ("ns/p/c",))}


class Host:
    """A host's files, and where its tuner keeps its own."""

    def __init__(self, folder: Path) -> None:
        self.root = make_host(folder / "host", {24: "0-3", 25: "2"})
        self.state, self.socket = folder / "state", folder / "run/tuner.sock"

    def start(self, at: str = "") -> subprocess.Popen[str]:
        paths = map(str, (self.root, self.state, self.socket))
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, at, *paths],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    @contextmanager
    def tuner(self, at: str = "") -> Iterator[subprocess.Popen[str]]:
        with self.start(at) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            try:
                yield process
            finally:
                process.kill()

    def affinity(self, number: int = 24) -> str:
        return (self.root / f"proc/irq/{number}/smp_affinity_list").read_text().strip()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_tuner_sets_what_it_is_asked_and_says_how_it_is(host: Host) -> None:
    with host.tuner():
        reply = ask(host.socket, WISH)
        assert host.affinity() == "1"
        (shown,) = reply.tunables
        assert shown == Tunable(
            item=irq(24),
            state=ItemState.OK,
            wished="1",
            found="1",
            original="0-3",
            origin=("ns/p/c",),
        )
        assert [(each.kind, each.result, each.count) for each in reply.writes] == [("irq", "ok", 1)]
        assert ask(host.socket) == reply  # only asked
        assert ask(host.socket, {}).tunables == ()
        assert host.affinity() == "0-3"


def test_only_the_owner_can_connect(host: Host) -> None:
    with host.tuner():
        assert stat.S_IMODE(host.socket.stat().st_mode) == 0o600


def test_of_two_tuners_the_second_does_not_start(host: Host) -> None:
    with host.tuner() as first, host.start() as second:
        assert second.stderr is not None
        assert f"held by process {first.pid}" in second.stderr.read()
        ask(host.socket, WISH)  # the first one still answers
    assert second.returncode == 1


@pytest.mark.parametrize("at", ["before", "after", "reply"])
def test_a_killed_tuner_loses_no_original(host: Host, at: str) -> None:
    with host.tuner(at) as process:
        with pytest.raises(TunerError):
            ask(host.socket, WISH)
        assert process.wait() == -signal.SIGKILL
    assert host.affinity() == ("0-3" if at == "before" else "1")
    with host.tuner():
        (shown,) = ask(host.socket).tunables  # known from the journal
        assert shown.original == "0-3"
        ask(host.socket, WISH)
        assert host.affinity() == "1"
        assert ask(host.socket, {}).tunables == ()
    assert host.affinity() == "0-3"


def test_a_tuner_that_ends_leaves_all_as_it_is(host: Host) -> None:
    with host.tuner() as process:
        ask(host.socket, WISH)
        process.terminate()
        process.wait()
    assert host.affinity() == "1"


def raw(kind: str, id_: str, attribute: str, value: str) -> bytes:
    """Return a request that this version would not make."""
    item = {"kind": kind, "id": id_, "attribute": attribute}
    return msgspec.json.encode({"wishes": [{"item": item, "value": value}]}) + b"\n"


BAD = [
    b"",
    b"\n",
    b"{}}\n",
    b"[]\n",
    raw("path", "1", "affinity", "1"),
    raw("irq", "../1", "affinity", "1"),
    raw("irq", "1", "spurious", "1"),
    raw("irq", "1", "affinity", "x"),
    b'{"wishes": [], "shell": "true"}\n',
    b"\xff\xfe\n",
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_request_that_is_not_on_the_list_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_request(line)


def test_no_item_can_be_wished_twice() -> None:
    twice = (WishedItem(irq(24), "1"), WishedItem(irq(24), "2"))
    with pytest.raises(ValueError, match="one twice"):
        parse_request(msgspec.json.encode(TunerRequest(wishes=twice)))


def mutate(rng: random.Random, line: bytes) -> bytes:
    """Return *line* with a few bytes changed, cut, or repeated."""
    data = bytearray(line)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at:at] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randint(1, 9)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 30)]
            case _:
                data[at:at] = rng.choice([b'"', b"{", b"]", b"/..", b"null", b"-1", b"\\u0000"])
    return bytes(data)


def test_no_input_makes_the_tuner_write_anything_but_affinities(host: Host) -> None:
    """Fixed seeds; whatever arrives, the tuner lives on, and nothing else in the host changes."""
    wishes = (WishedItem(irq(24), "1"), WishedItem(irq("default"), "0-1", ("ns/p/c",)))
    good = msgspec.json.encode(TunerRequest(wishes=wishes, repair=True))
    boot = host.root / "proc/sys/kernel/random/boot_id"
    before, files = boot.read_text(), {*host.root.rglob("*")}
    with host.tuner() as process:
        for seed in range(300):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(host.socket))
                connection.sendall(mutate(random.Random(seed), good) + b"\n")
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(HANGS)
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert msgspec.json.decode(answer)  # a refusal, or an answer
        assert process.poll() is None
        ask(host.socket, {})
    assert ({*host.root.rglob("*")}, boot.read_text()) == (files, before)
    assert (host.affinity(24), host.affinity(25)) == ("0-3", "2")


def test_a_caller_that_stays_silent_does_not_stop_others(host: Host) -> None:
    with host.tuner(), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(host.socket))
        assert ask(host.socket, WISH).tunables


def test_items_without_files_here_are_unsupported(host: Host) -> None:
    with host.tuner():
        item = Item(Kind.RESCTRL, "gold", "schemata")
        (shown,) = ask(host.socket, {item: Wish("")}).tunables
        assert shown.state is ItemState.UNSUPPORTED


def test_a_file_in_place_of_the_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="is not a socket"), listening(path):
        pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "only user 0 may ask the tuner"),
        (TimeoutError("timed out"), "tuner.sock: timed out"),
    ],
)
def test_why_the_tuner_does_not_answer_is_said(
    error: OSError, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(socket.socket):
        def connect(self, _address: object) -> None:
            raise error

    monkeypatch.setattr(socket, "socket", Failing)
    with pytest.raises(TunerError, match=text):
        ask(tmp_path / "tuner.sock")


def test_who_asks_where_no_tuner_is_gets_an_error(tmp_path: Path) -> None:
    with pytest.raises(TunerError, match="no tuner runs"):
        ask(tmp_path / "tuner.sock")
