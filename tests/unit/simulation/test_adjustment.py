from __future__ import annotations

import pytest
from google.protobuf import text_format

from nri_policy.nri.errors import CallRefused
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.adjustment import CreationResult, Results, overlay
from tests.unit.simulation.scripted import adjusted, pinned


def container() -> nri.Container:
    return text_format.Parse(
        """
        id: "new" args: "sh" env: "A=1" env: "B=x=y"
        mounts { destination: "/a" source: "/from" } mounts { destination: "/b" }
        annotations { key: "k" value: "v" }
        linux { resources { cpu { shares { value: 2 } } } }
        """,
        nri.Container(),
    )


def adjustment(text: str) -> nri.ContainerAdjustment:
    return text_format.Parse(text, nri.ContainerAdjustment())


def created(*texts: str) -> nri.Container:
    """Return the container after plugins p0, p1, … adjusted it."""
    creation = CreationResult(container())
    for number, text in enumerate(texts):
        creation.adjust(f"p{number}", adjustment(text))
    return creation.container


def test_what_is_not_adjusted_stays() -> None:
    assert created("") == container()


def test_the_container_given_is_not_touched() -> None:
    before = container()
    CreationResult(before).adjust("p", adjusted(cpus="0-3").adjust)
    assert before == container()


def test_later_plugins_see_what_earlier_ones_set() -> None:
    creation = CreationResult(container())
    creation.adjust("p0", adjusted(cpus="0-3").adjust)
    creation.adjust("p1", adjusted(mems="1").adjust)
    assert creation.container.linux.resources.cpu.cpus == "0-3"
    assert creation.container.linux.resources.cpu.mems == "1"


def test_an_empty_text_leaves_alone() -> None:
    after = created('linux { resources { cpu { cpus: "1" } } }', "linux { resources { cpu {} } }")
    assert after.linux.resources.cpu.cpus == "1"


def test_a_wrapped_zero_is_set() -> None:
    after = created("linux { resources { cpu { shares { value: 0 } } } }")
    assert after.linux.resources.cpu.HasField("shares")
    assert after.linux.resources.cpu.shares.value == 0


@pytest.mark.parametrize(
    "text",
    [
        'linux { resources { cpu { cpus: "1" } } }',
        "linux { resources { cpu { shares { value: 2 } } } }",
        "linux { resources { memory { limit { value: 7 } } } }",
        'linux { resources { unified { key: "memory.high" value: "1" } } }',
        'linux { resources { hugepage_limits { page_size: "2MB" limit: 1 } } }',
        'linux { resources { rdt_class { value: "gold" } } }',
        "linux { oom_score_adj { value: 1 } }",
        "linux { io_priority { class: IOPRIO_CLASS_BE } }",
        'linux { sysctl { key: "a" value: "b" } }',
        'linux { devices { path: "/dev/x" } }',
        'linux { cgroups_path: "/x" }',
        'annotations { key: "k" value: "1" }',
        'env { key: "A" value: "2" }',
        'mounts { destination: "/a" }',
        'args: "x"',
        'rlimits { type: "NOFILE" }',
        'CDI_devices { name: "a/b=c" }',
    ],
)
def test_what_two_plugins_set_is_a_conflict(text: str) -> None:
    with pytest.raises(CallRefused, match="plugins 'p0' and 'p1' both tried to set"):
        created(text, text)


def test_different_keys_do_not_conflict() -> None:
    after = created('env { key: "C" value: "1" }', 'env { key: "D" value: "2" }')
    assert list(after.env) == ["A=1", "B=x=y", "C=1", "D=2"]


def test_a_mark_removes() -> None:
    after = created(
        'annotations { key: "-k" } env { key: "-A" } mounts { destination: "-/a" }',
    )
    assert dict(after.annotations) == {}
    assert list(after.env) == ["B=x=y"]
    assert [mount.destination for mount in after.mounts] == ["/b"]


