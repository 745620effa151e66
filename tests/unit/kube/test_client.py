"""What a client makes of an API server's answers, whoever gave them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.kube.client import NODES, Client, ObjectKind, decode
from nri_policy.kube.connection import access
from nri_policy.kube.errors import APIError
from tests.support.apiserver import Answer, APIServer
from tests.support.patience import HANGS

PROXY = "<html><head><title>503 Service Temporarily Unavailable</title></head></html>"


@asynccontextmanager
async def answered(folder: Path, answer: Answer) -> AsyncIterator[Client]:
    async with APIServer(folder) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect, patience=2 * HANGS)
        server.disturb = lambda _: answer
        try:
            yield client
        finally:
            await client.close()


async def failing(folder: Path, answer: Answer) -> APIError:
    async with answered(folder, answer) as client:
        with pytest.raises(APIError) as error:
            await client.get(NODES, "node-a")
    return error.value


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
async def test_a_page_of_a_proxy_is_told_by_its_number(tmp_path: Path, kind: str) -> None:
    error = await failing(
        tmp_path, Answer(status=503, body=PROXY, headers={"Content-Type": kind, "Retry-After": "3"})
    )
    assert (str(error), error.code, error.wait) == ("503: Service Unavailable", 503, 3.0)


async def test_plain_text_and_a_status_are_shown_as_they_are(tmp_path: Path) -> None:
    plain = await failing(tmp_path, Answer(status=429, body="Too many  requests,\nplease wait"))
    assert str(plain) == "429: Too many requests, please wait"
    status = {
        "kind": "Status",
        "message": "not you",
        "reason": "Forbidden",
        "details": {"name": "x"},
    }
    error = await failing(tmp_path, Answer(status=403, body=status))
    assert (str(error), error.code, error.reason) == ("403: not you", 403, "Forbidden")
    assert error.details == {"name": "x"}
    assert (
        str(await failing(tmp_path, Answer(status=599, body={})))
        == "599: an error without a message"
    )


# as the parameters of a claim may be
DEEP = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize("body", [PROXY, [1], "", "null", DEEP])
async def test_an_answer_that_is_no_object_makes_no_sense(tmp_path: Path, body: object) -> None:
    error = await failing(tmp_path, Answer(status=200, body=body))
    assert str(error).startswith("the answer is malformed: ")
    assert error.code == 0


async def test_an_answer_that_is_no_text_makes_no_sense(tmp_path: Path) -> None:
    answer = Answer(status=200, body=None, raw=_response(b'{"a": "\xff"}'))
    assert str(await failing(tmp_path, answer)).startswith("the answer is malformed: ")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"items": []},
        {"items": [], "metadata": None},
        f'{{"items": [{DEEP}], "metadata": {{}}}}',
    ],
)
async def test_a_list_that_is_none_makes_no_sense(tmp_path: Path, body: object) -> None:
    async with answered(tmp_path, Answer(status=200, body=body)) as client:
        with pytest.raises(APIError, match="it is no list"):
            await client.list(NODES)


@pytest.mark.parametrize(
    "line",
    [
        "{}\n",
        '{"type": "ADDED"}\n',
        "nonsense\n",
        "[]\n",
        f'{{"type": "ADDED", "object": {DEEP}}}\n',
    ],
)
async def test_an_event_that_is_none_makes_no_sense(tmp_path: Path, line: str) -> None:
    async with answered(tmp_path, Answer(status=200, body=line)) as client:
        with pytest.raises(APIError, match="the answer is malformed"):
            _ = [each async for each in client.watch(NODES, "1")]


async def test_events_are_told_apart_by_newlines_alone(tmp_path: Path) -> None:
    """Other separators that Unicode knows may stand in an annotation."""
    event = '{"type": "ADDED", "object": {"metadata": {"annotations": {"a": "x\u0085y"}}}}\n'
    answer = Answer(status=200, body=None, raw=_response(event.encode() * 2))
    async with answered(tmp_path, answer) as client:
        said = [each async for each in client.watch(NODES, "1")]
    assert [decode(about)["metadata"]["annotations"]["a"] for _, about in said] == ["x\u0085y"] * 2


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def test_two_first_requests_share_one_connection(tmp_path: Path) -> None:
    made = 0
    async with APIServer(tmp_path) as server:
        connect = access(server.kubeconfig)
        assert connect is not None

        def counted():  # type: ignore[no-untyped-def]
            nonlocal made
            made += 1
            return connect()

        client = Client(counted, patience=2 * HANGS)
        await asyncio.gather(client.get(NODES, "node-a"), client.get(NODES, "node-a"))
        await client.close()
    assert made == 1


def test_names_in_paths_are_quoted() -> None:
    kind = ObjectKind(group="a.b", version="v2", plural="things")
    assert kind.path("x/../y", namespace="n", part="status") == (
        "apis/a.b/v2/namespaces/n/things/x%2F..%2Fy/status"
    )
    assert NODES.path("node-a") == "api/v1/nodes/node-a"
