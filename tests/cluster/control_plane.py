"""A Kubernetes control plane on loopback: etcd, kube-apiserver and, where asked for, the others.

All of it runs in one folder, with ports and certificates of its own, and ends with the test. Nodes
are objects, and whoever plays their kubelet does so with `kubelet`'s token; `node` has a real one.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import write_certificates
from tests.support.exchanges import Answered, ask
from tests.support.patience import HANGS
from tests.support.ports import free_port
from tools.control_plane import KUBERNETES, is_at_hand, program

log = logging.getLogger(__name__)

ADMIN = "the-admin"  # tokens
TOLD_AGAIN = 10.0  # seconds between two lines that say what is waited for
STORED_AT_ONCE = 64  # objects, of which etcd takes 128 and 1.5 MiB


class ControlPlane:
    """The programs, as long as it is entered."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[str] = (),
        api_server: Sequence[str] = (),
        release: str = KUBERNETES,
    ) -> None:
        """Have *nodes* whose kubelets have tokens, and an API server with more arguments."""
        self.folder = folder
        self._release = release
        self._nodes = nodes
        self._more = api_server
        self._stack = ExitStack()
        self._ports = {name: free_port() for name in ("etcd", "peer", "api")}
        self.server = f"https://127.0.0.1:{self._ports['api']}"
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._end)
            self._certify()
            self.start_etcd()
            self.start_api_server()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- programs

    def start_etcd(self) -> None:
        """Start the store."""
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self.start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            "--unsafe-no-fsync",
        )

    def start_api_server(self, *more: str) -> None:
        """Start the API server with *more* arguments, and wait until it is ready."""
        keys = self.folder / "service-accounts.pem"
        self.start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--tls-cert-file={self.folder / 'server.pem'}",
            f"--tls-private-key-file={self.folder / 'server.pem'}",
            f"--cert-dir={self.folder}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={keys}",
            f"--service-account-signing-key-file={keys}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",  # nobody resolves the nodes' names
            *self._more,
            *more,
        )
        self.until(lambda: self.ask("GET", "/readyz").status == 200, "the API server is ready")

    def start_controllers(self, *controllers: str) -> None:
        """Start these controllers of the controller manager."""
        self.start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig(ADMIN)}",
            f"--controllers={','.join(controllers)}",
            f"--service-account-private-key-file={self.folder / 'service-accounts.pem'}",
            f"--root-ca-file={self.folder / 'ca.crt'}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def start_scheduler(self, configuration: Mapping[str, Any]) -> None:
        """Start the scheduler with a KubeSchedulerConfiguration."""
        client = {"kubeconfig": str(self.kubeconfig(ADMIN))}
        connection = {"clientConnection": {**configuration.get("clientConnection", {}), **client}}
        elected = {"leaderElection": {"leaderElect": False}}
        path = self.folder / "scheduler.yaml"
        path.write_text(json.dumps({**configuration, **connection, **elected}))
        self.start("kube-scheduler", f"--config={path}", "--secure-port=0", "--v=4")

    def start(self, name: str, *arguments: str, inside: Sequence[str] = ()) -> None:
        """Start a program; what its command begins with is *inside*.

        The test is skipped where the program is not built.
        """
        with (self.folder / f"{name}.log").open("ab") as log:
            self._programs[name] = subprocess.Popen(
                [*inside, self._program(name), *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def stop(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End a program, as its machine's failure would; SIGTERM lets it say so to its clients."""
        process = self._programs.pop(name)
        process.send_signal(how)
        process.wait()

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Let a program do nothing meanwhile: it accepts connections and never answers."""
        process = self._programs[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def store(self, objects: Iterable[tuple[str, Any]]) -> None:
        """Put objects by key into the store, past the API server: where there are very many."""
        url = f"http://127.0.0.1:{self._ports['etcd']}/v3/kv/txn"
        objects = iter(objects)
        while some := [*itertools.islice(objects, STORED_AT_ONCE)]:
            puts = [
                {"request_put": {"key": _base64(f"/registry/{key}"), "value": _base64(item)}}
                for key, item in ((key, json.dumps(each)) for key, each in some)
            ]
            with urlopen(url, json.dumps({"success": puts}).encode()) as answer:
                answer.read()

    def log(self, name: str) -> str:
        """Return what a program has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # ---- asking

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = ADMIN,
        content: str = "application/json",
        timeout: float = 30.0,
    ) -> Answered:
        """Ask the API server; status 0 where it does not answer."""
        return ask(
            self.server,
            self.folder / "ca.crt",
            method,
            path,
            body,
            token=token,
            content=content,
            timeout=timeout,
        )

    def asked(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Ask for what has to succeed; return the object."""
        answer = self.ask(method, path, body, **options)
        assert answer.status in {200, 201, 202}, (method, path, answer)
        return answer.body

    def until(
        self,
        condition: Any,
        what: str,
        *,
        seconds: float = HANGS,
        found: Callable[[], object] = str,
    ) -> None:
        """Wait until *condition* is true; where it never is, say what was *found* instead."""
        began = time.monotonic()
        deadline, said = began + seconds, began
        while not condition():
            for name, process in self._programs.items():
                assert process.poll() is None, f"{name} ended:\n{self.log(name)[-4000:]}"
            now = time.monotonic()
            assert now < deadline, f"not within {seconds:g} s: {what} {found()}"
            if now - said >= TOLD_AGAIN:
                said = now
                log.info("waiting for %.0f s until %s %s", now - began, what, found())
            time.sleep(0.05)

    def apply(self, *arguments: str) -> str:
        """Run kubectl; return what it prints."""
        return self.kubectl("apply", "--server-side=false", *arguments)

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl as the admin; return what it prints."""
        return self.run("kubectl", *arguments, check=check)

    def run(self, *command: str, check: bool = True) -> str:
        """Run a client of the cluster as the admin; return what it prints."""
        environment = os.environ | {
            "KUBECONFIG": str(self.kubeconfig(ADMIN)),
            "HOME": str(self.folder),
            "PATH": f"{self._program('kubectl').parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=HANGS
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def kubeconfig(self, token: str) -> Path:
        """Return a kubeconfig for a token."""
        path = self.folder / f"{token[-32:]}.kubeconfig"
        if path.exists():  # a program that starts may be reading it
            return path
        cluster = {"server": self.server, "certificate-authority": str(self.folder / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # ----

    def _program(self, name: str) -> Path:
        require(name, release=self._release)  # a build takes minutes and needs the network
        return program(name, self._release)

    def _certify(self) -> None:
        write_certificates(self.folder)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "service-accounts.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        lines = [f"{ADMIN},admin,admin,system:masters"]
        lines += [f"{kubelet(node)},system:node:{node},{node},system:nodes" for node in self._nodes]
        (self.folder / "tokens.csv").write_text("\n".join([*lines, ""]))

    def _end(self) -> None:
        for process in self._programs.values():
            process.kill()
        for process in self._programs.values():
            process.wait()


def require(*names: str, release: str = KUBERNETES) -> None:
    """Skip the tests where programs of a release of Kubernetes are not built."""
    for name in names:
        if not is_at_hand(name, release):
            builds = f"NRI_POLICY_KUBERNETES={release} python -m tools.control_plane"
            pytest.skip(f"{name} of Kubernetes {release} is not built: {builds}")


def kubelet(node: str) -> str:
    """Return the token of a node's kubelet."""
    return f"the-kubelet-of-{node}"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
