"""Debian packages without installing them: fetched by the system's own apt, unpacked into a cache.

apt runs with its own state, cache and sources below the cache folder, so that the system stays
untouched and no root is needed. The mirror and its signing keys are those of the system's apt
sources; apt's other settings (proxy, credentials) apply as they are. Signatures are always
verified.

Needs nothing but Python's standard library: it runs before there is a virtual environment.

    python3 tools/debs.py --suite trixie containerd runc    # prints the folder they are in
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "debs"

# Names that sources.list may use in place of a release's code name.
SUITE_ALIASES = ("stable", "oldstable", "testing", "unstable", "sid")

ONE_LINE = re.compile(
    r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>[^#]*)"
)

# Debian's merged /usr: packages still name files by either path, so the links come first and stay
# (which dpkg-deb --extract does not do).
MERGED = ("bin", "lib", "lib64", "sbin")
UNTAR = ("tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--no-same-permissions")

# What is not set here comes from the system. #clear: hooks would clean up after the system's apt.
APT_CONF = """\
#clear APT::Update;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear APT::Architectures;
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Get::AllowUnauthenticated "false";
APT::Sandbox::User "root";  // the sandbox's user may not read the cache folder
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::Check-Valid-Until "false";  // a mirror may lag behind; what it has is signed all the same
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";  // the lock is ours, see locked()
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"""


class DebsError(Exception):
    """Packages could not be fetched; the text says which, why, and what is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An archive that the system's apt knows, as in one stanza of sources.list(5)."""

    uris: str
    suites: tuple[str, ...]
    components: str
    signed_by: str = ""  # as in the stanza: a file, a fingerprint, a key; nothing: apt's default

    @property
    def suite(self) -> str:
        """The release itself: what the others (updates, backports) are named after."""
        return self.suites[0]


def fetch(*packages: str, suite: str = "", dependencies: bool = False) -> Path:
    """Return the folder that has the files of *packages* (apt's `name` or `name=version`).

    The folder is filled once: later calls for the same packages use no network. *suite* is the
    system's own unless given. Raise `DebsError` when that is impossible.
    """
    for program in ("apt-get", "apt-config", "dpkg", "dpkg-deb", "tar"):
        if not shutil.which(program):
            raise DebsError(f"{' '.join(packages)}: no {program} here; a Debian system has it")
    source = system_source()
    place = CACHE / (suite or source.suite)
    # No package is named with "_"; ":" (in versions) must not stand in search paths.
    key = "_".join((*sorted(packages), *(["with-dependencies"] if dependencies else [])))
    unpacked = place / key.replace(":", "%3a")
    place.mkdir(parents=True, exist_ok=True)
    with locked(place / "lock"):
        if not unpacked.exists():
            apt = update(source, suite or source.suite)
            archives = place / "apt" / "cache" / "archives"
            shutil.rmtree(archives)  # of an earlier, interrupted run
            (archives / "partial").mkdir(parents=True)
            command = ["install", "--yes", "--download-only"] if dependencies else ["download"]
            run([*apt, *command, *packages], folder=archives)
            unpack(sorted(archives.glob("*.deb")), unpacked)
            shutil.rmtree(archives)
    return unpacked


def update(source: Source, suite: str) -> list[str]:
    """Return the start of an apt-get command line that has fresh lists of *suite*.

    The system's keyring can be older than the suite: then the keys come from newer
    debian-archive-keyring packages, each of a suite that verifies with the keys before it.
    """
    try:
        return update_with(source, suite)
    except DebsError as error:
        for keys_suite in (source.suite, "stable"):
            if suite in (source.suite, keys_suite):
                break
            try:
                newer = fetch("debian-archive-keyring", suite=keys_suite)
                keyring = newer / "usr" / "share" / "keyrings" / "debian-archive-keyring.gpg"
                return update_with(replace(source, signed_by=str(keyring)), suite)
            except DebsError:
                continue
        raise error from None


