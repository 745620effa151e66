"""A Kubernetes API server for tests of the cluster side: lists in pages, watches, bindings, leases.

Plain HTTP on loopback. What it does wrong is up to the test.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

Object = dict[str, Any]

LISTS = {
    "/api/v1/nodes": "nodes",
    "/api/v1/pods": "pods",
    "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies": "noderesourcetopologies",
}


class ClusterAPI:
    """Objects by kind and name; a change is seen by all who watch."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in LISTS.values()}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bindings: list[Object] = []
        self.refuse: Callable[[str, str], int] = lambda _method, _path: 0  # a status instead
        self.kubeconfig = folder / "kubeconfig"
        self._revision = 1
        self._oldest = 0  # revisions before are gone
        self._events: list[tuple[int, str, str, Object]] = []
        self._changed = asyncio.Condition()
        self._serving: set[asyncio.Task[None]] = set()
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "test", "user": {"token": "test"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def stop(self) -> None:
        """Cut all connections and listen no more."""
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Cut all connections."""
        tasks = [*self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def put(self, kind: str, item: Object) -> None:
        """Create or change an object."""
        name = _key(item)
        change = "MODIFIED" if name in self.objects[kind] else "ADDED"
        self.objects[kind][name] = item
        await self._tell(kind, change, item)

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object."""
        await self._tell(kind, "DELETED", self.objects[kind].pop(name))

    def forget(self) -> None:
        """Lose the history: watches from before are answered with 410."""
        self._oldest = self._revision = self._revision + 1

    async def _tell(self, kind: str, change: str, item: Object) -> None:
        async with self._changed:
            self._revision += 1
            item["metadata"]["resourceVersion"] = str(self._revision)
            self._events.append((self._revision, kind, change, json.loads(json.dumps(item))))
            self._changed.notify_all()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = first.split()
                await self._answer(method, target, json.loads(body or b"null"), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(  # noqa: PLR0911 - one for each thing that is asked
        self, method: str, target: str, body: Any, writer: asyncio.StreamWriter
    ) -> None:
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.requests.append((method, url.path, query))
        if code := self.refuse(method, url.path):
            return _send(writer, code, _status(code, "as the test wants it"))
        kind = LISTS.get(url.path)
        if method == "GET" and kind and "watch" in query:
            return await self._watch(kind, int(query["resourceVersion"]), writer)
        if method == "GET" and kind:
            return _send(writer, 200, self._list(kind, query))
        *_, namespace, what, name = url.path.removesuffix("/binding").split("/")
        pod = self.objects["pods"].get(f"{namespace}/{name}")
        if what != "pods" or pod is None:
            return _send(writer, 404, _status(404, "not found"))
        if method == "GET":
            return _send(writer, 200, pod)
        if pod["spec"].get("nodeName"):
            return _send(writer, 409, _status(409, "pod is already assigned"))
        self.bindings.append(body)
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(
            body["metadata"].get("annotations", {})
        )
        await self.put("pods", pod)
        return _send(writer, 201, {"kind": "Status", "status": "Success"})

    def _list(self, kind: str, query: dict[str, str]) -> Object:
        names = sorted(self.objects[kind])
        begin = int(query.get("continue", 0))
        end = begin + int(query.get("limit", len(names) + 1))
        metadata = {"resourceVersion": str(self._revision)}
        if end < len(names):
            metadata["continue"] = str(end)
        return {"metadata": metadata, "items": [self.objects[kind][n] for n in names[begin:end]]}

    async def _watch(self, kind: str, revision: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            if revision < self._oldest:
                _chunk(writer, {"type": "ERROR", "object": _status(410, "too old")})
                writer.write(b"0\r\n\r\n")
                return
            for at, of, change, item in self._events:
                if at > revision and of == kind:
                    _chunk(writer, {"type": change, "object": item})
            revision = self._revision
            mark = {"metadata": {"resourceVersion": str(revision)}}
            _chunk(writer, {"type": "BOOKMARK", "object": mark})
            await writer.drain()
            async with self._changed:
                await self._changed.wait()


def _key(item: Object) -> str:
    metadata = item["metadata"]
    return (
        f"{metadata['namespace']}/{metadata['name']}"
        if "namespace" in metadata
        else metadata["name"]
    )


def _chunk(writer: asyncio.StreamWriter, event: Object) -> None:
    line = json.dumps(event).encode() + b"\n"
    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}


def _send(writer: asyncio.StreamWriter, code: int, body: Object) -> None:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    head += "\r\n\r\n"
    writer.write(head.encode() + text)
