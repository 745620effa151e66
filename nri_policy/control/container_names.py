"""Names of pods and containers, as people write them: `default` and the container are optional.

`a/b` is container b of default's pod a, or pod b of namespace a, whichever exists.
"""

from __future__ import annotations

from collections.abc import Collection

from nri_policy.foundation.wording import did_you_mean, quoted, some

DEFAULT = "default/"


class UnknownNameError(Exception):
    """A name that matches nothing, or two things; the text lists what exists."""


def find_by_name(name: str, known: Collection[str]) -> str | list[str]:
    """Return the container that *name* means, or the list of all containers of the pod.

    *known* are all containers, as `namespace/pod/container`. Raises UnknownNameError.
    """
    pods: dict[str, list[str]] = {}
    for each in known:
        pods.setdefault(each.rpartition("/")[0], []).append(each)
    as_container = name if name.count("/") == 2 else DEFAULT + name
    as_pod = name if "/" in name else DEFAULT + name
    if as_container in known and as_pod in pods:
        raise UnknownNameError(
            f"{quoted(name)} is a container and a pod: write {as_container} for the container, or "
            f"{pods[as_pod][0]} for one of the pod"
        )
    if as_container in known:
        return as_container
    if as_pod in pods:
        return pods[as_pod]
    raise UnknownNameError(f"no pod or container {quoted(name)}{_instead(name, pods, known)}")


def _instead(name: str, pods: Collection[str], known: Collection[str]) -> str:
    """Return a hint: what the name may have meant."""
    elsewhere = [pod for pod in pods if pod.endswith(f"/{name}")]
    if elsewhere:
        return f"; there is {' and '.join(elsewhere[:3])}"
    shown = {pod.removeprefix(DEFAULT): pod for pod in pods}
    pod = name.rpartition("/")[0].removeprefix(DEFAULT)
    if pod in shown:
        own = [each.rpartition("/")[2] for each in known if each.startswith(f"{shown[pod]}/")]
        return f": the containers of {pod} are {', '.join(own[:10])}"
    near = did_you_mean(name, [*shown, *(each.removeprefix(DEFAULT) for each in known)])
    _, slash, last = name.rpartition("/")
    if slash and last in shown:  # as in `pod/web`
        near = f"; did you mean {last!r}?"
    forms = "; write POD, POD/CONTAINER, NAMESPACE/POD or NAMESPACE/POD/CONTAINER" if slash else ""
    return near or forms + (f"; known pods: {some(shown, most=5)}" if shown else "")
