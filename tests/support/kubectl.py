"""kubectl for tests: the cluster is a JSON file, and pods' commands run here.

It takes what the plugin uses, and refuses all else as kubectl does. KUBECTL_CLUSTER names the file:
the pods by namespace, what is `allowed`, and the control `sockets` of the daemons' pods.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def fail(text: str) -> NoReturn:
    sys.exit(text)  # it goes to stderr, and the exit code is 1


class Cluster:
    def __init__(self, state: dict[str, Any]) -> None:
        self.pods: dict[str, dict[str, dict[str, Any]]] = state["pods"]
        self.allowed: list[str] = state["allowed"]
        self.sockets: dict[str, str] = state["sockets"]
        self.workloads: dict[str, dict[str, Any]] = state.get("workloads", {})

    def permit(self, verb: str, resource: str, namespace: str, name: str = "") -> None:
        if f"{verb} {resource} {namespace}" not in self.allowed:
            named = f' "{name}"' if name else ""
            fail(
                f'Error from server (Forbidden): pods{named} is forbidden: User "author" cannot'
                f' {verb} resource "{resource}" in API group "" in the namespace "{namespace}"'
            )

    def get(self, options: argparse.Namespace) -> dict[str, Any]:
        """Return what `get` prints."""
        if options.output != "json":
            fail(f'error: unable to match a printer for the output format "{options.output}"')
        if options.kind == "pod" and options.name:
            self.permit("get", "pods", options.namespace, options.name)
            return self.pod(options.namespace, options.name)
        if options.kind == "deploy" and options.name in self.workloads:
            return self.workloads[options.name]
        if options.kind != "pods" or options.name:
            fail(f'error: the server doesn\'t have a resource type "{options.kind}"')
        self.permit("list", "pods", options.namespace)
        fields = options.field_selector.split(",") if options.field_selector else []
        wanted = [part.split("=") for part in fields]
        label, labelled = _requirement(options.selector)
        found = [
            pod
            for pod in self.pods.get(options.namespace, {}).values()
            if all(_field(pod, path) == value for path, value in wanted)
            and pod["metadata"]["labels"].get(label) in labelled
        ]
        return {"apiVersion": "v1", "kind": "List", "items": found}

    def execute(self, options: argparse.Namespace, command: list[str]) -> int:
        """Run a command of a daemon's pod; return its exit code."""
        pod = self.pod(options.namespace, options.name)
        self.permit("create", "pods/exec", options.namespace, options.name)
        containers = [each["name"] for each in pod["spec"]["containers"]]
        if options.container not in containers:
            fail(f"error: container {options.container} is not valid for pod {options.name}")
        if not command:
            fail("error: you must specify at least one command for the container")
        if options.name not in self.sockets:
            fail(
                "error: Internal error occurred: Internal error occurred: error executing command"
                f' in container: exec: "{command[0]}": executable file not found in $PATH'
            )
        given = sys.stdin.read() if options.stdin else ""
        socket = Path(self.sockets[options.name])
        journal = "history" in command  # which asks no daemon
        where = ["--journal", str(socket.parent)] if journal else ["--control-socket", str(socket)]
        code = _run(command, where, given)
        if code:
            sys.stderr.write(f"command terminated with exit code {code}\n")
        return code

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        if name not in self.pods.get(namespace, {}):
            fail(f'Error from server (NotFound): pods "{name}" not found')
        return self.pods[namespace][name]


def _run(command: list[str], more: list[str], given: str) -> int:
    """Run `env VARIABLE=VALUE... nri-policy ...` in this process; return its exit code."""
    program, *rest = command
    at = rest.index("nri-policy")
    if program != "env" or not all("=" in each for each in rest[:at]):
        fail(f'error: exec: "{program}": executable file not found in $PATH')
    for each in rest[:at]:
        variable, _, value = each.partition("=")
        os.environ[variable] = value
    time.tzset()
    sys.stdin = io.StringIO(given)
    from nri_policy.cli import main as nri_policy  # noqa: PLC0415 - it is large

    try:
        nri_policy([*rest[at + 1 :], *more], prog_name="nri-policy")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _requirement(selector: str) -> tuple[str, list[str]]:
    """Return the label of a selector `KEY=VALUE` or `KEY in (VALUE,...)`, and its values."""
    label, is_set, values = selector.partition(" in ")
    if is_set:
        return label, values.strip("()").split(",")
    label, _, value = selector.partition("=")
    return label, [value]


def _field(pod: dict[str, Any], path: str) -> Any:
    if path not in {"spec.nodeName", "status.phase", "metadata.name", "metadata.namespace"}:
        fail(f"Error from server (BadRequest): field label not supported: {path}")
    part, name = path.split(".")
    return pod[part].get(name)


def main() -> int:
    arguments = sys.argv[1:]
    command: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(prog="kubectl", allow_abbrev=False)
    parser.add_argument("--context")
    parser.add_argument("--kubeconfig")
    verbs = parser.add_subparsers(dest="verb", required=True)
    get = verbs.add_parser("get", allow_abbrev=False)
    get.add_argument("kind")
    get.add_argument("name", nargs="?", default="")
    get.add_argument("-l", "--selector")
    get.add_argument("--field-selector")
    get.add_argument("-o", "--output")
    execute = verbs.add_parser("exec", allow_abbrev=False)
    execute.add_argument("name")
    execute.add_argument("-c", "--container")
    execute.add_argument("-i", "--stdin", action="store_true")
    auth = verbs.add_parser("auth", allow_abbrev=False)
    auth.add_argument("question", choices=["can-i"])
    auth.add_argument("right", nargs=2)
    auth.add_argument("-q", "--quiet", action="store_true")
    for each in (get, execute, auth):
        each.add_argument("-n", "--namespace", default="default")
    options = parser.parse_args(arguments)
    if options.context not in {None, "test"}:
        log = 'E1126 06:00:00.000001    4711 memcache.go:265] "Unhandled Error" err="refused"'
        fail(f'{log}\n{log}\nerror: context "{options.context}" does not exist')
    cluster = Cluster(json.loads(Path(os.environ["KUBECTL_CLUSTER"]).read_text()))
    if options.verb == "auth":
        cluster.permit(options.right[0], options.right[1], options.namespace)
        return 0
    if options.verb == "exec":
        return cluster.execute(options, command)
    sys.stdout.write(json.dumps(cluster.get(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
