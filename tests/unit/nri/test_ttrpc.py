from __future__ import annotations

import pytest

from nri_policy.nri import ttrpc
from nri_policy.nri.errors import Code, LocalProtocolError, RemoteProtocolError
from nri_policy.nri.ttrpc import (
    ClientConnection,
    IncomingCall,
    InvalidRequest,
    Response,
    ServerConnection,
)
from nri_policy.proto import ttrpc_pb2


def message(stream: int, kind: int, body: bytes, flags: int = 0) -> bytes:
    return ttrpc.HEADER.pack(len(body), stream, kind, flags) + body


def test_a_call_arrives_as_it_was_made() -> None:
    stream, sent = ClientConnection().send_request(
        "service", "Method", b"payload", timeout_nano=5, metadata={"key": "value"}
    )
    assert ServerConnection().receive_data(sent) == [
        IncomingCall(
            stream=stream, service="service", method="Method", payload=b"payload", timeout_nano=5
        )
    ]
    request = ttrpc_pb2.Request.FromString(sent[ttrpc.HEADER.size :])
    assert [(entry.key, entry.value) for entry in request.metadata] == [("key", "value")]


def test_stream_ids_of_a_client_are_odd_and_increase() -> None:
    client = ClientConnection()
    assert [client.send_request("s", "m", b"")[0] for _ in range(3)] == [1, 3, 5]


def test_a_client_whose_stream_ids_are_used_up_says_so() -> None:
    client = ClientConnection()
    client._next_stream = ttrpc.MAX_STREAM
    assert client.send_request("s", "m", b"")[0] == ttrpc.MAX_STREAM
    with pytest.raises(LocalProtocolError, match="reconnect"):
        client.send_request("s", "m", b"")


@pytest.mark.parametrize(
    ("stream", "reason"), [(0, "odd"), (4, "odd"), (3, "above the last one, 3"), (1, "above")]
)
def test_a_server_refuses_stream_ids_that_are_even_or_not_increasing(
    stream: int, reason: str
) -> None:
    server = ServerConnection()
    server.receive_data(message(3, ttrpc.REQUEST, b""))
    (refused,) = server.receive_data(message(stream, ttrpc.REQUEST, b""))
    assert isinstance(refused, InvalidRequest)
    assert refused.stream == stream
    assert reason in refused.reason
    (accepted,) = server.receive_data(message(7, ttrpc.REQUEST, b""))
    assert isinstance(accepted, IncomingCall)


def test_a_request_that_is_no_protobuf_fails_alone() -> None:
    garbled, fine = ServerConnection().receive_data(
        message(1, ttrpc.REQUEST, b"\xff\xff") + message(3, ttrpc.REQUEST, b"")
    )
    assert isinstance(garbled, InvalidRequest)
    assert isinstance(fine, IncomingCall)


def test_a_success_without_content_is_an_empty_body() -> None:
    assert ServerConnection().send_response(1, b"") == bytes.fromhex("00000000 00000001 02 00")


def test_a_success_arrives_with_its_payload() -> None:
    assert ClientConnection().receive_data(ServerConnection().send_response(9, b"payload")) == [
        Response(stream=9, payload=b"payload", code=Code.OK, message="")
    ]


def test_a_failure_can_carry_a_payload() -> None:
    sent = ServerConnection().send_status(9, Code.UNKNOWN, "two failed", b"which")
    assert ClientConnection().receive_data(sent) == [
        Response(stream=9, payload=b"which", code=Code.UNKNOWN, message="two failed")
    ]


def test_a_failure_text_is_made_fit_to_send() -> None:
    sent = ServerConnection().send_status(1, Code.INTERNAL, "\udcff" + "x" * (5 << 20))
    (response,) = ClientConnection().receive_data(sent)
    assert response.message == "?" + "x" * (ttrpc.MAX_STATUS_TEXT - 1)


def test_a_failure_with_the_code_of_success_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError, match="status code other than 0"):
        ServerConnection().send_status(1, Code.OK, "fine")


def test_a_response_that_is_no_protobuf_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="stream 1"):
        ClientConnection().receive_data(message(1, ttrpc.RESPONSE, b"\xff\xff"))


@pytest.mark.parametrize("kind", [0, 3, 99])
def test_messages_of_other_types_are_skipped(kind: int) -> None:
    other = message(1, kind, b"\xff\xff")
    assert ClientConnection().receive_data(other) == []
    assert ServerConnection().receive_data(other) == []


def test_flags_do_not_matter() -> None:
    (request,) = ServerConnection().receive_data(message(1, ttrpc.REQUEST, b"", flags=0xFF))
    assert isinstance(request, IncomingCall)


def test_a_body_too_large_for_the_peer_is_never_sent_and_takes_no_stream_id() -> None:
    client, too_large = ClientConnection(), bytes(ttrpc.MAX_SENT_BODY)
    with pytest.raises(LocalProtocolError, match="takes 4194304 at most"):
        client.send_request("s", "m", too_large)
    assert client.send_request("s", "m", b"")[0] == 1
    with pytest.raises(LocalProtocolError):
        ServerConnection().send_response(1, too_large)


def test_a_body_larger_than_a_new_go_client_sends_is_taken() -> None:
    body = ttrpc_pb2.Request(method="Synchronize", payload=bytes(5 << 20)).SerializeToString()
    (request,) = ServerConnection().receive_data(message(1, ttrpc.REQUEST, body))
    assert isinstance(request, IncomingCall)
    assert len(request.payload) == 5 << 20


def test_an_absurd_length_is_an_error_before_the_body_comes() -> None:
    header = ttrpc.HEADER.pack(ttrpc.MAX_BODY + 1, 1, ttrpc.REQUEST, 0)
    for end in (ClientConnection(), ServerConnection()):
        with pytest.raises(RemoteProtocolError, match="ttrpc frame announces 67108865 bytes"):
            end.receive_data(header)
