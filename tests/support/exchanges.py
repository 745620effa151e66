"""All that the daemon asks of an API server, in one conversation that any server can be asked.

`tests/cluster` has it with a real one, and keeps the answers in answers.json; `apiserver.py` is
held against these. What differs from server to server (uids, revisions, times) is replaced.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support.certificates import client_context

RECORDED = Path(__file__).with_name("answers.json")
NRT = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
SETTINGS = "/apis/config.nri/v1alpha1/namespaces/kube-system/topologyawarepolicies"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_EXPIRED = re.compile(r"too old resource version: \d+ \(\d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an API server answered."""

    status: int
    body: Any  # JSON, or text


def ask(
    server: str,
    ca: Path,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str,
    content: str = "application/json",
    timeout: float = 30.0,
) -> Answered:
    """Ask an API server; status 0 where it does not answer."""
    request = urllib.request.Request(
        server + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": f"Bearer {token}", "Content-Type": content},
    )
    context = client_context(ca)
    try:
        with urllib.request.urlopen(request, context=context, timeout=timeout) as response:
            return _answered(response.status, response.read())
    except urllib.error.HTTPError as error:
        return _answered(error.code, error.read())
    except OSError:
        return Answered(status=0, body="")


def _answered(status: int, text: bytes) -> Answered:
    try:
        return Answered(status=status, body=json.loads(text))
    except ValueError:
        return Answered(status=status, body=text.decode(errors="replace"))


class Others(Protocol):
    """What others do in the cluster meanwhile."""

    async def take_zones(self) -> None:
        """Replace the zones of node-a's object as the manager `exporter`."""

    async def put_settings(self, cpu: int) -> None:
        """Make or change the object `default`, to reserve so many CPUs."""

    async def put_slice(self, generation: int) -> None:
        """Make or change a slice of node-a, of one device that several claims may share."""

    async def put_claim(self) -> None:
        """Make the claim `gpus`, allocated that device."""


Ask = Callable[..., Awaitable[Answered]]


def topology(node: str = "node-a", value: str = "1", **metadata: str) -> dict[str, Any]:
    """Return an object that is as small as can be."""
    cpu = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "3"}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node, "labels": {"ours": "yes"}, **metadata},
        "attributes": [{"name": "a", "value": value}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    }


def event(name: str, namespace: str = "") -> dict[str, Any]:
    """Return an event of a pod in a namespace, or of a node without one."""
    involved = {"kind": "Pod" if namespace else "Node", "apiVersion": "v1", "name": "x", "uid": "x"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace or "default"},
        "involvedObject": involved | ({"namespace": namespace} if namespace else {}),
        "type": "Warning",
        "reason": "FailedPlacement",
        "message": "no room",
        "source": {"component": "nri-policy", "host": "node-a"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }


def _events_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/events"


