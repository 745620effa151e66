"""Following objects: what there is, and then whatever becomes of it, with no gap in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http.client import GONE

from nri_policy.kube.client import Client, Kind, Listing, Object
from nri_policy.kube.errors import APIError

_PAUSE = 1.0  # seconds between two watches: a server that ends each at once is not to be flooded


async def follow(
    client: Client,
    kind: Kind,
    *,
    namespace: str = "",
    name: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Listing | tuple[str, Object]]:
    """Yield all objects of a kind, or that of one *name*, then each change, for ever.

    Changes are `ADDED`, `MODIFIED` or `DELETED` with the object. A watch that the server ends goes
    on where it was; if the server no longer knows that point, all objects come again. APIError:
    begin anew, for what has changed since is not known.
    """
    while True:
        listing = await client.list(kind, namespace=namespace, name=name)
        yield listing
        revision: str | None = listing.revision
        while revision is not None:
            events = client.watch(kind, revision, namespace=namespace, name=name)
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


def _revision(found: Object) -> str:
    try:
        return str(found["metadata"]["resourceVersion"])
    except (KeyError, TypeError) as error:
        raise APIError("the answer is malformed: it has no resourceVersion") from error
