"""One NRI socket without I/O: both layers of the wire and both directions of calls.

Each side calls the other's service and serves its own, over the connection that bears the served
service's name. The two directions share nothing but the socket.
"""

from __future__ import annotations

from nri_policy.nri import mux, ttrpc
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import IncomingCall, InvalidRequest, Response

SERVICES = {
    Conn.PLUGIN: "nri.pkg.api.v1alpha1.Plugin",
    Conn.RUNTIME: "nri.pkg.api.v1alpha1.Runtime",
}


class Connection:
    """The state of one socket, as the side that serves *serves* sees it."""

    def __init__(self, serves: Conn) -> None:
        self._serves = serves
        self._calls = Conn.RUNTIME if serves is Conn.PLUGIN else Conn.PLUGIN
        self._mux = mux.Mux()
        self._server = ttrpc.ServerConnection()
        self._client = ttrpc.ClientConnection()

    def receive_data(self, data: bytes) -> list[IncomingCall | InvalidRequest | Response]:
        """Return what *data* completes, in the order of arrival; raises RemoteProtocolError."""
        events: list[IncomingCall | InvalidRequest | Response] = []
        for payload in self._mux.receive_data(data):
            end = self._server if payload.conn is self._serves else self._client
            events += end.receive_data(payload.data)
        return events

    def send_request(
        self, method: str, payload: bytes, *, timeout_nano: int = 0
    ) -> tuple[int, bytes]:
        """Return the stream id and the bytes of a call; raises LocalProtocolError if too large."""
        service = SERVICES[self._calls]
        stream, message = self._client.send_request(
            service, method, payload, timeout_nano=timeout_nano
        )
        return stream, mux.send(self._calls, message)

    def send_response(self, request: IncomingCall, payload: bytes) -> bytes:
        """Return the bytes of a success; raises LocalProtocolError if they are too many."""
        return mux.send(self._serves, self._server.send_response(request.stream, payload))

    def send_status(
        self, request: IncomingCall | InvalidRequest, code: int, message: str, payload: bytes = b""
    ) -> bytes:
        """Return the bytes of a failure; raises LocalProtocolError if *payload* is too large."""
        status = self._server.send_status(request.stream, code, message, payload)
        return mux.send(self._serves, status)
