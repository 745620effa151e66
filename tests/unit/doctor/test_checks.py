"""Each check on a made-up host: nothing on a healthy one, the right thing on a sick one."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.doctor.access import Access
from nri_policy.doctor.checks import examine
from nri_policy.doctor.facts import FolderFacts, gather
from nri_policy.doctor.finding import Verdict
from nri_policy.doctor.host import Host
from nri_policy.doctor.pod_resources import assigned_resources, has_cpu_manager
from nri_policy.doctor.sockets import Socket, runtime
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.nrt.publisher import Trouble
from nri_policy.report import PublicationReport, StatusReport
from nri_policy.settings import ReloadResult
from tests.support.fake_cpus import two_kinds
from tests.support.fake_resctrl import FakeResctrl
from tests.unit.doctor.hosts import CONTAINERD, Made, served, verdicts, worst
from tests.unit.kubelet.kubelet import Kubelet, entry, resources, serving

OFF = CONTAINERD.replace("disable = false", "disable = true")
UNSAID = CONTAINERD.replace("disable = false", "")


def test_a_healthy_node_has_nothing_to_be_done(made: Made) -> None:
    findings = examine(made.facts())
    assert [each for each in findings if not each.passes] == []
    assert {each.check for each in findings} >= {
        "nri",
        "runtime",
        "rights",
        "settings",
        "kubelet",
        "cgroups",
        "plugins",
    }


def test_every_warning_and_error_has_a_remedy(made: Made) -> None:
    made.write("etc/containerd/config.toml", OFF)
    made.kubelet(cpuManagerPolicy="static", memoryManagerPolicy="Static", cgroupDriver="cgroupfs")
    made.process(300, "/bin/nri-resource-policy-balloons")
    made.settings(reservedResources={"cpu": "cpuset:99"})
    bad = [each for each in examine(made.facts("v1.7.2")) if not each.passes]
    assert len(bad) >= 6
    assert all(each.remedy for each in bad)


@pytest.mark.parametrize(
    ("config", "version", "text", "verdict"),
    [
        (CONTAINERD, "v1.7.27", "NRI is enabled", Verdict.OK),
        (OFF, "v2.1.9", "NRI is disabled, /etc/containerd/config.toml says so", Verdict.ERROR),
        (UNSAID, "1.7.24~ds1", "NRI is disabled, which is the default", Verdict.ERROR),
        (UNSAID, "v2.1.9", "NRI is enabled", Verdict.OK),
        (UNSAID, "", "does not say whether NRI is enabled", Verdict.NOTE),
        (UNSAID.replace("version = 2", "version = 3"), "", "NRI is enabled", Verdict.OK),
        (
            f'disabled_plugins = ["io.containerd.nri.v1.nri"]\n{CONTAINERD}',
            "v2.1.9",
            "NRI is disabled",
            Verdict.ERROR,
        ),
        (
            CONTAINERD.replace("disable = false", "disable = false\ndisable_connections = true"),
            "v2.1.9",
            "does not let plugins connect",
            Verdict.ERROR,
        ),
        (
            CONTAINERD.replace("disable = false", 'disable = false\nsocket_path = "/run/x.sock"'),
            "v2.1.9",
            "NRI socket is /run/x.sock",
            Verdict.ERROR,
        ),
        (
            CONTAINERD.replace(
                "disable = false", 'disable = false\nplugin_request_timeout = "500ms"'
            ),
            "v2.1.9",
            "0.5 s to answer",
            Verdict.WARNING,
        ),
        ("version = [", "v2.1.9", "config.toml: ", Verdict.WARNING),
    ],
)
def test_nri_is_on_as_configured_or_as_the_version_has_it(
    made: Made, config: str, version: str, text: str, verdict: Verdict
) -> None:
    made.write("etc/containerd/config.toml", config)
    assert worst(made.found("nri", version), text) is verdict


@pytest.mark.parametrize(
    ("version", "text", "verdict"),
    [
        ("v1.7.2", "can block it for good", Verdict.WARNING),
        ("v1.7.27", "with NRI 0.8.0", Verdict.OK),
        ("v2.1.9", "in a way that cannot block it", Verdict.OK),
        ("devel", "is unknown", Verdict.NOTE),
        ("", "does not answer at its CRI socket", Verdict.NOTE),
    ],
)
def test_versions_that_are_known_to_block_are_named(
    made: Made, version: str, text: str, verdict: Verdict
) -> None:
    assert worst(made.found("runtime", version), text) is verdict


def test_a_runtime_that_does_not_run_is_to_be_started(made: Made) -> None:
    (made.root / "proc/100/cmdline").unlink()
    assert worst(made.found("runtime", ""), "does not answer") is Verdict.WARNING


def test_the_nri_socket_is_served_or_dead_or_missing(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    where = replace(made.where, nri_socket=path)
    config = CONTAINERD.replace("disable = false", f'disable = false\nsocket_path = "{path}"')
    made.write("etc/containerd/config.toml", config)

    def seen() -> dict[str, Verdict]:
        return dict(verdicts(examine(gather(where)), "nri"))

    assert worst(seen(), "No such file") is Verdict.ERROR
    with served(path):
        assert worst(seen(), "the runtime listens at") is Verdict.OK
    assert worst(seen(), "no process listens") is Verdict.ERROR


def test_no_socket_is_missed_where_the_runtime_has_nri_at_another(made: Made) -> None:
    missing = Socket(path=made.where.nri_socket, there=False, problem="No such file or directory")
    for at in ("/run/x.sock", str(missing.path)):
        config = CONTAINERD.replace("disable = false", f'disable = false\nsocket_path = "{at}"')
        made.write("etc/containerd/config.toml", config)
        found = verdicts(examine(replace(made.facts(), nri_socket=missing)), "nri")
        (wrong,) = (each for each, verdict in found.items() if verdict is Verdict.ERROR)
        assert ("NRI socket is /run/x.sock" in wrong) is (at == "/run/x.sock")


def test_a_socket_is_not_called_the_runtimes_where_nothing_shows_that(made: Made) -> None:
    (made.root / "proc/100/cmdline").unlink()
    shutil.rmtree(made.root / "etc/containerd")
    facts = made.facts()
    assert facts.runtimes.config is None
    unsure = "a process listens at /var/run/nri/nri.sock: whether it speaks NRI is not checked"
    assert verdicts(examine(facts), "nri")[unsure] is Verdict.NOTE
    away = verdicts(examine(replace(facts, daemon=status())), "nri")
    assert away[unsure] is Verdict.NOTE
    registered = status(runtime="containerd v1.7.27")
    found = verdicts(examine(replace(facts, daemon=registered)), "nri")
    assert worst(found, "containerd v1.7.27 has registered the daemon") is Verdict.OK
    assert unsure not in found


@pytest.mark.parametrize(
    ("config", "text", "verdict"),
    [
        ({}, "it leaves CPUs and memory to nri-policy", Verdict.OK),
        ({"cpuManagerPolicy": "static"}, "its CPU manager is static", Verdict.ERROR),
        ({"memoryManagerPolicy": "Static"}, "its memory manager is Static", Verdict.ERROR),
        (
            {"topologyManagerPolicy": "single-numa-node"},
            "its topology manager is single-numa-node",
            Verdict.WARNING,
        ),
        (
            {"topologyManagerPolicy": "best-effort"},
            "it leaves CPUs and memory to nri-policy",
            Verdict.OK,
        ),
    ],
)
def test_a_kubelet_that_sets_cpusets_is_in_the_way(
    made: Made, config: dict[str, str], text: str, verdict: Verdict
) -> None:
    made.kubelet(**config)
    assert worst(made.found("kubelet"), text) is verdict


def test_a_kubelets_flags_come_before_its_file(made: Made) -> None:
    made.kubelet(cpuManagerPolicy="none")
    made.kubelet_process("--cpu-manager-policy=static")
    assert worst(made.found("kubelet"), "its CPU manager is static") is Verdict.ERROR


def test_in_a_pod_that_sees_no_files_of_the_node_nothing_is_called_good_or_bad(made: Made) -> None:
    shutil.rmtree(made.root / "etc")
    shutil.rmtree(made.root / "var")
    findings = examine(made.facts(""))
    assert [each for each in findings if not each.passes] == []
    seen = verdicts(findings, "kubelet")
    assert worst(seen, "its configuration file was not read") is Verdict.NOTE
    assert worst(verdicts(findings, "nri"), "says whether NRI is enabled") is Verdict.NOTE
    assert [each.found for each in findings if "leaves" in each.found] == []
    made.kubelet_process("--config=/x", "--cgroup-driver=systemd")
    assert made.found("cgroups") == {"cgroup v2": Verdict.OK}
    made.process(100, "crio")
    made.kubelet_process("--config=/x", "--cgroup-driver=cgroupfs")
    assert made.found("cgroups") == {"cgroup v2": Verdict.OK}
    made.kubelet_process("--config=/x", "--cpu-manager-policy=static")
    assert worst(made.found("kubelet"), "its CPU manager is static") is Verdict.ERROR


def test_a_kubelets_drop_ins_come_before_its_file(made: Made) -> None:
    made.kubelet_process("--config-dir=/etc/kubelet.d")
    made.write("etc/kubelet.d/10.conf", "cpuManagerPolicy: static")
    made.write("etc/kubelet.d/11.conf", "cgroupDriver: [")
    made.write("etc/kubelet.d/12.yaml", "cpuManagerPolicy: none")
    assert worst(made.found("kubelet"), "its CPU manager is static") is Verdict.ERROR
    made.write("etc/kubelet.d/20.conf", "cpuManagerPolicy: none")
    assert worst(made.found("kubelet"), "it leaves") is Verdict.OK


def test_a_checkpoint_of_another_policy_is_told(made: Made) -> None:
    made.checkpoint('{"policyName": "static"}')
    assert worst(made.found("kubelet"), "is of the CPU manager static") is Verdict.WARNING
    made.checkpoint('{"policyName": "none"}')
    assert worst(made.found("kubelet"), "it leaves") is Verdict.OK
    made.checkpoint("garbage")
    assert worst(made.found("kubelet"), "it leaves") is Verdict.OK


@pytest.mark.parametrize(
    ("kept", "text", "verdict"),
    [
        ("0-1", "the kubelet and the settings reserve CPUs 0-1", Verdict.OK),
        ("0-3", "pods may get 2-3", Verdict.WARNING),
        ("0", "promises 1 to pods", Verdict.WARNING),
        ("x", "reserved CPUs", Verdict.WARNING),
    ],
)
def test_the_kubelets_reserved_cpus_are_to_be_ours(
    made: Made, kept: str, text: str, verdict: Verdict
) -> None:
    made.kubelet(reservedSystemCPUs=kept)
    assert worst(made.found("reserved"), text) is verdict


def test_kubelet_and_runtime_are_to_use_one_cgroup_driver(made: Made) -> None:
    assert worst(made.found("cgroups"), "containerd and the kubelet use systemd") is Verdict.OK
    made.kubelet(cgroupDriver="cgroupfs")
    assert worst(made.found("cgroups"), "by systemd, the kubelet by cgroupfs") is Verdict.ERROR
    (remedy,) = {each.remedy for each in examine(made.facts()) if "by cgroupfs" in each.found}
    for setting in ("cgroupDriver: systemd", "SystemdCgroup = false"):
        assert setting in remedy, "either can be changed"
    made.write("etc/containerd/config.toml", "version = 2\n")
    assert worst(made.found("cgroups"), "containerd and the kubelet use cgroupfs") is Verdict.OK


@pytest.mark.parametrize(
    ("command", "text", "verdict"),
    [
        ("nri-resource-policy-topology-aware", "sets the CPUs of containers too", Verdict.ERROR),
        ("nri-resource-policy-balloons", "sets the CPUs of containers too", Verdict.ERROR),
        ("dracpu", "sets the CPUs of containers too", Verdict.ERROR),
        ("nfd-topology-updater", "writes the same", Verdict.WARNING),
        ("nginx", "no other program", Verdict.OK),
    ],
)
def test_rivals_are_found_among_the_processes(
    made: Made, command: str, text: str, verdict: Verdict
) -> None:
    made.process(300, f"/usr/local/bin/{command}", "--verbose")
    assert worst(made.found("plugins"), text) is verdict


def test_an_exporter_is_no_rival_where_we_publish_nothing(made: Made) -> None:
    made.process(300, "nfd-topology-updater")
    made.settings(agent={"nodeResourceTopology": False})
    assert worst(made.found("plugins"), "no other program") is Verdict.OK


def test_two_daemons_are_one_too_many(made: Made) -> None:
    made.process(300, "/usr/bin/python3", "/usr/bin/nri-policy", "run", "--host-root", "/host")
    assert worst(made.found("plugins"), "no other program") is Verdict.OK
    made.process(302, "/usr/bin/python3", "/usr/bin/nri-policy", "simulate", "run", "--stay", "a")
    made.process(303, "sudo", "nri-policy", "run")
    assert worst(made.found("plugins"), "no other program") is Verdict.OK
    made.process(301, "/opt/nri-policy", "run")
    said = "2 nri-policy daemons run (processes 300, 301): all but one of a runtime wait, and those"
    assert worst(made.found("plugins"), said) is Verdict.ERROR


@pytest.mark.parametrize(
    ("name", "text", "verdict"),
    [
        ("90-nri-policy", "the runtime starts /opt/nri/plugins/90-nri-policy", Verdict.NOTE),
        ("balloons", "is not a valid plugin name", Verdict.ERROR),
        ("10-nri-resource-policy-balloons", "sets the CPUs of containers too", Verdict.ERROR),
    ],
)
def test_what_the_runtime_starts_is_looked_at(
    made: Made, name: str, text: str, verdict: Verdict
) -> None:
    made.write(f"opt/nri/plugins/{name}", "")
    assert worst(made.found("plugins"), text) is verdict


def test_a_daemon_beside_the_one_that_the_runtime_starts_is_one_too_many(made: Made) -> None:
    made.write("opt/nri/plugins/90-nri-policy", "")
    made.process(300, "/usr/bin/python3", "/usr/bin/nri-policy", "run")
    assert worst(made.found("plugins"), "another nri-policy runs") is Verdict.ERROR


def test_a_state_folder_that_others_can_write_is_refused(made: Made) -> None:
    assert worst(made.found("rights"), "is the daemon's own") is Verdict.OK
    (made.root / "state").chmod(0o770)
    assert worst(made.found("rights"), "other users may write to it (mode 0770)") is Verdict.ERROR
    (made.root / "state").rmdir()
    assert worst(made.found("rights"), "does not exist yet") is Verdict.OK
    (made.root / "state").symlink_to("elsewhere")
    assert worst(made.found("rights"), "this is not a folder") is Verdict.ERROR


def test_rights_depend_on_the_user(made: Made) -> None:
    folder = FolderFacts(path=Path("/var/lib/x"), mode=0o40700, owner=1000)
    facts = replace(made.facts(), state=folder)
    assert worst(verdicts(examine(facts), "rights"), "belongs to user 1000") is Verdict.ERROR
    facts = replace(facts, user=1000)
    assert worst(verdicts(examine(facts), "rights"), "runs as user 1000") is Verdict.WARNING


def test_settings_are_to_be_good_and_to_fit_the_machine(made: Made) -> None:
    assert worst(made.found("settings"), "fits this machine") is Verdict.OK
    made.settings(reservedResources={"cpu": "cpuset:99"})
    assert worst(made.found("settings"), "99 is not in the available CPUs") is Verdict.ERROR
    made.settings(reservedResources={"cpu": "cpuset:0-15"})
    assert worst(made.found("settings"), "no CPU is left for pods") is Verdict.WARNING
    made.settings(pinCPUs=True)
    assert worst(made.found("settings"), "did you mean 'pinCPU'") is Verdict.ERROR
    made.settings(log={"source": True})
    assert worst(made.found("settings"), "not supported yet") is Verdict.NOTE
    (made.root / "settings.yaml").unlink()
    assert worst(made.found("settings"), "No such file") is Verdict.ERROR


def test_who_may_run_on_exclusive_cpus_of_others_is_worth_a_note(made: Made) -> None:
    note = "pods of any namespace may run on exclusive CPUs of others"
    assert worst(made.found("settings"), note) is Verdict.NOTE
    for closed in ({"preserve": "unowned"}, {"preserveNamespaces": ["kube-*"]}, {"pinCPU": False}):
        made.settings(**closed)
        assert not any(note in text for text in made.found("settings"))


def test_a_folder_without_a_machine_is_told(made: Made) -> None:
    shutil.rmtree(made.root / "sys/devices/system/cpu")
    assert worst(made.found("settings"), "no machine") is Verdict.ERROR


def test_what_the_kernel_was_told_is_worth_a_note(made: Made) -> None:
    assert made.found("kernel") == {}
    made.write("proc/sys/kernel/numa_balancing", "1\n")
    made.write("proc/swaps", "Filename Type Size\n/dev/sda2 partition 1000 0 -2\n")
    made.write("sys/devices/system/cpu/isolated", "0,4\n")
    made.write("sys/devices/system/cpu/nohz_full", "4-5\n")
    made.settings(preferIsolatedCPUs=False)
    found = made.found("kernel")
    assert worst(found, "automatic NUMA balancing is on") is Verdict.NOTE
    assert worst(found, "swap is on (/dev/sda2)") is Verdict.NOTE
    assert worst(found, "CPUs 0,4 are isolated, and used only by") is Verdict.NOTE
    assert worst(found, "CPUs 5 are nohz_full") is Verdict.NOTE
    assert worst(found, "has isolated CPUs, 0:") is Verdict.WARNING


def test_sockets_that_are_too_small_for_pools_are_worth_a_note(tmp_path: Path) -> None:
    made = Made(tmp_path, "numa:1 package:16 core:1")
    assert worst(made.found("kernel"), "16 packages of 1 core: a virtual machine") is Verdict.NOTE


def test_an_affinity_of_the_runtime_is_its_containers_too(made: Made) -> None:
    def confined(allowed: str) -> Mapping[str, Verdict]:
        made.write("proc/100/status", f"Name:\tcontainerd\nCpus_allowed_list:\t{allowed}\n")
        return made.found("kernel")

    made.write("proc/100/cgroup", "0::/system.slice/containerd.service\n")
    inherited = "containerd runs with an affinity to CPUs 0-1, which its containers inherit"
    assert confined("0-15") == {}
    assert worst(confined("0-1"), inherited) is Verdict.WARNING
    made.write("sys/fs/cgroup/system.slice/cpuset.cpus.effective", "0-1\n")
    assert confined("0-1") == {}, "its cgroup's, which is not theirs"
    made.write("sys/fs/cgroup/system.slice/cpuset.cpus.effective", "0-3\n")
    assert worst(confined("0-1"), inherited) is Verdict.WARNING
    made.write("sys/devices/system/cpu/isolated", "2-3\n")
    assert inherited not in str(confined("0-1")), "what the kernel gives to everybody"
    for garbled in ("", "0-", "abc"):
        assert inherited not in str(confined(garbled))


def test_devices_that_pods_have_should_count(made: Made) -> None:
    facts = replace(made.facts(), devices=("nvidia.com/gpu",))
    (finding,) = [each for each in examine(facts) if each.check == "devices"]
    assert finding.verdict is Verdict.WARNING
    assert "nvidia.com/gpu" in finding.found
    assert "podResourceAPI: true" in finding.remedy


def test_the_kubelet_is_asked_which_devices_pods_have(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    assert assigned_resources(socket) == ()
    devices = [entry("nvidia.com/gpu", "a"), entry("nvidia.com/gpu", "b"), entry("a/nic", "c")]

    claimed = resources("claimed")
    claimed.containers[0].dynamic_resources.add().claim_resources.add(driver_name="gpu.x")

    async def found() -> tuple[str, ...]:
        async with serving(
            Kubelet([resources("web", *devices), resources("plain"), claimed]), socket
        ):
            return await asyncio.to_thread(assigned_resources, socket)

    assert asyncio.run(found()) == ("a/nic", "claim:gpu.x", "nvidia.com/gpu")


def test_the_kubelet_itself_says_whether_its_cpu_manager_is_on(made: Made, tmp_path: Path) -> None:
    """Its files may be out of sight, as they are in a pod, or newer than the kubelet."""
    socket, kubelet = tmp_path / "kubelet.sock", Kubelet()
    assert not has_cpu_manager(socket)

    async def found() -> bool:
        async with serving(kubelet, socket):
            return await asyncio.to_thread(has_cpu_manager, socket)

    assert not asyncio.run(found())
    kubelet.managed = CPUSet.parse("2-15")
    assert asyncio.run(found())
    text = "its CPU manager is static"
    for facts in (made.facts(), replace(made.facts(), kubelet=None)):
        assert not any(text in each for each in verdicts(examine(facts), "kubelet"))
        static = replace(facts, cpu_manager=True)
        assert worst(verdicts(examine(static), "kubelet"), text) is Verdict.ERROR


def test_devices_need_the_kubelets_socket(made: Made) -> None:
    assert made.found("devices") == {}
    made.settings(agent={"podResourceAPI": True})
    assert worst(made.found("devices"), "agent.podResourceAPI is on, but") is Verdict.WARNING
    with served(made.pod_resources):
        assert worst(made.found("devices"), "the kubelet listens") is Verdict.OK


def status(**fields: Any) -> StatusReport:
    """Return what a daemon says that nothing has happened to, but for *fields*."""
    cpus = {f"{name}_cpus": EMPTY for name in ("reserved", "isolated", "exclusive", "shared")}
    nothing = {"synchronized": False, "runtime": "", "notices": (), "publications": ()}
    counts = {"pools": 1, "containers": 0, "refused": 0}
    return StatusReport(
        **{"version": "1", "online_cpus": EMPTY, **cpus, **nothing, **counts, **fields}
    )


def publication(**fields: Any) -> PublicationReport:
    """Return how it goes with a copy of the node's topology."""
    return PublicationReport(**fields)


