"""A Kubernetes API server for tests: HTTPS, tokens, and NodeResourceTopology objects.

What it enforces is read from our own manifests: the schema of crd.yaml (unknown fields are errors,
as with strict validation), the verbs of rbac.yaml. Server-side apply follows the real one as far as
top-level fields go: every list of this API is owned as a whole (nrt.md §1.2).
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MANIFESTS = Path(__file__).resolve().parents[2] / "configs" / "kubernetes"
APPLY = "application/apply-patch+yaml"
_PATH = re.compile(
    r"/apis/topology\.node\.k8s\.io/(?P<version>[^/]+)/noderesourcetopologies/(?P<name>.+)"
)
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = {"GET": "get", "PATCH": "patch", "DELETE": "delete"}


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
        self.allocatable = {"cpu": "15250m"}  # of every node
        self.tokens = {"first"}
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
        self._uids = count(1)
        self._serving: set[asyncio.Task[Any]] = set()
        write_certificates(folder)
        self._context = _context(folder)

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
                answer = self._handle(request)
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

    def _handle(self, request: Request) -> Answer:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        if request.path == _REVIEWS:
            return self._review(request)
        if request.path.startswith("/api/v1/nodes/"):
            self._permit(request, "nodes", _VERBS[request.method])
            name = request.path.rpartition("/")[2]
            if name not in self.nodes:
                raise StatusError(404, f'nodes "{name}" not found', "NotFound")
            metadata = {"name": name, "uid": self.nodes[name]}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            return Answer(status=200, body={**node, "status": {"allocatable": self.allocatable}})
        match = _PATH.fullmatch(request.path)
        if match is None or match["version"] not in self.versions:
            return Answer(status=404, body="404 page not found")
        self._permit(request, "noderesourcetopologies", _VERBS[request.method])
        if request.method == "PATCH":
            return self._patch(request, match["version"], match["name"])
        if match["name"] not in self.objects:
            text = f'noderesourcetopologies "{match["name"]}" not found'
            details = {"name": match["name"], "group": "topology.node.k8s.io"}
            raise StatusError(404, text, "NotFound", details=details)
        if request.method == "DELETE":
            del self.objects[match["name"]], self.owners[match["name"]]
            return Answer(status=200, body={"kind": "Status", "status": "Success"})
        return Answer(status=200, body=self._shown(match["name"], match["version"]))

    def _review(self, request: Request) -> Answer:
        """Say whether who asks may do something, and keep nothing."""
        asked = request.body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        verb, granted = asked["verb"], _permitted().get(resource, set())
        allowed = verb in granted and verb not in self.forbidden
        return Answer(status=201, body={**request.body, "status": {"allowed": allowed}})

    def _permit(self, request: Request, resource: str, verb: str) -> None:
        if verb in self.forbidden or verb not in _permitted()[resource]:
            text = f'{resource} is forbidden: user "test" cannot {verb} resource'
            raise StatusError(403, f"{text} at {request.path}", "Forbidden")

    # ---- server-side apply

    def _patch(self, request: Request, version: str, name: str) -> Answer:
        if request.headers.get("content-type") != APPLY:
            raise StatusError(415, "only server-side apply here", "UnsupportedMediaType")
        manager, new = request.query["fieldManager"], request.body
        problems = [*invalid(new, schemas()[version], "")]
        if new.get("metadata", {}).get("name") != name:
            problems.append("metadata.name: must be the name in the path")
        if problems:
            raise StatusError(422, f"is invalid: {'; '.join(problems)}", "Invalid")
        old = self.objects.get(name)
        if old is None:
            self._permit(request, "noderesourcetopologies", "create")
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
            raise StatusError(409, f"{text} was found", "Conflict")
        if old is not None and sent not in {"", revision}:  # a missing object is made all the same
            raise StatusError(409, f"{name} was modified: apply to the latest version", "Conflict")
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
            "uid": f"uid-{next(self._uids)}" if old is None else old["metadata"]["uid"],
            "resourceVersion": str(next(self._revision)),
            "ownerReferences": [v for k, v in merged.items() if k.startswith("owner ")],
        }
        rest = {key: value for key, value in merged.items() if not key.startswith("owner ")}
        self.objects[name] = {"kind": new["kind"], "metadata": metadata, **rest}
        return Answer(status=201 if old is None else 200, body=self._shown(name, version))

    def _shown(self, name: str, version: str) -> dict[str, Any]:
        return {"apiVersion": f"topology.node.k8s.io/{version}", **self.objects[name]}


def _fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in stored.items() if key not in ("kind", "metadata")}
    return fields | {f"owner {each['uid']}": each for each in stored["metadata"]["ownerReferences"]}


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


# ---- what our manifests say


@cache
def schemas() -> dict[str, Any]:
    """Return the schema of each version of the CRD."""
    crd = yaml.safe_load((MANIFESTS / "crd.yaml").read_text())
    return {
        version["name"]: version["schema"]["openAPIV3Schema"]
        for version in crd["spec"]["versions"]
        if version["served"]
    }


@cache
def _permitted() -> dict[str, set[str]]:
    return {
        name: set(rule["verbs"])
        for each in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text())
        if each["kind"] in {"ClusterRole", "Role"}
        for rule in each["rules"]
        for name in rule["resources"]
    }


_TYPES = {"object": dict, "array": list, "string": str, "integer": int}


def invalid(value: Any, schema: Mapping[str, Any], path: str) -> list[str]:
    """Return what is wrong with *value* under a structural *schema*."""
    if schema.get("x-kubernetes-int-or-string"):
        right = type(value) is int or (
            isinstance(value, str) and re.fullmatch(schema["pattern"].strip("^$"), value)
        )
        return [] if right else [f"{path}: {value!r} is no quantity"]
    kind = _TYPES[schema["type"]]
    if not isinstance(value, kind) or isinstance(value, bool):
        return [f"{path}: {value!r} is not of type {schema['type']}"]
    if isinstance(value, list):
        return [
            problem
            for index, each in enumerate(value)
            for problem in invalid(each, schema["items"], f"{path}[{index}]")
        ]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    missing = [
        f"{path}.{name}: required" for name in schema.get("required", []) if name not in value
    ]
    unknown = [f"{path}.{name}: unknown field" for name in value if name not in known]
    inner = [
        problem
        for name, each in value.items()
        if name in known
        for problem in invalid(each, known[name], f"{path}.{name}")
    ]
    return [*missing, *unknown, *inner]


# ---- certificates


def write_certificates(folder: Path) -> None:
    """Write a new authority to `ca.crt`, and what a server at 127.0.0.1 needs to `server.pem`."""
    authority, key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer = _name("test authority")
    root = _certificate(issuer, issuer, authority, authority, ca=True)
    leaf = _certificate(_name("test server"), issuer, key, authority, ca=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + leaf.public_bytes(pem)
    )


def _context(folder: Path) -> ssl.SSLContext:
    """Return the server's side of TLS with the certificates in *folder*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=24))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(address, critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(signer_id, critical=False)
        .sign(signer, hashes.SHA256())
    )
