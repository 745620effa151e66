"""`kubectl nri-policy`: asks the daemon on a pod's node, with nothing but kubectl.

kubectl runs it as a plugin, by the name of its program. It has kubectl find the pod's node and the
daemon's pod there, and execute the command of nri-policy in it, as far as RBAC allows that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TextIO

import click
from msgspec import Struct

from nri_policy.cli import CommandGroup
from nri_policy.cli.failure import Exit, Failure
from nri_policy.foundation.wording import printable
from nri_policy.kube.why import WHY

_LABEL = "app.kubernetes.io/name"
# Its values, which are also the names of the daemon's container: ours, and nri-plugins' (docs/
# migration.md, By the image alone).
_NAMES = ("nri-policy", "nri-resource-policy-topology-aware")
_ENDED = "command terminated with exit code "  # what kubectl adds where the command's was not 0
_NO_PROGRAM = "executable file"  # of runc's and crun's words for an image without it
_LOGGED = re.compile(r"[IWEF]\d{4} [\d:.]+ +\d+ \S+\] ")  # what kubectl logs before it fails
_OPERATORS = {
    "In": "{key} in{values}",
    "NotIn": "{key} notin{values}",
    "Exists": "{key}",
    "DoesNotExist": "!{key}",
}
_WORKLOADS = {
    *("deploy", "deployment", "deployments", "sts", "statefulset", "statefulsets"),
    *("ds", "daemonset", "daemonsets", "rs", "replicaset", "replicasets", "job", "jobs"),
}
_ALLOW = "docs/kubernetes.md, From kubectl, has the rights that this takes"


class DaemonLocation(Struct, frozen=True, kw_only=True):
    """Where the daemon runs."""

    pod: str
    container: str


class KubectlCluster(Struct, frozen=True, kw_only=True):
    """The cluster that kubectl talks to."""

    options: Sequence[str]  # of kubectl, that say which it is
    system: str  # the namespace of the daemon's pods

    def get(self, *asked: str) -> Any:
        """Return what `kubectl get` returns; Failure in its words."""
        done = self._run(["get", *asked, "-o", "json"], capture_output=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if not _LOGGED.match(line)]
            text = "\n".join(lines).strip() or f"kubectl exits with {done.returncode}"
            raise Failure(f"{text}; {_ALLOW}" if "(Forbidden)" in text else text)
        return json.loads(done.stdout)

    def pod_of(self, kind: str, name: str, where: Sequence[str]) -> Any:
        """Return a pod of a workload: one that is on a node, if there is one; or Failure."""
        selector = self.get(kind, name, *where)["spec"]["selector"]
        terms = [f"{key}={value}" for key, value in selector.get("matchLabels", {}).items()]
        for each in selector.get("matchExpressions", []):
            values = f" ({','.join(each['values'])})" if each.get("values") else ""
            terms.append(_OPERATORS[each["operator"]].format(key=each["key"], values=values))
        pods = self.get("pods", "-l", ",".join(terms), *where)["items"]
        if not pods:
            raise Failure(f"{kind}/{name} has no pods")
        pods.sort(key=lambda each: (not each["spec"].get("nodeName"), each["metadata"]["name"]))
        if len(pods) > 1:
            chosen = pods[0]["metadata"]["name"]
            click.echo(f"{kind}/{name} has {len(pods)} pods; this is about {chosen}", err=True)
        return pods[0]

    def daemon_on(self, node: str) -> DaemonLocation:
        """Return the daemon's pod on a node: ours, before one of nri-plugins' DaemonSet."""
        where = f"spec.nodeName={node},status.phase=Running"
        label = f"{_LABEL} in ({','.join(_NAMES)})"
        found = self.get("pods", "-n", self.system, "-l", label, "--field-selector", where)
        pods = [
            DaemonLocation(pod=str(metadata["name"]), container=metadata["labels"][_LABEL])
            for metadata in (each["metadata"] for each in found["items"])
        ]
        if not pods:
            raise Failure(
                f"no pod of nri-policy runs on node {node}: none in {self.system} has the label"
                f" {_LABEL} with the value {' or '.join(_NAMES)} (--daemon-namespace)",
                Exit.UNREACHABLE,
            )
        return min(pods, key=lambda each: _NAMES.index(each.container))

    def may_execute(self) -> bool:
        """Return whether the user may execute commands in the daemon's pods."""
        asked = ["auth", "can-i", "create", "pods/exec", "-n", self.system, "--quiet"]
        return not self._run(asked, capture_output=True).returncode

    def execute(self, daemon: DaemonLocation, command: Sequence[str], given: str | None) -> int:
        """Execute a command in the daemon's pod, with a text as its input; return its exit code."""
        held = ["exec", "-n", self.system, daemon.pod, "-c", daemon.container]
        stdin = [] if given is None else ["-i"]
        done = self._run(
            [*held, *stdin, "--", "env", *_environment(), *command],
            input=given,
            stderr=subprocess.PIPE,
        )
        for line in done.stderr.splitlines():
            if not line.startswith(_ENDED):
                click.echo(line, err=True)
        if "(Forbidden)" in done.stderr:
            click.echo(_ALLOW, err=True)
        if _NO_PROGRAM in done.stderr and daemon.container != _NAMES[0]:
            click.echo(f"the image of pod {daemon.pod} is still that of nri-plugins", err=True)
        return done.returncode

    def _run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise Failure("kubectl is not in PATH")
        sys.stdout.flush()
        whole = [kubectl, *self.options, *command]
        return subprocess.run(whole, check=False, text=True, **how)  # noqa: S603 - the user is its own


