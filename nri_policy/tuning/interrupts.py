"""Interrupts: which CPUs must handle each, as wishes for items.

Pure (classes.md §3). An interrupt that nothing claims or masks has no wish: it has its
original affinity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.glob import Glob
from nri_policy.hardware.interrupts import Interrupt, Interrupts
from nri_policy.tuning.items import Item, Kind, Wish
from nri_policy.workload.annotation_values import InterruptChoice

ISOLATION = "isolateInterrupts"  # the setting
DEFAULT = Item(Kind.IRQ, "default", "affinity")
MAX_UNMET = 4  # texts for one container
_DENIED = "it is not one of controllableInterrupts"


def item_of(number: int) -> Item:
    """Return the item of an interrupt's affinity."""
    return Item(Kind.IRQ, str(number), "affinity")


class Owner(Struct, frozen=True, kw_only=True):
    """A container with exclusive CPUs, or all other exclusive CPUs."""

    name: str  # namespace/pod/container; empty: CPUs of rooms and claims that no container has
    cpus: CPUSet
    choice: InterruptChoice | None = None
    devices: frozenset[int] = frozenset()  # the interrupts of its devices


class InterruptWishes(Struct, frozen=True, kw_only=True):
    """Wishes from the choices of all containers."""

    items: Mapping[Item, Wish]
    # by owner, the parts of its choice without effect, and why
    unmet: Mapping[str, tuple[str, ...]]


class _Users(Struct, kw_only=True):
    """The CPUs that containers claim for an interrupt, and the CPUs that they keep free of it."""

    claims: CPUSet = EMPTY
    mask: CPUSet = EMPTY  # claims come before it
    premask: CPUSet = EMPTY  # it comes before claims
    origin: tuple[str, ...] = ()


def find_interrupt_wishes(  # noqa: PLR0913 - keywords
    interrupts: Interrupts,
    owners: Collection[Owner],
    *,
    controllable: Collection[Glob],
    isolate: bool,
    online: CPUSet,
    reserved: CPUSet,
) -> InterruptWishes:
    """Return the wishes for interrupts, which are given with their original affinities.

    *isolate* keeps all interrupts away from the owners' CPUs, also those that come later.
    """
    allowed = [
        irq for irq in interrupts.each if any(each.matches(irq.name) for each in controllable)
    ]
    users = {irq.number: _Users() for irq in allowed}
    unmet = dict[str, list[str]]()
    own = CPUSet.union(owner.cpus for owner in owners)
    if isolate and own:
        for use in users.values():
            use.mask, use.origin = own, (ISOLATION,)
    names = {irq.number: irq.name for irq in interrupts.each}
    for owner in owners:
        if owner.choice is not None:
            unmet[owner.name] = [*_add_choice(owner, owner.choice, names, users)]
    items = dict[Item, Wish]()
    for irq in allowed:
        use = users[irq.number]
        if not use.origin:
            continue
        cpus, lacking = _decide(irq, use, online, reserved)
        items[item_of(irq.number)] = Wish(str(cpus), _unique(use.origin))
        if lacking:
            for name in _unique(use.origin):
                unmet.setdefault(name, []).append(f"interrupt {irq.number} ({irq.name}): {lacking}")
    if isolate and own and interrupts.default:
        left = (interrupts.default & online) - own or reserved
        items[DEFAULT] = Wish(str(left), (ISOLATION,))
    return InterruptWishes(
        items=items,
        unmet={name: (*texts[:MAX_UNMET],) for name, texts in unmet.items() if texts},
    )


def _add_choice(
    owner: Owner,
    choice: InterruptChoice,
    every: Mapping[int, str],
    users: Mapping[int, _Users],
) -> Iterator[str]:
    """Add what a container chooses to *users*; yield entries that select nothing."""
    own = {number: name for number, name in every.items() if number in owner.devices}
    for entries, among, claims in (
        (choice.claim, every, True),
        (choice.devices, own, True),
        (choice.mask, every, False),
    ):
        for entry in entries:
            selected = _select(entry, among)
            numbers = [number for number in selected if number in users]
            if selected and not numbers:
                yield f"interrupt {entry}: {_DENIED}"
            elif not selected and among is own:
                yield f"interrupt {entry}: the devices of the container have none now"
            elif not selected:
                yield f"interrupt {entry}: there is none here now"
            for number in numbers:
                use = users[number]
                use.origin = (*use.origin, owner.name)
                if claims:
                    use.claims |= owner.cpus
                elif choice.claim_first:
                    use.premask |= owner.cpus
                else:
                    use.mask |= owner.cpus


def find_denied(
    choice: InterruptChoice, names: Mapping[int, str], controllable: Collection[Glob]
) -> str:
    """Return why a container may not choose an entry; empty if it may choose all.

    An entry that selects no interrupt is allowed: the device may be plugged in later.
    """
    for entry in (*choice.claim, *choice.mask):
        selected = [names[number] for number in _select(entry, names)]
        if selected and not any(each.matches(name) for name in selected for each in controllable):
            return f"interrupt {entry}: {_DENIED}"
    return ""


def _select(entry: int | str, names: Mapping[int, str]) -> list[int]:
    """Return the numbers of the interrupts that an entry, a number or a glob, selects."""
    if isinstance(entry, int):
        return [entry] if entry in names else []
    glob = Glob.parse(entry)
    return [number for number, name in names.items() if glob.matches(name)]


def _decide(irq: Interrupt, use: _Users, online: CPUSet, reserved: CPUSet) -> tuple[CPUSet, str]:
    """Return the CPUs of an interrupt, and what is lacking."""
    base = (use.claims or irq.affinity) & online
    cpus = base - use.premask - (use.mask - use.claims)
    if cpus:
        return cpus, ""
    if use.claims:
        return use.claims, "the claims of containers leave it no CPU that no other has masked"
    return reserved or irq.affinity, "only the reserved CPUs are left for it"


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return (*dict.fromkeys(names),)
