"""What containers ask for: the estimates against what the owners of pods write."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.manifests.resources import ManifestError
from nri_policy.workload.amounts import AmountSource, amounts_of, described, shows_pod_level
from tests.support.pod_level import KUBELET, manifest, said, shown

CAPACITY = KUBELET.memory_capacity

cpus = st.integers(0, 9000) | st.sampled_from((1, 2, 5, 10, 100, 1000, 4000, 256_001))
sizes = st.integers(0, 1 << 34)


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    """Return requests and limits, each there or not."""
    found: dict[str, dict[str, Any]] = {}
    for name, amounts, unit in (("cpu", cpus, "m"), ("memory", sizes, "")):
        low, high = sorted((draw(amounts), draw(amounts)))
        for part in draw(st.sampled_from(((), ("requests",), ("limits",), ("requests", "limits")))):
            amount = high if part == "limits" else draw(st.sampled_from((low, high)))
            found.setdefault(part, {})[name] = f"{amount}{unit}"
    return found


pods = st.dictionaries(st.sampled_from("abcd"), resources(), min_size=1)


def made(containers: dict[str, Any], whole: Any) -> PodManifest | None:
    try:
        return manifest(containers, whole)
    except ManifestError:
        return None


@given(pods)
def test_the_estimates_for_ordinary_pods_are_what_their_owners_write(
    containers: dict[str, Any],
) -> None:
    pod = manifest(containers, None)
    for name, container in shown(pod).items():
        exact = said(pod).containers[name]
        assert not shows_pod_level(container)
        estimate = amounts_of(container, None, CAPACITY)
        known = amounts_of(described(container, said(pod)), None, CAPACITY)
        assert (estimate.source, known.source) == (AmountSource.ESTIMATE, AmountSource.OBJECT)
        assert (known.milli, known.memory) == (
            exact.cpu_request or 0,
            exact.memory_request or 0,
        )
        assert estimate.whole
        assert known.whole
        assert not known.pod_memory
        # 2m and less are no request, 10m the least limit, and 256 CPUs the most shares
        if exact.cpu_limit is None or exact.cpu_limit >= 10:
            if 2 < known.milli <= 256_000:
                assert estimate.milli == known.milli
            assert estimate.limit == (exact.cpu_limit or None)
        if container.pod.qos is QoS.BURSTABLE:
            # thousandths of the capacity; the second one looks like none
            assert known.memory - CAPACITY // 500 - 2 <= estimate.memory <= known.memory
        else:
            assert estimate.memory == known.memory


@example({"a": {}}, {"limits": {"cpu": "1m"}})  # less than the smallest quota
@example({"a": {}, "b": {"limits": {"cpu": "500m"}}}, {"requests": {"cpu": "1"}})  # no limit
@given(pods, resources())
def test_the_objects_of_pods_with_resources_as_a_whole_are_what_their_containers_have(
    containers: dict[str, Any], whole: dict[str, Any]
) -> None:
    pod = made(containers, whole)
    if pod is None:
        return
    booked = 0
    for name, container in shown(pod).items():
        known = described(container, said(pod))
        assert known.requirements == said(pod).containers[name]
        amounts = amounts_of(known, None, CAPACITY)
        exact = known.requirements
        assert exact is not None
        assert amounts.milli == (exact.cpu_request or 0)
        assert amounts.limit == exact.cpu_limit
        if said(pod).pod_level and amounts.whole and amounts.milli:
            assert exact.cpu_request == exact.cpu_limit
        booked += amounts.milli
    assert booked <= max(pod.spec.total("requests").get("cpu", 0), 0)
