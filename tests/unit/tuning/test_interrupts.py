"""Which CPUs must handle each interrupt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.glob import Glob
from nri_policy.hardware.interrupts import Interrupt, Interrupts
from nri_policy.tuning.interrupts import (
    DEFAULT,
    ISOLATION,
    InterruptWishes,
    Owner,
    find_interrupt_wishes,
)
from nri_policy.tuning.items import check
from nri_policy.workload.annotation_values import read_irq_affinity
from nri_policy.workload.annotations import AnnotationError, FoundAnnotation, Scope
from tests.support.tunables import irq

KEY = "irq-affinity.resource-policy.nri.io/container.c"
NIC, DISK = "PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0", "PCI-MSIX-0000:00:02.0 1-edge nvme0q1"
SERIAL = "IO-APIC 4-edge ttyS0"
INTERRUPTS = Interrupts(
    each=(
        Interrupt(number=4, name=SERIAL, affinity=CPUSet.parse("0-7")),
        Interrupt(number=24, name=DISK, affinity=CPUSet.parse("2")),
        Interrupt(number=25, name=NIC, affinity=CPUSet.parse("0-3")),
    ),
    default=CPUSet.parse("0-7"),
)


def owner(
    cpus: str, text: str | None = None, name: str = "ns/p/c", devices: Iterable[int] = ()
) -> Owner:
    """Return a container with exclusive CPUs, and perhaps the annotation and *devices*."""
    found = FoundAnnotation(key=KEY, value=text, scope=Scope.CONTAINER)
    choice = None if text is None else read_irq_affinity(found)
    return Owner(name=name, cpus=CPUSet.parse(cpus), choice=choice, devices=frozenset(devices))


def wishes(*owners: Owner, controllable: str = "*", **given: Any) -> InterruptWishes:
    options: dict[str, Any] = {
        "isolate": False,
        "online": CPUSet.parse("0-7"),
        "reserved": CPUSet.parse("0"),
    }
    return find_interrupt_wishes(
        INTERRUPTS, owners, controllable=(Glob.parse(controllable),), **(options | given)
    )


def affinities(found: InterruptWishes) -> dict[str, str]:
    for item, wish in found.items.items():
        check(item, wish.value)  # the tuner takes all of them
    return {item.id: wish.value for item, wish in found.items.items()}


def test_an_interrupt_that_nothing_claims_or_masks_has_no_wish() -> None:
    assert affinities(wishes(owner("2-3"))) == {}
    assert affinities(wishes(owner("2-3", "{mask: [25]}"))) == {"25": "0-1"}


def test_a_mask_starts_from_the_original_affinity() -> None:
    """The peer loses that an interrupt was near its device (interrupts F1)."""
    found = wishes(owner("2-3", "{mask: ['PCI-MSIX-*']}"))
    assert affinities(found) == {"24": "0", "25": "0-1"}
    why = f"interrupt 24 ({DISK}): only the reserved CPUs are left for it"
    assert found.unmet == {"ns/p/c": (why,)}


def test_claims_of_containers_add_up() -> None:
    first, second = owner("2", "{claim: [25]}", "ns/a/c"), owner("4-5", "{claim: [25]}", "ns/b/c")
    found = wishes(first, second)
    assert affinities(found) == {"25": "2,4-5"}
    assert found.items[irq(25)].origin == ("ns/a/c", "ns/b/c")


def test_with_mask_first_a_claim_counts_and_with_claim_first_the_mask() -> None:
    own = owner("2", "{claim: [25]}", "ns/a/c")
    assert affinities(wishes(own, owner("2-3", "{mask: [25]}", "ns/b/c"))) == {"25": "2"}
    other = owner("2-3", "{mask: [25], mode: claim-first}", "ns/b/c")
    wider = owner("2,5", "{claim: [25]}", "ns/a/c")
    assert affinities(wishes(wider, other)) == {"25": "5"}
    found = wishes(own, other)  # nothing would be left: the claim is kept
    assert affinities(found) == {"25": "2"}
    assert "that no other has masked" in found.unmet["ns/a/c"][0]


def test_a_claim_of_all_means_the_controllable_ones() -> None:
    """The peer refuses the container, because an interrupt that is denied matches, too."""
    found = wishes(owner("2", "{claim: ['*']}"), controllable="PCI-*")
    assert affinities(found) == {"24": "2", "25": "2"}
    assert found.unmet == {}


def test_an_entry_that_selects_nothing_is_said() -> None:
    found = wishes(owner("2", "{claim: [4], mask: ['PCI-MSIX-* eth0*']}"), controllable="PCI-*")
    assert affinities(found) == {}
    assert found.unmet["ns/p/c"] == (
        "interrupt 4: it is not one of controllableInterrupts",
        "interrupt PCI-MSIX-* eth0*: there is none here now",
    )


def test_entries_of_devices_claim_only_interrupts_of_its_own_devices() -> None:
    text = "{devices: ['*'], mask: ['*']}"
    found = wishes(owner("2-3", text, devices=[25]))
    assert affinities(found) == {"4": "0-1,4-7", "24": "0", "25": "2-3"}
    found = wishes(owner("2-3", "{devices: ['*ttyS0', 24]}", devices=[24, 25]))
    assert affinities(found) == {"24": "2-3"}
    why = "interrupt *ttyS0: the devices of the container have none now"
    assert found.unmet == {"ns/p/c": (why,)}


def test_an_interrupt_of_a_device_that_is_not_controllable_is_not_claimed() -> None:
    given = owner("2", "{devices: ['*']}", devices=[4])
    found = wishes(given, controllable="PCI-*")
    assert affinities(found) == {}
    assert found.unmet["ns/p/c"] == ("interrupt *: it is not one of controllableInterrupts",)


def test_isolation_masks_all_exclusive_cpus_and_those_of_later_interrupts() -> None:
    found = wishes(owner("2-3"), owner("6", name="ns/b/c"), isolate=True)
    expected = {"4": "0-1,4-5,7", "24": "0", "25": "0-1", "default": "0-1,4-5,7"}
    assert affinities(found) == expected
    assert found.items[DEFAULT].origin == (ISOLATION,)
    assert affinities(wishes(isolate=True)) == {}  # no exclusive CPUs


def test_interrupts_that_come_later_are_left_the_reserved_cpus_at_least() -> None:
    found = wishes(owner("0-7"), isolate=True)
    assert affinities(found)["default"] == "0"


def test_a_claim_counts_although_interrupts_are_isolated() -> None:
    found = wishes(owner("2-3", "{claim: [25]}"), isolate=True)
    assert affinities(found)["25"] == "2-3"


def test_an_offline_cpu_handles_no_interrupt() -> None:
    found = wishes(owner("2", "{mask: [25]}"), online=CPUSet.parse("0,2-7"))
    assert affinities(found) == {"25": "0,3"}


def test_the_words_of_balloons_mean_all_interrupts() -> None:
    assert affinities(wishes(owner("2-3", "isolate"))) == affinities(
        wishes(owner("2-3", "{mask: ['*']}"))
    )
    assert affinities(wishes(owner("2-3", "sink"))) == {"4": "2-3", "24": "2-3", "25": "2-3"}


@pytest.mark.parametrize(
    "text",
    [
        "{claims: [1]}",
        "{devices: ['[abc']}",
        "{mode: first}",
        "{claim: 4}",
        "{claim: ['[']}",
        "{mask: [1.5]}",
        "[4]",
    ],
)
def test_another_value_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError, match="isolate, sink, or a map"):
        owner("2", text)
