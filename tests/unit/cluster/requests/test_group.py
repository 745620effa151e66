"""Which group a pod names."""

from __future__ import annotations

import pytest

from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.requests.group import GROUP_LABEL, named_group

NAMED = {GROUP_LABEL: "a"}


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        (Pod("default", "pod", PodSpec()), None),
        (Pod("default", "pod", PodSpec(), labels={GROUP_LABEL: "b"}), "b"),
        (Pod("default", "pod", PodSpec(), annotations=NAMED), "a"),
        (Pod("default", "pod", PodSpec(), annotations=NAMED, labels={GROUP_LABEL: "b"}), "a"),
    ],
)
def test_the_annotation_names_the_group_of_a_pod_before_its_label(
    pod: Pod, name: str | None
) -> None:
    assert named_group(pod) == name
