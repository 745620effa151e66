from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from nri_policy.audit.cgroup import MAX_THREADS, Cgroups
from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.audit.deviations import KernelState
from nri_policy.delivery import cpuset_files
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.host_cgroups import Limited
from nri_policy.delivery.partition_files import Settled
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.settings import ExclusivePartitions
from nri_policy.workload.pod import Resources
from tests.unit.audit.host import Root

POD = "kubepods/burstable/pod12"
BURSTABLE = "kubepods.slice/kubepods-burstable.slice"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    return Root(tmp_path, request.param)


def seen(cgroups: Cgroups, turn: int = 0, **options: tuple[int, ...]) -> KernelState | None:
    return cgroups.observe("1", f"/{POD}/1", turn=turn, **options)


@pytest.mark.parametrize(
    ("cgroup", "folder"),
    [
        ("/kubepods/burstable/pod12/34", "kubepods/burstable/pod12/34"),
        ("/kubepods/pod12/crio-34", "kubepods/pod12/crio-34"),
        (
            "kubepods-burstable-pod1_2.slice:cri-containerd:34",
            f"{BURSTABLE}/kubepods-burstable-pod1_2.slice/cri-containerd-34.scope",
        ),
        ("kubepods-pod1.slice:crio:34", "kubepods.slice/kubepods-pod1.slice/crio-34.scope"),
        (":crio:34", "system.slice/crio-34.scope"),
        ("-.slice:crio:34", "crio-34.scope"),
        ("", None),
        ("/", None),
        ("/../etc", None),
        ("/a//b", None),
        ("/a/./b", None),
        ("a.slice:crio:/../x", None),
    ],
)
def test_the_runtimes_names_of_cgroups_are_folders(cgroup: str, folder: str | None) -> None:
    assert folder_of(cgroup) == folder


@pytest.mark.parametrize(
    ("cgroup", "version", "kept"),
    [
        ("kubepods-pod1.slice:crio:34", 2, True),
        ("kubepods-pod1.slice:crio:34", 1, False),
        ("/kubepods/pod12/34", 2, False),
    ],
)
def test_systemd_keeps_the_cpuset_of_a_scope_on_v2(
    cgroup: str, version: int, kept: bool, tmp_path: Path
) -> None:
    assert Cgroups(Root(tmp_path, version).path).kept_by_systemd(cgroup) == kept


