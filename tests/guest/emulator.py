"""An emulated machine: boots a kernel and the guest's root, hands in files, brings results back.

Owns the command line of QEMU, which runs from a cache, with its own libraries, without KVM.
"""

from __future__ import annotations

import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.guest import image
from tools import debs

CMDLINE = (
    "console=ttyS0 loglevel=4 nokaslr mitigations=off audit=0 nowatchdog random.trust_cpu=on"
    # a busy host's timer comes too late for the kernel's check of it, which then panics
    " no_timer_check panic=-1 rcupdate.rcu_cpu_stall_suppress=1"
    " transparent_hugepage=never"  # the search for them takes a sixth of the CPU time
    " preempt=none norandmaps init_on_alloc=0 apparmor=0"  # a twentieth
    f" root={image.ROOT} rootwait rw init=/init"
)
UNITS = Path(__file__).with_name("units")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a guest is made of, as QEMU's options."""

    smp: str
    memory: int  # MiB, of all nodes together
    numa: Sequence[str]  # options, whole
    machine: str = "q35"
    cpu: str = "Skylake-Server-v1"
    devices: Sequence[str] = ()
    cmdline: str = ""  # more for the kernel
    modules: Sequence[str] = ()  # of the kernel, handed in as modules/NAME.ko
    systemd: bool = False  # whether that is the first process, with the units of `units`


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a guest that was booted."""

    console: str
    files: Mapping[str, bytes]  # what it wrote to its port as a tar
    seconds: float


class GuestError(Exception):
    """The guest did not come to its end; the text has the end of its console."""


def prepare() -> None:
    """Fetch and make what all machines need; DebsError or ImageError where it cannot be had."""
    qemu()
    image.kernel()
    image.root_image()


def qemu() -> list[str]:
    """Return the start of QEMU's command line; DebsError where it cannot be had."""
    folder = debs.fetch("qemu-system-x86", suite=image.SUITE, dependencies=True)
    libraries = folder / "usr" / "lib" / "x86_64-linux-gnu"
    return [
        str(folder / "usr" / "lib64" / "ld-linux-x86-64.so.2"),
        *("--library-path", f"{libraries}:{libraries}/pulseaudio"),
        str(folder / "usr" / "bin" / "qemu-system-x86_64"),
        *("-L", str(folder / "usr" / "share" / "qemu")),
        *("-L", str(folder / "usr" / "share" / "seabios")),
    ]


def boot(
    hardware: Hardware, files: Mapping[str, Path | str], folder: Path, *, seconds: float
) -> Outcome:
    """Boot a machine, run the file `run` of those handed in there, and wait until it is off.

    *folder* is for what the machine needs beside it. Raises GuestError after so many *seconds*.
    """
    payload, results, console = folder / "payload.tar", folder / "results", folder / "console"
    modules = {
        f"modules/{name}.ko": image.module(name, folder) for name in ("overlay", *hardware.modules)
    }
    units = {"units": UNITS} if hardware.systemd else {}
    _pack({**files, **modules, **units}, payload)
    drive = "if=none,format=raw,snapshot=on"
    command = [
        *qemu(),
        *("-machine", hardware.machine, "-accel", "tcg,thread=single", "-cpu", hardware.cpu),
        *("-nodefaults", "-display", "none", "-no-reboot", "-smp", hardware.smp),
        *("-m", f"{hardware.memory}M,slots=8,maxmem=32G"),
        *(part for option in hardware.numa for part in option.split(" ", 1)),
        *("-kernel", str(image.kernel())),
        *("-append", f"{CMDLINE} {hardware.cmdline}"),
        *("-drive", f"{drive},id=root,file={image.root_image()}"),
        *("-drive", f"{drive},id=payload,file={payload}"),
        *("-device", "nvme,id=disk,serial=root"),
        *("-device", "nvme-ns,drive=root,bus=disk,nsid=1"),
        *("-device", "nvme-ns,drive=payload,bus=disk,nsid=2"),
        *("-serial", f"file:{console}"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"file,id=results,path={results}"),
        *("-device", "virtserialport,chardev=results,name=results"),
        *(part for option in hardware.devices for part in option.split(" ", 1)),
    ]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, check=False, cwd=folder, timeout=seconds, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        reason = f"the guest is not done after {seconds:.0f} s"
    else:
        # it warns of what the emulated CPU lacks, once for each
        said = [line for line in done.stderr.splitlines() if "TCG doesn't support" not in line]
        reason = f"QEMU ended with {done.returncode}: {said}" if done.returncode else ""
    text = console.read_text(errors="replace") if console.exists() else ""
    if reason:
        raise GuestError(f"{reason}\n{text[-4000:]}")
    return Outcome(console=text, files=_unpack(results), seconds=time.monotonic() - began)


def _pack(files: Mapping[str, Path | str], target: Path) -> None:
    """Write *files*, by the path that they get, to a tar of whole sectors."""
    with tarfile.open(target, "w") as tar:
        for name, content in files.items():
            if isinstance(content, Path):
                tar.add(content, name, filter=_without_litter)
            else:
                source = target.with_name("text")
                source.write_text(content)
                tar.add(source, name)
                source.unlink()


def _unpack(source: Path) -> dict[str, bytes]:
    """Return the files of a tar; none where the guest did not come to write it."""
    if not source.stat().st_size:
        return {}
    with tarfile.open(source, "r:") as tar:
        return {
            Path(member.name).name: content.read()
            for member in tar
            if (content := tar.extractfile(member)) is not None
        }


def _without_litter(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    litter = "__pycache__/" in member.name and image.COMPILED not in member.name
    return None if litter else member
