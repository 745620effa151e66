"""`nri-policy` that kills itself when a write was carried out: `python -m tests.cluster.dying`.

It sends one write at a time, and dies before its caller has the answer to the last one. Events and
writes that change nothing do not count. It prints that write to stderr: `died of METHOD PATH`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from nri_policy.cli import main
from nri_policy.kube.client import Client, decode

_ask = Client._request
_one = asyncio.Lock()


async def _ask_and_die(self: Client, method: str, path: str, **more: Any) -> bytes:
    if method == "GET" or path.endswith("/events"):
        return await _ask(self, method, path, **more)
    async with _one:
        answer = await _ask(self, method, path, **more)
        asked = (more.get("body") or {}).get("metadata", {})
        revision = decode(answer).get("metadata", {}).get("resourceVersion")
        if revision != asked.get("resourceVersion", ""):
            sys.stderr.write(f"died of {method} {path}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    return answer


if __name__ == "__main__":
    Client._request = _ask_and_die  # type: ignore[method-assign]
    main()