def test_what_the_daemon_says_is_passed_on(made: Made) -> None:
    def of(daemon: StatusReport | str) -> dict[str, Verdict]:
        return dict(verdicts(examine(replace(made.facts(), daemon=daemon)), "daemon"))

    good = status(synchronized=True, runtime="containerd v2.1.9", containers=3)
    assert of(good) == {"it runs, and has placed 3 containers of containerd v2.1.9": Verdict.OK}
    used = status(synchronized=True, runtime="x", memory_bytes=80 << 20, cpu_seconds=12.34)
    assert worst(of(used), "it uses 80 MiB of memory, 12.3 s of CPU time") is Verdict.OK
    assert worst(of("cannot be reached"), "cannot be reached") is Verdict.WARNING
    assert worst(of(status()), "has no list of containers") is Verdict.WARNING
    failing = publication(to="the cluster", phase="failing", error="403", rivals=("nfd",))
    bad = status(synchronized=True, publications=(failing,), notices=("odd",))
    assert worst(of(bad), "is not published to the cluster: 403") is Verdict.WARNING
    assert worst(of(bad), "written by others too: nfd") is Verdict.WARNING
    assert worst(of(bad), "odd") is Verdict.NOTE
    starved = status(synchronized=True, notices=("starved: waits 0.8 s for a CPU in 5 s",))
    assert worst(of(starved), "waits 0.8 s for a CPU") is Verdict.WARNING
    alone = status(synchronized=True, notices=("nothing is pinned until the cluster says",))
    assert worst(of(alone), "nothing is pinned") is Verdict.WARNING
    full = status(synchronized=True, notices=("decisions are not stored: x: disk is full",))
    assert worst(of(full), "disk is full") is Verdict.WARNING
    refused = ReloadResult(accepted=False, origin="x.yaml", reason="x.yaml: bad", time=0)
    stale = status(synchronized=True, latest_reload=refused)
    assert worst(of(stale), "its old settings: x.yaml: bad") is Verdict.WARNING
    taken = status(
        synchronized=True,
        latest_reload=ReloadResult(accepted=True, origin="x.yaml", reason="", time=0),
    )
    assert [*of(taken).values()] == [Verdict.OK]