class Conversation:
    """The conversation with one server, as the daemon of node-a."""

    def __init__(self, ask: Ask, others: Others) -> None:
        self._ask = ask
        self._others = others
        self._known: dict[str, list[str]] = {"uid": [], "resourceVersion": []}
        self.answers: dict[str, Any] = {}

    async def take(self) -> dict[str, Any]:
        """Have it; return the answers by what was asked."""
        await self._nodes()
        await self._topology()
        await self._settings()
        await self._events()
        await self._resources()
        return self.answers

    async def _nodes(self) -> None:
        await self._note("node", "GET", "/api/v1/nodes/node-a")
        await self._note("node that is missing", "GET", "/api/v1/nodes/elsewhere")
        await self._note("all nodes", "GET", "/api/v1/nodes")
        await self._note("nobody's token", "GET", "/api/v1/nodes/node-a", token="nobody")
        for verb in ("get", "list"):
            asked = {"resourceAttributes": {"group": "", "resource": "nodes", "verb": verb}}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": asked,
            }
            await self._note(f"review: {verb} nodes", "POST", REVIEWS, review)

    async def _topology(self) -> None:
        await self._note("topology that is missing", "GET", f"{NRT}/node-a")
        await self._note("kind that is missing", "GET", f"{NRT}/node-a".replace("alpha2", "alpha9"))
        made = await self._apply("apply: create", topology())
        old = made["metadata"]
        await self._apply("apply: the same", topology())
        now = (await self._apply("apply: update", topology(value="2", **_names(old))))["metadata"]
        await self._apply("apply: from an old revision", topology(value="3", **_names(old)))
        await self._others.take_zones()
        await self._apply("apply: zones that another has", topology(value="2"))
        now = (await self._apply("apply: by force", topology(value="2"), force=True))["metadata"]
        bad = topology()
        bad["zones"][0]["resources"][0]["capacity"] = "4x"
        await self._apply("apply: a bad quantity", bad)
        await self._apply("apply: another name than in the path", topology("node-b"), "node-a")
        await self._apply("apply: for another node", topology("node-b"))
        await self._note("topology", "GET", f"{NRT}/node-a")
        await self._note("all topologies", "GET", NRT)
        await self._note("delete", "DELETE", f"{NRT}/node-a")
        await self._note("delete: again", "DELETE", f"{NRT}/node-a")
        await self._apply("apply: with the uid of what is gone", topology(**_names(now)))
        revision = {"resourceVersion": now["resourceVersion"]}
        await self._apply("apply: with the revision of what is gone", topology(**revision))

    async def _settings(self) -> None:
        named = f"{SETTINGS}?fieldSelector=metadata.name%3Ddefault"
        await self._note("settings that are missing", "GET", named)
        await self._others.put_settings(1)
        listed = await self._note("settings", "GET", named)
        own, other = ({"status": {"nodes": {node: _status()}}} for node in ("node-a", "node-b"))
        path = f"{SETTINGS}/default/status"
        await self._note("status", "PATCH", path, own, content=MERGE)
        await self._note("status of another node", "PATCH", path, other, content=MERGE)
        path = f"{SETTINGS}/none/status"
        await self._note("status of what is missing", "PATCH", path, own, content=MERGE)
        path = f"{SETTINGS}/default"
        await self._note("settings are not ours to change", "PATCH", path, {}, content=MERGE)
        await self._others.put_settings(2)
        revision = listed["metadata"]["resourceVersion"]
        watch = f"{named}&watch=true&timeoutSeconds=1&resourceVersion="
        await self._note("watch", "GET", f"{watch}{revision}")
        await self._note("watch: from too long ago", "GET", f"{watch}1")
        elsewhere = named.replace("kube-system", "default")
        await self._note("settings in another namespace", "GET", elsewhere)

    async def _events(self) -> None:
        await self._note("event of a pod", "POST", _events_in("shop"), event("web.1", "shop"))
        await self._note("event: again", "POST", _events_in("shop"), event("web.1", "shop"))
        own = event("node-a.1")
        own["involvedObject"]["name"] = "node-a"  # of no other node it may
        await self._note("event of a node", "POST", _events_in("default"), own)
        elsewhere = event("web.2", "shop")
        elsewhere["metadata"]["namespace"] = "default"
        path = _events_in("default")
        await self._note("event: not beside its pod", "POST", path, elsewhere)
        await self._note("events are not ours to read", "GET", _events_in("shop"))

    async def _resources(self) -> None:
        own = f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a"
        await self._note("slices of a node that has none", "GET", own)
        await self._others.put_slice(1)
        listed = await self._note("slices of a node", "GET", own)
        await self._note("slices of another node", "GET", own.replace("node-a", "node-b"))
        await self._note("slices by driver", "GET", f"{own}%2Cspec.driver%3Dnic.example.com")
        await self._note("slices by a field that selects none", "GET", own.replace("Name", "name"))
        await self._others.put_slice(2)
        revision = listed["metadata"]["resourceVersion"]
        watch = f"{own}&watch=true&timeoutSeconds=1&resourceVersion="
        await self._note("slices: watch", "GET", f"{watch}{revision}")
        await self._note("slices are not ours to write", "POST", SLICES, {})
        older = own.replace("/v1/", "/v1alpha9/")
        await self._note("slices of a version that is missing", "GET", older)
        await self._note("claim that is missing", "GET", f"{CLAIMS}/gpus")
        await self._others.put_claim()
        await self._note("claim", "GET", f"{CLAIMS}/gpus")
        await self._note("claims are not ours to list", "GET", CLAIMS)
        await self._note("pod that is missing", "GET", f"{PODS}/web")
        await self._note("pods are not ours to list", "GET", PODS)

    async def _apply(
        self, name: str, new: dict[str, Any], node: str = "", *, force: bool = False
    ) -> Any:
        query = f"fieldManager=nri-policy&force={'true' if force else 'false'}"
        path = f"{NRT}/{node or new['metadata']['name']}?{query}"
        return await self._note(name, "PATCH", path, new, content=APPLY)

    async def _note(self, name: str, method: str, path: str, body: Any = None, **more: str) -> Any:
        answer = await self._ask(method, path, body, **more)
        shown = self._shown(answer.body)
        self.answers[name] = {"status": answer.status, "body": shown}
        return answer.body

    def _shown(self, body: Any) -> Any:  # noqa: PLR0911 - one for each form of an answer
        """Return what of an answer is to be alike everywhere."""
        if isinstance(body, str):
            lines = body.strip().split("\n")
            return [self._shown(json.loads(each)) for each in lines] if "{" in body else lines
        if "type" in body and "object" in body:  # one event of a watch
            return {**body, "object": self._shown(body["object"])}
        if body.get("kind") == "Status":
            kept = ("status", "code", "reason", "message", "details")
            shown = {each: body[each] for each in kept if each in body}
            text = _EXPIRED.sub("too old resource version", json.dumps(shown))
            return json.loads(_UUID.sub("UID", text))
        if "items" in body:
            return {**_without(body, "metadata"), "items": [self._shown(e) for e in body["items"]]}
        if body.get("kind") == "SelfSubjectAccessReview":
            return body["status"]["allowed"]
        if body.get("kind") == "Node":
            return {"kind": "Node", "metadata": self._metadata(body["metadata"])}
        return {**body, "metadata": self._metadata(body["metadata"])}

    def _metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        kept = ("name", "namespace", "labels", "generation", "ownerReferences")
        shown = {each: metadata[each] for each in kept if each in metadata}
        for field, known in self._known.items():
            value = metadata[field]
            if value not in known:
                known.append(value)
            shown[field] = f"{field} {known.index(value)}"
        return _without(shown, "labels" if metadata.get("labels", {}).keys() != {"ours"} else "")


def _names(metadata: Mapping[str, str]) -> dict[str, str]:
    return {each: metadata[each] for each in ("uid", "resourceVersion")}


def _status() -> dict[str, Any]:
    return {"status": "Success", "generation": 1, "timestamp": "2026-01-01T00:00:00Z"}


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
