"""A Kubernetes API server for tests of the cluster side: any objects, strictly where we rely on it.

Plain HTTP on loopback. Lists come in pages, watches go on from a revision, a merge patch with a
resourceVersion is refused where that is an old one, a binding binds, and of a pod no more can be
changed than a real server lets. What it does wrong is up to the test.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec
import yaml

Object = dict[str, Any]

BY_KEY = "application/strategic-merge-patch+json"
_FENCES = {"uid", "resourceVersion"}  # a write that names another is refused
_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)


class ClusterAPI:
    """Objects by kind (in the plural) and name; a change is seen by all who watch."""

    def __init__(self, folder: Path) -> None:
        self.objects: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bindings: list[Object] = []
        self.refuse: Callable[[str, str], int] = lambda _method, _path: 0  # a status instead
        self.kubeconfig = folder / "kubeconfig"
        self._revision = 1
        self._oldest = 0  # revisions before are gone
        self._events: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self._names: dict[str, list[str]] = {}  # of the last list, by kind: its pages go on
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
            line = json.dumps({"type": change, "object": item}).encode()
            self._events[kind].append((self._revision, line))
            self._changed.notify_all()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also if it never began

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
                content = headers.get("content-type", "")
                await self._answer(method, target, json.loads(body or b"null"), content, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    async def _answer(
        self, method: str, target: str, body: Any, content: str, writer: asyncio.StreamWriter
    ) -> None:
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.requests.append((method, url.path, query))
        if code := self.refuse(method, url.path):
            return send(writer, code, status(code, "as the test wants it"))
        match = _PATH.fullmatch(url.path)
        if match is None:
            return send(writer, 404, status(404, "no such path"))
        kind, name = match["kind"], match["name"]
        if name is None:
            if method == "POST":
                return send(writer, *await self._create(kind, match["namespace"], body))
            if "watch" in query:
                return await self._watch(kind, int(query["resourceVersion"]), writer)
            return send(writer, 200, self._list(kind, query))
        key = f"{match['namespace']}/{name}" if match["namespace"] else name
        if content == BY_KEY:
            body = _with_conditions(self.objects[kind].get(key), body)
        return send(writer, *await self._change(method, kind, key, match["part"], body))

    async def _create(self, kind: str, namespace: str | None, body: Object) -> tuple[int, Object]:
        if namespace:
            body["metadata"].setdefault("namespace", namespace)
        if "generateName" in body["metadata"]:
            body["metadata"]["name"] = f"{body['metadata']['generateName']}{self._revision}"
        if _key(body) in self.objects[kind]:
            return 409, status(409, "already exists", "AlreadyExists")
        body["metadata"].setdefault("uid", f"uid-{self._revision}")
        await self.put(kind, body)
        return 201, body

    async def _change(  # noqa: PLR0911 - one for each thing that is asked
        self, method: str, kind: str, key: str, part: str | None, body: Any
    ) -> tuple[int, Object]:
        """Do what is asked with one object."""
        item = self.objects[kind].get(key)
        if item is None:
            return 404, status(404, "not found", "NotFound")
        if method == "GET":
            return 200, item
        if part == "binding":
            return await self._bind(item, body)
        seen = (body or {}).get("preconditions" if method == "DELETE" else "metadata") or {}
        if any(item["metadata"].get(each) != seen[each] for each in _FENCES & seen.keys()):
            return 409, status(409, "the object has been modified", "Conflict")
        if method == "DELETE":
            await self.delete(kind, key)
            return 200, status(200, "deleted")
        changed = _merged(item, {"status": body.get("status")} if part == "status" else body)
        if kind == "pods" and (text := _forbidden(item, changed)):
            return 422, status(422, text, "Invalid")
        await self.put(kind, changed)
        return 200, changed

    async def _bind(self, pod: Object, body: Object) -> tuple[int, Object]:
        if pod["spec"].get("nodeName"):
            return 409, status(409, "pod is already assigned")
        if pod["spec"].get("schedulingGates"):
            return 409, status(409, "pod has scheduling gates")
        self.bindings.append(body)
        annotations = body["metadata"].get("annotations", {})
        bound = _merged(pod, {"metadata": {"annotations": annotations}})
        bound["spec"]["nodeName"] = body["target"]["name"]
        await self.put("pods", bound)
        return 201, {"kind": "Status", "status": "Success"}

    def _list(self, kind: str, query: dict[str, str]) -> Object:
        begin = int(query.get("continue", 0))
        if not begin:
            self._names[kind] = sorted(self.objects[kind])
        names, items = self._names[kind], self.objects[kind]
        end = begin + int(query.get("limit", len(names) + 1))
        metadata = {"resourceVersion": str(self._revision)}
        if end < len(names):
            metadata["continue"] = str(end)
        page = [items[name] for name in names[begin:end] if name in items]
        return {"metadata": metadata, "items": page}

    async def _watch(self, kind: str, revision: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            if revision < self._oldest:
                _chunk(writer, {"type": "ERROR", "object": status(410, "too old")})
                writer.write(b"0\r\n\r\n")
                return
            events = self._events[kind]
            for _, line in events[bisect_right(events, revision, key=lambda each: each[0]) :]:
                _line(writer, line)
            revision = self._revision
            mark = {"metadata": {"resourceVersion": str(revision)}}
            _chunk(writer, {"type": "BOOKMARK", "object": mark})
            await writer.drain()
            async with self._changed:
                while revision == self._revision:
                    await self._changed.wait()


def _key(item: Object) -> str:
    metadata = item["metadata"]
    return (
        f"{metadata['namespace']}/{metadata['name']}"
        if "namespace" in metadata
        else metadata["name"]
    )


def _with_conditions(old: Object | None, patch: Object) -> Object:
    """Return a merge patch that does what a patch by keys does to an object's conditions."""
    new = patch["status"].get("conditions", ())
    types = {each["type"] for each in new}
    kept = ((old or {}).get("status") or {}).get("conditions", ())
    conditions = [*(each for each in kept if each["type"] not in types), *new]
    return {**patch, "status": {**patch["status"], "conditions": conditions}}