@pytest.mark.parametrize(
    ("promised", "verdict"), [(0, Verdict.OK), (250, Verdict.WARNING), (-1000, Verdict.OK)]
)
def test_a_node_that_promises_more_than_we_give_is_told(
    made: Made, promised: int, verdict: Verdict
) -> None:
    made.settings(reservedResources={"cpu": "cpuset:0-1"})
    facts = made.facts()
    assert isinstance(facts.machine, Machine)
    ours = 1000 * (len(facts.machine.online) - 2)
    access = Access(allocatable_milli=ours + promised)
    found = dict(verdicts(examine(replace(facts, cluster=access)), "reserved"))
    assert worst(found, "CPU to pods") is verdict


@pytest.mark.parametrize(
    ("promised", "verdict"), [(-100, Verdict.OK), (0, Verdict.OK), (100, Verdict.WARNING)]
)
def test_a_node_that_promises_more_memory_than_we_give_is_told(
    made: Made, promised: int, verdict: Verdict
) -> None:
    made.settings(reservedResources={"cpu": 1, "memory": "1Gi"})
    facts = made.facts()
    assert isinstance(facts.machine, Machine)
    ours = facts.machine.memory - (1 << 30)
    access = Access(allocatable_memory=ours + (promised << 20))
    found = dict(verdicts(examine(replace(facts, cluster=access)), "reserved"))
    assert worst(found, "of memory to pods") is verdict
    assert any("100 MiB less" in each for each in found) is (verdict is Verdict.WARNING)


