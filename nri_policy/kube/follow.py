"""Following objects: what there is, and then whatever becomes of it, with no gap in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http.client import GONE

import msgspec
from msgspec import Raw, Struct

from nri_policy.foundation.mismatch import JSON_ERRORS
from nri_policy.kube.client import Client, Kind, Page
from nri_policy.kube.errors import APIError

_PAUSE = 1.0  # seconds between two watches: a server that ends each at once is not to be flooded


class _Metadata(Struct, rename="camel"):
    resource_version: str


class _Object(Struct):
    metadata: _Metadata


async def follow(
    client: Client,
    kind: Kind,
    *,
    namespace: str = "",
    fields: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Page | tuple[str, Raw]]:
    """Yield all objects of a kind, or those that *fields* select, by pages; then each change.

    Changes are `ADDED`, `MODIFIED` or `DELETED` with the object. A watch that the server ends goes
    on where it was; if the server no longer knows that point, all objects come again. APIError:
    begin anew, for what has changed since is not known.
    """
    while True:
        revision: str | None = None
        async with aclosing(client.pages(kind, namespace=namespace, fields=fields)) as pages:
            async for page in pages:
                revision = page.revision
                yield page
        while revision is not None:
            events = client.watch(kind, revision, namespace=namespace, fields=fields)
            try:
                async with aclosing(events):
                    async for change, about in events:
                        revision = _revision(about)
                        if change != "BOOKMARK":
                            yield change, about
            except APIError as error:
                if error.code != GONE:
                    raise
                revision = None
            await sleep(_PAUSE)


def _revision(found: Raw) -> str:
    try:
        return msgspec.json.decode(found, type=_Object).metadata.resource_version
    except JSON_ERRORS as error:
        raise APIError("the answer is malformed: it has no resourceVersion") from error
