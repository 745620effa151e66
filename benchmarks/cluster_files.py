"""Time the commands that read a cluster from a file, with 50,000 nodes and 150,000 pods.

The file is what kubectl prints: the commands need little of it. `--write` writes the
figures of one run into docs/cluster-figures.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from textwrap import indent
from typing import Any

from benchmarks.cluster import MIB
from benchmarks.table import additions

NODES, PODS = 50_000, 150_000
MOVABLE = 5  # every fifth pod
LEVELS = "topology.kubernetes.io/zone,example.com/rack,kubernetes.io/hostname"
PAGE = Path(__file__).parent.parent / "docs" / "cluster-figures.md"
PLACE = re.compile(r"(?<=<!-- benchmarks/cluster_files\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TIME = "2026-11-01T10:00:00Z"

Object = dict[str, Any]


def _conditions(true: str, *false: str) -> list[Object]:
    return [
        {
            "lastHeartbeatTime": _TIME,
            "lastTransitionTime": _TIME,
            "message": f"kubelet has looked at {each}",
            "reason": f"KubeletHasLookedAt{each}",
            "status": str(each == true),
            "type": each,
        }
        for each in (*false, true)
    ]


def _node() -> Object:
    amounts = {
        "cpu": "64",
        "ephemeral-storage": "936398012Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "263412340Ki",
        "nvidia.com/gpu": "8",
        "pods": "110",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "creationTimestamp": _TIME,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "example.com/rack": "@RACK",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": "@NODE",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "gpu-8",
                "topology.kubernetes.io/zone": "@ZONE",
            },
            "name": "@NODE",
            "resourceVersion": "@NUMBER",
            "uid": "@UID",
        },
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "x://@NODE"},
        "status": {
            "addresses": [
                {"address": "10.1.2.3", "type": "InternalIP"},
                {"address": "@NODE", "type": "Hostname"},
            ],
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": _conditions("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [
                {
                    "names": [f"registry.example.com/team/image{each}@sha256:{each:064x}"],
                    "sizeBytes": 123456789,
                }
                for each in range(5)
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "@UID",
                "containerRuntimeVersion": "containerd://2.2.1",
                "kernelVersion": "6.12.57+deb13-amd64",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.36.3",
                "machineID": "@UID",
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 13 (trixie)",
                "systemUUID": "@UID",
            },
        },
    }


def _pod() -> Object:
    access = "kube-api-access-@SUFFIX"
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": {"placement.nri/movable": "@MOVABLE"},
            "creationTimestamp": _TIME,
            "generateName": "@APP-",
            "generation": 1,
            "labels": {"app": "@APP", "pod-template-hash": "7d9f8c6b5"},
            "name": "@APP-@SUFFIX",
            "namespace": "@TEAM",
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "blockOwnerDeletion": True,
                    "controller": True,
                    "kind": "ReplicaSet",
                    "name": "@APP",
                    "uid": "@UID",
                }
            ],
            "resourceVersion": "@NUMBER",
            "uid": "@UID",
        },
        "spec": {
            "containers": [
                {
                    "image": "registry.example.com/team/app:1.2",
                    "imagePullPolicy": "IfNotPresent",
                    "name": "main",
                    "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
                    "resources": {
                        "limits": {"cpu": "2", "memory": "4Gi"},
                        "requests": {"cpu": "1", "memory": "2Gi"},
                    },
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "volumeMounts": [
                        {
                            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                            "name": access,
                            "readOnly": True,
                        }
                    ],
                }
            ],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": True,
            "nodeName": "@NODE",
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccount": "default",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {
                    "effect": "NoExecute",
                    "key": f"node.kubernetes.io/{each}",
                    "operator": "Exists",
                    "tolerationSeconds": 300,
                }
                for each in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": access, "projected": {"defaultMode": 420, "sources": sources}}],
        },
        "status": {
            "conditions": [
                {"lastProbeTime": None, "lastTransitionTime": _TIME, "status": "True", "type": each}
                for each in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "containerID": "containerd://@UID",
                    "image": "registry.example.com/team/app:1.2",
                    "imageID": f"registry.example.com/team/app@sha256:{1:064x}",
                    "lastState": {},
                    "name": "main",
                    "ready": True,
                    "restartCount": 0,
                    "started": True,
                    "state": {"running": {"startedAt": _TIME}},
                }
            ],
            "hostIP": "10.1.2.3",
            "phase": "Running",
            "podIP": "10.2.3.4",
            "qosClass": "Burstable",
            "startTime": _TIME,
        },
    }


def _texts() -> Iterator[str]:
    """Yield the items of the list: nodes in racks of 32, pods on random nodes."""
    random = Random(1)
    node, pod = (
        re.split("@([A-Z]+)", indent(json.dumps(each, indent=4), " " * 8))
        for each in (_node(), _pod())
    )
    for number in range(NODES):
        values = {
            "NODE": f"node-{number:06}",
            "RACK": f"rack-{number // 32:05}",
            "ZONE": f"zone-{number // 1600}",
        }
        yield _filled(node, values, random)
    for number in range(PODS):
        values = {
            "APP": f"app-{number // 10}",
            "TEAM": f"team-{number % 40}",
            "SUFFIX": f"{number:06}",
            "NODE": f"node-{random.randrange(NODES):06}",
            "MOVABLE": str(number % MOVABLE == 0).lower(),
        }
        yield _filled(pod, values, random)


def _filled(parts: list[str], values: dict[str, str], random: Random) -> str:
    """Return a text whose every second part is the name of a value."""
    uid = f"{random.getrandbits(128):032x}"
    known = {**values, "UID": uid, "NUMBER": str(random.randrange(10**9))}
    return "".join(known[part] if at % 2 else part for at, part in enumerate(parts))


def write_cluster(path: Path) -> None:
    """Write the nodes and pods into a file as kubectl prints them."""
    with path.open("w") as file:
        file.write('{\n    "apiVersion": "v1",\n    "items": [\n')
        for number, text in enumerate(_texts()):
            file.write(",\n" * bool(number) + text)
        file.write('\n    ],\n    "kind": "List",\n    "metadata": {"resourceVersion": ""}\n}\n')


def _job(cpus: int) -> str:
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpus), "memory": "8Gi"}}}
    topology = {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"}
    template = {
        "metadata": {"annotations": topology},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {"parallelism": 64, "completions": 64, "template": template}
    return json.dumps({"kind": "Job", "metadata": {"name": "train"}, "spec": spec})


def _used(*command: str) -> tuple[float, float]:
    """Return the CPU seconds of a command, and the most memory that it had, in MiB."""
    program = Path(sys.executable).with_name("nri-policy")
    process = subprocess.Popen(
        [program, "cluster", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    with process.stderr as errors:
        assert process.returncode in {0, 1}, errors.read().decode()
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MIB


def measured() -> str:
    """Return what the page says of files."""
    with TemporaryDirectory() as folder:
        cluster, small, large = (Path(folder, name) for name in ("cluster", "small", "large"))
        write_cluster(cluster)
        small.write_text(_job(4))
        large.write_text(_job(40))
        size = cluster.stat().st_size
        of = ("--cluster", str(cluster), "--levels", LEVELS)
        commands = {
            "`place`": ("place", "-f", str(small), *of),
            "`plan`, if the group fits without a move": ("plan", "-f", str(small), *of),
            f"`plan`, if no moves of {PODS // MOVABLE:,} movable pods are enough": (
                *("plan", "-f", str(large), *of),
            ),
            "`explain`, of a group that does not fit": ("explain", "-f", str(large), *of),
            "`tree`": ("tree", *of),
        }
        load = os.getloadavg()[0]
        took = {name: _used(*command) for name, command in commands.items()}
    rows = [
        f"| {name} | {seconds:.1f} s | {most - size / MIB:.0f} MiB |"
        for name, (seconds, most) in took.items()
    ]
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}, at a load average of {load:.1f}, when a Python"
        f" loop of ten million additions took {additions():.2g} s, with a file of {NODES:,} nodes"
        f" and {PODS:,} pods as kubectl prints them ({size / 1e6:.0f} MB):\n\n"
        + "\n".join(("| | CPU time | memory beside the file |", "|---|---|---|", *rows, ""))
    )


def main() -> None:
    made = measured()
    print(made)
    if "--write" in sys.argv:
        PAGE.write_text(PLACE.sub(lambda _: made, PAGE.read_text()))
