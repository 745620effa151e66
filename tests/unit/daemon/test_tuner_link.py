"""CPU classes end to end: a daemon, a tuner, and CPUs that are as strict as the kernel."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.daemon import tuner_link
from nri_policy.daemon.tuner_link import UNANSWERED, TunerLink, check_hardware
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import from_spec
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.items import Desired, Item, Kind, Wish
from nri_policy.tuning.protocol import Reply, TunerError
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.support.fake_cpus import HYBRID, FakeCPUs, FakeFiles, two_kinds
from tests.support.patience import HANGS
from tests.support.tunables import TunedHost

KEY = "cpu-class.resource-policy.nri.io"
SPEC: dict[str, Any] = {
    "reservedResources": {"cpu": "cpuset:0"},
    "sharedPoolCPUClass": "calm",
    "cpuClasses": [
        {"name": "calm", "maxFreq": "base"},
        {
            "name": "fast",
            "minFreq": "turbo",
            "freqGovernor": "performance",
            "disabledCstates": ["C6", "C8"],
            "allowedNamespaces": ["default"],
        },
        {"name": "eager", "energyPerformancePreference": 64},
    ],
}
FAST = {f"{KEY}/pod": "fast"}
WEB = ["default/web/main"]
GOVERNOR = "cpufreq/policy1/scaling_governor"


class Host(TunedHost):
    """A hybrid host with a tuner."""

    def __init__(self, folder: Path) -> None:
        self.cpus: FakeCPUs = two_kinds(folder)
        super().__init__(folder, FakeFiles(self.cpus))

    def serving(self, *machine: str, **given: Any) -> AbstractAsyncContextManager[Served]:
        return super().serving(*(machine or (HYBRID,)), **(SPEC | given))


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), HANGS))


def test_the_cpus_of_a_container_have_its_class_until_it_ends(host: Host) -> None:
    """The peer restores nothing (CPU classes F4)."""
    before = host.cpus.texts()

    async def test() -> None:
        async with host.serving(listening=False) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert host.cpus.read("cpufreq/policy1/scaling_max_freq") == "2400000", "shared"
            assert not await up.start(pod("web", "1", annotations=FAST))
            (cpu,) = up.daemon.node.view.exclusive
            link.inform()
            assert cpu == 1
            assert host.cpus.read("cpufreq/policy1/scaling_min_freq") == "3600000"
            assert host.cpus.read("cpufreq/policy1/scaling_max_freq") == "3600000", "its original"
            assert host.cpus.read(GOVERNOR) == "performance"
            assert host.cpus.read("cpu1/power/pm_qos_resume_latency_us") == "2"
            assert host.cpus.read("cpu2/power/pm_qos_resume_latency_us") == "0"
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            link.inform()
            assert host.cpus.read("cpufreq/policy1/scaling_min_freq") == "800000"
            assert host.cpus.read(GOVERNOR) == "powersave"
            link.release()
            assert host.cpus.texts() == before

    run(test)


@asynccontextmanager
async def informing(link: TunerLink) -> AsyncIterator[None]:
    """Have the tuner informed as long as a daemon runs, without news of devices."""

    @contextmanager
    def listen(notify: Callable[[], None]) -> Iterator[bool]:
        del notify
        yield True

    running = asyncio.create_task(link.run(listen))
    try:
        yield
    finally:
        running.cancel()


def test_a_container_starts_when_its_cpus_have_its_class(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_link, "MAX_WAIT", HANGS)
    monkeypatch.setattr(tuner_link, "PAUSE", math.inf)  # not waited for

    async def test() -> None:
        async with host.serving() as up, informing(up.daemon.tuner_link):
            for name in ("web", "api"):
                assert not await up.start(pod(name, "1", annotations=FAST))
                (cpu,) = up.daemon.node.view.by_name()[f"default/{name}/main"].grant.own
                assert host.cpus.read(f"cpu{cpu}/power/pm_qos_resume_latency_us") != "0"

    run(test)


def test_a_start_waits_for_a_slow_tuner_but_not_for_long_or_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_link, "MAX_WAIT", 0.01)
    asked, answer = threading.Event(), threading.Event()

    def ask(*_: object, **__: object) -> Reply:
        asked.set()
        assert answer.wait(HANGS)
        raise TunerError("too late")

    async def test() -> None:
        async with host.serving() as up, informing(up.daemon.tuner_link):
            link = up.daemon.tuner_link
            link._ask = ask
            assert not await up.start(pod("web", "1", annotations=FAST))
            await asyncio.to_thread(asked.wait)
            assert not answer.is_set(), "the container has started before the tuner has answered"
            answer.set()
            await asyncio.to_thread(link.inform)  # after that which runs
            answer.clear()
            monkeypatch.setattr(tuner_link, "MAX_WAIT", math.inf)
            assert not await up.start(pod("api", "1", annotations=FAST))
            answer.set()

    run(test)


def test_what_the_next_class_leaves_out_is_the_original_again(host: Host) -> None:
    """With the peer the last value stays (CPU classes F2)."""

    async def test() -> None:
        async with host.serving(listening=False) as up:
            link, before = up.daemon.tuner_link, host.cpus.texts()
            assert not await up.start(pod("web", "1", annotations=FAST))
            link.inform()
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            assert not await up.start(pod("api", "1", annotations={f"{KEY}/pod": "eager"}))
            (cpu,) = up.daemon.node.view.exclusive
            link.inform()
            after = host.cpus.texts()
            assert cpu == 1, "the same CPU"
            own = {path for path in after if "/cpu1/" in path or "/policy1/" in path}
            differing = {path for path in own if after[path] != before[path]}
            assert {path.rpartition("/")[2] for path in differing} == {
                "energy_performance_preference"
            }

    run(test)


def test_an_idle_state_that_the_administrator_has_disabled_stays_so(host: Host) -> None:
    """The peer enables all states that a class does not list (CPU classes F5)."""

    async def test() -> None:
        name = "cpu1/cpuidle/state1/disable"
        host.cpus.write(name, b"1")
        classes = [{"name": "odd", "disabledCstates": ["C6"]}]
        async with host.serving(
            listening=False, cpuClasses=classes, sharedPoolCPUClass="odd"
        ) as up:
            up.daemon.tuner_link.inform()
            assert host.cpus.read("cpu1/cpuidle/state2/disable") == "1", "C6, by the class"
            assert host.cpus.read(name) == "1"
            up.daemon.tuner_link.release()
            assert host.cpus.read("cpu1/cpuidle/state2/disable") == "0"
            assert host.cpus.read(name) == "1"

    run(test)


def test_an_uncore_frequency_that_no_class_sets_any_more_is_the_original(host: Host) -> None:
    """With the peer the last value stays (CPU classes F8)."""
    before = host.cpus.texts()

    async def test() -> None:
        classes = [{"name": "calm", "uncoreMaxFreq": "1.2GHz"}]
        async with host.serving(listening=False, cpuClasses=classes) as up:
            up.daemon.tuner_link.inform()
            path = "intel_uncore_frequency/package_00_die_00/max_freq_khz"
            assert host.cpus.read(path) == "1200000"
            spec = SPEC | {"cpuClasses": [{"name": "calm"}]}
            await up.daemon.events.reconfigure(settings=from_spec(spec, "here"))
            up.daemon.tuner_link.inform()
            assert host.cpus.texts() == before

    run(test)


def test_a_restarted_daemon_and_tuner_know_the_originals(host: Host) -> None:
    before = host.cpus.texts()

    async def test() -> None:
        async with host.serving(listening=False) as up:
            assert not await up.start(pod("web", "1", annotations=FAST))
            up.daemon.tuner_link.inform()
        changed = host.cpus.texts()
        assert changed != before
        host.start_tuner()
        assert host.cpus.texts() == changed, "nothing changes before a daemon asks for it"
        host.tuner.set({}, repair=False)
        assert host.cpus.texts() == before

    run(test)


def test_preferences_are_set_after_the_governor_that_permits_them(host: Host) -> None:
    """The peer reads preferences and never writes them (CPU classes F1)."""

    async def test() -> None:
        classes = [
            *SPEC["cpuClasses"],
            {"name": "saving", "freqGovernor": "powersave", "energyPerformancePreference": 200},
        ]
        async with host.serving(listening=False, cpuClasses=classes) as up:
            link = up.daemon.tuner_link
            host.cpus.write(GOVERNOR, b"performance")
            asked = {f"{KEY}/pod": "saving"}
            assert not await up.start(pod("web", "1", annotations=asked))
            link.inform()
            assert {each.state for each in link.tunables.values()} == {ItemState.OK}
            epp = "cpufreq/policy1/energy_performance_preference"
            assert (host.cpus.read(GOVERNOR), host.cpus.read(epp)) == ("powersave", "200")

    run(test)


def test_a_write_that_the_kernel_refuses_is_pending_and_fails_no_container(host: Host) -> None:
    """The peer takes it for done (CPU classes F3)."""

    async def test() -> None:
        async with host.serving(listening=False) as up:
            host.cpus.offline = {1}
            asked = {f"{KEY}/pod": "eager"}
            assert not await up.start(pod("web", "1", annotations=asked))
            up.daemon.tuner_link.inform()
            (tunable,) = (
                each
                for each in up.daemon.tuner_link.tunables.values()
                if each.state is ItemState.PENDING
            )
            assert "EBUSY" in tunable.why
            assert tunable.origin == ("default/web/main",)
            assert up.daemon.tuner_link.count_tunables()["cpufreq", "pending"] == 1
            assert up.daemon.tuner_link.writes["cpufreq", "failed"] == 1
            assert [*up.daemon.tuner_link.problems()] == [
                "tunables that are pending: 1 (see nri-policy tunables)"
            ]

    run(test)


def test_without_a_tuner_containers_run_and_status_says_so(host: Host) -> None:
    async def test() -> None:
        host.away = True
        async with host.serving(listening=False) as up:
            assert not await up.start(pod("web", "1", annotations=FAST))
            up.daemon.tuner_link.inform()
            assert [*up.daemon.tuner_link.problems()] == [
                "CPU classes, interrupts and RDT partitions are not set: tuner.sock: no such file"
            ]

    run(test)


def test_without_classes_the_tuner_is_told_that_nothing_must_be_set(tmp_path: Path) -> None:
    asked: list[Desired | None] = []

    def ask(desired: Desired | None = None, *, repair: bool = False, whole: bool = False) -> Reply:
        del repair, whole
        asked.append(desired)
        raise TunerError("no tuner")

    async def test() -> None:
        async with served(tmp_path, HYBRID, ask_tuner=ask, listening=False) as up:
            up.daemon.tuner_link.inform()
            assert asked == [{}], "it restores what a class of earlier settings has set"
            assert not [*up.daemon.tuner_link.problems()], "no one needs a tuner"

    run(test)


@pytest.mark.parametrize(
    ("annotations", "cpu", "error"),
    [
        (
            {f"{KEY}/pod": "fats"},
            "1",
            "'fats' is not one of cpuClasses (calm, fast, eager); did you mean 'fast'?",
        ),
        ({f"{KEY}/container.main": "fast"}, "500m", "only exclusive CPUs have a class"),
        ({f"{KEY}/pod": "fast"}, "500m", ""),
        ({f"{KEY}/pod": "fats"}, "500m", ""),
    ],
)
def test_a_class_that_a_container_cannot_have_is_refused(
    host: Host, annotations: dict[str, str], cpu: str, error: str
) -> None:
    """With the peer it runs without the class (CPU classes F6)."""

    async def test() -> None:
        async with host.serving(listening=False) as up:
            errors = await up.start(pod("web", cpu, annotations=annotations))
            assert bool(errors) is bool(error)
            assert all(error in each for each in errors)

    run(test)


def test_a_class_is_refused_to_other_namespaces(host: Host) -> None:
    async def test() -> None:
        async with host.serving(listening=False) as up:
            (error,) = await up.start(pod("web", "1", namespace="ci", annotations=FAST))
            assert "it is for other namespaces (default)" in error

    run(test)


def shown(up: Served, *command: str) -> str:
    done = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(
        main, [*command, "--control-socket", str(up.socket)]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_a_tuner_explain_and_status_say_what_is_not_set(host: Host) -> None:
    async def test() -> None:
        host.away = True
        async with host.serving() as up:
            assert not await up.start(pod("web", "1", annotations=FAST))
            up.daemon.tuner_link.inform()
            text = await asyncio.to_thread(shown, up, "explain", "web/main", "-o", "json")
            assert {
                (each["item"], each["wanted"], each["found"], each["state"])
                for each in json.loads(text)["classes"]
            } == {
                (item, wanted, None, f"pending: {UNANSWERED}")
                for item, wanted in (
                    ("cpu/1/resume_latency", "2"),
                    ("cpufreq/1/governor", "performance"),
                    ("cpufreq/1/min_freq", "3600000"),
                )
            }
            text = await asyncio.to_thread(shown, up, "status")
            assert re.search(r"^tunables +\d+ pending: see tunables$", text, re.MULTILINE)
            assert "not set: tuner.sock: no such file" in text
            host.away = False
            up.daemon.tuner_link.inform()
            text = await asyncio.to_thread(shown, up, "status")
            assert re.search(r"^tunables +\d+ ok: see tunables$", text, re.MULTILINE)

    run(test)


def test_a_container_whose_class_the_settings_drop_is_degraded(host: Host) -> None:
    async def test() -> None:
        async with host.serving() as up:
            assert not await up.start(pod("web", "1", annotations=FAST), pod("api", "1"))
            assert "not all in effect" not in await asyncio.to_thread(shown, up, "status")
            spec = SPEC | {"cpuClasses": SPEC["cpuClasses"][:1]}
            await up.daemon.events.reconfigure(settings=from_spec(spec, "here"))
            text = await asyncio.to_thread(shown, up, "status")
            assert "not all in effect for 1 container: see explain" in text
            text = await asyncio.to_thread(shown, up, "explain", "web/main", "-o", "json")
            (why,) = [each for each in json.loads(text)["classes"] if not each["item"]]
            assert (why["name"], why["state"]) == ("calm", "unsupported")
            assert why["wanted"] == "CPU class fast: the settings do not define it"

    run(test)


def test_what_if_shows_the_tunables_that_would_change(host: Host, tmp_path: Path) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "annotations": FAST}}
    limits = {"cpu": 1, "memory": "1Gi"}
    manifest["spec"] = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(manifest))

    async def test() -> None:
        async with host.serving() as up:
            up.daemon.tuner_link.inform()
            before = host.cpus.texts()
            text = await asyncio.to_thread(shown, up, "what-if", "-f", str(path), "-o", "json")
            assert json.loads(text)["tunables"] == {
                "cpu/1/resume_latency": {"before": None, "after": "2", "origin": WEB},
                "cpufreq/1/governor": {"before": None, "after": "performance", "origin": WEB},
                "cpufreq/1/max_freq": {"before": "2400000", "after": None, "origin": []},
                "cpufreq/1/min_freq": {"before": None, "after": "3600000", "origin": WEB},
            }
            text = await asyncio.to_thread(shown, up, "what-if", "-f", str(path))
            assert "4 kernel tunables would change" in text
            assert re.search(r"cpufreq/1/governor +the original +performance +web/main", text)
            assert host.cpus.texts() == before, "it only shows them"
            with (tmp_path / "other.yaml").open("w") as file:
                kind = {"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy"}
                json.dump({**kind, "spec": SPEC | {"sharedPoolCPUClass": "eager"}}, file)
            text = await asyncio.to_thread(
                shown, up, "what-if", "--settings", file.name, "-o", "json"
            )
            changes = json.loads(text)["tunables"]
            assert changes["cpufreq/1/max_freq"]["after"] is None
            assert changes["cpufreq/1/epp"]["origin"] == ["sharedPoolCPUClass"]

    run(test)


def test_a_class_that_sets_nothing_on_a_machine_is_explained_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path, HYBRID, **SPEC) as up:
            assert not await up.start(pod("web", "1", annotations=FAST))
            up.daemon.tuner_link.inform()
            text = await asyncio.to_thread(shown, up, "explain", "web/main", "-o", "json")
            (only,) = json.loads(text)["classes"]
            assert (only["kind"], only["name"], only["state"]) == ("cpu", "fast", "note")
            assert only["wanted"] == "nothing is set for it on this machine"

    run(test)


def test_explain_and_containers_show_the_class(host: Host) -> None:
    async def test() -> None:
        async with host.serving() as up:
            assert not await up.start(pod("web", "1", annotations=FAST), pod("plain", "1"))
            up.daemon.tuner_link.inform()
            text = await asyncio.to_thread(shown, up, "explain", "web/main", "-o", "json")
            items = {each["item"]: each for each in json.loads(text)["classes"]}
            assert {item: each["state"] for item, each in items.items()} == {
                "cpu/1/resume_latency": "ok",
                "cpufreq/1/governor": "ok",
                "cpufreq/1/min_freq": "ok",
            }
            governor = items["cpufreq/1/governor"]
            assert (governor["kind"], governor["name"], governor["origin"]) == (
                "cpu",
                "fast",
                "annotation",
            )
            text = await asyncio.to_thread(shown, up, "containers", "-o", "json")
            classes = {name: each["classes"] for name, each in json.loads(text).items()}
            assert classes == {
                "default/web/main": {"cpu": "fast"},
                "default/plain/main": {"cpu": "calm"},
            }

    run(test)


def test_settings_that_the_machine_cannot_have_are_refused(tmp_path: Path) -> None:
    Host(tmp_path)
    machine = nodes.machine(HYBRID)
    wrong = [{"name": "calm", "freqGovernor": "ondemand"}]
    settings = from_spec({**SPEC, "cpuClasses": wrong}, "here")
    with pytest.raises(CapacityError, match=r"^cpuClasses\[0\]\.freqGovernor: 'ondemand'"):
        check_hardware(settings, tmp_path, machine)
    optional = from_spec({**SPEC, "cpuClasses": [wrong[0] | {"optional": True}]}, "here")
    (notice,) = check_hardware(optional, tmp_path, machine)
    assert "'ondemand'" in notice


def test_what_is_in_force_is_not_sent_again_for_each_decision(host: Host) -> None:
    sent: list[Desired | None] = []

    def ask(desired: Desired | None = None, *, repair: bool = False, whole: bool = False) -> Reply:
        sent.append(desired)
        return host.ask(desired, repair=repair, whole=whole)

    async def test() -> None:
        async with served(host.folder, HYBRID, ask_tuner=ask, listening=False, **SPEC) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert not await up.start(pod("shared", "100m"))
            link.inform()
            assert len(sent) == 1, "shared CPUs are in the same class as before"
            assert not await up.start(pod("web", "1", annotations=FAST))
            link.inform()
            assert len(sent) == 2

    run(test)


def test_the_original_preference_outlives_a_governor_that_hides_it(host: Host) -> None:
    """With the governor performance the kernel shows another one, and refuses writes."""
    before = host.cpus.texts()
    classes = [
        {"name": "calm", "energyPerformancePreference": 192},
        {"name": "fast", "freqGovernor": "performance"},
    ]
    epp = "cpufreq/policy1/energy_performance_preference"

    async def test() -> None:
        async with host.serving(listening=False, cpuClasses=classes) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert host.cpus.read(epp) == "balance_power"
            assert not await up.start(pod("web", "1", annotations=FAST))
            for _ in range(2):
                link.inform()
                assert (host.cpus.read(GOVERNOR), host.cpus.read(epp)) == (
                    "performance",
                    "performance",
                )
                assert {each.state for each in link.tunables.values()} == {ItemState.OK}
            await up.runtime.stop_pod(up.runtime.container("web/main").pod)
            link.inform()
            assert (host.cpus.read(GOVERNOR), host.cpus.read(epp)) == ("powersave", "balance_power")
            link.release()
            assert host.cpus.texts() == before

    run(test)


def test_a_preference_is_never_read_or_left_under_the_governor_that_hides_it(host: Host) -> None:
    """Though writes fail meanwhile: else `performance` would be taken for its original."""
    before = host.cpus.texts()
    epp, governor = (Item(Kind.CPUFREQ, "1", name) for name in ("epp", "governor"))
    quick, saving = {governor: Wish("performance")}, {epp: Wish("balance_power")}

    def show() -> dict[Item, tuple[ItemState, str]]:
        return {each.item: (each.state, each.why) for each in host.tuner.list_tunables()}

    host.tuner.set(quick, repair=False)
    host.cpus.offline = {1}  # so that the driver is busy
    host.tuner.set(saving, repair=False)
    assert show()[epp] == (ItemState.PENDING, "the governor performance hides it")
    host.cpus.offline, host.time = set(), 60.0
    host.tuner.look()
    assert show() == {epp: (ItemState.OK, "")}
    host.cpus.offline = {1}
    host.tuner.set(quick, repair=False)
    busy = "EBUSY Device or resource busy"
    assert show()[governor] == (ItemState.PENDING, f"its epp is first: {busy}")
    host.cpus.offline, host.time = set(), 120.0
    host.tuner.look()
    assert show() == {governor: (ItemState.OK, "")}
    host.tuner.set({}, repair=False)
    assert host.cpus.texts() == before