def _merged(old: Any, patch: Any) -> Any:
    """Return *old* with a JSON merge patch; neither is changed."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(new.get(name), value)
    return json.loads(json.dumps(new))


def _forbidden(old: Object, new: Object) -> str:
    """Return why a pod may not be changed like that; nothing if it may."""
    before, after = old["spec"], new["spec"]
    gates, left = (
        [each["name"] for each in spec.get("schedulingGates") or ()] for spec in (before, after)
    )
    if not set(left) <= set(gates):
        return "spec.schedulingGates: only deletion is allowed"
    selector, narrower = before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    if not (selector.items() <= narrower.items() if gates else selector == narrower):
        return "spec.nodeSelector: only additions are allowed, and only while gated"
    loose = {"schedulingGates", "nodeSelector", "activeDeadlineSeconds", "tolerations"}
    if _without_images(before, loose) != _without_images(after, loose):
        return "spec: pod updates may not change other fields"
    return ""


def _without_images(spec: Object, loose: set[str]) -> Object:
    """Return what of a pod's `spec` nobody can change: neither images nor *loose* fields."""
    fixed = {key: value for key, value in spec.items() if key not in loose}
    for kind in ("containers", "initContainers"):
        containers = fixed.get(kind, ())
        fixed[kind] = [
            {key: value for key, value in each.items() if key != "image"} for each in containers
        ]
    return fixed


def _chunk(writer: asyncio.StreamWriter, event: Object) -> None:
    _line(writer, json.dumps(event).encode())


def _line(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(f"{len(line) + 1:x}\r\n".encode() + line + b"\n\r\n")


def status(code: int, message: str, reason: str = "") -> Object:
    """Return the body of an answer that is an error."""
    return {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "message": message,
        "reason": reason,
    }


def send(writer: asyncio.StreamWriter, code: int, body: Object) -> None:
    """Answer a request."""
    text = msgspec.json.encode(body)
    head = f"HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    head += "\r\n\r\n"
    writer.write(head.encode() + text)
