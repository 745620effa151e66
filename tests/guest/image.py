"""The guest's root file system: a Debian trixie small enough to boot under emulation in seconds.

Owns what is in it: Python with what the project and its tests need, both versions of containerd,
CRI-O where that is built, the newest runc, busybox for the rest. Nothing of the project itself:
that is handed in at boot.
Made without root and without installing anything, once for all clones, and kept for what it is made
of until nobody has used it for a week.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools import cache, debs, runtimes

PROJECT = Path(__file__).resolve().parents[2]
SUITE = "trixie"
PYTHON = "3.13"  # that suite's
COMPILED = "cpython-313"  # in the names of its compiled modules
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

SYSTEM = (
    "python3",
    "busybox-static",
    "libc-bin",
    "libseccomp2",
    "libstdc++6",
    "libudev1",
    "systemd",
    "dbus",
    "conmon",
    "irqbalance",
)
CONTAINERDS = ("trixie", "forky")
RUNC = "forky"  # the suite whose runc has scheduling classes, and need not copy itself
TEST_TOOLS = ("pytest", "grpcio-tools")
LEFT_OUT = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/lib/dpkg",
    # systemd, where it is the first process, has the units of `units` alone, and reads them quickly
    "usr/lib/systemd/system",
    "usr/lib/systemd/system-generators",
)

UNUSED = 7 * 24 * 3600.0  # seconds after which an image is removed
START = 1 << 20  # bytes before the partition
SIGNATURE = 0x6E72692D
ROOT = f"PARTUUID={SIGNATURE:08x}-01"  # the kernel names disks in the order that it meets them

INIT = Path(__file__).with_name("init.sh")


class ImageError(Exception):
    """The image could not be made; the text has the complaint of the program that failed."""


def root_image() -> Path:
    """Return the image, made on first use; DebsError or ImageError where it cannot be."""
    system = _system()
    containerds = {suite: debs.fetch("containerd", suite=suite) for suite in CONTAINERDS}
    runc = debs.fetch("runc", suite=RUNC)
    requirements, crio = _requirements(), runtimes.crio()
    made_of = {
        "packages": [
            (part / "PACKAGES").read_text() for part in (system, *containerds.values(), runc)
        ],
        "requirements": requirements,
        "crio": crio and runtimes.CRIO,
        "init": INIT.read_text(),
        "this": Path(__file__).read_text(),
    }
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    of_opt = {suite: folder / "usr" / "bin" for suite, folder in containerds.items()}
    if crio is not None:
        of_opt["cri-o"] = crio
    folder = cache.folder("guest", key)
    image = folder / "root.disk"
    cache.build_once(image, folder, lambda: _make(image, system, of_opt, runc, requirements))
    image.touch()
    for each in folder.parent.glob(f"*/{image.name}"):
        if time.time() - each.stat().st_mtime > UNUSED:
            each.unlink(missing_ok=True)
    return image


def kernel() -> Path:
    """Return a kernel with all built in that a guest boots with; DebsError."""
    (found,) = (_linux() / "boot").glob("vmlinuz-*")
    return found


def module(name: str, folder: Path) -> Path:
    """Return a module of that kernel, unpacked into *folder*; DebsError."""
    (packed,) = _linux().glob(f"usr/lib/modules/*/kernel/**/{name}.ko.xz")
    unpacked = folder / f"{name}.ko"
    unpacked.write_bytes(lzma.decompress(packed.read_bytes()))
    return unpacked


def _linux() -> Path:
    return debs.fetch("linux-image-cloud-amd64", suite=SUITE, dependencies=True)


def _system() -> Path:
    return debs.fetch(*SYSTEM, suite=SUITE, dependencies=True)


def _requirements() -> list[str]:
    """Return what pip is to install beside the project: what that needs, and what its tests do."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    dev = project["optional-dependencies"]["dev"]
    return [*project["dependencies"], *(each for each in dev if each.startswith(TEST_TOOLS))]


