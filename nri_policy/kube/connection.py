"""The address and the credentials of the cluster: a kubeconfig, or our pod's service account.

lightkube reads these, and does TLS and tokens; only this module knows it. It is large, so it is
imported only if there is a cluster: in `access`, completely, before other threads run, because two
threads that import parts of it at the same time deadlock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nri_policy.foundation import yamltext
from nri_policy.foundation.tls import accept_what_kubectl_accepts
from nri_policy.foundation.wording import problem_of
from nri_policy.foundation.yamltext import YAMLTextError
from nri_policy.kube.errors import KubeconfigError

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from lightkube.config.kubeconfig import SingleConfig

Connect = Callable[[], "AsyncClient"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TEXT = 300  # characters of an error's text


def access(kubeconfig: Path | None) -> Connect | None:
    """Return a function that connects to the cluster; None if no cluster is known.

    The function may take long, and raise any of `failures`. Raises KubeconfigError if the named
    *kubeconfig* is unusable.
    """
    if kubeconfig is not None:
        connection = _connect(kubeconfig)
        return lambda: connection
    if "KUBERNETES_SERVICE_HOST" in os.environ and (_SERVICE_ACCOUNT / "token").exists():
        import lightkube.config.client_adapter  # noqa: F401, PLC0415 - see above

        return lambda: _connect(None)
    return None


def describe(kubeconfig: Path) -> str:
    """Return the server and the context of a *kubeconfig* that was connected to."""
    from lightkube import KubeConfig  # noqa: PLC0415 - see above

    config = KubeConfig.from_file(kubeconfig).get()
    assert config is not None
    return f"{config.cluster.server} (context {config.context_name})"


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of connecting and of requests.

    The errors of the HTTP library (its two base classes) and of the system, and of reading
    credentials: lightkube's own, and ValueError for bad output of a program in the kubeconfig.
    """
    from httpx2 import HTTPError, StreamError  # noqa: PLC0415 - see above
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415 - see above

    return HTTPError, StreamError, OSError, ConfigError, ValueError


def _connect(kubeconfig: Path | None) -> AsyncClient:
    from lightkube import KubeConfig  # noqa: PLC0415 - see above

    requests = logging.getLogger("httpx2")  # it logs a line at INFO for each request
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.WARNING)
    if kubeconfig is None:
        service_account = KubeConfig.from_service_account(_SERVICE_ACCOUNT)
        return _make_client(service_account.get())
    try:
        return _make_client(KubeConfig.from_file(kubeconfig).get())
    except Exception as error:  # lightkube, ssl and httpx2 raise almost anything for bad parts
        text = _malformed(kubeconfig) or " ".join(_problem(error).split())[:_MAX_TEXT]
        text = text or type(error).__name__
        raise KubeconfigError(f"--kubeconfig {kubeconfig}: {text}") from error


def _make_client(config: SingleConfig | None) -> AsyncClient:
    from httpx2 import AsyncClient  # noqa: PLC0415 - see above
    from lightkube.config.client_adapter import ConnectionParams  # noqa: PLC0415 - see above

    arguments = ConnectionParams().httpx_params(config)  # type: ignore[arg-type]  # or it raises
    accept_what_kubectl_accepts(arguments["verify"])
    return AsyncClient(**arguments)


def _problem(error: Exception) -> str:
    """Return what an error of lightkube says about the kubeconfig."""
    match error:
        case KeyError(args=(str() as name,)):
            return f"{name}: missing; it is not a kubeconfig, or not complete"
        case AttributeError() | TypeError():
            return f"it is not a kubeconfig, or a part has the wrong form ({error})"
        case FileNotFoundError() | PermissionError() if not error.filename:
            return f"a file that it names: {problem_of(error)}"
        case _:
            return str(error)


def _malformed(kubeconfig: Path) -> str:
    """Return the error in the text of a kubeconfig; empty if the text is not the problem."""
    try:
        yamltext.read(kubeconfig.read_bytes())
    except (YAMLTextError, OSError) as error:
        return str(error) if isinstance(error, YAMLTextError) else ""
    return ""
