"""Free ports, for programs that take the port as an option."""

from __future__ import annotations

import socket

_PORTS = range(20_000, 30_000)  # the kernel gives connections those from 32768 on
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port that nobody listens on, and that no test is given as long as we run.

    Between two tests that run at once a name that one process can bind decides.
    """
    for port in _PORTS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0nri-policy-tests-port-{port}")
            with socket.create_server(("", port)):
                pass
        except OSError:  # it is another's
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError(f"all ports of {_PORTS} are taken")
