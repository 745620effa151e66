"""An API server that has pods and executes commands in them, for a real kubectl.

A control plane without kubelets executes nothing; this one does, on this host, over the protocol of
kubectl's `exec`: the websocket subprotocol v5.channel.k8s.io, with all of its channels.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.certificates import server_context, write_certificates

TOKEN = "the-author"
_SUBPROTOCOL = "v5.channel.k8s.io"
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
_STDIN, _STDOUT, _STDERR, _ERROR, _CLOSE = 0, 1, 2, 3, 255  # channels
_BINARY, _END, _PING, _PONG = 2, 8, 9, 10  # opcodes
_PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod"}
_DISCOVERY: Mapping[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{**_PODS, "verbs": ["get", "list"]}],
    },
}

Pods = Mapping[str, Mapping[str, Any]]  # by namespace and name
Program = Callable[[str, list[str]], list[str]]  # of a pod, and the command asked for


@contextmanager
def serving(folder: Path, pods: Pods, program: Program) -> Iterator[Path]:
    """Yield a kubeconfig for the pod author; *program* says what a command is on this host."""
    write_certificates(folder)

    class Handler(_Handler):
        pass

    Handler.pods, Handler.program = pods, staticmethod(program)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = server_context(folder).wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"https://127.0.0.1:{server.server_address[1]}"
    authority = str(folder / "ca.crt")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "author"}}],
        "clusters": [
            {"name": "test", "cluster": {"server": address, "certificate-authority": authority}}
        ],
        "users": [{"name": "author", "user": {"token": TOKEN}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pods: Pods
    program: Program

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing of each request."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, _status(401, "Unauthorized"))
        elif url.path in _DISCOVERY:
            self._answer(200, _DISCOVERY[url.path])
        else:
            self._pods(url.path.strip("/").split("/"), query)

    def _pods(self, path: list[str], query: dict[str, list[str]]) -> None:
        match path:
            case ["api", "v1", "namespaces", namespace, "pods"]:
                found = [*self.pods.get(namespace, {}).values()]
                for selector in query.get("fieldSelector", []):
                    found = [each for each in found if _selected(each, selector)]
                body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found}
                self._answer(200, body)
            case ["api", "v1", "namespaces", namespace, "pods", name, *rest] if (
                name in self.pods.get(namespace, {})
            ):
                pod = self.pods[namespace][name]
                if rest == ["exec"]:
                    self._execute(pod, query)
                else:
                    self._answer(200, pod)
            case _:
                self._answer(404, _status(404, f"not found: {self.path}"))

    def _answer(self, code: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    # ---- exec

    def _execute(self, pod: Mapping[str, Any], query: dict[str, list[str]]) -> None:
        offered = self.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(",")
        containers = [each["name"] for each in pod["spec"]["containers"]]
        wrong = (
            _SUBPROTOCOL not in offered
            or query.get("container", [""])[0] not in containers
            or query.get("stdout") != ["true"]
            or query.get("stderr") != ["true"]
            or "command" not in query
        )
        if wrong:
            self._answer(400, _status(400, f"bad exec: {offered} {query}"))
            return
        key = self.headers["Sec-WebSocket-Key"] + _GUID
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Protocol", _SUBPROTOCOL)
        accepted = hashlib.sha1(key.encode()).digest()
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(accepted).decode())
        self.end_headers()
        given = self._stdin() if query.get("stdin") == ["true"] else b""
        command = self.program(pod["metadata"]["name"], query["command"])
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        for channel, text in ((_STDOUT, done.stdout), (_STDERR, done.stderr)):
            if text:
                self._send(_BINARY, bytes([channel]) + text)
        self._send(_BINARY, bytes([_ERROR]) + json.dumps(_ended(done.returncode)).encode())
        self._send(_END, struct.pack("!H", 1000))
        self.close_connection = True

    def _stdin(self) -> bytes:
        """Return all that comes until the client closes the channel."""
        given = b""
        while True:
            opcode, payload = self._receive()
            if opcode == _END or payload[:2] == bytes([_CLOSE, _STDIN]):
                return given
            if opcode == _PING:
                self._send(_PONG, payload)
            elif payload[:1] == bytes([_STDIN]):
                given += payload[1:]

    def _receive(self) -> tuple[int, bytes]:
        first, second = self.rfile.read(2)
        assert second & 0x80, "a client masks what it sends"
        length = second & 0x7F
        if length >= 126:
            form, size = ("!H", 2) if length == 126 else ("!Q", 8)
            (length,) = struct.unpack(form, self.rfile.read(size))
        mask = self.rfile.read(4)
        masked = self.rfile.read(length)
        return first & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))

    def _send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        head = struct.pack("!BB", 0x80 | opcode, size) if size < 126 else b""
        if size >= 126:
            head = struct.pack("!BBQ", 0x80 | opcode, 127, size)
        self.wfile.write(head + payload)


def _selected(pod: Mapping[str, Any], selector: str) -> bool:
    for term in selector.split(","):
        path, _, value = term.partition("=")
        part, name = path.split(".")
        if pod[part].get(name) != value:
            return False
    return True


def _status(code: int, message: str) -> dict[str, Any]:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**body, "message": message, "code": code}


def _ended(code: int) -> dict[str, Any]:
    """Return what a command ended with, as kubelets say it."""
    if not code:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
