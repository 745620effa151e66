"""A Kubernetes API server for tests: HTTPS, tokens, and the objects that the daemon deals with.

What it enforces is read from our own manifests: the schema of crd.yaml, the verbs of rbac.yaml.
Server-side apply follows the real one as far as top-level fields go: every list of this API is
owned as a whole (nrt.md §1.2). Its answers to all that the daemon asks are held against those that
a real one has given: tests/unit/test_apiserver.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import yaml

from tests.support import resources
from tests.support.certificates import server_context, write_certificates
from tests.support.manifests import denial_reasons, invalid, permitted, schemas

APPLY = "application/apply-patch+yaml"
_PATH = re.compile(
    r"/apis/topology\.node\.k8s\.io/(?P<version>[^/]+)/noderesourcetopologies(/(?P<name>.+))?"
)
_SETTINGS = re.compile(
    r"/apis/config\.nri/v1alpha1/namespaces/(?P<namespace>[^/]+)/topologyawarepolicies"
    r"(/(?P<name>[^/]+)(?P<status>/status)?)?"
)
_EVENTS = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/events")
_NRT, _POLICY = "noderesourcetopologies", "topologyawarepolicies"
_GROUPS = {
    _NRT: "topology.node.k8s.io",
    _POLICY: "config.nri",
    "resourceslices": resources.GROUP,
    "resourceclaims": resources.GROUP,
    "deviceclasses": resources.GROUP,
}
_ACCOUNT = "system:serviceaccount:kube-system:nri-policy"
_CHANGED = "the object has been modified; please apply your changes to the latest version"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = {"GET": "get", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What it is told."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # instead of all that; empty: the connection is cut


CUT = Answer(status=0, raw=b"")
GARBLED = Answer(status=200, body=[{"kind": 7}])
NOT_HTTP = Answer(status=0, raw=b"220 mail.example ESMTP\r\n\r\n")

Disturbance = Callable[[Request], Answer | None]


async def _at_once(request: Request) -> None:
    del request


class StatusError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str, reason: str, **more: Any) -> None:
        super().__init__(message)
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        body = {**status, "code": code, "message": message, "reason": reason, **more}
        self.answer = Answer(status=code, body=body)


class APIServer:
    """Serves one node's cluster while it is entered; may be stopped and started in between."""

    def __init__(self, folder: Path, *, node: str = "node-a") -> None:
        self.node = node
        self.objects: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, dict[str, set[str]]] = {}  # object -> manager -> its fields
        self.versions = {"v1alpha2", "v1alpha1"}
        self.nodes = {node: "uid-of-the-node"}
        self.settings: dict[str, dict[str, Any]] = {}  # TopologyAwarePolicy objects
        self.events: dict[str, dict[str, Any]] = {}  # that people see, by name
        self._events: list[tuple[int, str, dict[str, Any]]] = []  # of these, by revision
        self.allocatable = {"cpu": "15250m", "memory": "62914560Ki"}  # of every node
        self.taints: list[dict[str, str]] = []  # of every node, as the conditions
        self.conditions: list[dict[str, str]] = []
        self.tokens = {"first"}
        self.components: tuple[str, ...] = ()  # of our manifests, beside the base
        self.forbidden: set[str] = set()  # verbs that the role lacks
        self.requests: list[Request] = []
        self.disturb: Disturbance = lambda _request: None
        self.before: Callable[[Request], Awaitable[object]] = _at_once  # a request is handled
        self.asked = asyncio.Condition()
        self.token_file = folder / "token"
        self.token_file.write_text("first")
        self.kubeconfig = folder / "kubeconfig"
        self.ca = folder / "ca.crt"
        self._port = 0
        self._revision = count(1)
        self.resources = resources.ResourceAPI(lambda: next(self._revision))
        self._uids = count(1)
        self._serving: set[asyncio.Task[Any]] = set()
        write_certificates(folder)
        self._context = server_context(folder)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self._port, ssl=self._context
        )
        self._port = self._server.sockets[0].getsockname()[1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {
                        "server": f"https://127.0.0.1:{self._port}",
                        "certificate-authority": str(self.ca),
                    },
                }
            ],
            "users": [{"name": "test", "user": {"tokenFile": str(self.token_file)}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def stop(self) -> None:
        """Cut all connections and listen no more."""
        self._server.close()
        tasks = [*self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def address(self) -> tuple[str, str]:
        """Host and port."""
        return "127.0.0.1", str(self._port)

    @property
    def topology(self) -> dict[str, Any]:
        """The node's object."""
        return self.objects[self.node]

    def writes(self) -> list[Request]:
        """Return the requests that were to change something."""
        return [each for each in self.requests if each.method != "GET"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a request has made *condition* true."""
        async with self.asked:
            await self.asked.wait_for(condition)

    def meddle(self, manager: str, **fields: Any) -> None:
        """Replace fields as another writer would by a merge patch: it owns them from then on."""
        self.topology.update(fields)
        self.topology["metadata"]["resourceVersion"] = str(next(self._revision))
        self.topology["metadata"]["generation"] += 1
        for owned in self.owners[self.node].values():
            owned.difference_update(fields)
        self.owners[self.node].setdefault(manager, set()).update(fields)

    def delete_node(self) -> None:
        """Delete the node; the garbage collector deletes what belongs to it."""
        del self.nodes[self.node]
        self.objects.pop(self.node, None)
        self.owners.pop(self.node, None)

    # ---- HTTP

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader):
                await self._answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        await self.before(request)
        answer = self.disturb(request)
        if answer is None:
            try:
                match = resources.PATH.fullmatch(request.path)
                answer = await self._resource(request, match) if match else self._handle(request)
            except StatusError as error:
                answer = error.answer
        async with self.asked:
            self.asked.notify_all()
        if answer.raw is not None:
            writer.write(answer.raw)
            await writer.drain()
            raise ConnectionResetError
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        kind = "text/plain" if isinstance(answer.body, str) else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(text)), **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} x", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", text]).encode())
        await writer.drain()

    def _know(self, request: Request) -> None:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")

    async def _resource(self, request: Request, match: re.Match[str]) -> Answer:
        """Serve a pod, a slice or a claim."""
        self._know(request)
        if match["version"] not in {None, *self.resources.versions}:
            text = "the server could not find the requested resource"
            raise StatusError(404, text, "NotFound", details={})
        plural, name, namespace = match["plural"], match["name"] or "", match["namespace"] or ""
        watching = request.query.get("watch") == "true"
        verbs = {**_VERBS, "POST": "create"}
        verb = "watch" if watching else verbs[request.method]
        self._permit(plural, verb if name or watching or verb != "get" else "list", name, namespace)
        if request.method == "PATCH":
            return await self._apply_resource(request, plural, name)
        if name:
            found = self.resources.one(plural, name, namespace)
            if found is None:
                raise _missing(plural, name)
            if request.method == "DELETE":
                await self.resources.delete(plural, name, namespace)
            return Answer(status=200, body=found)
        selector = request.query.get("fieldSelector", "")
        try:
            if not watching:
                return Answer(status=200, body=self.resources.listed(plural, selector))
            since = int(request.query["resourceVersion"])
            events = await self.resources.watched(plural, selector, since)
        except ValueError as error:
            raise StatusError(400, str(error), "BadRequest") from error
        if events is None:
            gone = StatusError(410, "too old resource version: 1 (2)", "Expired").answer.body
            events = [{"type": "ERROR", "object": gone}]
        return Answer(status=200, body=resources.lines(events))

    async def _apply_resource(self, request: Request, plural: str, name: str) -> Answer:
        """Apply a slice; the restriction of our component holds for it."""
        if request.headers.get("content-type") != APPLY:
            raise StatusError(415, "only server-side apply here", "UnsupportedMediaType")
        node = request.body["spec"].get("nodeName", "")
        if node != self.node:
            text = f"nri-policy on node '{self.node}' may not write the slices of other nodes"
            raise _denied("nri-policy-own-slice", plural, name, text)
        try:
            stored, made = await self.resources.apply(plural, request.body)
        except ValueError as error:
            message = f'ResourceSlice.resource.k8s.io "{name}" is invalid: {error}'
            raise StatusError(422, message, "Invalid", details=_details(plural, name)) from error
        return Answer(status=201 if made else 200, body=stored)

    def _handle(self, request: Request) -> Answer:  # noqa: PLR0911 - one for each kind
        self._know(request)
        if request.path == _REVIEWS:
            return self._review(request)
        if request.path.partition("/nodes")[0] == "/api/v1":
            return self._node(request)
        if match := _EVENTS.fullmatch(request.path):
            return self._event(request, match["namespace"])
        if match := _SETTINGS.fullmatch(request.path):
            return self._policy(request, match)
        match = _PATH.fullmatch(request.path)
        if match is None or match["version"] not in self.versions:
            return Answer(status=404, body="404 page not found\n")
        name = match["name"] or ""
        self._permit(_NRT, _VERBS[request.method] if name else "list", name)
        if request.method == "PATCH":
            return self._patch(request, match["version"], name)
        if name not in self.objects:
            raise _missing(_NRT, name)
        if request.method == "DELETE":
            uid = self.objects[name]["metadata"]["uid"]
            del self.objects[name], self.owners[name]
            details = {**_details(_NRT, name), "uid": uid}
            body = {"kind": "Status", "status": "Success", "details": details}
            return Answer(status=200, body=body)
        return Answer(status=200, body=self._shown(name, match["version"]))

    def _node(self, request: Request) -> Answer:
        name = request.path.removeprefix("/api/v1/nodes").removeprefix("/")
        self._permit("nodes", _VERBS[request.method] if name else "list", name)
        if name not in self.nodes:
            raise _missing("nodes", name)
        metadata = {"name": name, "uid": self.nodes[name], "resourceVersion": "1000000"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        spec = {"spec": {"taints": self.taints}} if self.taints else {}
        status: dict[str, Any] = {"allocatable": self.allocatable}
        if self.conditions:
            status["conditions"] = self.conditions
        return Answer(status=200, body={**node, **spec, "status": status})

    def _event(self, request: Request, namespace: str) -> Answer:
        """Create an event, as the rules for those of the core group are."""
        if request.method != "POST":
            self._permit("events", "list", "", namespace)
        new, name = request.body, request.body["metadata"]["name"]
        self._permit("events", "create", "")
        about = new["involvedObject"].get("namespace", "")
        if (about or "default") != namespace:
            field = "involvedObject.namespace"
            text = f'Invalid value: "{about}": does not match event.namespace'
            cause = {"reason": "FieldValueInvalid", "message": text, "field": field}
            details = {"name": name, "kind": "Event", "causes": [cause]}
            message = f'Event "{name}" is invalid: {field}: {text}'
            raise StatusError(422, message, "Invalid", details=details)
        if name in self.events:
            text = f'events "{name}" already exists'
            raise StatusError(409, text, "AlreadyExists", details=_details("events", name))
        self.events[name] = new
        marks = {"uid": _uid(next(self._uids)), "resourceVersion": str(next(self._revision))}
        reporting = {"eventTime": None, "reportingComponent": "", "reportingInstance": ""}
        body = {**new, **reporting, "metadata": {**new["metadata"], **marks}}
        return Answer(status=201, body=body)

    def put_settings(self, name: str, **spec: Any) -> None:
        """Make or change a TopologyAwarePolicy object, as an admin does."""
        old = self.settings.get(name)
        generation = 1 if old is None else old["metadata"]["generation"] + 1
        uid = _uid(next(self._uids)) if old is None else old["metadata"]["uid"]
        metadata = {"name": name, "namespace": "kube-system", "generation": generation, "uid": uid}
        new = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy", "spec": spec}
        kept = {"status": old["status"]} if old and "status" in old else {}
        self._settle({**new, **kept, "metadata": metadata}, "MODIFIED" if old else "ADDED")

    def _settle(self, new: dict[str, Any], change: str) -> None:
        """Store a TopologyAwarePolicy object under the next revision."""
        revision = next(self._revision)
        new["metadata"] = {**new["metadata"], "resourceVersion": str(revision)}
        self.settings[new["metadata"]["name"]] = new
        self._events.append((revision, change, new))

    def _policy(self, request: Request, match: re.Match[str]) -> Answer:
        selected = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        name, watching = match["name"] or selected, request.query.get("watch") == "true"
        verb = _VERBS[request.method] if match["name"] else "watch" if watching else "list"
        resource = f"{_POLICY}{match['status'] or ''}"
        self._permit(resource, verb, name, match["namespace"])
        if request.method == "PATCH":
            return self._say(request, name)
        if not watching:
            items = [each for key, each in self.settings.items() if key == name]
            body = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicyList"}
            metadata = {"resourceVersion": str(next(self._revision))}
            return Answer(status=200, body={**body, "metadata": metadata, "items": items})
        since = int(request.query["resourceVersion"])
        told: list[dict[str, Any]] = [
            {"type": change, "object": new}
            for revision, change, new in self._events
            if revision > since and new["metadata"]["name"] == name
        ]
        if since <= 1:  # as if all before had been compacted away
            gone = StatusError(410, "too old resource version: 1 (2)", "Expired").answer.body
            told = [{"type": "ERROR", "object": gone}]
        return Answer(status=200, body="".join(json.dumps(each) + "\n" for each in told))

    def _say(self, request: Request, name: str) -> Answer:
        """Merge what a node says into the status of an object."""
        if name not in self.settings:
            raise _missing(_POLICY, name)
        old = self.settings[name]
        nodes = {**old.get("status", {}).get("nodes", {}), **request.body["status"]["nodes"]}
        if {*request.body["status"]["nodes"]} != {self.node}:
            text = f"nri-policy on node '{self.node}' may not write the status of other nodes"
            raise _denied("nri-policy-own-status", _POLICY, name, text)
        kept = {node: said for node, said in nodes.items() if said is not None}
        self._settle({**old, "status": {"nodes": kept}}, "MODIFIED")
        return Answer(status=200, body=self.settings[name])

    def _review(self, request: Request) -> Answer:
        """Say whether who asks may do something, and keep nothing."""
        asked = request.body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        verb, granted = asked["verb"], permitted(*self.components).get(resource, set())
        allowed = verb in granted and verb not in self.forbidden
        return Answer(status=201, body={**request.body, "status": {"allowed": allowed}})

    def _permit(self, resource: str, verb: str, name: str, namespace: str = "") -> None:
        if (
            verb in self.forbidden
            or verb not in permitted(*self.components).get(resource, set())
            or (resource.startswith(_POLICY) and namespace not in {"", "kube-system"})
        ):
            plural = resource.partition("/")[0]
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            text = f'User "{_ACCOUNT}" cannot {verb} resource "{resource}" in API group'
            named = f' "{name}"' if name else ""
            message = (
                f'{_full(plural)}{named} is forbidden: {text} "{_GROUPS.get(plural, "")}" {where}'
            )
            raise StatusError(403, message, "Forbidden", details=_details(plural, name))

    # ---- server-side apply

    def _patch(self, request: Request, version: str, name: str) -> Answer:  # noqa: C901 - as the real one
        if request.headers.get("content-type") != APPLY:
            raise StatusError(415, "only server-side apply here", "UnsupportedMediaType")
        manager, new = request.query["fieldManager"], request.body
        sent_name = new.get("metadata", {}).get("name")
        if sent_name != name:
            text = (
                f"the name of the object ({sent_name}) does not match the name on the URL ({name})"
            )
            raise StatusError(400, text, "BadRequest")
        _check(new, version, name)
        old = self.objects.get(name)
        if old is None:
            self._permit(_NRT, "create", name)
        if name != self.node:
            text = f"nri-policy on node '{self.node}' may not write the topology of '{name}'"
            raise _denied("nri-policy-own-node", _NRT, name, text)
        revision = "" if old is None else old["metadata"]["resourceVersion"]
        fields = {
            key: value
            for key, value in new.items()
            if key not in ("apiVersion", "kind", "metadata")
        }
        fields |= {
            f"owner {each['uid']}": each for each in new["metadata"].get("ownerReferences", [])
        }
        had = {} if old is None else _fields(old)
        owners = self.owners.setdefault(name, {}) if old is not None else {}
        conflicts = [
            (other, key)
            for other, owned in owners.items()
            for key in sorted(owned & fields.keys())
            if other != manager and had.get(key) != fields[key]
        ]
        if conflicts and request.query.get("force") != "true":
            raise _conflict(conflicts, version)
        sent, uid = (new["metadata"].get(each, "") for each in ("resourceVersion", "uid"))
        if old is None and uid:
            text = f"uid mismatch: the provided object specified uid {uid}, and no existing object"
            raise _modified(name, f"{text} was found")
        if old is not None and sent not in {"", revision}:  # a missing object is made all the same
            raise _modified(name, f"{_CHANGED} and try again")
        for other, key in conflicts:
            owners[other].discard(key)
        dropped = owners.get(manager, set()) - fields.keys()
        owners[manager] = set(fields)
        held = set().union(*owners.values())
        merged = {k: v for k, v in {**had, **fields}.items() if k not in dropped or k in held}
        self.owners[name] = owners
        if old is not None and merged == had:
            return Answer(status=200, body=self._shown(name, version))
        metadata = {
            "name": name,
            "uid": _uid(next(self._uids)) if old is None else old["metadata"]["uid"],
            "resourceVersion": str(next(self._revision)),
            "generation": 1 if old is None else old["metadata"]["generation"] + 1,
        }
        if owners_of := [v for k, v in merged.items() if k.startswith("owner ")]:
            metadata["ownerReferences"] = owners_of
        if labels := new["metadata"].get("labels"):
            metadata["labels"] = labels
        rest = {key: value for key, value in merged.items() if not key.startswith("owner ")}
        self.objects[name] = {"kind": new["kind"], "metadata": metadata, **rest}
        return Answer(status=201 if old is None else 200, body=self._shown(name, version))

    def _shown(self, name: str, version: str) -> dict[str, Any]:
        return {"apiVersion": f"topology.node.k8s.io/{version}", **self.objects[name]}


def _uid(number: int) -> str:
    return str(UUID(int=number))


def _full(plural: str) -> str:
    return f"{plural}.{_GROUPS[plural]}" if plural in _GROUPS else plural


def _details(plural: str, name: str) -> dict[str, Any]:
    details = {"name": name, "group": _GROUPS.get(plural, ""), "kind": plural}
    return {key: value for key, value in details.items() if value}


def _missing(plural: str, name: str) -> StatusError:
    text = f'{_full(plural)} "{name}" not found'
    return StatusError(404, text, "NotFound", details=_details(plural, name))


def _modified(name: str, why: str) -> StatusError:
    text = f'Operation cannot be fulfilled on {_full(_NRT)} "{name}": {why}'
    return StatusError(409, text, "Conflict", details=_details(_NRT, name))


def _denied(policy: str, plural: str, name: str, why: str) -> StatusError:
    """Return the error of an admission policy of node-restriction.yaml."""
    text = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {why}"
    details = {**_details(plural, name), "causes": [{"message": text}]}
    reason = denial_reasons()[policy]
    code = {"Forbidden": 403, "Invalid": 422}[reason]
    message = f'{_full(plural)} "{name}" is forbidden: {text}'
    return StatusError(code, message, reason, details=details)


def _check(new: Mapping[str, Any], version: str, name: str) -> None:
    """Raise the error that an object gets that does not fit its schema."""
    kind = "NodeResourceTopology"
    unknown, bad = invalid(new, schemas()[version], "")
    if unknown:
        shown = f"(/{name}; topology.node.k8s.io/{version}, Kind={kind})"
        text = f"failed to create typed patch object {shown}: {unknown[0]}"
        raise StatusError(500, f"{text}: field not declared in schema", "")
    if bad:
        causes = [
            {"reason": "FieldValueInvalid", "message": text, "field": path} for path, text in bad
        ]
        texts = [f"{path}: {text}" for path, text in bad]
        shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        details = {**_details(_NRT, name), "kind": kind, "causes": causes}
        message = f'{kind}.{_GROUPS[_NRT]} "{name}" is invalid: {shown}'
        raise StatusError(422, message, "Invalid", details=details)


def _fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in stored.items() if key not in ("kind", "metadata")}
    return fields | {
        f"owner {each['uid']}": each for each in stored["metadata"].get("ownerReferences", [])
    }


def _conflict(conflicts: list[tuple[str, str]], version: str) -> StatusError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{other}" using topology.node.k8s.io/{version}',
            "field": f".{key}",
        }
        for other, key in conflicts
    ]
    text = f"Apply failed with {len(causes)} conflict: {causes[0]['message']}: {causes[0]['field']}"
    return StatusError(409, text, "Conflict", details={"causes": causes})


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split()
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return Request(
        method=method,
        path=url.path,
        query={key: values[0] for key, values in parse_qs(url.query).items()},
        headers=headers,
        body=json.loads(body) if body else None,
    )
