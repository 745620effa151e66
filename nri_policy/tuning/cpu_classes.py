"""CPU classes: the frequencies, idle states and uncore frequencies of CPUs, as wishes for items.

Pure (classes.md §2). An attribute that a class leaves out has no wish: the CPUs have its
original value. CPUs that the driver sets together have the highest minimum and the highest maximum
of their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.hardware.power import FrequencyPolicy, IdleStates, Power, Uncore
from nri_policy.settings import CPUClass
from nri_policy.tuning.faults import Fault
from nri_policy.tuning.items import Item, Kind, Wish

# The words that drivers know, with what they stand for on processors that take a number.
EPP_WORDS = {"performance": 0, "balance_performance": 128, "balance_power": 192, "power": 255}
PERFORMANCE = "performance"  # a governor
_UNCORE_STEP = 100_000  # kHz; the driver rounds down

Frequency = str | int | None  # of a class: a symbol, kHz, or left out


class ClassAssignment(Struct, frozen=True, kw_only=True):
    """CPUs in a class."""

    given: CPUClass
    cpus: CPUSet
    origin: str  # a container as namespace/pod/container, or the field of the settings
    latency: str | None = None  # for `resume_latency`, in place of the class's C-states


class Wishes(Struct, frozen=True, kw_only=True):
    """The items that the classes of all CPUs set."""

    items: Mapping[Item, Wish]
    # by origin: values that its CPUs do not get, with the reason
    unmet: Mapping[str, tuple[str, ...]]


def find_wishes(
    assignments: Collection[ClassAssignment], power: Power, packages: Iterable[CPUSet]
) -> Wishes:
    """Return the wishes for the items of a machine. CPUs in no class have no wish."""
    collector = _WishCollector(assignments, packages)
    for policy in power.policies:
        collector.add_policy(policy)
    for states in power.idle:
        collector.add_idle_states(states)
    for die in power.uncore:
        collector.add_uncore(die)
    return Wishes(
        items=collector.items,
        unmet={origin: tuple(dict.fromkeys(texts)) for origin, texts in collector.unmet.items()},
    )


class _WishCollector:
    """Collects the wishes of all classes, and notes wishes that the hardware cannot fulfil."""

    def __init__(
        self, assignments: Collection[ClassAssignment], packages: Iterable[CPUSet]
    ) -> None:
        self.items: dict[Item, Wish] = {}
        self.unmet: dict[str, list[str]] = {}
        self._assignments = assignments
        self._contests = [
            (cpus, max((each.given.turbo_priority for each in self._on(cpus)), default=0))
            for cpus in packages
        ]

    def _on(self, cpus: CPUSet) -> list[ClassAssignment]:
        """Return the assignments of some of the *cpus*."""
        return [each for each in self._assignments if not each.cpus.isdisjoint(cpus)]

    def _wish(
        self, kind: Kind, id_: object, attribute: str, value: str, of: ClassAssignment
    ) -> None:
        item = Item(kind, str(id_), attribute)
        before = self.items.get(item)
        self.items[item] = Wish(value, (*(before.origin if before else ()), of.origin))

    def _settle(
        self,
        what: Item,
        wished: Sequence[tuple[ClassAssignment, str]],
        best: str,
        cpus: CPUSet,
    ) -> None:
        """Wish for the *best* value, and note which classes get another value than *wished*."""
        for each, value in wished:
            if value == best:
                self._wish(what.kind, what.id, what.attribute, best, each)
        for each, value in wished:
            if value != best:
                others = cpus - each.cpus
                text = f"{what.attribute} is {best}, not {value}: CPUs {others}, which need it, are"
                self.unmet.setdefault(each.origin, []).append(f"{text} set together with these")

    def add_policy(self, policy: FrequencyPolicy) -> None:
        """Add the wishes for CPUs that are set together."""
        on = self._on(policy.cpus)
        if not on:
            return
        if others := policy.cpus - CPUSet.union(each.cpus for each in on):
            for each in on:
                if not _asks_frequency(each.given):
                    continue
                text = f"frequencies: CPUs {others}, which are in no class, are set together with"
                self.unmet.setdefault(each.origin, []).append(f"{text} these")
            return
        low, high = self._range(
            on, lambda each: (each.min_freq, each.max_freq), self._symbols(policy)
        )
        place = (Kind.CPUFREQ, str(policy.id))
        self._settle_range(place, low, high, policy.cpus)
        governors = [(each, each.given.governor) for each in on if each.given.governor]
        for each, name in governors:
            if name not in policy.governors:
                text = f"{quoted(name)} is not a governor of CPUs {policy.cpus & each.cpus}"
                there = ", ".join(policy.governors) or "none"
                self.unmet.setdefault(each.origin, []).append(f"governor: {text} ({there})")
        governors = [pair for pair in governors if pair[1] in policy.governors]
        if governors:
            named = [governor for _, governor in governors]
            best = PERFORMANCE if PERFORMANCE in named else named[0]
            self._settle(Item(*place, "governor"), governors, best, policy.cpus)
        preferences = [(each, each.given.epp) for each in on if each.given.epp is not None]
        if preferences and policy.preferences:
            texts = [(each, preference_of(number, policy)) for each, number in preferences]
            least = min(number for _, number in preferences)
            self._settle(Item(*place, "epp"), texts, preference_of(least, policy), policy.cpus)

    def _symbols(
        self, policy: FrequencyPolicy
    ) -> Callable[[ClassAssignment, Frequency], int | None]:
        """Return what makes kHz of a frequency in a class, within the range of *policy*."""
        top = max(
            (most for cpus, most in self._contests if not cpus.isdisjoint(policy.cpus)), default=0
        )

        def resolve(of: ClassAssignment, given: Frequency) -> int | None:
            turbo = policy.maximum if of.given.turbo_priority == top else policy.base
            symbols = {"min": policy.minimum, "base": policy.base, "turbo": turbo}
            return _resolve(given, symbols, policy.minimum, policy.maximum)

        return resolve

    def _range(
        self,
        on: Sequence[ClassAssignment],
        fields: Callable[[CPUClass], tuple[Frequency, Frequency]],
        resolve: Callable[[ClassAssignment, Frequency], int | None],
    ) -> tuple[list[tuple[ClassAssignment, int]], list[tuple[ClassAssignment, int]]]:
        """Return the minima and the maxima that are wished for.

        If a class leaves the maximum out, no maximum is set: its original is not known here.
        """
        low: list[tuple[ClassAssignment, int]] = []
        high: list[tuple[ClassAssignment, int]] = []
        for each in on:
            minimum, maximum = (resolve(each, field) for field in fields(each.given))
            if maximum is not None:
                high.append((each, maximum))
                minimum = None if minimum is None else min(minimum, maximum)
            if minimum is not None:
                low.append((each, minimum))
        return low, high if len(high) == len(on) else []

    def _settle_range(
        self,
        place: tuple[Kind, str],
        low: list[tuple[ClassAssignment, int]],
        high: list[tuple[ClassAssignment, int]],
        cpus: CPUSet,
    ) -> None:
        for attribute, wished in (("min_freq", low), ("max_freq", high)):
            if wished:
                best = max(value for _, value in wished)
                texts = [(each, str(value)) for each, value in wished]
                self._settle(Item(*place, attribute), texts, str(best), cpus)

    def add_idle_states(self, states: IdleStates) -> None:
        """Add the wishes for CPUs with the same C-states."""
        for each in self._on(states.cpus):
            wishes = (
                idle_wishes(each.given.disabled_cstates, states)
                if each.latency is None
                else {"resume_latency": each.latency}
            )
            for cpu in each.cpus & states.cpus:
                for attribute, value in wishes.items():
                    self._wish(Kind.CPU, cpu, attribute, value, each)

    def add_uncore(self, die: Uncore) -> None:
        """Add the wishes for a die."""
        symbols = {"min": die.minimum, "base": die.maximum, "turbo": die.maximum}

        def resolve(_: ClassAssignment, given: Frequency) -> int | None:
            found = _resolve(given, symbols, die.minimum, die.maximum)
            return None if found is None else found - found % _UNCORE_STEP

        low, high = self._range(
            self._on(die.cpus), lambda each: (each.uncore_min_freq, each.uncore_max_freq), resolve
        )
        self._settle_range((Kind.UNCORE, die.id), low, high, die.cpus)


def _resolve(given: Frequency, symbols: Mapping[str, int], low: int, high: int) -> int | None:
    """Return a frequency in kHz; the kernel limits numbers to the range, and reads them so."""
    if given is None:
        return None
    return max(low, min(high, symbols[given] if isinstance(given, str) else given))


def _asks_frequency(given: CPUClass) -> bool:
    return any(
        each is not None for each in (given.min_freq, given.max_freq, given.governor, given.epp)
    )


def preference_of(number: int, policy: FrequencyPolicy) -> str:
    """Return what to write for an energy-performance preference: the nearest that there is."""
    exact = {value: word for word, value in EPP_WORDS.items() if word in policy.preferences}
    if policy.numeric and number not in exact:  # the driver reads these numbers back as words
        return str(number)
    return exact[min(exact, key=lambda value: (abs(value - number), value))] if exact else ""


def idle_wishes(disabled: Collection[str], states: IdleStates) -> dict[str, str]:
    """Return the values, by attribute, that keep a CPU out of the *disabled* states.

    If all states from some depth on are disabled, a latency limit does it: one write, and no
    capability.
    """
    off = [each for each in states.states if each.name in disabled]
    if not off:
        return {}
    allowed = max((each.latency for each in states.states if each not in off), default=0)
    if allowed < min(each.latency for each in off):
        return {"resume_latency": str(allowed) if allowed else "n/a"}  # 0 would be: no limit
    return {f"state{each.number}": "1" for each in off}


def find_faults(classes: Sequence[CPUClass], power: Power) -> Iterator[Fault]:
    """Yield fields of classes that this machine cannot fulfil.

    Settings are not refused because a machine, such as a virtual one, has no driver for
    frequencies or idle states.
    """
    for number, each in enumerate(classes):
        for field, text, fatal in _faults_of(each, power):
            path = f"cpuClasses[{number}].{field}"
            yield Fault(path=path, text=text, fatal=fatal and not each.optional)


def _faults_of(given: CPUClass, power: Power) -> Iterator[tuple[str, str, bool]]:
    if power.policies:
        yield from _frequency_faults(given, power.policies)
    else:
        for field, value in (
            ("minFreq", given.min_freq),
            ("maxFreq", given.max_freq),
            ("freqGovernor", given.governor),
            ("energyPerformancePreference", given.epp),
        ):
            if value is not None:
                yield field, "no effect here: this machine has no cpufreq", False
    for field, value in (
        ("uncoreMinFreq", given.uncore_min_freq),
        ("uncoreMaxFreq", given.uncore_max_freq),
    ):
        if value is not None and not power.uncore:
            yield field, "this machine has no intel_uncore_frequency (a kernel module)", True
    names = {state.name for states in power.idle for state in states.states}
    if given.disabled_cstates and not names:
        yield "disabledCstates", "no effect here: this machine has no cpuidle", False
    for name in given.disabled_cstates if names else ():
        if name not in names:
            there = ", ".join(sorted(names))
            text = f"{quoted(name)} is not a C-state of any CPU here ({there})"
            yield "disabledCstates", f"{text}{did_you_mean(name, names)}", True


def _frequency_faults(
    given: CPUClass, policies: Sequence[FrequencyPolicy]
) -> Iterator[tuple[str, str, bool]]:
    lacking = [each for each in policies if given.governor not in each.governors]
    if given.governor and lacking:
        hint = did_you_mean(given.governor, lacking[0].governors)
        there = ", ".join(lacking[0].governors) or "none"
        text = f"{quoted(given.governor)} is not a governor of CPUs {lacking[0].cpus} ({there})"
        yield "freqGovernor", f"{text}{hint}", True
    if given.epp is not None and not any(each.preferences for each in policies):
        yield "energyPerformancePreference", "the frequency driver here has none", True
