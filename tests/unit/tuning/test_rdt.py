"""Shares of caches and bandwidth, resolved as goresctrl resolves them; and what cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware.resctrl import Resctrl, resctrl_of
from nri_policy.settings import RDT
from nri_policy.tuning.items import Item, Kind, check
from nri_policy.tuning.rdt import RDTClass, resolve
from tests.support import nodes
from tests.support.fake_resctrl import FakeResctrl

L3 = "l3Allocation"


def rdt(partitions: dict[str, Any], **fields: Any) -> RDT:
    control = {"rdt": {"enable": True, "partitions": partitions, **fields}}
    return nodes.settings(control=control).control.rdt


def partition(share: Any = None, mb: Any = None, **classes: Any) -> dict[str, Any]:
    """Return a partition: its share of L3, of bandwidth, and those of its classes."""
    own = {name: allocation(*each) for name, each in classes.items()}
    return {**allocation(share, mb), "classes": own}


def allocation(share: Any = None, mb: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if share is not None:
        ids = share if isinstance(share, dict) else {"all": share}
        found["l3Allocation"] = {
            id_: each if isinstance(each, dict) else {"unified": each} for id_, each in ids.items()
        }
    if mb is not None:
        found["mbAllocation"] = mb if isinstance(mb, dict) else {"all": [mb]}
    return found


def machine(root: Path, **features: Any) -> FakeResctrl:
    return FakeResctrl(root, **({"caches": {"L3": 20}, "ids": [0]} | features))


def masks(root: Path, partitions: dict[str, Any], **features: Any) -> dict[str, str]:
    """Return the masks of classes on cache 0, after the kernel took them."""
    fake = machine(root, **features)
    classes, faults = resolve(rdt(partitions), resctrl_of(root))
    assert not faults
    for each in classes:
        check(Item(Kind.RESCTRL, each.name, "schemata"), each.schemata)
        fake.mkdir(each.name)
        fake.write(f"{each.name}/schemata", f"{each.schemata}\n".encode())
        found = resctrl_of(root)
        assert found is not None
        assert each.name in found.existing
    return {each.name: f"{each.shares['L3'][0]:x}" for each in classes}


def problems(root: Path, given: RDT, **features: Any) -> list[str]:
    machine(root, **features)
    classes, faults = resolve(given, resctrl_of(root))
    assert not classes
    return [f"{each.path}: {each.text}" for each in faults if each.fatal]


@pytest.mark.parametrize(
    ("ways", "least", "percents", "expected"),
    [
        (20, 1, {"a": "60%", "b": "40%"}, {"a": "fff00", "b": "ff"}),
        (20, 1, {"a": "50%", "b": "50%"}, {"a": "3ff", "b": "ffc00"}),
        (20, 1, {"a": "33%", "b": "33%", "c": "34%"}, {"a": "3f", "b": "fc0", "c": "ff000"}),
        (20, 1, {"a": "10%", "b": "20%"}, {"a": "3", "b": "ffffc"}),  # the last takes the rest
        (11, 1, {"a": "1%", "b": "99%"}, {"a": "1", "b": "7fe"}),
        (11, 3, {"a": "1%", "b": "1%", "c": "98%"}, {"a": "7", "b": "38", "c": "7c0"}),
        (12, 2, {"a": "9%", "b": "25%", "c": "66%"}, {"a": "3", "b": "1c", "c": "fe0"}),
        (20, 1, {"a": "0-3", "b": "0xff0"}, {"a": "f", "b": "ff0"}),
        (20, 1, {"a": "100%"}, {"a": "fffff"}),
        (20, 1, {"a": None, "b": None}, {"a": "fffff", "b": "fffff"}),
    ],
)
def test_partitions_are_side_by_side(
    tmp_path: Path, ways: int, least: int, percents: dict[str, str], expected: dict[str, str]
) -> None:
    given = {name: partition(share, **{name: ()}) for name, share in percents.items()}
    assert masks(tmp_path, given, caches={"L3": ways}, least=least) == expected


@pytest.mark.parametrize(
    ("least", "share", "expected"),
    [
        (1, "100%", "ff000"),
        (1, "50%", "f000"),
        (1, "1%", "1000"),
        (1, "13%", "1000"),  # (13 - 1) * 8 / 100 = 0.96
        (1, "14%", "3000"),
        (1, "50-60%", "18000"),
        (1, "1-100%", "ff000"),
        (1, "99-100%", "80000"),
        (3, "99-100%", "e0000"),  # wider, first downwards
        (3, "1%", "7000"),
        (3, "1-10%", "7000"),
        (1, "0-1", "3000"),  # relative to the partition
        (1, "0xf0", "f0000"),
    ],
)
def test_a_class_has_a_part_of_its_partition(
    tmp_path: Path, least: int, share: str, expected: str
) -> None:
    given = {"low": partition("0-11"), "high": partition("12-19", one=(share,), all=())}
    assert masks(tmp_path, given, least=least) == {"one": expected, "all": "ff000"}


def test_each_cache_has_its_own_shares(tmp_path: Path) -> None:
    machine(tmp_path, ids=[0, 1, 4])
    given = {
        "a": partition({"all": "50%", "0-1": "25%"}, x=({"4": "50%"},)),
        "b": partition({"all": "50%", "0-1": "75%"}),
    }
    (one,), _ = resolve(rdt(given), resctrl_of(tmp_path))
    assert one.schemata == "L3:0=1f;1=1f;4=1f\nMB:0=100;1=100;4=100"


def test_each_level_of_caches_has_its_own_shares(tmp_path: Path) -> None:
    machine(tmp_path, caches={"L2CODE": 8, "L2DATA": 8, "L3": 20}, bandwidth=None)
    low, high = partition("25%", x=("50%",)), partition("75%", y=())
    low["l2Allocation"] = {"all": {"unified": "50%", "code": "25%", "data": "75%"}}
    high["l2Allocation"] = {"all": {"unified": "50%", "code": "75%", "data": "25%"}}
    low["classes"]["x"]["l2Allocation"] = {"0": {"unified": "50-100%"}}
    classes, faults = resolve(rdt({"low": low, "high": high}), resctrl_of(tmp_path))
    assert not faults
    assert {each.name: each.schemata for each in classes} == {
        "x": "L2CODE:0=3\nL2DATA:0=f0\nL3:0=7",
        "y": "L2CODE:0=fc\nL2DATA:0=3\nL3:0=fffe0",
    }


def test_code_and_data_have_shares_where_the_machine_splits_them(tmp_path: Path) -> None:
    split = {"unified": "50%", "code": "25%", "data": "75%"}
    given = {"a": partition("100%", x=({"all": split},), y=("50%",))}
    machine(tmp_path, caches={"L3CODE": 8, "L3DATA": 8}, bandwidth=None)
    classes, faults = resolve(rdt(given), resctrl_of(tmp_path))
    assert not faults
    assert {each.name: each.schemata for each in classes} == {
        "x": "L3CODE:0=3\nL3DATA:0=3f",
        "y": "L3CODE:0=f\nL3DATA:0=f",
    }


@pytest.mark.parametrize(
    ("whole", "own", "expected"),
    [
        (None, None, 100),
        ("50%", None, 50),
        ("50%", "50%", 30),  # 25, in steps of 10
        ("50%", "1%", 10),  # the least
        (None, "71%", 80),
        ("1%", None, 10),
    ],
)
def test_bandwidth_is_a_percent_of_a_percent(
    tmp_path: Path, whole: str | None, own: str | None, expected: int
) -> None:
    fake = machine(tmp_path)
    (one,), _ = resolve(rdt({"a": partition(mb=whole, x=(None, own))}), resctrl_of(tmp_path))
    assert one.shares["MB"][0] == expected
    fake.write("schemata", f"{one.schemata}\n".encode())
    assert f"MB:0={expected}" in (fake.top / "schemata").read_text(), "the kernel rounds nothing"


def test_of_bandwidth_in_megabytes_the_lower_counts(tmp_path: Path) -> None:
    machine(tmp_path, mbps=True)
    both = ["50%", "1000MBps"]
    given = {
        "a": partition(mb={"all": both}, x=(None, "2000MBps"), y=(None, "500MBps"), z=()),
        "b": partition(w=()),
    }
    classes, _ = resolve(rdt(given), resctrl_of(tmp_path))
    assert {each.name: each.shares["MB"][0] for each in classes} == {
        "w": (1 << 32) - 1,
        "x": 1000,
        "y": 500,
        "z": 1000,
    }


def test_an_amount_that_the_mount_does_not_use_is_an_error(tmp_path: Path) -> None:
    assert problems(tmp_path, rdt({"a": partition(mb="1000MBps", x=())})) == [
        "control.rdt.partitions.a.mbAllocation: 1000MBps: bandwidth is in % on this machine"
    ]
    assert problems(tmp_path, rdt({"a": partition(x=(None, "50%"))}), mbps=True) == [
        "control.rdt.partitions.a.classes.x.mbAllocation: 50%: bandwidth is in MBps on this machine"
    ]


@pytest.mark.parametrize(
    ("given", "features", "text"),
    [
        (
            {"a": partition("0-3", x=("0-4",))},
            {},
            f".a.classes.x.{L3}: the mask 0x1f is not within the 4 ways of its partition (0xf)",
        ),
        (
            {"a": partition("16-20", x=())},
            {},
            ".a.l3Allocation: the mask 0x1f0000 is not within the 20 ways of cache 0 (0xfffff)",
        ),
        (
            {"a": partition("0-3", x=("2",))},
            {"least": 2},
            ".a.classes.x.l3Allocation: the mask 0x4 has fewer than 2 bits",
        ),
        (
            {"a": partition("50%", x=()), "b": partition(y=())},
            {},
            ".b: it has no l3Allocation, and other partitions have one",
        ),
        (
            {"a": partition({"1": "50%"}, x=()), "b": partition("50%")},
            {},
            ": l3Allocation of cache 0: 150% together",
        ),
        (
            {"a": partition({"1": "0-3"}, x=()), "b": partition("4-5")},
            {},
            ".a.l3Allocation: it has a percent of cache 0, and other partitions have bits",
        ),
        (
            {each: partition("30%", **{f"x{each}": ()}) for each in "abc"},
            {"caches": {"L3": 4}, "least": 2},
            ".c.l3Allocation: no way of cache 0 is left for it",
        ),
        (
            {"a": partition(x=(), y=(), z=())},
            {"closids": 3},
            ": 3 classes: this machine can have 2 groups",
        ),
        (
            {"a": partition("50%", x=())},
            {"caches": {"L2": 8}},
            ".a: this machine cannot share L3 (l3Allocation)",
        ),
    ],
)
def test_what_a_machine_cannot_have_is_named(
    tmp_path: Path, given: dict[str, Any], features: dict[str, Any], text: str
) -> None:
    assert problems(tmp_path, rdt(given), **features) == [f"control.rdt.partitions{text}"]


def test_an_optional_resource_may_be_missing(tmp_path: Path) -> None:
    machine(tmp_path, caches={"L2": 8})
    given = rdt({"a": partition("50%", x=())}, options={"l3": {"optional": True}})
    (one,), faults = resolve(given, resctrl_of(tmp_path))
    assert one == RDTClass(name="x", shares={"L2": {0: 0xFF}, "MB": {0: 100}})
    assert [each.fatal for each in faults] == [False]


def test_without_resctrl_the_settings_are_not_refused() -> None:
    """With the peer, the policy does not start."""
    classes, (fault,) = resolve(rdt({"a": partition("50%", x=())}), None)
    assert not classes
    assert not fault.fatal
    assert "not mounted" in fault.text


def test_nothing_is_resolved_where_it_is_off() -> None:
    assert resolve(rdt({"a": partition("50%", x=())}, enable=False), None) == ((), ())
    assert resolve(rdt({}), Resctrl()) == ((), ())