@pytest.mark.parametrize("mebibytes", [10, 1000])
def test_to_reserve_less_memory_is_offered_where_so_much_is_reserved(
    made: Made, mebibytes: int
) -> None:
    made.settings(reservedResources={"cpu": 1, "memory": "100Mi"})
    facts = made.facts()
    assert isinstance(facts.machine, Machine)
    promised = facts.machine.memory + ((mebibytes - 100) << 20)
    found = examine(replace(facts, cluster=Access(allocatable_memory=promised)))
    (remedy,) = [each.remedy for each in found if "of memory to pods" in each.found]
    assert ("reservedResources.memory that much less" in remedy) is (mebibytes <= 100)


def test_what_the_runtime_told_the_daemon_stands_for_its_own_answer(made: Made) -> None:
    facts = made.facts("")
    connected = replace(facts, daemon=status(runtime="containerd v1.7.2"))
    assert worst(verdicts(examine(connected), "runtime"), "can block it") is Verdict.WARNING


def test_what_the_cluster_lacks_is_named(made: Made) -> None:
    def of(access: Access | None) -> dict[str, Verdict]:
        return dict(verdicts(examine(replace(made.facts(), cluster=access)), "cluster"))

    assert of(None) == {}
    assert worst(of(Access()), "Node node-a exists") is Verdict.OK
    assert worst(of(Access(denied=("patch x",))), "the daemon may not patch x") is Verdict.ERROR
    missing = Access(trouble=Trouble.NO_CRD, error="the cluster has no X; apply Y")
    assert of(missing) == {"the cluster has no X": Verdict.ERROR}
    away = Access(trouble=Trouble.UNREACHABLE, error="no answer")
    assert of(away) == {"no answer": Verdict.ERROR}
    said = [
        each.remedy
        for access in (missing, away)
        for each in examine(replace(made.facts(), cluster=access))
        if each.check == "cluster"
    ]
    assert said == ["apply Y", "docs/nrt.md says what each error means"]


