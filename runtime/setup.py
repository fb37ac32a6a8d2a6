"""Compiles the C library. It has no Python in it: the binding loads it with ctypes, so one wheel fits all."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """A wheel for this platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


core = Extension(
    "moon_runtime._core",
    sources=sorted(str(path) for path in Path("src").glob("*.c")),
    depends=sorted(str(path) for pattern in ("*.h", "*.inc") for path in Path("src").glob(pattern)),
    # No -march: kernels for newer instructions are compiled as well, and chosen at run time.
    extra_compile_args=[
        "-std=c11", "-O3", "-ffp-contract=fast", "-fvisibility=hidden", "-D_POSIX_C_SOURCE=200809L",
        "-Wall", "-Wextra",
        "-g0",  # Python's own flags ask for debugging information, four fifths of the library
        *(["-D_DARWIN_C_SOURCE"] if sys.platform == "darwin" else []),  # declares aligned_alloc
    ],
    extra_link_args=["-pthread", "-lm"],
    py_limited_api=True,
)  # fmt: skip

setup(ext_modules=[core], cmdclass={"bdist_wheel": Wheel})
