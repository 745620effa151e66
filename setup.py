"""Build of the compiled kernels; everything static is in pyproject.toml.

Switches, all read from the environment:
    NRI_POLICY_DEBUG=1     no optimisation, assertions and bounds checks on
    NRI_POLICY_SANITIZE=1  address and undefined-behaviour sanitizers
    NRI_POLICY_COVERAGE=1  line tracing for coverage of the .pyx files
    NRI_POLICY_ABI3=0      for the Python that builds alone, not for 3.11 and all later ones
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

NATIVE = Path("native")
DEBUG, SANITIZE, COVERAGE = (
    os.environ.get(f"NRI_POLICY_{switch}") == "1" for switch in ("DEBUG", "SANITIZE", "COVERAGE")
)

# Line tracing needs more of the interpreter than its stable ABI shows.
ABI3 = os.environ.get("NRI_POLICY_ABI3", "1") == "1" and not COVERAGE
OLDEST = ("cp311", "0x030B0000")  # as a wheel's tag and as Py_LIMITED_API; requires-python says so

compile_args = ["-O0", "-UNDEBUG", "-g"] if DEBUG else ["-O2", "-g0"]
link_args: list[str] = []
if SANITIZE:
    compile_args += ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
    link_args += ["-fsanitize=address,undefined"]

macros: list[tuple[str, str | None]] = []
if COVERAGE:
    macros += [("CYTHON_TRACE", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
if ABI3:
    macros += [("Py_LIMITED_API", OLDEST[1]), ("CYTHON_LIMITED_API", "1")]
    compile_args += ["-include", str(NATIVE / "limited_api.h")]

extensions = [
    Extension(
        f"nri_policy.native.{source.stem}",
        [str(source)],
        include_dirs=[str(NATIVE)],
        depends=[str(header) for header in NATIVE.glob("*.h")],
        define_macros=macros,
        py_limited_api=ABI3,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for source in sorted(NATIVE.glob("nri_policy/native/*.pyx"))
]

SHARED = (*Path("configs").rglob("*"), *Path("docs").rglob("*.md"), *Path("docs").glob("*.1"))


class BuildWithExamples(build_py):
    """Puts what messages and commands name, configs/ and docs/, into the package's own share/."""

    def run(self) -> None:
        """Copy them after the modules."""
        super().run()
        if self.editable_mode:  # they are beside the package
            return
        for path in filter(Path.is_file, SHARED):
            target = Path(self.build_lib, "nri_policy", "share", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(
    cmdclass={"build_py": BuildWithExamples},
    options={"build_ext": {"parallel": True}}
    | ({"bdist_wheel": {"py_limited_api": OLDEST[0]}} if ABI3 else {}),
    ext_modules=cythonize(
        extensions,
        nthreads=os.cpu_count() or 1,
        include_path=[str(NATIVE)],
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
            "linetrace": COVERAGE,
            "embedsignature": True,
        },
    ),
)
