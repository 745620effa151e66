"""A client of the Kubernetes API: objects as JSON in and out, one error for all failures.

Pages of a list and events of a watch have their objects as JSON text, so a reader decodes only what
it uses. The client never retries: callers know how long that makes sense.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from http.client import BAD_REQUEST, responses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from nri_policy.foundation.mismatch import JSON_ERRORS, json_problem
from nri_policy.kube.connection import Connect, failures
from nri_policy.kube.errors import APIError, connection_problem

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

PATIENCE = 10.0  # seconds for one request
WATCH_PERIOD = 300  # seconds after which the server ends a watch
PAGE = 500  # objects in one answer to a list
_MAX_WAIT = 120.0  # seconds; a longer Retry-After of a server is cut
_MAX_TEXT = 300  # characters of a server's message

Object = dict[str, Any]


class ObjectKind(Struct, frozen=True, kw_only=True):
    """A kind of objects, as the API's paths name it."""

    group: str = ""
    version: str = "v1"
    plural: str

    def path(self, name: str = "", *, namespace: str = "", part: str = "") -> str:
        """Return the path of an object, of a part of it (`status`), or of all without a *name*."""
        root = f"apis/{self.group}" if self.group else "api"
        where = ["namespaces", namespace] if namespace else []
        return "/".join(
            [
                root,
                self.version,
                *where,
                self.plural,
                *(quote(each, "") for each in (name, part) if each),
            ]
        )


NODES = ObjectKind(plural="nodes")
PODS = ObjectKind(plural="pods")
LEASES = ObjectKind(group="coordination.k8s.io", plural="leases")


class Listing(Struct, frozen=True, kw_only=True):
    """All objects of a list, at one moment."""

    items: list[Object]
    revision: str  # to watch from


class Page(Struct, frozen=True, kw_only=True):
    """Some objects of a list, as JSON text."""

    items: list[Raw]
    revision: str  # to watch from; empty: more pages follow


class _PageMetadata(Struct, rename={"revision": "resourceVersion", "rest": "continue"}):
    revision: str = ""
    rest: str = ""


class _Page(Struct):
    items: list[Raw] | None
    metadata: _PageMetadata


class _Event(Struct):
    type: str
    object: Raw


