"""Whatever stands in a host's files, the doctor reads it and says something."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.doctor.checks import examine
from nri_policy.doctor.facts import Where, gather

NRI = "io.containerd.nri.v1.nri"
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.text(max_size=8),
    st.sampled_from([NRI, "runc", "*", "/x/*.toml", "config.toml", "0-3", "static", "1s"]),
)
ODD = SCALARS | st.lists(SCALARS, max_size=3)


def table(*keys: str, **inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return tables with some of these keys, or what is no table at all."""
    return st.fixed_dictionaries({}, optional={**dict.fromkeys(keys, ODD), **inner}) | ODD


CRI = table(
    containerd=table(
        "default_runtime_name", runtimes=table(runc=table(options=table("SystemdCgroup")))
    )
)
LISTENING = ("socket_path", "plugin_path", "plugin_request_timeout", "disable_connections")
PLUGINS = table(
    **{
        NRI: table("disable", *LISTENING),
        "io.containerd.grpc.v1.cri": CRI,
        "io.containerd.cri.v1.runtime": CRI,
    }
)
CONTAINERD = table("version", "imports", "disabled_plugins", grpc=table("address"), plugins=PLUGINS)
CRIO = table(
    crio=table(
        nri=table("enable_nri", "nri_listen", "nri_plugin_request_timeout"),
        runtime=table("cgroup_manager"),
        api=table("listen"),
    )
)
KUBELET = table(
    "cpuManagerPolicy",
    "memoryManagerPolicy",
    "topologyManagerPolicy",
    "reservedSystemCPUs",
    "cgroupDriver",
    "failSwapOn",
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml(each)}' for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def document(value: Any) -> bytes:
    lines = value.items() if isinstance(value, dict) else ()
    text = "\n".join(f'"{key}" = {toml(each)}' for key, each in lines)
    return text.encode("utf-8", "replace")


@given(
    containerd=CONTAINERD,
    crio=CRIO,
    kubelet=KUBELET,
    arguments=st.lists(
        st.sampled_from(["-c", "--config", "--config=/x", "a", "", "run"]), max_size=2
    ),
    raw=st.binary(max_size=40),
)
def test_any_configuration_is_read(
    containerd: Any, crio: Any, kubelet: Any, arguments: list[str], raw: bytes
) -> None:
    with TemporaryDirectory(prefix="h-") as folder:
        root = Path(folder)
        files = {
            "etc/containerd/config.toml": document(containerd),
            "etc/crio/crio.conf": document(crio),
            "x": document(containerd),
            "var/lib/kubelet/config.yaml": json.dumps(kubelet).encode(),
            "var/lib/kubelet/cpu_manager_state": raw,
            "proc/swaps": raw,
            "settings.yaml": raw,
        }
        for number, name in enumerate(("containerd", "crio", "kubelet", "nri-policy")):
            files[f"proc/{number}/cmdline"] = "\0".join([name, *arguments]).encode()
        files["proc/9/cmdline"] = raw
        for name, content_of in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content_of)
        where = Where(
            host_root=root,
            config=root / "settings.yaml",
            nri_socket=root / "none",
            state_dir=root / "none",
            control_socket=root / "none",
            kubelet_dir=root / "none",
        )
        facts = gather(where)
        assert facts.unknown == ()
        assert examine(facts)