def test_the_top_cgroup_shows_whether_there_are_any_to_read_and_write(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = root.path / ("sys/fs/cgroup/cpuset" if root.version == 1 else "sys/fs/cgroup")
    assert not Cgroups(root.path).are_usable()
    (mount / ("cpuset.cpus" if root.version == 1 else "cpuset.cpus.effective")).write_text("0-3\n")
    assert Cgroups(root.path).are_usable()
    monkeypatch.setattr(os, "statvfs", lambda _: Mock(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert not Cgroups(root.path).are_usable()


def test_a_container_is_read_with_its_threads(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    cgroup.set("cpus", "2-3", written="2-5")
    cgroup.hold(70, 71)
    root.thread(71, "3", of=70)
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert (str(observed.cpus.written), str(observed.cpus.effective)) == ("2-5", "2-3")
    assert str(observed.mems.effective) == "0"
    assert {thread: str(cpus) for thread, cpus in observed.threads.items()} == {70: "2-5", 71: "3"}
    assert not observed.hidden


def test_a_container_without_a_cgroup_here_is_not_seen(root: Root) -> None:
    assert seen(Cgroups(root.path)) is None
    assert Cgroups(root.path).observe("1", "/../../proc", turn=0) is None


def test_a_cgroup_whose_container_has_ended_is_not_seen(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    cgroups = Cgroups(root.path)
    assert seen(cgroups) is not None
    cgroup.hold()
    (cgroup.folder / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    shutil.rmtree(root.path / "proc/70")
    assert seen(cgroups) is None


def test_a_cgroup_that_vanishes_half_way_is_not_seen(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    for file in cgroup.folder.glob("cpuset.*mems*"):
        file.unlink()
    assert seen(Cgroups(root.path)) is None


def test_a_thread_that_ends_meanwhile_is_left_out(root: Root) -> None:
    root.cgroup(f"{POD}/1").hold(70, 71)
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert observed.threads.keys() == {70}


def test_a_process_that_was_moved_out_is_still_looked_at(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    cgroups = Cgroups(root.path)
    seen(cgroups)
    cgroup.hold()
    (cgroup.folder / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    root.thread(70, "0-15")
    root.thread(72, "9", of=70)
    observed = seen(cgroups)
    assert observed is not None
    assert observed.threads == {70: CPUSet(range(16)), 72: CPUSet([9])}


def test_another_process_with_the_id_of_one_that_was_there_is_nothing_to_us(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    cgroups = Cgroups(root.path)
    seen(cgroups)
    cgroup.hold(75)
    root.thread(75, "2")
    root.thread(70, "0-15", started=900)
    observed = seen(cgroups)
    assert observed is not None
    assert observed.threads.keys() == {75}


def test_a_forgotten_container_is_not_looked_for_elsewhere(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    cgroups = Cgroups(root.path)
    seen(cgroups)
    cgroups.keep_only(["2"])
    cgroup.hold(75)
    root.thread(75, "2")
    observed = seen(cgroups)
    assert observed is not None
    assert observed.threads.keys() == {75}


def test_of_many_threads_each_turn_shows_others_and_those_that_are_watched(root: Root) -> None:
    many = range(1000, 1000 + 3 * MAX_THREADS)
    root.cgroup(f"{POD}/1").hold(*many)
    for number in many:
        root.thread(number, "2")
    cgroups = Cgroups(root.path)
    turns = [seen(cgroups, turn, watched=(1005,)) for turn in range(3)]
    shown = [{*each.threads} for each in turns if each is not None]
    assert [1005 in each for each in shown] == [True] * 3
    assert all(len(each) <= MAX_THREADS + 1 for each in shown)
    assert set.union(*shown) == {*many}


def test_threads_of_another_pid_namespace_are_told_as_hidden(root: Root) -> None:
    root.cgroup(f"{POD}/1").hold(0, 0)
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert observed.hidden
    assert observed.threads == {}


def test_processes_one_level_deeper_belong_to_the_container(root: Root) -> None:
    top = root.cgroup(f"{POD}/1")
    top.hold()
    root.cgroup(f"{POD}/1/container")
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert observed.threads.keys() == {70}


def test_a_link_that_leads_out_of_the_root_is_not_followed(root: Root, tmp_path: Path) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.mkdir()
    for file in cgroup.folder.iterdir():
        (outside / file.name).write_text(file.read_text())
    shutil.rmtree(cgroup.folder)
    cgroup.folder.symlink_to(outside)
    assert seen(Cgroups(root.path)) is None


def test_a_file_without_end_and_odd_lines_are_bounded(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1")
    name = "tasks" if root.version == 1 else "cgroup.threads"
    (cgroup.folder / name).write_text("70\nx\n-3\n²\n" + "70\n" * 500_000)
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert observed.threads.keys() == {70}


def test_before_linux_3_17_there_is_only_what_was_written(tmp_path: Path) -> None:
    root = Root(tmp_path, 1)
    cgroup = root.cgroup(f"{POD}/1")
    for file in cgroup.folder.glob("cpuset.effective_*"):
        file.unlink()
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert str(observed.cpus.effective) == "2-5"


def test_on_v2_nothing_may_have_been_written(tmp_path: Path) -> None:
    root = Root(tmp_path, 2)
    root.cgroup(f"{POD}/1").set("cpus", "0-15", written="")
    observed = seen(Cgroups(root.path))
    assert observed is not None
    assert (str(observed.cpus.written), str(observed.cpus.effective)) == ("", "0-15")


def test_what_a_cgroup_is_set_to_is_what_its_files_say(root: Root) -> None:
    cgroup = root.cgroup(f"{POD}/1", "2-5", "0-1")
    if root.version == 1:
        for controller, name, text in (
            ("cpu", "cpu.shares", "512"),
            ("cpu", "cpu.cfs_quota_us", "-1"),
            ("cpu", "cpu.cfs_period_us", "100000"),
            ("memory", "memory.limit_in_bytes", "4096"),
        ):
            folder = root.path / "sys/fs/cgroup" / controller / POD / "1"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")
    else:
        (cgroup.folder / "cpu.max").write_text("max 100000\n")
        (cgroup.folder / "cpu.weight").write_text("20\n")
        (cgroup.folder / "memory.max").write_text("4096\n")
    assert Cgroups(root.path).resources(f"/{POD}/1") == Resources(
        cpu_shares=512 if root.version == 1 else 0,
        cpu_quota=-1,
        cpu_period=100_000,
        memory_limit=4096,
        cpus="2-5",
        mems="0-1",
    )


def test_a_cgroup_that_was_never_set_may_use_what_it_inherits(root: Root) -> None:
    root.cgroup(f"{POD}/1").set("cpus", "0-7", written="")
    found = Cgroups(root.path).resources(f"/{POD}/1")
    assert found is not None
    assert (found.cpus, found.cpu_quota, found.memory_limit) == ("0-7", 0, 0)


def test_what_a_cgroup_may_use_is_not_read_if_its_own_was_set(root: Root) -> None:
    root.cgroup(f"{POD}/1").set("cpus", "not a list", written="2-5")
    found = Cgroups(root.path).resources(f"/{POD}/1")
    assert found is not None
    assert found.cpus == "2-5"


def test_version_2_of_cgroups_is_noticed_when_it_comes_and_stays(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    assert cgroups.resources(f"/{POD}/1") is None
    root = Root(tmp_path, 2)
    root.cgroup(f"{POD}/1")
    assert cgroups.resources(f"/{POD}/1") is not None
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").unlink()
    assert cgroups.resources(f"/{POD}/1") is not None


def test_the_cpus_of_many_cgroups_are_read_be_they_set_or_inherited(root: Root) -> None:
    root.cgroup(f"{POD}/1", "2-5", thread=1)
    root.cgroup(f"{POD}/2", thread=2).set("cpus", "0-7", written="")
    cgroups, names = Cgroups(root.path), [f"/{POD}/1", f"/{POD}/2", f"/{POD}/3", "/../etc"]
    found = {name: str(cpus) for name, cpus in cgroups.cpusets(names).items()}
    assert found == {f"/{POD}/1": "2-5", f"/{POD}/2": "0-7"}
    mount = root.path / ("sys/fs/cgroup/cpuset" if root.version == 1 else "sys/fs/cgroup")
    assert cgroups.cpuset_files(names, names[:1]) == {
        *(f"{mount}/{POD}/{n}/cpuset.cpus" for n in (1, 2, 3)),
        f"{mount}/{POD}/1/cpuset.cpus.partition",
    }


def test_the_cpus_of_a_cgroup_are_written(root: Root) -> None:
    root.cgroup(f"{POD}/1", "2-5")
    cgroups = Cgroups(root.path)
    done = cgroups.confine({f"/{POD}/1": CPUSet.parse("2,4")}, Change.WHOLE)
    assert done == {f"/{POD}/1": Confined(cpus=CPUSet.parse("2,4"), written=True)}
    file = root.path / ("sys/fs/cgroup/cpuset" if root.version == 1 else "sys/fs/cgroup") / POD
    assert (file / "1/cpuset.cpus").read_text() == "2,4\n"


@pytest.mark.parametrize("cgroup", ["", f"/{POD}/2", "/../etc"])
def test_what_is_no_cgroup_is_neither_read_nor_written(cgroup: str, root: Root) -> None:
    root.cgroup(f"{POD}/1")
    cgroups = Cgroups(root.path)
    before = sorted(root.path.rglob("*"))
    assert cgroups.resources(cgroup) is None
    done = cgroups.confine({cgroup: CPUSet.parse("0")}, Change.WHOLE)
    assert done == {cgroup: Confined(cpus=None)}
    assert sorted(root.path.rglob("*")) == before


def test_cgroups_below_stay_where_a_write_fails_for_another_reason_than_them(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [root.cgroup(each, "2-5") for each in (f"{POD}/1", f"{POD}/1/inner")]

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(cpuset_files, "_write", refuse)
    done = Cgroups(root.path).confine({f"/{POD}/1": CPUSet.parse("2")}, Change.WHOLE)
    assert [each.error for each in done.values()] == ["Invalid argument"]
    assert {(each.folder / "cpuset.cpus").read_text() for each in made} == {"2-5\n"}


def test_the_cpu_time_of_cgroups_that_are_usable_is_read(root: Root) -> None:
    if root.version == 1:
        folder, file, text = "sys/fs/cgroup/cpuacct", "cpuacct.usage", "1500000000\n"
    else:
        folder, file, text = "sys/fs/cgroup", "cpu.stat", "user_usec 1\nusage_usec 1500000\n"
    (root.path / folder / POD / "1").mkdir(parents=True)
    (root.path / folder / POD / "1" / file).write_text(text)
    used = Cgroups(root.path).cpu_seconds([f"/{POD}/1", f"/{POD}/2", ""])
    assert used == {f"/{POD}/1": 1.5}


def quota_file(root: Root, path: str) -> Path:
    """Return the file that holds the quota of a cgroup."""
    v1 = root.version == 1
    folder = root.path / ("sys/fs/cgroup/cpu" if v1 else "sys/fs/cgroup") / path
    folder.mkdir(parents=True, exist_ok=True)
    return folder / ("cpu.cfs_quota_us" if v1 else "cpu.max")


@pytest.mark.parametrize("name", ["/kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice"])
def test_a_pod_s_quota_is_taken_away_and_given_back_once(name: str, root: Root) -> None:
    file = quota_file(root, "kubepods.slice/kubepods-pod1.slice")
    file.write_text("200000\n" if root.version == 1 else "200000 100000\n")
    cgroups, none = Cgroups(root.path), "-1" if root.version == 1 else "max"
    assert cgroups.limit({name: 300_000}) == {name: Limited(before=200_000)}
    assert file.read_text().startswith("200000"), "it has one"
    assert cgroups.limit({name: NO_QUOTA}) == {name: Limited(before=200_000)}
    assert file.read_text() == none
    assert cgroups.limit({name: NO_QUOTA}) == {name: Limited(before=NO_QUOTA)}
    assert cgroups.limit({name: 300_000}) == {name: Limited(before=NO_QUOTA)}
    assert file.read_text() == "300000"


def test_a_pod_without_a_cgroup_here_has_no_quota(root: Root) -> None:
    quota_file(root, "kubepods/pod1")
    assert Cgroups(root.path).limit({"/kubepods/pod1": NO_QUOTA, "/../etc": NO_QUOTA}) == {}


def test_why_a_pod_s_quota_cannot_be_written_is_said(root: Root) -> None:
    quota_file(root, "kubepods/pod1").mkdir()
    (done,) = Cgroups(root.path).limit({"/kubepods/pod1": NO_QUOTA}).values()
    assert done.error == "Is a directory"


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EINVAL, ["Invalid argument"]), (errno.ENODEV, [])]
)
def test_why_the_kernel_refuses_a_pod_s_quota_is_said_unless_the_cgroup_is_gone(
    number: int, error: list[str], root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "")

    quota_file(root, "kubepods/pod1").write_text("200000")
    monkeypatch.setattr(os, "pwrite", refuse)
    done = Cgroups(root.path).limit({"/kubepods/pod1": NO_QUOTA})
    assert [each.error for each in done.values()] == error


def test_cgroups_outside_of_pods_are_those_at_the_top_with_their_cpus(root: Root) -> None:
    root.cgroup(f"{POD}/1", "4")
    root.cgroup("kubepods.slice", "4")
    service = root.cgroup("system.slice", "0-7")
    empty = root.cgroup("empty.slice", "0-7")
    if root.version == 2:
        (empty.folder / "cgroup.events").write_text("populated 0\n")
    pods = [f"/{POD}", "kubepods-burstable-pod1.slice"]
    found = Cgroups(root.path).outside(pods)
    assert found["system.slice"] == CPUSet(range(8))
    unknown = {"empty.slice"} if root.version == 1 else set()
    assert found.keys() == {"system.slice", *unknown}
    for file in service.folder.glob("cpuset.*"):
        file.unlink()  # the controller is not enabled for it: it may use what the root may
    top = service.folder.parent
    for name in ("cpuset.cpus", "cpuset.effective_cpus", "cpuset.cpus.effective"):
        (top / name).write_text("0-15\n")
    assert Cgroups(root.path).outside(pods)["system.slice"] == CPUSet(range(16))


def test_partitions_are_written_to_the_files_of_version_2_alone(root: Root) -> None:
    above = ("kubepods", "kubepods/burstable", POD)
    folders = [root.cgroup(each).folder for each in (*above, f"{POD}/1")]
    for each in folders if root.version == 2 else ():
        (each / "cpuset.cpus.exclusive").write_text("\n")
        (each / "cpuset.cpus.partition").write_text("member\n")
    partition = Partition(kind=ExclusivePartitions.ROOT, cpus=CPUSet([2, 3]))
    cgroups, name = Cgroups(root.path), f"/{POD}/1"
    done = cgroups.partition({name: partition, "/gone": partition, "..": partition}, (), {})
    if root.version == 1:
        assert done == Settled(outcomes={})
        return
    assert {each: made.held for each, made in done.outcomes.items()} == {name: partition}
    assert {*done.above} == {*above}
    assert (folders[-1] / "cpuset.cpus.partition").read_text() == "root\n"
    assert {(each / "cpuset.cpus.exclusive").read_text() for each in folders} == {"2-3\n"}
    assert cgroups.partition({name: None}, done.above, {}).above == {}
    assert {(each / "cpuset.cpus.exclusive").read_text() for each in folders} == {"\n"}