class Client:
    """Asks one API server. Methods raise APIError, and wait at most *patience* seconds."""

    def __init__(self, connect: Connect, *, patience: float = PATIENCE) -> None:
        """Take the function that makes the connection, at the first request."""
        self._connect = connect
        self._patience = patience
        self._http: AsyncClient | None = None
        self._connecting = asyncio.Lock()

    async def get(self, kind: ObjectKind, name: str, *, namespace: str = "") -> Object:
        """Return an object."""
        return decode(await self._request("GET", kind.path(name, namespace=namespace)))

    async def create(  # noqa: PLR0913 - keywords: the object and its creator
        self,
        kind: ObjectKind,
        new: Object,
        *,
        namespace: str = "",
        name: str = "",
        part: str = "",
        manager: str = "",
    ) -> Object:
        """Create an object, or a *part* of one (`binding`); return the server's version."""
        path = kind.path(name, namespace=namespace, part=part)
        return decode(await self._request("POST", path, body=new, query=_manager(manager)))

    async def replace(self, kind: ObjectKind, new: Object, *, manager: str) -> Object:
        """Replace an object if it still has the revision of *new*; return the server's version."""
        path = kind.path(new["metadata"]["name"])
        return decode(await self._request("PUT", path, body=new, query=_manager(manager)))

    async def apply(self, kind: ObjectKind, new: Object, *, manager: str, force: bool) -> Object:
        """Apply an object by server-side apply; return the server's version."""
        answer = await self._request(
            "PATCH",
            kind.path(new["metadata"]["name"]),
            body=new,
            content="application/apply-patch+yaml",
            query={"fieldManager": manager, "force": "true" if force else "false"},
        )
        return decode(answer)

    async def merge(  # noqa: PLR0913 - keywords: what is changed, and how
        self,
        kind: ObjectKind,
        name: str,
        patch: Object,
        *,
        namespace: str = "",
        part: str = "",
        by_key: bool = False,
    ) -> Object:
        """Merge *patch* into an object, or into a part of it (`status`).

        Lists are replaced. With *by_key*, lists of built-in kinds are merged by their merge key,
        such as conditions by type.
        """
        path = kind.path(name, namespace=namespace, part=part)
        merge = f"application/{'strategic-merge' if by_key else 'merge'}-patch+json"
        return decode(await self._request("PATCH", path, body=patch, content=merge))

    async def delete(
        self, kind: ObjectKind, name: str, *, namespace: str = "", uid: str = "", revision: str = ""
    ) -> None:
        """Delete an object; with *uid* and *revision* only if it still has them."""
        seen = {"uid": uid, "resourceVersion": revision} if uid else {}
        body = {"preconditions": seen} if seen else None
        decode(await self._request("DELETE", kind.path(name, namespace=namespace), body=body))

    async def list(self, kind: ObjectKind, *, namespace: str = "", fields: str = "") -> Listing:
        """Return all objects, or those that the field selector *fields* selects."""
        items: list[Object] = []
        revision = ""
        async for page in self.pages(kind, namespace=namespace, fields=fields):
            items += map(decode, page.items)
            revision = page.revision
        return Listing(items=items, revision=revision)

    async def pages(
        self, kind: ObjectKind, *, namespace: str = "", fields: str = ""
    ) -> AsyncGenerator[Page]:
        """Yield all objects, or those that *fields* select, page by page."""
        query = {"limit": str(PAGE), **_selector(fields)}
        while True:
            text = await self._request("GET", kind.path(namespace=namespace), query=query)
            try:
                found = msgspec.json.decode(text, type=_Page)
            except JSON_ERRORS as error:
                raise APIError(
                    f"the answer is malformed: it is no list: {json_problem(error)}"
                ) from error
            more = found.metadata.rest
            yield Page(items=found.items or [], revision="" if more else found.metadata.revision)
            if not more:
                return
            query = {**query, "continue": more}

    async def watch(
        self, kind: ObjectKind, revision: str, *, namespace: str = "", fields: str = ""
    ) -> AsyncGenerator[tuple[str, Raw]]:
        """Yield the changes of objects after a revision, until the server ends the watch.

        `ADDED`, `MODIFIED` or `DELETED` with the object, and `BOOKMARK` with a revision to watch
        from later. Silence of the server for longer than a watch lasts is an error.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_PERIOD),
            "resourceVersion": revision,
            **_selector(fields),
        }
        path = kind.path(namespace=namespace)
        rest = b""
        try:
            http = await self._open_client()
            timeout = WATCH_PERIOD + self._patience
            async with http.stream("GET", path, params=query, timeout=timeout) as response:
                await _check(response)
                async for some in response.aiter_bytes():
                    *lines, rest = (rest + some).split(b"\n")
                    for line in lines:
                        yield _event(line)
        except APIError:
            raise
        except failures() as error:
            raise APIError(_text(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()

    async def _open_client(self) -> AsyncClient:
        async with self._connecting:
            if self._http is None:
                self._http = await asyncio.to_thread(self._connect)
        return self._http

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content: str = "application/json",
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        sent = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": content}
        try:
            http = await self._open_client()
            async with asyncio.timeout(self._patience):
                response = await http.request(
                    method, path, params=query, headers=headers, content=sent
                )
        except TimeoutError as error:
            raise APIError(f"no answer within {self._patience:g} s") from error
        except failures() as error:
            raise APIError(_text(error)) from error
        await _check(response)
        return response.content


async def _check(response: Response) -> None:
    """Raise APIError if an answer is an error."""
    if response.status_code >= BAD_REQUEST:
        await response.aread()
        raise _error(response)


def _manager(name: str) -> dict[str, str]:
    return {"fieldManager": name} if name else {}


def _selector(fields: str) -> dict[str, str]:
    return {"fieldSelector": fields} if fields else {}


def decode(text: bytes | Raw) -> Object:
    """Return the object in a JSON text; raises APIError."""
    try:
        found = msgspec.json.decode(text)
    except JSON_ERRORS as error:
        raise APIError(f"the answer is malformed: {json_problem(error)}") from error
    if not isinstance(found, dict):
        raise APIError("the answer is malformed: it is no object")
    return found


def _event(line: bytes) -> tuple[str, Raw]:
    """Decode a line of a watch; raises APIError, also if the line is an error."""
    try:
        event = msgspec.json.decode(line, type=_Event)
    except JSON_ERRORS as error:
        raise APIError(f"the answer is malformed: {json_problem(error)}") from error
    if event.type == "ERROR":
        status = decode(event.object)
        raise _status(status, status.get("code", 0))
    return event.type, event.object


def _error(response: Response) -> APIError:
    """Return the APIError for an answer."""
    after = response.headers.get("Retry-After", "")
    wait = min(float(after), _MAX_WAIT) if after.isdecimal() else 0.0
    code = response.status_code
    try:
        return _status(decode(response.content), code, wait)
    except APIError:  # not from the API server, but from something before it: show only plain text
        plain = response.headers.get("Content-Type", "").startswith("text/plain")
        text = response.text if plain else ""
        return APIError(f"{code}: {_short(text) or _phrase(code)}", code=code, wait=wait)


def _status(status: Mapping[str, Any], code: int, wait: float = 0.0) -> APIError:
    details, message = status.get("details"), status.get("message")
    return APIError(
        f"{code}: {_short(str(message or '')) or _phrase(code)}",
        code=code,
        reason=str(status.get("reason", "")),
        details=details if isinstance(details, dict) else {},
        wait=wait,
    )


def _phrase(code: int) -> str:
    return responses.get(code, "an error without a message")


def _text(error: Exception) -> str:
    return connection_problem(error) or _short(str(error)) or type(error).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:_MAX_TEXT]
