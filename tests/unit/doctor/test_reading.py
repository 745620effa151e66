"""What is read of a host: below its root only, bounded in size and time, whatever is there."""

from __future__ import annotations

import os
import threading
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from nri_policy.doctor import facts
from nri_policy.doctor.checks import examine
from nri_policy.doctor.facts import gather
from nri_policy.doctor.finding import Verdict
from nri_policy.doctor.host import Host
from nri_policy.doctor.processes import Process, processes
from nri_policy.doctor.runtime_config import RuntimeConfig, runtime_configs
from nri_policy.doctor.sockets import runtime_at
from nri_policy.proto.cri_pb2 import VersionRequest, VersionResponse
from tests.support.patience import HANGS
from tests.unit.doctor.hosts import Made, served, verdicts, worst


def config(made: Made) -> RuntimeConfig:
    host = Host(made.root)
    return runtime_configs(host, processes(host))[0]


def test_links_lead_where_they_lead_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "run/nri").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "run/up").symlink_to("../../../../run/nri")
    (tmp_path / "run/round").symlink_to("round")
    host = Host(tmp_path)
    assert host.path("/var/run/nri/nri.sock") == tmp_path / "run/nri/nri.sock"
    assert host.path("/run/up/x") == tmp_path / "run/nri/x"
    assert host.path("/../../etc") == tmp_path / "etc"
    assert host.read("/run/round") is None


def test_only_ordinary_files_are_read_and_not_without_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_bytes(b"\xff" * (2 << 20))
    host = Host(tmp_path)
    assert [host.read(f"/{name}") for name in ("pipe", "folder", "none")] == [None] * 3
    assert len(host.read("/long") or "") == 1 << 20
    assert host.names("/none") == host.names("/pipe") == []


