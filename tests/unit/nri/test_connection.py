from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from nri_policy.nri import ttrpc
from nri_policy.nri.connection import SERVICES, Connection
from nri_policy.nri.errors import Code, LocalProtocolError
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import IncomingCall, InvalidRequest, Response
from nri_policy.proto import nri_pb2
from tests.unit.nri.conftest import Conversation

METHODS = {
    service.full_name: service.methods_by_name
    for service in nri_pb2.DESCRIPTOR.services_by_name.values()
}


def requests(side: Conn, data: bytes) -> list[IncomingCall]:
    return [
        event for event in Connection(side).receive_data(data) if isinstance(event, IncomingCall)
    ]


def responses(side: Conn, data: bytes) -> dict[int, Response]:
    events = Connection(side).receive_data(data)
    return {event.stream: event for event in events if isinstance(event, Response)}


def content(request: IncomingCall) -> Message:
    method = METHODS[request.service][request.method]
    return GetMessageClass(method.input_type).FromString(request.payload)


def answer(request: IncomingCall, response: Response) -> Message:
    method = METHODS[request.service][request.method]
    return GetMessageClass(method.output_type).FromString(response.payload)


def assert_all_fields_known(message: Message) -> None:
    assert not len(UnknownFieldSet(message)), type(message).__name__
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else [value]:
                assert_all_fields_known(part)


def event_name(request: IncomingCall) -> str:
    if request.method != "StateChange":
        return request.method
    event = nri_pb2.StateChangeEvent.FromString(request.payload).event
    return nri_pb2.Event.Name(event).title().replace("_", "")


def test_the_services_are_those_of_the_proto_file() -> None:
    assert set(SERVICES.values()) == set(METHODS)


def test_a_conversation_is_a_life_cycle(conversation: Conversation) -> None:
    seen = [event_name(request) for request in requests(Conn.PLUGIN, conversation.from_runtime)]
    assert seen[:2] == ["Configure", "Synchronize"]
    life = ["RunPodSandbox", "CreateContainer", "UpdateContainer", "StopContainer"]
    assert [name for name in dict.fromkeys(seen) if name in life] == life

    (register,) = requests(Conn.RUNTIME, conversation.from_plugin)
    accepted = responses(Conn.PLUGIN, conversation.from_runtime)[register.stream]
    assert accepted.code == Code.OK
    assert content(register) == nri_pb2.RegisterPluginRequest(
        plugin_name="gostub", plugin_idx="20", NRI_version="v0.12.2"
    )


def test_every_request_has_a_budget_an_answer_and_no_field_unknown_to_us(
    conversation: Conversation,
) -> None:
    answers = responses(Conn.RUNTIME, conversation.from_plugin)
    calls = requests(Conn.PLUGIN, conversation.from_runtime)
    assert [call.stream for call in calls] == list(range(1, 2 * len(calls), 2))
    for call in calls:
        assert 1_900_000_000 < call.timeout_nano <= 2_000_000_000
        assert_all_fields_known(content(call))
        assert_all_fields_known(answer(call, answers[call.stream]))


def test_messages_of_a_conversation_have_the_meaning_they_had(lifecycle: Conversation) -> None:
    calls = requests(Conn.PLUGIN, lifecycle.from_runtime)
    by_method: dict[str, Any] = {call.method: content(call) for call in calls}
    assert by_method["Configure"].NRI_version == "v0.12.2"
    assert by_method["Configure"].request_timeout == 2000
    (running,) = by_method["Synchronize"].containers
    assert (running.id, running.state) == ("c0", nri_pb2.CONTAINER_RUNNING)
    assert by_method["StateChange"].event == nri_pb2.START_CONTAINER
    cpu = by_method["UpdateContainer"].linux_resources.cpu
    assert (cpu.shares.value, cpu.quota.value, cpu.HasField("period")) == (1024, -1, False)

    answers = responses(Conn.RUNTIME, lifecycle.from_plugin)
    answered: dict[str, Any] = {call.method: answer(call, answers[call.stream]) for call in calls}
    assert answered["Configure"].events == 0x6AF
    assert answered["CreateContainer"].adjust.linux.resources.cpu.mems == "0"
    assert answers[13].code == Code.UNIMPLEMENTED


def test_our_encoder_says_the_same_bytes(conversation: Conversation) -> None:
    """Also the Go stub's: payloads apart, where the order of maps is free, there is one way."""
    plugin, runtime = Connection(Conn.PLUGIN), Connection(Conn.RUNTIME)

    def encode(events: list[IncomingCall | InvalidRequest | Response], side: Connection) -> bytes:
        sent = b""
        for event in events:
            if isinstance(event, IncomingCall):
                sent += side.send_request(
                    event.method, event.payload, timeout_nano=event.timeout_nano
                )[1]
            elif isinstance(event, Response) and event.code:
                call = request(event.stream)
                sent += side.send_status(call, event.code, event.message, event.payload)
            elif isinstance(event, Response):
                sent += side.send_response(request(event.stream), event.payload)
        return sent

    from_plugin = runtime.receive_data(conversation.from_plugin)
    assert encode(from_plugin, plugin) == conversation.from_plugin
    if conversation.name == "by hand":  # recorded requests carry metadata, which we do not send
        from_runtime = plugin.receive_data(conversation.from_runtime)
        assert encode(from_runtime, runtime) == conversation.from_runtime


def request(stream: int) -> IncomingCall:
    return IncomingCall(stream=stream, service="", method="", payload=b"", timeout_nano=0)


@pytest.mark.parametrize("side", list(Conn))
def test_both_sides_call_and_answer(side: Conn) -> None:
    here, there = Connection(side), Connection(Conn(3 - side))
    stream, sent = here.send_request("Method", b"question", timeout_nano=7)
    (call,) = there.receive_data(sent)
    assert call == IncomingCall(
        stream=stream,
        service=SERVICES[Conn(3 - side)],
        method="Method",
        payload=b"question",
        timeout_nano=7,
    )
    assert isinstance(call, IncomingCall)
    assert here.receive_data(there.send_response(call, b"answer")) == [
        Response(stream=stream, payload=b"answer", code=Code.OK, message="")
    ]
    (failed,) = here.receive_data(there.send_status(call, Code.UNIMPLEMENTED, "no such method"))
    assert failed == Response(stream=stream, payload=b"", code=12, message="no such method")


def test_the_largest_message_goes_through_and_a_larger_one_is_refused() -> None:
    plugin, runtime = Connection(Conn.PLUGIN), Connection(Conn.RUNTIME)
    envelope = 5  # tag and length of Response.payload
    largest = bytes(ttrpc.MAX_SENT_BODY - envelope)
    (response,) = runtime.receive_data(plugin.send_response(request(1), largest))
    assert isinstance(response, Response)
    assert response.payload == largest
    with pytest.raises(LocalProtocolError):
        plugin.send_response(request(1), largest + b"x")