def test_removing_first_replaces_what_another_plugin_set() -> None:
    after = created(
        'env { key: "C" value: "1" } mounts { destination: "/c" source: "/1" }',
        'env { key: "C" value: "2" } env { key: "-C" }'
        'mounts { destination: "/c" source: "/2" } mounts { destination: "-/c" }',
    )
    assert "C=2" in after.env
    assert "C=1" not in after.env
    assert {mount.destination: mount.source for mount in after.mounts}["/c"] == "/2"


def test_what_kubelet_set_may_be_replaced() -> None:
    after = created('env { key: "A" value: "2" } mounts { destination: "/a" source: "/to" }')
    assert list(after.env) == ["A=2", "B=x=y"]
    assert [(m.destination, m.source) for m in after.mounts] == [("/a", "/to"), ("/b", "")]


def test_args_that_begin_with_nothing_override_those_of_another_plugin() -> None:
    assert list(created('args: "one"', 'args: "" args: "two"').args) == ["two"]


def test_a_memory_limit_allows_no_swap_and_the_rest_of_memory_does_not_arrive() -> None:
    after = created(
        "linux { resources { memory { limit { value: 7 } reservation { value: 3 } } } }"
    )
    assert after.linux.resources.memory.limit.value == 7
    assert after.linux.resources.memory.swap.value == 7
    assert not after.linux.resources.memory.HasField("reservation")


def test_a_memory_limit_of_zero_does_not_arrive() -> None:
    assert created("linux { resources { memory { limit { value: 0 } } } }") == container()


def test_the_container_under_creation_cannot_be_updated() -> None:
    with pytest.raises(CallRefused, match="asked update of 'new' during creation"):
        CreationResult(container()).update("p", pinned("new", cpus="1"))


def test_updates_of_one_container_are_merged() -> None:
    results = Results(container())
    results.update("p0", pinned("a", cpus="1"))
    results.update("p1", pinned("a", mems="0"))
    results.update("p1", pinned("b", cpus="2"))
    assert results.others == [pinned("a", cpus="1", mems="0"), pinned("b", cpus="2")]


def test_two_updates_of_one_field_conflict_even_from_the_same_plugin() -> None:
    results = Results(container())
    results.update("p", pinned("a", cpus="1"))
    with pytest.raises(CallRefused, match=r"plugins 'p' and 'p' both tried to set cpu\.cpus"):
        results.update("p", pinned("a", cpus="1"))


def test_a_conflict_whose_failure_may_be_ignored_changes_nothing() -> None:
    results = Results(container())
    results.update("p", pinned("a", cpus="1"))
    second = pinned("a", mems="1", cpus="2")
    second.ignore_failure = True
    results.update("q", second)
    assert results.others == [pinned("a", cpus="1")]


def test_an_update_overlays_the_request() -> None:
    request = pinned("", shares=100, quota=5000).linux.resources
    results = Results(container(), request)
    results.update("p", pinned("new", cpus="1", quota=-1))
    assert results.requested == pinned("", shares=100, quota=-1, cpus="1").linux.resources
    assert request == pinned("", shares=100, quota=5000).linux.resources


def test_a_request_that_no_plugin_updates_passes_untouched() -> None:
    request = pinned("", shares=100).linux.resources
    results = Results(container(), request)
    results.update("p", pinned("other", cpus="1"))
    assert results.requested == request
    assert results.others == [pinned("other", cpus="1")]


def test_hugepage_limits_replace_those_of_the_same_size() -> None:
    target = text_format.Parse(
        'hugepage_limits { page_size: "2MB" limit: 1 } '
        'hugepage_limits { page_size: "1GB" limit: 2 }',
        nri.LinuxResources(),
    )
    wanted = nri.LinuxResources()
    wanted.hugepage_limits.add(page_size="2MB", limit=9)
    overlay(target, wanted)
    assert {x.page_size: x.limit for x in target.hugepage_limits} == {"2MB": 9, "1GB": 2}
