"""What tools are told of the daemon's services, at its own socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from nri_policy.control.reflection import SERVICE
from nri_policy.foundation.grpc_services import service_stub
from nri_policy.proto import control_pb2
from nri_policy.proto.reflection_pb2 import (
    ExtensionRequest,
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from tests.support.daemon import served

CONTROL = "nripolicy.control.v1.Control"


async def asked(folder: Path, *requests: ServerReflectionRequest) -> list[ServerReflectionResponse]:
    async def each() -> AsyncIterator[ServerReflectionRequest]:
        for request in requests:
            yield request

    async with (
        served(folder) as node,
        grpc.aio.insecure_channel(f"unix:{node.socket}") as channel,
    ):
        stub = service_stub(channel, SERVICE)
        return [answer async for answer in stub.ServerReflectionInfo(each())]


async def test_all_services_are_listed_that_anybody_may_ask(tmp_path: Path) -> None:
    (answer,) = await asked(tmp_path, ServerReflectionRequest(list_services="*"))
    assert [each.name for each in answer.list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        CONTROL,
    ]


@pytest.mark.parametrize(
    "symbol", [CONTROL, f"{CONTROL}.Status", "nripolicy.control.v1.Document.json"]
)
async def test_a_symbol_leads_to_the_file_that_defines_it(symbol: str, tmp_path: Path) -> None:
    (answer,) = await asked(tmp_path, ServerReflectionRequest(file_containing_symbol=symbol))
    (file,) = answer.file_descriptor_response.file_descriptor_proto
    assert file == control_pb2.DESCRIPTOR.serialized_pb
    assert answer.original_request.file_containing_symbol == symbol


async def test_a_file_can_be_had_by_its_name_in_the_same_call(tmp_path: Path) -> None:
    name = control_pb2.DESCRIPTOR.name
    answers = await asked(
        tmp_path,
        ServerReflectionRequest(file_by_filename=name),
        ServerReflectionRequest(file_by_filename=name),
    )
    names = [
        FileDescriptorProto.FromString(each.file_descriptor_response.file_descriptor_proto[0]).name
        for each in answers
    ]
    assert names == [name, name]


@pytest.mark.parametrize(
    "request_",
    [
        ServerReflectionRequest(),
        ServerReflectionRequest(file_by_filename="nri.proto"),
        ServerReflectionRequest(file_containing_symbol="nri.pkg.api.v1alpha1.Plugin"),
        ServerReflectionRequest(file_containing_symbol="nripolicy.control.v1.None"),
        ServerReflectionRequest(
            file_containing_extension=ExtensionRequest(containing_type=CONTROL)
        ),
        ServerReflectionRequest(all_extension_numbers_of_type=CONTROL),
    ],
)
async def test_other_reflection_requests_are_not_found(
    request_: ServerReflectionRequest, tmp_path: Path
) -> None:
    (answer,) = await asked(tmp_path, request_)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
