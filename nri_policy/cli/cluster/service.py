"""Asking the running service of the cluster side, over its own port."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct

from nri_policy.cli.failure import Exit, Failure
from nri_policy.foundation.tls import accept_what_kubectl_accepts
from nri_policy.foundation.wording import quoted
from nri_policy.kube.errors import connection_problem

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PATIENCE = 10.0  # seconds
_ASK = "Ask the running service at https://HOST:8443, which also counts its promises."
_MAX_TEXT = 300  # characters of an answer that is an error

_Type = TypeVar("_Type")


class ServiceClient(Struct, frozen=True):
    """Address and credentials of the cluster service."""

    url: str
    ca: Path | None
    certificate: Path | None
    key: Path | None

    def ask(self, verb: str, document: object, answer: type[_Type]) -> _Type:
        """Return what it answers to *verb*; raises Failure, and click.UsageError."""
        where = urlsplit(self.url)
        if where.scheme not in ("http", "https") or not where.hostname:
            raise click.UsageError(f"--service: {quoted(self.url)} is not http(s)://HOST:PORT")
        body = msgspec.json.encode(document)
        try:
            connection = self._connection(where.scheme, where.hostname, where.port)
            connection.request("POST", f"/{verb}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            connection.close()
            if response.status != http.client.OK:
                text = " ".join(content.decode(errors="replace").split())[:_MAX_TEXT]
                raise Failure(f"{self.url}: {response.status}: {text}", Exit.UNREACHABLE)
            return msgspec.json.decode(content, type=answer)
        except OSError as error:
            problem = connection_problem(error) or type(error).__name__
            raise Failure(f"{self.url}: {problem}", Exit.UNREACHABLE) from error
        except (http.client.HTTPException, msgspec.DecodeError) as error:
            raise Failure(
                f"{self.url}: its answer is not one of this service", Exit.UNREACHABLE
            ) from error

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_PATIENCE)
        context = ssl.create_default_context(cafile=self.ca)
        accept_what_kubectl_accepts(context)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return http.client.HTTPSConnection(host, port, timeout=_PATIENCE, context=context)


def service_options(command: Callable[..., Any], use: str = _ASK) -> Callable[..., Any]:
    """Give *command* the options that name the service; *use* is the help of `--service`."""

    @wraps(command)
    def with_client(
        *args: Any,
        service: str | None,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        **named: Any,
    ) -> Any:
        client = None if service is None else ServiceClient(service, ca, cert, key)
        return command(*args, service=client, **named)

    for option in (
        click.option("--key", type=_FILE, help="The certificate's key."),
        click.option("--cert", type=_FILE, help="The client certificate for the service."),
        click.option("--ca", type=_FILE, help="Certificate authority of the service."),
        click.option("--service", metavar="URL", help=use),
    ):
        with_client = option(with_client)
    return with_client