def _make(
    image: Path,
    system: Path,
    of_opt: Mapping[str, Path],
    runc: Path,
    requirements: Iterable[str],
) -> None:
    root = image.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(system, root, symlinks=True)
    for left_out in LEFT_OUT:
        shutil.rmtree(root / left_out, ignore_errors=True)
    for name, folder in of_opt.items():
        shutil.copytree(folder, root / "opt" / name)
    shutil.copy(runc / "usr" / "sbin" / "runc", root / "usr" / "sbin")
    site = root / "opt" / "site"
    target: list[str | Path] = ["--target", site, "--python-version", PYTHON]
    target += [part for platform in PLATFORMS for part in ("--platform", platform)]
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary=:all:",
    ]
    _run([*pip, *target, *requirements])
    _compile(system, [site, root / "usr" / "lib" / f"python{PYTHON}"], root, "/")
    for name in ("proc", "sys", "dev", "run", "tmp", "root", "etc", "project"):
        (root / name).mkdir(exist_ok=True)
    (root / "etc" / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/nonexistent:/bin/false\n"
    )
    (root / "etc" / "group").write_text("root:x:0:\nmessagebus:x:100:\n")
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc" / "resolv.conf").touch()  # the runtime copies both into pods
    (root / "init").unlink(missing_ok=True)
    shutil.copy(INIT, root / "init")
    (root / "init").chmod(0o755)
    busybox = root / "usr" / "bin" / "busybox"
    for applet in (
        "sh",
        "cp",
        "mount",
        "umount",
        "tar",
        "cat",
        "mkdir",
        "sleep",
        "poweroff",
        "taskset",
        "nsenter",
    ):
        link = root / "usr" / "bin" / applet
        if not link.exists():
            link.symlink_to(busybox.name)
    partial = image.with_suffix(".partial")
    _write_disk(root, partial)
    shutil.rmtree(root)
    partial.rename(image)


def compile_project(folder: Path) -> None:
    """Compile the modules of what is to be the guest's /project."""
    _compile(_system(), [folder], folder, "/project")


def _compile(system: Path, folders: Iterable[Path], prefix: Path, instead: str) -> None:
    """Compile Python's modules with the guest's own: under emulation it takes minutes.

    The compiled modules name the folder *instead* in place of *prefix*.
    """
    libraries = system / "usr" / "lib" / "x86_64-linux-gnu"
    loader = system / "usr" / "lib64" / "ld-linux-x86-64.so.2"
    python = system / "usr" / "bin" / f"python{PYTHON}"
    command: list[str | Path] = [loader, "--library-path", libraries, python, "-m", "compileall"]
    command += ["-q", "--invalidation-mode", "unchecked-hash", "-s", prefix, "-p", instead]
    environment = {"PYTHONHOME": str(system / "usr"), "PATH": "/usr/bin:/bin"}
    _run([*command, *folders], environment)


def _write_disk(root: Path, disk: Path) -> None:
    """Write a disk of one partition, which holds the files of *root*, and is found as ROOT."""
    used = int(subprocess.check_output(["du", "-sm", root], text=True).split()[0])
    size = (used * 5 // 4 + 64) << 20
    entry = bytes([0, 0, 0, 0, 0x83, 0, 0, 0]) + struct.pack("<II", START // 512, size // 512)
    boot_record = bytes(440) + struct.pack("<IH", SIGNATURE, 0) + entry + bytes(48) + b"\x55\xaa"
    with disk.open("wb") as file:
        file.write(boot_record)
        file.truncate(START + size)
    options: list[str | Path] = [
        "-q",
        "-O",
        "^has_journal",
        "-E",
        f"root_owner=0:0,offset={START}",
        "-d",
        root,
    ]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    _run(["mkfs.ext4", *options, disk, f"{size >> 10}k"], environment)


def _run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as error:
        raise ImageError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise ImageError(f"{' '.join(map(str, command))} failed:\n{done.stdout.strip()}")
