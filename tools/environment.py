"""The virtual environment, made with nothing but Python, and Debian's apt for what is missing.

A fresh machine may lack ensurepip, a C compiler and Python's headers: what is missing is fetched
with `tools.debs` and used from the cache. Nothing is installed on the system. pip's own settings
(pip.conf, PIP_* variables) and CC and CFLAGS apply.

    python3 -m tools.environment .venv     # from the project's root; `make` does it
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType

from tools.debs import DebsError, fetch, locked

PROJECT = Path(__file__).resolve().parent.parent
CACHE = PROJECT / ".cache"
OLDEST_PYTHON = (3, 11)

SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# Debian's pip, run from its wheel, installs the ordinary one. It would trust only the system's
# certificates, and not start without them.
BOOTSTRAP = """\
import sys
wheel, certificates = sys.argv[1:]
sys.path.insert(0, wheel)
from pip._vendor import certifi
certifi.where = lambda: certificates
from pip._internal.cli.main import main
sys.exit(main(["install", "--quiet", "pip"]))
"""

# The smallest extension module: it compiles, links and loads when the build of ours would.
PROBE = """\
#include <Python.h>
#include <stdio.h>
static struct PyModuleDef probe = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&probe); }
"""


class SetupError(Exception):
    """The environment cannot be made; the text says why."""


def make_venv(folder: Path) -> None:
    """Create the virtual environment with a working pip, unless it is there."""
    python = folder / "bin" / "python"
    if python.exists() and succeeds([python, "-m", "pip", "--version"]):
        return
    venv = [sys.executable, "-m", "venv", "--clear"]
    if importlib.util.find_spec("ensurepip"):
        run([*venv, folder])
        return
    run([*venv, "--without-pip", folder])
    wheels = fetch("python3-pip-whl") / "usr" / "share" / "python-wheels"
    (wheel,) = wheels.glob("pip-*.whl")
    run([python, "-c", BOOTSTRAP, wheel, certificates()])


def certificates() -> Path:
    """Return the certificates of the system, or Debian's when it has none."""
    if SYSTEM_CERTIFICATES.exists():
        return SYSTEM_CERTIFICATES
    folder = fetch("ca-certificates") / "usr" / "share" / "ca-certificates"
    bundle = CACHE / "ca-certificates.crt"
    bundle.write_bytes(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.crt"))))
    return bundle


def compiler() -> dict[str, str]:
    """Return the variables (CC, CFLAGS) with which an extension module builds and loads."""
    variables = {}
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        variables["CFLAGS"] = f"{os.environ.get('CFLAGS', '')} {python_headers()}".strip()
    if complaint(variables):
        variables["CC"] = str(fetched_compiler())
        if text := complaint(variables):
            raise SetupError(f"no C compiler works here, and neither does a fetched one:\n{text}")
    return variables


def python_headers() -> str:
    """Return the flags that find the headers of Debian's Python, fetched."""
    version = sysconfig.get_python_version()
    include = fetch(f"libpython{version}-dev") / "usr" / "include"
    return f"-I{shlex.quote(str(include / f'python{version}'))} -I{shlex.quote(str(include))}"


def fetched_compiler() -> Path:
    """Return a C compiler that runs from the cache and takes headers and libraries from there."""
    root = fetch("gcc", "libc6-dev", dependencies=True)
    # Libraries of the system come first, because the C library must
    # match the running loader.
    libraries = CACHE / "compiler-libraries"
    shutil.rmtree(libraries, ignore_errors=True)
    libraries.mkdir()
    for library in (root / "usr" / "lib").glob("*-linux-gnu*/lib*.so*"):
        if not Path("/usr/lib", library.parent.name, library.name).exists():
            (libraries / library.name).symlink_to(library)
    cc = CACHE / "cc"
    cc.write_text(
        "#!/bin/sh\n"
        f"export LD_LIBRARY_PATH={shlex.quote(str(libraries))}\n"
        f"root={shlex.quote(str(root))}\n"
        'exec "$root/usr/bin/gcc" --sysroot="$root" -B"$root/usr/bin" "$@"\n'
    )
    cc.chmod(0o755)
    return cc


def complaint(variables: Mapping[str, str]) -> str:
    """Return why an extension module cannot be built with *variables*; nothing when it can."""
    settings = os.environ | variables
    cc = shlex.split(settings.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = shlex.split(settings.get("CFLAGS", ""))
    include = f"-I{sysconfig.get_path('include')}"
    if not shutil.which(cc[0]):
        return f"{cc[0]}: not found"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(PROBE)
        library = source.with_suffix(".so")
        for command in (
            [*cc, "-shared", "-fPIC", *flags, include, str(source), "-o", str(library)],
            [sys.executable, "-c", f"import sys; sys.path[:] = [{folder!r}]; import probe"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                return done.stderr.strip()
    return ""


def install(folder: Path) -> None:
    """Build the project into the virtual environment, with all that its development needs."""
    warnings = {"PYTHONWARNINGS": "ignore:Editable installation"}  # setuptools': that we mean it
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--editable", ".[dev]"]
    variables = warnings | compiler()
    with seconds_shown("packages and kernels"):
        run(pip, variables)


@contextmanager
def seconds_shown(what: str) -> Iterator[None]:
    """Have a terminal show for how long *what* has taken, for the time of a `with`."""
    if not sys.stderr.isatty():
        yield
        return
    ended, start = Event(), time.monotonic()

    def show() -> None:
        while not ended.wait(1):
            seconds = round(time.monotonic() - start)
            print(f"\r  {what}: {seconds // 60}:{seconds % 60:02}", end="", file=sys.stderr)

    thread = Thread(target=show)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def succeeds(command: Sequence[str | Path]) -> bool:
    """Tell whether the command can be run and succeeds."""
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return False


def run(
    command: Sequence[str | Path],
    variables: Mapping[str, str] = MappingProxyType({}),
    folder: Path = PROJECT,
) -> None:
    """Run the command, which writes its own complaints to the terminal."""
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, check=False)
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command[:4]))} … failed, see above")


def main(folder: Path) -> int:
    """Make the environment in *folder* complete and up to date."""
    if sys.version_info < OLDEST_PYTHON:
        print(f"{sys.executable}: needs Python 3.11 or newer", file=sys.stderr)
        return 1
    print(
        f"setting up {folder.name}: fetching packages, compiling kernels that changed (the first"
        " time some minutes, without output)",
        file=sys.stderr,
    )
    try:
        CACHE.mkdir(exist_ok=True)
        with locked(CACHE / "environment.lock"):
            make_venv(folder)
            install(folder)
    except (DebsError, SetupError, OSError) as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    print(f"{folder.name} is ready", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(PROJECT / sys.argv[1]))