def test_a_part_that_does_not_come_is_left_behind(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    alone: list[bool] = []

    def hangs(*_: object) -> None:
        alone.append(threading.current_thread().daemon)
        release.wait(HANGS)

    monkeypatch.setattr(facts, "_machine", hangs)
    monkeypatch.setattr(facts, "_power", lambda _: None)  # which reads the machine, too
    monkeypatch.setattr(facts, "_kernel", lambda _: 1 / 0)
    seen = gather(made.where, patience=1)
    release.set()
    assert seen.machine is None
    assert alone == [True], "the program could not end before it"
    assert sorted(seen.unknown) == [
        "kernel: ZeroDivisionError: division by zero",
        "machine: not read within 1 s",
    ]
    found = verdicts(examine(seen), "reading")
    assert worst(found, "machine") is worst(found, "kernel") is Verdict.WARNING


def test_options_are_read_in_both_forms_and_the_last_one_counts() -> None:
    process = Process(1, ("x", "--config", "a", "-c=b", "--other", "--last"))
    assert process.option("--config") == "a"
    assert process.option("--config", "-c") == "b"
    assert process.option("--last") is process.option("--none") is None


def test_imports_come_before_the_file_that_names_them(made: Made) -> None:
    made.write(
        "etc/containerd/config.toml",
        'version = 3\nimports = ["conf.d/*.toml", "/etc/more.toml"]\n'
        '[plugins."io.containerd.nri.v1.nri"]\ndisable = true\nplugin_request_timeout = "5s"\n',
    )
    section = '[plugins."io.containerd.nri.v1.nri"]\n'
    made.write("etc/containerd/conf.d/a.toml", f"version = 2\n{section}disable = true\n")
    made.write("etc/containerd/conf.d/b.toml", f"version = 3\n{section}disable = false\n")
    made.write("etc/containerd/conf.d/c.conf", f"{section}disable = true\n")
    made.write("etc/more.toml", f'imports = ["/etc/more.toml"]\n{section}plugin_path = "/p"\n')
    read = config(made)
    assert (read.nri, read.request_timeout_ms, read.plugin_folder) == (True, 5000, "/p")
    assert [Path(each).name for each in read.files] == [
        "config.toml",
        "a.toml",
        "b.toml",
        "more.toml",
    ]


def test_before_containerd_2_an_import_replaces_a_plugin_as_a_whole(made: Made) -> None:
    text = (
        'version = 2\nimports = ["x.toml"]\n[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n'
    )
    section = '[plugins."io.containerd.nri.v1.nri"]\nplugin_path = "/p"\n'
    made.write("etc/containerd/config.toml", text)
    made.write("etc/containerd/x.toml", f"version = 2\n{section}")
    assert (config(made).nri, config(made).plugin_folder) == (None, "/p")


def test_a_running_containerd_says_where_its_files_are(made: Made) -> None:
    made.process(100, "/k3s/containerd", "-c", "/k3s/config.toml", "-a", "/k3s/x.sock")
    made.write("k3s/config.toml", 'version = 3\n[plugins."io.containerd.nri.v1.nri"]\n')
    read = config(made)
    assert (read.files, read.cri_socket) == (("/k3s/config.toml",), "/k3s/x.sock")
    assert (read.running, read.nri, read.version) == (True, None, 3)


@pytest.mark.parametrize(
    ("containerd", "crio"), [(100, os.getpid()), (os.getpid(), 100)], ids=["cri-o", "containerd"]
)
def test_of_two_runtimes_with_one_nri_socket_the_one_that_listens_is_meant(
    made: Made, tmp_path: Path, containerd: int, crio: int
) -> None:
    path = tmp_path / "nri.sock"
    made.process(containerd, "/usr/bin/containerd")
    made.process(crio, "/usr/bin/crio")
    nri = f'[plugins."io.containerd.nri.v1.nri"]\nsocket_path = "{path}"\n'
    made.write("etc/containerd/config.toml", f"version = 3\n{nri}")
    made.write("etc/crio/crio.conf", f'[crio.nri]\nnri_listen = "{path}"\n')
    with served(path):
        runtimes = gather(replace(made.where, nri_socket=path)).runtimes
    names = {containerd: "containerd", crio: "cri-o"}
    assert [each.name for each in runtimes.configs] == [names[os.getpid()], names[100]]


def test_drop_ins_of_crio_come_in_order(made: Made) -> None:
    made.process(100, "/usr/bin/crio")
    made.write("etc/crio/crio.conf", "[crio.nri]\nenable_nri = true\n[crio.runtime]\n")
    made.write("etc/crio/crio.conf.d/10-a", "[crio.nri]\nenable_nri = false\n")
    made.write(
        "etc/crio/crio.conf.d/20-b",
        '[crio.nri]\nnri_listen = "/run/x"\nnri_plugin_request_timeout = "3s"\n'
        '[crio.runtime]\ncgroup_manager = "cgroupfs"\n',
    )
    read = config(made)
    assert (read.name, read.nri, read.nri_socket) == ("cri-o", False, "/run/x")
    assert (read.request_timeout_ms, read.systemd_cgroups) == (3000, False)


@pytest.mark.parametrize("value", ['"soon"', "true", "[]", '""', "-1"])
def test_what_is_no_duration_leaves_the_default(made: Made, value: str) -> None:
    section = f'[plugins."io.containerd.nri.v1.nri"]\nplugin_request_timeout = {value}\n'
    made.write("etc/containerd/config.toml", f"version = 3\n{section}")
    assert config(made).request_timeout_ms == 2000


@pytest.mark.parametrize(
    "text", ["plugins = 1", "imports = 7", "[plugins]\ncri = 3", "version = 'x'"]
)
def test_tables_that_are_none_are_taken_for_empty(made: Made, text: str) -> None:
    made.write("etc/containerd/config.toml", text)
    assert config(made).nri is None


def test_a_runtime_tells_who_it_is(tmp_path: Path) -> None:
    def version(request: VersionRequest, _context: object) -> VersionResponse:
        assert isinstance(request, VersionRequest)
        return VersionResponse(runtime_name="containerd", runtime_version="v1.7.2")

    handler = grpc.method_handlers_generic_handler(
        "runtime.v1.RuntimeService",
        {
            "Version": grpc.unary_unary_rpc_method_handler(
                version,
                request_deserializer=VersionRequest.FromString,
                response_serializer=VersionResponse.SerializeToString,
            )
        },
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    path = tmp_path / "cri.sock"
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        found = runtime_at(path)
    finally:
        server.stop(None).wait()
    assert found is not None
    assert (found.name, found.registration_can_deadlock) == ("containerd", True)


def test_nobody_and_somebody_else_at_the_cri_socket_are_no_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.doctor.sockets._PATIENCE", 0.2)
    assert runtime_at(tmp_path / "none") is None
    with served(tmp_path / "mute"):
        assert runtime_at(tmp_path / "mute") is None
