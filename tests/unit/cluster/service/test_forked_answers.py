"""Long answers come from a fork of the service, which answers kube-scheduler meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from nri_policy.cluster.numa.extender import BadRequestError
from nri_policy.cluster.service import forked_answers, service
from nri_policy.cluster.service.forked_answers import ForkedAnswers
from nri_policy.cluster.service.kinds import OF_GROUPS
from tests.support.cluster_api import ClusterAPI
from tests.support.patience import HANGS
from tests.unit.cluster.numa.test_extender import asking, replica
from tests.unit.cluster.written import node


def test_the_extender_is_answered_while_a_group_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explanation ends only after the filter has answered, and a pod came after it began."""
    done = tmp_path / "done"
    os.mkfifo(done)

    def explain(engine: object, body: bytes) -> bytes:
        del engine
        with done.open() as fifo:
            return json.dumps({"body": body.decode(), "waited for": fifo.readline()}).encode()

    monkeypatch.setattr(service, "answer_explain", explain)

    async def play() -> None:
        async with asyncio.timeout(HANGS), ClusterAPI(tmp_path) as api:
            await api.put("nodes", node("h1"))
            async with replica(api, groups=True) as at:
                await at.until(lambda: not at.service.watch.problem(*OF_GROUPS))
                asked = asyncio.create_task((await at.connect()).ask("/explain", "g"))
                scheduler = await at.connect()
                for number in range(3):
                    found = await scheduler.ask("/filter", asking(1, "h1", name=f"p{number}"))
                    assert found["NodeNames"] == ["h1"]
                assert not asked.done()
                os.write(fifo, b"the end\n")
                assert await asked == {"body": '"g"', "waited for": "the end\n"}

    fifo = os.open(done, os.O_RDWR)  # so that no open() waits for the other end
    try:
        asyncio.run(play())
    finally:
        os.close(fifo)


def test_what_an_answer_changes_is_never_seen() -> None:
    seen = [1]

    def answer() -> bytes:
        seen.append(2)
        return str(seen).encode()

    assert asyncio.run(ForkedAnswers().ask(answer)) == b"[1, 2]"
    assert seen == [1]


def test_an_answer_may_be_longer_than_a_pipe_holds() -> None:
    assert len(asyncio.run(ForkedAnswers().ask(lambda: b"x" * 3_000_000))) == 3_000_000


def test_a_wrong_question_is_told_from_an_error_of_ours() -> None:
    def refuse() -> NoReturn:
        raise BadRequestError("there is no group 'é'")

    def fail() -> NoReturn:
        raise KeyError("x")

    def die() -> NoReturn:
        os._exit(1)

    answers = ForkedAnswers()
    with pytest.raises(BadRequestError, match="there is no group 'é'"):
        asyncio.run(answers.ask(refuse))
    for broken, text in ((fail, "KeyError"), (die, "ended without an answer")):
        with pytest.raises(RuntimeError, match=text):
            asyncio.run(answers.ask(broken))


def test_one_that_takes_too_long_is_ended_and_the_next_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_answers, "MOST_SECONDS", 0.01)
    never = tmp_path / "never"
    os.mkfifo(never)

    async def play() -> None:
        answers = ForkedAnswers()
        with pytest.raises(BadRequestError, match="no answer within"):
            await answers.ask(never.read_bytes)
        monkeypatch.setattr(forked_answers, "MOST_SECONDS", HANGS)
        assert await answers.ask(lambda: b"next") == b"next"

    asyncio.run(play())


def test_a_question_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    never = tmp_path / "never"
    os.mkfifo(never)
    before = {*psutil.Process().children()}

    async def play() -> None:
        asked = asyncio.create_task(ForkedAnswers().ask(never.read_bytes))
        await asyncio.sleep(0)
        assert {*psutil.Process().children()} - before
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(play())
    assert {*psutil.Process().children()} <= before


def test_the_forked_process_has_no_socket_of_the_service_but_its_other_files(
    tmp_path: Path,
) -> None:
    """The port is free as soon as the service has ended; gRPC's thread finds its epoll open."""

    def files() -> bytes:
        links = Path("/proc/self/fd").iterdir()
        return json.dumps([each.resolve().name for each in links]).encode()

    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "kept").open("w"):
        own = Path(f"/proc/self/fd/{listener.fileno()}").resolve().name
        assert own in json.loads(files())
        found = json.loads(asyncio.run(ForkedAnswers().ask(files)))
        assert own not in found
        assert "kept" in found