@pytest.mark.parametrize(
    ("readiness", "access", "text", "verdict"),
    [
        ({"taint": True}, Access(), "says whether the daemon is ready", Verdict.OK),
        ({}, Access(tainted=True), "readiness.taint is off: no pod comes", Verdict.ERROR),
        ({"condition": True}, Access(tainted=True, condition="True"), "no pod", Verdict.ERROR),
        ({"taint": True}, Access(tainted=True), "still has the taint", Verdict.WARNING),
        ({"condition": True}, Access(), "has no NRIPolicyReady", Verdict.WARNING),
        ({"condition": True}, Access(condition="False"), "Ready=False", Verdict.WARNING),
        ({"condition": True}, Access(condition="True"), "says whether", Verdict.OK),
        (
            {"taint": True},
            Access(denied_readiness=("patch nodes", "patch nodes/status")),
            "the daemon may not patch nodes",
            Verdict.ERROR,
        ),
        (
            {"taint": True, "whileAway": True},
            Access(denied_readiness=("create leases",), trouble=Trouble.NO_CRD),
            "may not create leases",
            Verdict.ERROR,
        ),
        ({"taint": True}, Access(denied_readiness=("create leases",)), "says", Verdict.OK),
        ({"taint": True}, None, "no cluster is known", Verdict.WARNING),
    ],
)
def test_the_node_is_to_say_what_the_settings_want(
    made: Made, readiness: dict[str, bool], access: Access | None, text: str, verdict: Verdict
) -> None:
    made.settings(readiness=readiness)
    facts = replace(made.facts(), cluster=access, daemon=status(synchronized=True))
    found = verdicts(examine(facts), "readiness")
    assert len(found) == 1
    assert worst(found, text) is verdict


def test_readiness_that_nobody_asks_for_is_not_judged(made: Made) -> None:
    for access in (None, Access(), Access(trouble=Trouble.UNREACHABLE, tainted=True)):
        facts = replace(made.facts(), cluster=access, daemon=status())
        assert verdicts(examine(facts), "readiness") == {}


CDI = '[plugins."io.containerd.grpc.v1.cri"]\n'


