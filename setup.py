"""Build of the compiled kernels; everything static is in pyproject.toml.

Switches, all read from the environment:
    NRI_POLICY_DEBUG=1     no optimisation, assertions and bounds checks on
    NRI_POLICY_SANITIZE=1  address and undefined-behaviour sanitizers
    NRI_POLICY_COVERAGE=1  line tracing for coverage of the .pyx files
"""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = Path("native")
DEBUG, SANITIZE, COVERAGE = (
    os.environ.get(f"NRI_POLICY_{switch}") == "1" for switch in ("DEBUG", "SANITIZE", "COVERAGE")
)

compile_args = ["-O0", "-UNDEBUG", "-g"] if DEBUG else ["-O2"]
link_args: list[str] = []
if SANITIZE:
    compile_args += ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
    link_args += ["-fsanitize=address,undefined"]

extensions = [
    Extension(
        f"nri_policy.{source.stem}",
        [str(source)],
        include_dirs=[str(NATIVE)],
        depends=[str(header) for header in NATIVE.glob("*.h")],
        define_macros=[("CYTHON_TRACE", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
        if COVERAGE
        else [],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for source in sorted(NATIVE.glob("nri_policy/*.pyx"))
]

setup(
    ext_modules=cythonize(
        extensions,
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