def _environment() -> list[str]:
    """Return what a command elsewhere must know of our terminal and our clock, as variables."""
    east = time.strftime("%z")  # +0530; TZ counts to the west (POSIX.1-2017, 8.3)
    known = {
        "COLUMNS": os.environ.get("COLUMNS", ""),
        "NO_COLOR": os.environ.get("NO_COLOR", ""),
        "TZ": f"<{east}>{'-' if east[0] == '+' else '+'}{east[1:3]}:{east[3:]}",
    }
    if sys.stdout.isatty():
        known["COLUMNS"] = str(shutil.get_terminal_size().columns)
        if not known["NO_COLOR"]:
            known |= {"FORCE_COLOR": "1", "TERM": os.environ.get("TERM", "")}
    return [f"{name}={value}" for name, value in known.items() if value]


class KubectlTarget(Struct, frozen=True, kw_only=True):
    """The pod and the node that a command is about."""

    node: str
    name: str = ""  # NAMESPACE/POD or NAMESPACE/POD/CONTAINER
    pod: Any = None  # the object, where it says on which node it is


def _parse_target(cluster: KubectlCluster, target: str, namespace: str, node: str) -> KubectlTarget:
    """Find out which pod is meant, and where it is; a *node* comes before the pod's own.

    A pod that is named with its namespace and node may be gone.
    """
    if not target:
        if not node:
            raise click.UsageError("name a pod, NAMESPACE/POD, or a node by --node")
        return KubectlTarget(node=node)
    parts = target.split("/")
    workload = len(parts) == 2 and parts[0] in _WORKLOADS and all(parts)
    if len(parts) > 1 and not namespace and not workload:
        namespace, *parts = parts
    if not all([*parts, target]) or len(parts) > 2:
        raise click.UsageError(
            f"{target} is not [NAMESPACE/]POD, NAMESPACE/POD/CONTAINER, or KIND/NAME of a workload"
        )
    where = ["-n", namespace] if namespace else []
    if node and namespace and not workload:
        return KubectlTarget(node=node, name="/".join([namespace, *parts]))
    if workload:
        pod = cluster.pod_of(parts[0], parts[1], where)
        parts = [pod["metadata"]["name"]]
    else:
        pod = cluster.get("pod", parts[0], *where)
    node = node or str(pod["spec"].get("nodeName") or "")
    name = "/".join([pod["metadata"]["namespace"], *parts])
    if not node:
        raise Failure(
            f"pod {name} is on no node yet: kubectl describe pod says why; with what-if and --node"
            " you can ask if it would fit on one"
        )
    return KubectlTarget(node=node, name=name, pod=pod)


def _manifest(pod: Any) -> str:
    """Return what makes a pod like this one."""
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: pod["metadata"][key] for key in kept if key in pod["metadata"]}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}
    )


def _about_a_pod(command: Callable[..., int]) -> Callable[..., None]:
    """Give *command* the cluster, the pod and node that are asked about, and what is passed on."""

    @click.argument(
        "arguments",
        nargs=-1,
        type=click.UNPROCESSED,
        metavar="[[NAMESPACE/]POD|KIND/NAME] [OPTION]...",
    )
    @click.option("-n", "--namespace", default="", help="The pod's namespace.")
    @click.option("--node", default="", help="The node to ask.  [default: the pod's]")
    @click.option("--context", "kubectl_context", default="", help="Context of the kubeconfig.")
    @click.option("--kubeconfig", default="", help="The kubeconfig to use.")
    @click.option(
        "--daemon-namespace",
        default="kube-system",
        show_default=True,
        help="Namespace of the daemon's pods.",
    )
    @wraps(command)
    def about_a_pod(  # noqa: PLR0913 - one for each option
        *,
        arguments: Sequence[str],
        namespace: str,
        node: str,
        kubectl_context: str,
        kubeconfig: str,
        daemon_namespace: str,
        **named: Any,
    ) -> None:
        given = {"--context": kubectl_context, "--kubeconfig": kubeconfig}
        options = [f"{option}={value}" for option, value in given.items() if value]
        cluster = KubectlCluster(options=options, system=daemon_namespace)
        named_pod = arguments[:1] if arguments and not arguments[0].startswith("-") else ()
        asked = _parse_target(cluster, "".join(named_pod), namespace, node)
        click.get_current_context().exit(
            command(cluster, asked, arguments[len(named_pod) :], **named)
        )

    return about_a_pod