@pytest.mark.parametrize(
    ("cdi", "version", "access", "text", "verdict"),
    [
        ("enable_cdi = true", "v1.7.27", Access(), "reaches the driver", Verdict.OK),
        ("", "v2.2.1", Access(), "reaches the driver", Verdict.OK),
        ("", "", Access(), "reaches the driver", Verdict.OK),
        ("", "v1.7.27", Access(), "CDI is off in containerd", Verdict.ERROR),
        ("enable_cdi = false", "v2.2.1", Access(), "CDI is off in containerd", Verdict.ERROR),
        ('cdi_spec_dirs = ["/run/cdi/"]', "v2.2.1", Access(), "reaches", Verdict.OK),
        ('cdi_spec_dirs = ["/a"]', "v2.2.1", Access(), "reads CDI files of /a only", Verdict.ERROR),
        ("", "v2.2.1", None, "no cluster is known", Verdict.ERROR),
        ("", "v2.2.1", Access(no_class="the cluster has no X"), "has no X", Verdict.ERROR),
        ("", "v2.2.1", Access(denied_dra=("patch x",)), "may not patch x", Verdict.ERROR),
        (
            "",
            "v2.2.1",
            Access(trouble=Trouble.UNREACHABLE, no_class="?"),
            "reaches the driver",
            Verdict.OK,
        ),
    ],
)
def test_what_is_in_the_way_of_a_claim_is_named(  # noqa: PLR0917 - a row of the table
    made: Made, cdi: str, version: str, access: Access | None, text: str, verdict: Verdict
) -> None:
    made.settings(dra={"enabled": True})
    made.write("etc/containerd/config.toml", f"{CONTAINERD}{CDI}{cdi}\n")
    with served(made.registration):
        facts = replace(made.facts(version), cluster=access)
    found = verdicts(examine(facts), "dra")
    assert len(found) == 1
    assert worst(found, text) is verdict


def test_claims_without_a_driver_are_an_error_and_a_driver_that_nobody_wants_is_none(
    made: Made,
) -> None:
    assert made.found("dra") == {}
    made.settings(dra={"enabled": True})
    facts = replace(made.facts("v2.2.1"), cluster=Access())
    assert worst(verdicts(examine(facts), "dra"), "no driver at") is Verdict.WARNING
    made.settings()
    made.write("var/run/cdi/placement.nri-uid.json", "{}")
    made.write("var/run/cdi/other.json", "{}")
    found = made.found("dra")
    assert worst(found, "1 claim prepared on this node, and no driver at") is Verdict.ERROR
    with served(made.registration):
        assert made.found("dra") == {}


def test_explanations_in_pods_need_the_right_to_write_them(made: Made) -> None:
    access = Access(denied_explanations=("patch pods",))
    for wanted, found in ((True, Verdict.ERROR), (False, None)):
        made.settings(podExplanations=wanted)
        facts = replace(made.facts(), cluster=access)
        verdict = next(
            (v for text, v in verdicts(examine(facts), "cluster").items() if "patch pods" in text),
            None,
        )
        assert verdict is found


def test_who_makes_the_pods_cgroups_is_to_be_reached(made: Made) -> None:
    assert not any("systemd makes" in found for found in made.found("cgroups"))
    made.write("sys/fs/cgroup/kubepods.slice/cpuset.cpus", "")
    found = made.found("cgroups")
    assert worst(found, "system_bus_socket: No such file or directory") is Verdict.WARNING
    path = made.root / "run/systemd/private"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as systemd:
        systemd.bind(str(path))
        systemd.listen()
        assert worst(made.found("cgroups"), "systemd makes the pods' cgroups") is Verdict.OK
    (made.root / "sys/fs/cgroup/cgroup.controllers").unlink()  # cgroup v1
    assert not any("systemd makes" in found for found in made.found("cgroups"))


def test_a_cgroup_above_pods_that_has_fewer_cpus_than_the_settings_use_is_an_error(
    made: Made,
) -> None:
    made.write("sys/fs/cgroup/kubepods.slice/cpuset.cpus", "\n")  # version 2: no limit of its own
    assert not any("has only CPUs" in found for found in made.found("cgroups"))
    made.write("sys/fs/cgroup/kubepods.slice/cpuset.cpus", "4-15\n")  # AllowedCPUs= of the slice
    said = "/sys/fs/cgroup/kubepods.slice has only CPUs 4-15: containers that are placed on 0-3 run"
    assert worst(made.found("cgroups"), f"{said} without these, or on all others") is Verdict.ERROR
    (remedy,) = {each.remedy for each in examine(made.facts()) if said in each.found}
    assert remedy.startswith("availableResources.cpu: cpuset:4-15, or ")
    made.settings(availableResources={"cpu": "cpuset:4-15"}, reservedResources={"cpu": 1})
    assert not any("has only CPUs" in found for found in made.found("cgroups"))
    made.write("sys/fs/cgroup/cpuset.cpus", "4-7\n")  # there in a container, such as a node of kind
    assert worst(made.found("cgroups"), "/sys/fs/cgroup has only CPUs 4-7") is Verdict.ERROR


def test_cpus_that_cgroup_v1_took_from_pods_when_they_went_offline_are_an_error(
    made: Made,
) -> None:
    (made.root / "sys/fs/cgroup/cgroup.controllers").unlink()
    made.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-15\n")
    made.write("sys/fs/cgroup/cpuset/kubepods/cpuset.cpus", "0-6,8-15\n")
    said = "/sys/fs/cgroup/cpuset/kubepods has only CPUs 0-6,8-15: containers that are placed on 7"
    assert worst(made.found("cgroups"), f"{said} do not start") is Verdict.ERROR