def update_with(source: Source, suite: str) -> list[str]:
    """Update the private apt of *suite* from the source, whose keys must have signed it."""
    place = CACHE / suite / "apt"
    architecture = run(["dpkg", "--print-architecture"]).strip()
    for folder in ("state/lists/partial", "cache/archives/partial", "sources"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "status").touch()
    (place / "apt.conf").write_text(APT_CONF.format(folder=place, architecture=architecture))
    signed_by = f"Signed-By: {source.signed_by}\n" if source.signed_by else ""
    (place / "sources" / "archive.sources").write_text(
        f"Types: deb\nURIs: {source.uris}\nSuites: {suite}\nComponents: {source.components}\n"
        f"Targets: Packages\n{signed_by}"
    )
    apt = ["apt-get", "--quiet=2", f"--config-file={place / 'apt.conf'}"]
    run([*apt, "update"])
    return apt


def system_source() -> Source:
    """Return the Debian archive that the system installs from, with only its own suite's name."""
    paths = run(
        ["apt-config", "shell", "F", "Dir::Etc::sourcelist/f", "D", "Dir::Etc::sourceparts/d"]
    )
    main, folder = (Path(line.split("=", 1)[1].strip("'")) for line in paths.splitlines())
    sources = [
        source
        for path in [main, *sorted(folder.glob("*"))]
        if path.is_file()
        for source in parse_sources(path)
    ]
    release = platform.freedesktop_os_release()
    for name in (release.get("VERSION_CODENAME", ""), *SUITE_ALIASES):
        matching = [s for s in sources if name in s.suites and "main" in s.components.split()]
        # Other vendors' archives use Debian's suite names too, but have no updates beside them.
        matching.sort(key=lambda source: f"{name}-updates" not in source.suites)
        if matching:
            return replace(matching[0], suites=(name,))
    raise DebsError(f"no apt source (in {main} or {folder}) has the packages of this system")


def parse_sources(path: Path) -> Iterator[Source]:
    """Yield the enabled binary archives in a file of sources.list(5), of either format."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".sources":
        yield from parse_stanzas(text)
    elif path.suffix == ".list":
        yield from parse_lines(text)


def parse_stanzas(text: str) -> Iterator[Source]:
    """Yield the enabled binary archives of a deb822-style file."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in "\n".join(line.rstrip() for line in lines).split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith((" ", "\t")) and name:
                fields[name] += "\n" + line
            elif ":" in line:
                name, value = line.split(":", 1)
                name = name.lower()
                fields[name] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
            yield Source(
                uris=fields.get("uris", ""),
                suites=tuple(fields.get("suites", "").split()),
                components=fields.get("components", ""),
                signed_by=fields.get("signed-by", ""),
            )


def parse_lines(text: str) -> Iterator[Source]:
    """Yield the binary archives of a one-line-style file."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for line in text.splitlines():
        if match := ONE_LINE.match(line):
            options = (match["options"] or "").split()
            signed_by = [o.split("=", 1)[1] for o in options if o.startswith("signed-by=")]
            archive = (match["uri"], match["components"].strip(), " ".join(signed_by))
            found.setdefault(archive, []).append(match["suite"])
    for (uri, components, keys), suites in found.items():
        yield Source(uris=uri, suites=tuple(suites), components=components, signed_by=keys)


def unpack(archives: Sequence[Path], folder: Path) -> None:
    """Unpack *archives* into *folder*, which appears whole or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in MERGED:
        (partial / "usr" / name).mkdir(parents=True)
        (partial / name).symlink_to(f"usr/{name}")
    for archive in archives:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE
        ) as files:
            # Neither owners nor set-user-ID bits: these files are not the system's.
            run([*UNTAR, f"--directory={partial}"], stdin=files.stdout)
        if files.returncode:
            raise DebsError(f"{archive} is damaged; remove {folder.parent} and try again")
    names = "".join(f"{archive.name}\n" for archive in archives)
    (partial / "PACKAGES").write_text(names)
    partial.rename(folder)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out of the block that lock the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: Sequence[str], folder: Path | None = None, stdin: IO[bytes] | None = None) -> str:
    """Return what the command prints; raise `DebsError` with its complaint when it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DebsError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """Fetch the packages named on the command line and print their folder."""
    parser = argparse.ArgumentParser(description="Fetch and unpack Debian packages.")
    parser.add_argument("packages", nargs="+", metavar="PACKAGE")
    parser.add_argument("--suite", default="", help="trixie, forky … (default: the system's own)")
    parser.add_argument("--dependencies", action="store_true", help="all that they depend on, too")
    wanted = parser.parse_args()
    try:
        print(fetch(*wanted.packages, suite=wanted.suite, dependencies=wanted.dependencies))
    except (DebsError, OSError) as error:
        print(f"debs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