_PASSED_ON = {"ignore_unknown_options": True}  # unknown options go to the daemon's command


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nri-policy")
def main() -> None:
    """Ask nri-policy on a pod's node.

    Instead of a pod, a workload may be named as deploy/NAME, sts/NAME, ds/NAME, rs/NAME or job/NAME
    of --namespace: one of its pods is taken.

    Options that a command does not know are passed on to the daemon's command of that name.
    """


def _command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of the plugin; it has the daemon's command of that *name* executed."""
    epilog = (
        f"Other options, such as -o json, are passed on to `nri-policy {name}`: they are in"
        f" `nri-policy {name} --help` and its manual page, docs/nri-policy.1."
    )
    return main.command(name, context_settings=_PASSED_ON, epilog=epilog)


@_command("explain")
@_about_a_pod
def explain(cluster: KubectlCluster, asked: KubectlTarget, passed: Sequence[str]) -> int:
    """Explain why a pod's containers are where they are.

    If you may not execute commands in the daemon's pods, and the settings have podExplanations on,
    this shows the pod's annotation.
    """
    if not asked.name:
        raise click.UsageError("name a pod, NAMESPACE/POD")
    annotations = asked.pod["metadata"].get("annotations", {}) if asked.pod else {}
    if WHY in annotations and not passed and not cluster.may_execute():
        click.echo(printable(annotations[WHY]))
        click.echo(f"from the pod's annotation {WHY}, which can be minutes old", err=True)
        return 0
    return _ask(cluster, asked, ["explain", asked.name, *passed])


@_command("what-if")
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.File(),
    multiple=True,
    help="Manifests of pods; - for stdin. May be repeated.",
)
@_about_a_pod
def what_if(
    cluster: KubectlCluster, asked: KubectlTarget, passed: Sequence[str], files: Sequence[TextIO]
) -> int:
    """Show where one more such pod would go on a node."""
    if files:
        manifest = "\n---\n".join(each.read() for each in files)
    elif asked.name:
        namespace, name, *_ = asked.name.split("/")
        manifest = _manifest(asked.pod or cluster.get("pod", name, "-n", namespace))
    else:
        raise click.UsageError("name a pod, NAMESPACE/POD, or manifests by -f")
    return _ask(cluster, asked, ["what-if", "-f", "-", *passed], manifest)


@_command("containers")
@_about_a_pod
def containers(cluster: KubectlCluster, asked: KubectlTarget, passed: Sequence[str]) -> int:
    """Show what each container of a pod has.

    With --node alone, of all pods there.
    """
    return _ask(cluster, asked, ["containers", *filter(None, [asked.name]), *passed])


@_command("history")
@_about_a_pod
def history(cluster: KubectlCluster, asked: KubectlTarget, passed: Sequence[str]) -> int:
    """Show what happened to a pod's containers.

    With --node alone, to all there; with --node, a pod of NAMESPACE/POD may be gone.
    """
    return _ask(cluster, asked, ["history", *filter(None, [asked.name]), *passed])


@_command("pools")
@_about_a_pod
def pools(cluster: KubectlCluster, asked: KubectlTarget, passed: Sequence[str]) -> int:
    """Show the pools of a pod's node, and what is left."""
    return _ask(cluster, asked, ["pools", *passed])


@_command("status")
@_about_a_pod
def status(cluster: KubectlCluster, asked: KubectlTarget, passed: Sequence[str]) -> int:
    """Show the state of the daemon on a pod's node."""
    return _ask(cluster, asked, ["status", *passed])


def _ask(
    cluster: KubectlCluster, asked: KubectlTarget, command: Sequence[str], given: str | None = None
) -> int:
    return cluster.execute(cluster.daemon_on(asked.node), ["nri-policy", *command], given)


def plugin() -> None:
    """Run as kubectl runs it."""
    main(prog_name="kubectl nri-policy")