CLASSES = {
    "cgroupfs": "kubepods/burstable/pod1a-2",
    "systemd": "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a_2.slice",
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("pod", CLASSES.values(), ids=CLASSES)
def test_the_class_or_pod_whose_cgroup_has_fewer_cpus_is_named_once(
    made: Made, pod: str, version: int
) -> None:
    """The cgroups below it are not named: on cgroup v1 they cannot have more CPUs."""
    mount = "sys/fs/cgroup"
    if version == 1:
        (made.root / mount / "cgroup.controllers").unlink()
        mount += "/cpuset"
    top, _, rest = pod.partition("/")
    whole, container = "0-15", f"{pod}/cri-containerd-1.scope"
    parents = (top, f"{top}/{rest.partition('/')[0]}", pod)

    def limit(*cpus: str) -> list[str]:
        """Limit the cgroups from the top down; return what is said of each that is narrow."""
        for path, own in zip((*parents, container), (*cpus, "4"), strict=True):
            made.write(f"{mount}/{path}/cpuset.cpus", f"{own}\n")
        said = " has only CPUs "
        found = [each for each in made.found("cgroups") if said in each]
        return [each.partition(":")[0].removeprefix(f"/{mount}/") for each in found]

    assert limit(whole, whole, whole) == []
    assert limit("4-15", "4-15", "4-15") == [f"{top} has only CPUs 4-15"]
    assert limit(whole, "4-15", "4-15") == [f"{parents[1]} has only CPUs 4-15"]
    assert limit(whole, whole, "4-15") == [f"{pod} has only CPUs 4-15"]
    below = [f"{parents[1]} has only CPUs 4-15", f"{pod} has only CPUs 6-15"]
    assert limit(whole, "4-15", "6-15") == below


def test_a_part_of_the_cgroups_that_cannot_be_written_is_told(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = "/sys/fs/cgroup/kubepods"
    for path in ("", "/besteffort", "/burstable", "/burstable/pod1"):
        made.write(f"{top[1:]}{path}/cpuset.cpus", "\n")
    monkeypatch.setattr(Host, "allows_writing", lambda _, name: "burstable" not in name)
    said = [each for each in made.found("cgroups") if "is read-only here" in each]
    assert [each.partition(" ")[0] for each in said] == [f"{top}/burstable"]


def test_cgroups_that_cannot_be_written_are_told(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "writable", lambda _, name: name != "/sys/fs/cgroup")
    assert worst(made.found("cgroups"), "cgroups are read-only here") is Verdict.WARNING


def test_classes_that_have_no_effect_here_are_named(made: Made) -> None:
    classes = [{"name": "a", "policy": "fifo", "priority": 1, "ioClass": "idle"}]
    entries = [{"Weight": 100}, {"Devices": ["/dev/sd*"], "ThrottleReadBps": 1}]
    control = {"blockio": {"enable": True, "classes": {"b": entries}}}
    made.settings(schedulingClasses=classes, control=control)
    made.write("sys/fs/cgroup/cpu/cpu.rt_runtime_us", "950000\n")
    made.write("sys/class/block/sda/dev", "8:0\n")
    made.write("sys/class/block/sda/size", "1\n")
    made.write("sys/class/block/sda/queue/scheduler", "[none] bfq\n")
    found = [each.found for each in examine(made.facts("v2.1.9")) if each.check == "classes"]
    assert [each.partition(":")[0] for each in found[:3]] == [
        "runtime too old",
        "runtime too old",
        "no container gets policy fifo or rr",
    ]
    assert "I/O priorities have no effect on sda" in found[3]
    made.write("sys/fs/cgroup/cgroup.controllers", "cpuset io\n")
    made.write("sys/fs/cgroup/a.slice/io.weight", "default 100\n")
    found = [each.found for each in examine(made.facts("v2.4.0")) if each.check == "classes"]
    assert "I/O weights have no effect on sda" in found
    made.settings()
    assert not [each for each in examine(made.facts("v2.1.9")) if each.check == "classes"]


def test_the_doctor_says_what_the_kernel_can_do_with_partitions(made: Made) -> None:
    made.settings(exclusivePartitions="root")
    made.write("sys/fs/cgroup/cgroup.controllers", "memory\n")
    found = made.found("partitions")
    reason = "this host has no cgroup v2 with the cpuset controller"
    assert found == {f"exclusivePartitions: root has no effect: {reason}": Verdict.WARNING}
    made.settings()
    assert made.found("partitions") == {f"no kernel partitions: {reason}": Verdict.NOTE}
    made.write("sys/fs/cgroup/cgroup.controllers", "cpuset\n")
    for name in ("cpuset.cpus", "cpuset.cpus.exclusive"):
        made.write(f"sys/fs/cgroup/a.slice/{name}", "\n")
    assert [*made.found("partitions").values()] == [Verdict.OK]


def test_the_doctor_finds_a_missing_tuner_and_irqbalance(made: Made) -> None:
    made.write("proc/7/cmdline", "/usr/sbin/irqbalance\0")
    made.settings()
    assert made.found("tuning") == {}
    made.settings(isolateInterrupts="exclusive")
    balanced = "irqbalance runs: it moves interrupts back to exclusive CPUs"
    missing = "no tuner runs, which these settings need: isolateInterrupts"
    warning = Verdict.WARNING
    assert made.found("tuning") == {missing: warning, balanced: warning}
    made.write("proc/8/cmdline", "/usr/bin/python3\0/usr/bin/nri-policy\0tuner\0")
    assert made.found("tuning") == {balanced: warning}
    made.settings()
    assert made.found("tuning") == {balanced: Verdict.NOTE}


def test_the_doctor_says_that_irqbalance_leaves_alone_what_the_tuner_sets(made: Made) -> None:
    made.write("proc/7/cmdline", "/usr/sbin/irqbalance\0")
    made.write("proc/8/cmdline", "/usr/bin/nri-policy\0tuner\0")
    made.settings(isolateInterrupts="exclusive")
    made.write("run/irqbalance/irqbalance7.sock", "")
    told = "irqbalance runs: it leaves alone the interrupts that the tuner sets"
    assert made.found("tuning") == {told: Verdict.NOTE}


def test_the_doctor_names_every_setting_that_needs_a_tuner(made: Made) -> None:
    made.write("proc/7/cmdline", "/usr/bin/kubelet\0")
    classes = {"cpuClasses": [{"name": "calm"}], "sharedPoolCPUClass": "calm"}
    rdt = {
        "partitions": {
            "all": {"l3Allocation": {"all": {"unified": "100%"}}, "classes": {"gold": {}}}
        }
    }
    made.settings(
        **classes, crioAnnotationNamespaces=["telco-*"], control={"rdt": {"enable": True, **rdt}}
    )
    needed = "cpuClasses, control.rdt.partitions, crioAnnotationNamespaces"
    missing = f"no tuner runs, which these settings need: {needed}"
    assert made.found("tuning") == {missing: Verdict.WARNING}
    made.settings(control={"rdt": {"enable": False, **rdt}})
    assert made.found("tuning") == {}


def test_links_to_disks_are_not_known_without_the_database_of_udev(made: Made) -> None:
    """A pod whose DaemonSet does not mount it has none."""
    made.write("sys/fs/cgroup/cgroup.controllers", "cpuset io\n")
    made.write("sys/class/block/sda/dev", "8:0\n")
    made.write("sys/class/block/sda/size", "1\n")

    def found(device: str) -> dict[str, Verdict]:
        classes = {"a": [{"Devices": [device], "ThrottleReadBps": 1}]}
        made.settings(control={"blockio": {"enable": True, "classes": classes}})
        return {each: its for each, its in made.found("classes").items() if "udev" in each}

    link = "/dev/disk/by-id/wwn-*"
    ((text, verdict),) = found(link).items()
    assert text.startswith(f"no disk here is {link}: {made.root}/run/udev/data")
    assert verdict is Verdict.WARNING
    assert not found("/dev/sda")
    assert not found("/dev/nvme0n1"), "another kind of disk, which udev would not know either"
    made.write("run/udev/data/b8:0", "S:disk/by-id/wwn-0x5\n")
    assert not found(link)


@pytest.mark.parametrize(("ids", "own"), [("4711", False), ("4711\t7", True)])
def test_a_daemon_that_does_not_see_the_hosts_processes_is_told(
    ids: str, own: bool, made: Made
) -> None:
    """The host's /proc has the ids in the host's PID namespace, and then those in ours."""
    made.write("proc/4711/status", f"Name:\tpython3\nPid:\t4711\nNSpid:\t{ids}\nThreads:\t1\n")
    (made.root / "proc/self").symlink_to("4711")
    found = {text: verdict for text, verdict in made.found("rights").items() if "processes" in text}
    assert [*found.values()] == [Verdict.WARNING] * own


def test_a_node_may_have_all_its_settings_from_the_cluster(made: Made) -> None:
    """As in nri-plugins' pod, which mounts no file; without a cluster that would be the end."""
    made.where.config.unlink()
    facts = replace(made.facts(), daemon=status())
    assert worst(verdicts(examine(facts), "settings"), "cannot be read") is Verdict.ERROR
    found = verdicts(examine(replace(facts, cluster=Access())), "settings")
    assert [*found.values()] == [Verdict.NOTE]
    assert "the daemon has settings from the cluster" in str(found)
    alone = verdicts(examine(replace(facts, cluster=Access(), daemon="no answer")), "settings")
    assert worst(alone, "cannot be read") is Verdict.ERROR


def test_the_doctor_says_what_resctrl_has_here(made: Made) -> None:
    partition = {"l3Allocation": {"all": {"unified": "100%"}}, "classes": {"gold": {}}}
    control = {"rdt": {"enable": True, "partitions": {"all": partition}}}
    none = "no RDT classes: this kernel or processor has no resctrl"
    made.settings()
    assert made.found("rdt") == {none: Verdict.NOTE}
    made.settings(control=control)
    assert made.found("rdt") == {none: Verdict.WARNING}
    made.write("proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n")
    unmounted = "resctrl, which RDT classes need, is not mounted"
    assert made.found("rdt") == {unmounted: Verdict.WARNING}
    resctrl = FakeResctrl(made.root, caches={"L2": 8, "L3": 20}, closids=4)
    there = (
        "resctrl is mounted: it has 2 L2 caches of 8 ways, 2 L3 caches of 20 ways,"
        " memory bandwidth in %, for at most 3 groups"
    )
    assert made.found("rdt") == {there: Verdict.OK}
    resctrl.mkdir("gold")
    resctrl.mkdir("theirs")
    foreign = "groups of resctrl that the settings do not define stay as they are: theirs"
    assert made.found("rdt") == {there: Verdict.OK, foreign: Verdict.NOTE}
    partition["classes"] = {name: {} for name in ("gold", "theirs", "c", "d")}
    made.settings(control=control)
    fault = "control.rdt.partitions: 4 classes: this machine can have 3 groups"
    assert made.found("rdt") == {there: Verdict.OK, fault: Verdict.ERROR}
    made.settings()
    assert made.found("rdt") == {there: Verdict.NOTE}


def test_memory_bandwidth_alone_can_be_shared(made: Made) -> None:
    made.settings(control={"rdt": {"enable": True}})
    FakeResctrl(made.root, caches={"L3CODE": 20, "L3DATA": 20}, ids=[0], mbps=True)
    (found,) = made.found("rdt")
    assert "1 L3 cache of 20 ways for code and data each, memory bandwidth in MBps" in found


def test_the_doctor_finds_cpu_classes_that_the_machine_cannot_have(made: Made) -> None:
    two_kinds(made.root)
    given = {"name": "calm", "freqGovernor": "ondemand"}
    made.settings(cpuClasses=[given], sharedPoolCPUClass="calm")
    assert worst(made.found("settings"), "'ondemand' is not a governor of CPUs") is Verdict.ERROR
    assert not any("fits this machine" in found for found in made.found("settings"))
    made.settings(cpuClasses=[given | {"optional": True}], sharedPoolCPUClass="calm")
    assert worst(made.found("settings"), "'ondemand' is not a governor of CPUs") is Verdict.NOTE


def test_cri_o_serves_its_annotations_itself_and_needs_no_tuner_for_them(made: Made) -> None:
    made.write("proc/7/cmdline", "/usr/bin/crio\0")
    made.settings(crioAnnotationNamespaces=["telco-*"])
    facts = made.facts()
    crio = replace(facts, runtimes=replace(facts.runtimes, answered=runtime("cri-o", "1.36.3")))
    found = (
        "CRI-O serves the annotations of crio.io itself: this policy leaves them alone, and"
        " crioAnnotationNamespaces has no effect"
    )
    assert verdicts(examine(crio), "tuning") == {found: Verdict.NOTE}
    missing = "no tuner runs, which these settings need: crioAnnotationNamespaces"
    assert verdicts(examine(facts), "tuning") == {missing: Verdict.WARNING}
