"""Who may open the daemon's socket, and what is served there then."""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.control import endpoint
from nri_policy.control.client import DeclinedError, UnreachableError, connected
from nri_policy.control.endpoint import MAX_CALLS
from nri_policy.control.listener import FILES, MAX_CONNECTIONS
from nri_policy.daemon.control import SERVICE
from nri_policy.proto import control_pb2 as pb
from tests.support.patience import HANGS
from tests.unit.control.serving import listening

OWN_GROUP = grp.getgrgid(os.getgid()).gr_name


def offering(service: str) -> grpc.GenericRpcHandler:
    async def answer(_payload: bytes, _context: object) -> bytes:
        return service.encode()

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    return grpc.method_handlers_generic_handler(service, {"Ask": method})


def offering_pools() -> grpc.GenericRpcHandler:
    async def pools(_request: object, _context: object) -> bytes:
        return pb.Document(json="[]").SerializeToString()

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(pools)
    return grpc.method_handlers_generic_handler(SERVICE.full_name, {"Pools": method})


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def ask(path: Path, service: str) -> bytes | grpc.StatusCode:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            method: Any = channel.unary_unary(f"/{service}/Ask")
            answer: bytes = await method(b"")
        except grpc.aio.AioRpcError as error:
            return error.code()
        return answer


@pytest.mark.parametrize(
    ("group", "mode", "private"),
    [
        ("no-such-group", 0o600, b"private"),
        (OWN_GROUP, 0o660, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
async def test_what_is_private_is_not_served_where_a_group_gets_in(
    group: str, mode: int, private: bytes | grpc.StatusCode, tmp_path: Path
) -> None:
    path = tmp_path / "made" / "control.sock"
    shared, own = [offering("shared")], [offering("private")]
    async with listening(path, shared, own, group=group):
        assert path.stat().st_mode & 0o777 == mode
        assert await ask(path, "shared") == b"shared"
        assert await ask(path, "private") == private


async def test_a_group_that_is_not_ours_to_give_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(os, "chown", forbidden)
    path = tmp_path / "control.sock"
    async with listening(path, [], group=OWN_GROUP):
        assert path.stat().st_mode & 0o777 == 0o600


async def test_an_old_socket_is_replaced_and_the_mask_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    before = os.umask(0o027)
    try:
        async with listening(path, [offering("shared")]):
            assert await ask(path, "shared") == b"shared"
        assert os.umask(before) == 0o027
    finally:
        os.umask(before)


async def test_a_path_that_cannot_be_a_socket_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / ("x" * 108)):
        with pytest.raises(OSError, match=r"not a socket|longer than"):
            async with listening(path, []):
                raise AssertionError
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_caller_hears_that_there_are_no_threads_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EAGAIN, "no more threads can be started")

    path = tmp_path / "control.sock"

    def ask_for_pools() -> None:
        with connected(path) as client:
            client.pools()

    async with listening(path, [offering_pools()]):
        with monkeypatch.context() as patch:
            patch.setattr(endpoint, "require_threads", refuse)
            with pytest.raises(DeclinedError, match="no more threads can be started"):
                await asyncio.to_thread(ask_for_pools)
        async with asyncio.timeout(HANGS):
            while True:  # gRPC may take the refused connection again, as long as it is open
                with suppress(DeclinedError):
                    await asyncio.to_thread(ask_for_pools)
                    break


async def test_a_crowd_of_silent_callers_costs_no_more_than_so_many_files(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    crowd = 2 * MAX_CONNECTIONS
    async with listening(path, [offering("shared")]):
        await ask(path, "shared")  # the server has files of its own, from its start on
        before = open_files()
        callers = [await asyncio.open_unix_connection(path) for _ in range(crowd)]
        turned_away = {asyncio.ensure_future(reader.read()) for reader, _ in callers}
        gone: set[asyncio.Task[bytes]] = set()
        while len(gone) < crowd - MAX_CONNECTIONS:
            done, turned_away = await asyncio.wait(turned_away, return_when=asyncio.FIRST_COMPLETED)
            gone |= done
        assert open_files() <= before + crowd + FILES * MAX_CONNECTIONS
        for task in gone:
            task.exception()
        for _, writer in callers:
            writer.close()
        await asyncio.wait(turned_away)
        for task in turned_away:
            task.exception()
        while await ask(path, "shared") != b"shared":
            pass


async def test_only_so_many_calls_wait_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    never = asyncio.Event()

    async def answer(_payload: bytes, _context: object) -> bytes:
        await never.wait()
        return b""

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    slow = grpc.method_handlers_generic_handler("slow", {"Ask": method})
    async with (
        listening(path, [slow]),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        call: Any = channel.unary_unary("/slow/Ask")
        calls = [call(b"") for _ in range(MAX_CALLS + 6)]
        waits = {asyncio.ensure_future(each.code()) for each in calls}
        refused: set[asyncio.Task[grpc.StatusCode]] = set()
        while len(refused) < 6:
            done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        assert {task.result() for task in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        never.set()
        await asyncio.wait(waits)
        assert {task.result() for task in waits} == {grpc.StatusCode.OK}


async def test_a_command_is_answered_though_a_crowd_of_silent_callers_hangs_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "control.sock"

    def ask_for_pools() -> None:
        with connected(path) as client:
            client.pools()

    async with listening(path, [offering_pools()]):
        callers = [await asyncio.open_unix_connection(path) for _ in range(2 * MAX_CONNECTIONS)]
        await asyncio.to_thread(ask_for_pools)
        for _, writer in callers:
            writer.close()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "only root (try sudo)"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "start it by"),
    ],
)
def test_the_error_of_an_unreachable_socket_has_a_remedy(
    error: OSError, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(socket.socket):
        def connect(self, _address: object) -> None:
            raise error

    monkeypatch.setattr(socket, "socket", Closed)
    with (
        pytest.raises(UnreachableError, match=re.escape(remedy)),
        connected(tmp_path / "control.sock"),
    ):
        pass


async def test_a_daemon_that_has_answered_and_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ExitStack() as connection:
        async with listening(path, [offering_pools()]):
            client = connection.enter_context(connected(path, patience=2 * HANGS))
            await asyncio.to_thread(client.pools)
        with pytest.raises(UnreachableError):
            await asyncio.to_thread(client.pools)
