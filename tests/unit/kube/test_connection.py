"""Where the cluster is: kubeconfigs and service accounts, good and bad."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from httpx2 import StreamError
from lightkube.core.exceptions import ConfigError

from nri_policy.kube import connection as under_test
from nri_policy.kube.client import NODES, Client
from nri_policy.kube.connection import access
from nri_policy.kube.errors import APIError, KubeconfigError
from tests.support.apiserver import APIServer
from tests.support.certificates import demand_rfc5280
from tests.support.patience import HANGS


async def test_in_a_pod_the_service_account_says_how_to_reach_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with APIServer(tmp_path) as server:
        assert access(None) is None
        host, port = server.address
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        (tmp_path / "namespace").write_text("kube-system")
        connect = access(None)
        assert connect is not None
        client = Client(connect, patience=2 * HANGS)
        await client.get(NODES, "node-a")
        server.tokens = {"second"}
        server.token_file.write_text("second")
        await client.get(NODES, "node-a")
        assert len({str(request.headers["authorization"]) for request in server.requests}) == 2
        await client.close()


async def test_an_authority_without_a_key_usage_is_trusted_as_by_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand_rfc5280(monkeypatch)
    async with APIServer(tmp_path) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect, patience=2 * HANGS)
        await client.get(NODES, "node-a")
        await client.close()


async def test_a_service_account_that_is_half_there_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    (tmp_path / "token").write_text("first")
    connect = access(None)
    assert connect is not None
    with pytest.raises(APIError) as error:
        await Client(connect, patience=2 * HANGS).get(NODES, "node-a")
    assert error.value.code == 0


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (ConfigError("Exec login returned 1"), APIError),
        (StreamError("closed"), APIError),
        (PermissionError(13, "Permission denied"), APIError),
        (KeyError("a bug of ours"), KeyError),
    ],
)
async def test_only_what_a_connection_can_fail_by_is_an_answer(
    failure: Exception, shown: type[Exception]
) -> None:
    def connect() -> NoReturn:
        raise failure

    with pytest.raises(shown):
        await Client(connect, patience=2 * HANGS).get(NODES, "node-a")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "a: b",
        "{",
        "[1, 2]",
        "clusters: 7",
        "clusters: []\ncontexts: []\ncurrent-context: none",
        "clusters: [{name: c, cluster: {server: 7}}]\ncontexts: []",
        (
            "clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: none}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
            "current-context: c"
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeconfigError, match=f"--kubeconfig {path}: .+"):
        access(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello", "it is not a kubeconfig, or a part has the wrong form"),
        ("a: b", "clusters: missing; it is not a kubeconfig, or not complete"),
        (
            (
                "clusters:\n"
                "- {name: c, cluster: {server: 'https://x', certificate-authority: none}}\n"
                "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
                "users: [{name: u, user: {}}]\n"
                "current-context: c"
            ),
            "a file that it names: No such file or directory",
        ),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_said(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(KubeconfigError) as raised:
        access(path)
    assert str(raised.value).startswith(f"--kubeconfig {path}: {problem}")


def test_lightkube_is_not_imported_where_there_is_no_cluster() -> None:
    """It is large, and most commands have no use for it."""
    program = (
        "import sys, nri_policy.daemon.process as p; p.access(None); "
        "sys.exit('lightkube' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


IMPORTS = """
import asyncio, sys
from pathlib import Path
from typing import NoReturn
from nri_policy.kube import connection
from nri_policy.kube.client import NODES, Client
connection._SERVICE_ACCOUNT = Path(sys.argv[1])
connect = connection.access(None)
before = set(sys.modules)
async def ask():
    client = Client(connect, patience=600.0)
    await client.get(NODES, "node-a")
    await client.close()
asyncio.run(ask())
late = {name for name in set(sys.modules) - before if name.startswith(("lightkube", "httpx2"))}
sys.exit(f"imported beside others: {sorted(late)}" if late else 0)
"""


async def test_all_is_imported_before_anything_runs_beside_it(tmp_path: Path) -> None:
    """Threads that import parts of lightkube at one time lock each other out."""
    (tmp_path / "namespace").write_text("kube-system")
    async with APIServer(tmp_path) as server:
        host, port = server.address
        where = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", IMPORTS, str(tmp_path)),
            env={**os.environ, **where},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await program.communicate()
    assert program.returncode == 0, said.decode()
