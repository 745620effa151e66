"""The standard gRPC reflection service: lists the services and describes their messages.

It only shows the files that define these services. The files have no extensions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

from nri_policy.foundation.grpc_services import service_handler
from nri_policy.proto import reflection_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["ServerReflection"]

_MAX_ASKING = 16  # each takes one of the endpoint's calls


class Reflection:
    """Describes *services* and itself."""

    def __init__(self, services: Sequence[ServiceDescriptor]) -> None:
        self._services = sorted(service.full_name for service in (*services, SERVICE))
        self._files: dict[str, FileDescriptor] = {}
        for service in (*services, SERVICE):
            self._files |= {file.name: file for file in _with_imports(service.file)}
        self._asking = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server."""
        return service_handler(SERVICE, {"ServerReflectionInfo": self.info})

    async def info(
        self,
        requests: AsyncIterator[pb.ServerReflectionRequest],
        context: grpc.aio.ServicerContext[object, object],
    ) -> AsyncIterator[pb.ServerReflectionResponse]:
        """Answer the queries in order."""
        if self._asking == _MAX_ASKING:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MAX_ASKING} others ask")
        self._asking += 1
        try:
            async for request in requests:
                yield self._answer(request)
        finally:
            self._asking -= 1

    def _answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        answer = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                answer.list_services_response.service.add(name=name)
            return answer
        file = None
        if kind == "file_by_filename":
            file = self._files.get(request.file_by_filename)
        elif kind == "file_containing_symbol":
            file = self._file_of(request.file_containing_symbol)
        if file is None:
            answer.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
            answer.error_response.error_message = "no such file, symbol or extension here"
        else:
            answer.file_descriptor_response.file_descriptor_proto.extend(
                each.serialized_pb for each in _with_imports(file)
            )
        return answer

    def _file_of(self, symbol: str) -> FileDescriptor | None:
        """Return the file that defines a service, a method, a message or a field."""
        for file in self._files.values():
            package, _, rest = symbol.rpartition(f"{file.package}.")
            if not package and rest:
                first = rest.split(".", 1)[0]
                if first in file.services_by_name or first in file.message_types_by_name:
                    return file
        return None


def _with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """Return a file and all files that it imports, itself first."""
    found = {file.name: file}
    for each in file.dependencies:
        found |= {inner.name: inner for inner in _with_imports(each)}
    return [*found.values()]
