"""Examples of what the commands are used for, for their help and the manual page."""

from __future__ import annotations

from typing import NamedTuple

import click

from nri_policy.foundation.shipped import shipped


class Example(NamedTuple):
    """A command line and its purpose."""

    line: str
    purpose: str


_CLUSTER = '"zone:2 rack:4 host:16 cpu:64 memory:256Gi socket:2 numa:2"'

_PLAIN = {
    "run": {
        "nri-policy run": "with the default paths, as the service does",
        "nri-policy run --settings new.yaml --log-format json": "other settings, a JSON log",
        "nri-policy run --host-root /host --node-name node-17": "in a pod that has the host there",
    },
    "doctor": {
        "nri-policy doctor": "before the first start, and whenever something looks wrong",
        "nri-policy doctor --settings new.yaml": "would these settings work here?",
        "nri-policy doctor -o json": "for a program: exit code 1 if anything has to be done",
    },
    "status": {
        "nri-policy status": "is it connected, and were the latest settings accepted?",
        "nri-policy status -o json": "the same for programs",
    },
    "pools": {
        "nri-policy pools": "what is where, and what is left in each part of the machine",
        "nri-policy pools -o svg > pools.svg": "the same as a picture",
        "nri-policy pools -o html > pools.html": "as a page with details",
    },
    "containers": {
        "nri-policy containers": "what each container has, and which were refused",
        "nri-policy containers web": "those of one pod",
        "nri-policy containers -o json": "the same for programs",
    },
    "explain": {
        "nri-policy explain web": "each container of the pod web in the namespace default",
        "nri-policy explain database/main": "one container",
        "nri-policy explain prod/database/main": "one in another namespace",
        "nri-policy explain web -o yaml": "every pool that was compared, not only the best five",
    },
    "what-if": {
        "nri-policy what-if -f pod.yaml": "where would this pod go?",
        "nri-policy what-if -f web.yaml --replicas max": "how many of these fit?",
        "nri-policy what-if --settings new.yaml": "what would move under these settings?",
        "nri-policy what-if --settings new.yaml -f pod.yaml": "and would this pod fit then?",
    },
    "history": {
        "nri-policy history --since 2h": "what happened in the last two hours, to all pods?",
        "nri-policy history web --since 03:00 --until 04:00": "to this pod, and from 3 to 4?",
        "nri-policy history --journal state.db -o json": "of another node, for programs",
    },
    "audit": {
        "nri-policy audit": "is every container where it should be? exit code 1 if not",
        "nri-policy audit -o json": "the same for programs",
    },
    "top": {
        "nri-policy top": "which containers run where, live, until q",
        "nri-policy top --control-socket /tmp/node/control.sock": "of a simulated node",
    },
    "nrt": {
        "nri-policy nrt": "what schedulers are told about this node",
        "nri-policy nrt -o yaml": "the whole object",
    },
    "cluster run": {
        "nri-policy cluster run --kubeconfig admin.conf": "for a kube-scheduler on the same host",
        "nri-policy cluster run --settings placement.yaml --listen :: --tls-cert tls.crt"
        " --tls-key tls.key --client-ca ca.crt": "in a pod, for kube-schedulers of that authority",
    },
    "cluster fit": {
        "nri-policy cluster fit -f pod.yaml": "which nodes' zones would hold this pod now?",
        "nri-policy cluster fit -f pod.yaml --cluster cluster.json": "in a cluster from a file",
        f"nri-policy cluster fit -f pod.yaml --synthetic {_CLUSTER}": (
            "in a cluster that does not exist"
        ),
    },
    "cluster top": {
        "nri-policy cluster top --kubeconfig admin.conf": "which groups run, and which wait?",
        "nri-policy cluster top --kubeconfig admin.conf --watch": "the same, again every second",
    },
    "cluster tree": {
        "nri-policy cluster tree --cluster cluster.json": "what is free, what is left out?",
        f"nri-policy cluster tree --synthetic {_CLUSTER} -o html > tree.html": (
            "a page, of a cluster that does not exist"
        ),
    },
    "cluster place": {
        "nri-policy cluster place -f pod.yaml --cluster cluster.json": "where would it go?",
        f"nri-policy cluster place -f configs/groups/training.yaml --synthetic {_CLUSTER}": (
            "in a cluster that does not exist"
        ),
    },
    "cluster explain": {
        f"nri-policy cluster explain -f configs/groups/training.yaml --synthetic {_CLUSTER}": (
            "what fits where, what limits, and what would help"
        ),
        "nri-policy cluster explain prod/training --cluster cluster.json": "a group of the cluster",
    },
    "cluster plan": {
        "nri-policy cluster plan render --cluster configs/groups/crowded.yaml": (
            "which pods would have to move so that it starts?"
        ),
        "nri-policy cluster plan prod/training --moves 3 --cluster cluster.json": (
            "the same, with 3 pods at most"
        ),
    },
    "cluster simulate": {
        f"nri-policy cluster simulate configs/groups/failure.yaml --synthetic {_CLUSTER}": (
            "what becomes of a job when one of its nodes fails?"
        ),
        "nri-policy cluster simulate --workload configs/groups/workload.yaml"
        f" --synthetic {_CLUSTER}": ("how long do jobs wait that come and go?"),
    },
    "config check": {
        "nri-policy config check settings.yaml": "are these settings good, and what do they set?",
        "nri-policy config check settings.yaml --host-root /": "would the daemon start here?",
        "nri-policy config check settings.yaml --capture node-17.tar.xz": "and on that machine?",
    },
    "config show": {
        "nri-policy config show": "the settings of the running daemon, and where each was set",
        "nri-policy config show -o yaml": "the same for programs",
    },
    "config reload": {
        "nri-policy config reload": "read the settings again now, and print the result",
    },
    "config sample": {
        "nri-policy config sample > settings.yaml": "every field, with what it does",
    },
    "demo": {
        "nri-policy demo": "what does it do? nine steps on a simulated node",
        "nri-policy demo --stay /tmp/node": (
            "the same, and ask: nri-policy explain database --control-socket /tmp/node/control.sock"
        ),
    },
    "simulate": {
        "nri-policy simulate scenario.yaml": "on this machine's hardware",
        'nri-policy simulate scenario.yaml --synthetic "package:2 numa:2 core:8 pu:2"': (
            "on a machine that does not exist"
        ),
        "nri-policy simulate scenario.yaml --capture node-17.tar.xz -o html > played.html": (
            "on a captured machine, as a page to click through"
        ),
        "nri-policy simulate scenario.yaml --stay /tmp/node": (
            "keep the node running: ask it with --control-socket /tmp/node/control.sock"
        ),
    },
    "replay": {
        "nri-policy replay /var/lib/nri-policy": "does every decision come out as recorded?",
        "nri-policy replay /var/lib/nri-policy --settings new.yaml": (
            "what would these settings have done?"
        ),
        "nri-policy replay state.db --capture bigger-node.tar.xz": "and on another machine?",
    },
    "topology": {
        "nri-policy topology": "this machine, and its pools",
        'nri-policy topology --synthetic "package:2 numa:4 core:8 pu:2" -o svg > node.svg': (
            "a picture of one that does not exist"
        ),
        "nri-policy topology --capture node-17.tar.xz --settings settings.yaml": (
            "with the reserved and the available CPUs"
        ),
    },
    "capture": {
        "nri-policy capture node.tar.xz": "this machine, for a bug report or a simulation",
        "nri-policy capture node.tar.xz --force": "replace the file",
    },
    "tuner": {
        "nri-policy tuner": "with the default paths, as its service does",
        "nri-policy tuner --host-root /host": "in a pod that has the host there",
    },
    "tunables": {
        "nri-policy tunables": "what is set, for which containers, and what was there before",
        "nri-policy tunables -o json": "the same for a program",
    },
    "restore": {
        "nri-policy restore --dry-run": "what would be restored?",
        "nri-policy restore": "put it back, after daemon and tuner were stopped for good",
    },
}

# by the command's path
EXAMPLES = {
    path: [Example(line, purpose) for line, purpose in lines.items()]
    for path, lines in _PLAIN.items()
}


def show(command: click.Command, path: str) -> None:
    """Append examples to the help of a command and of its subcommands."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            show(inner, f"{path} {name}")
        return
    lines = [f"  {line}\n      {purpose}" for line, purpose in EXAMPLES[path]]
    named = any("configs/" in line for line in lines)
    where = ["", f"  configs/ is in {shipped()}"] if named else []
    command.epilog = "\n".join(["\b", "Examples:", *lines, *where])
