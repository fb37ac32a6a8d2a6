"""What `moon serve` is installed from: pinned versions with digests, and a bill of materials (CycloneDX).

Run by `make constraints-serve` and `make sbom`, with the Python of an environment that has `./runtime[serve]` only.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

PYTHONS, MACHINES = ("3.11", "3.12", "3.13"), ("x86_64", "aarch64")
GLIBC = ("2014", "_2_27", "_2_28")
HEADER = """# What the server needs, for Linux on {machines} and Python {pythons}.
# Written by `make constraints-serve`.
"""


def installed() -> dict[str, Distribution]:
    """The packages of this environment by name, without the tools that install."""
    found: dict[str, Distribution] = {}
    for dist in distributions():  # the first one is imported
        found.setdefault(re.sub(r"[-_.]+", "-", dist.name).lower(), dist)
    return {name: found[name] for name in sorted(found) if name not in ("pip", "setuptools", "wheel")}


def constraints() -> str:
    """The versions that are installed, with the digests of their wheels for all supported machines."""
    pins = [f"{name}=={dist.version}" for name, dist in installed().items() if name != "moon-runtime"]
    digests: dict[str, set[str]] = {}
    for python in PYTHONS:
        for machine in MACHINES:
            platforms = [part for libc in GLIBC for part in ("--platform", f"manylinux{libc}_{machine}")]
            with tempfile.TemporaryDirectory() as folder:
                pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"]
                subprocess.run([*pip, "--python-version", python, *platforms, "--dest", folder, *pins], check=True)
                for wheel in Path(folder).iterdir():
                    name = wheel.name.split("-")[0].replace("_", "-").lower()
                    digests.setdefault(name, set()).add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = [" \\\n    --hash=sha256:".join([pin, *sorted(digests[pin.split("==")[0]])]) for pin in pins]
    return HEADER.format(machines=" and ".join(MACHINES), pythons=", ".join(PYTHONS)) + "\n".join(lines) + "\n"


def bill_of_materials() -> str:
    """The packages of this environment as CycloneDX 1.6; the same environment gives the same text."""
    found = installed()
    components = {name: _component(name, dist) for name, dist in found.items()}
    names = {name: [re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", text)[0]).lower() for text in dist.requires or ()]
             for name, dist in found.items()}  # fmt: skip
    needs = [{"ref": part["bom-ref"], "dependsOn": sorted({components[n]["bom-ref"] for n in names[name]
              if n in components and n != name})} for name, part in components.items()]  # fmt: skip
    server = components.pop("moon-runtime")
    text = json.dumps([server, *components.values()])
    return json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": uuid5(NAMESPACE_URL, text).urn, "version": 1,
        "metadata": {"component": server | {"type": "application"}}, "components": list(components.values()),
        "dependencies": needs,
    }, indent=1)  # fmt: skip


def _component(name: str, dist: Distribution) -> dict[str, object]:
    """A package; its licence as it declares it, if it does so in one line."""
    address = f"pkg:pypi/{name}@{dist.version}"
    part: dict[str, object] = {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": dist.version,
        "purl": address,
    }
    if expression := dist.metadata.get("License-Expression"):
        part["licenses"] = [{"expression": expression}]
    elif (licence := dist.metadata.get("License", "")) and "\n" not in licence:
        part["licenses"] = [{"license": {"name": licence}}]
    return part


if __name__ == "__main__":
    print({"constraints": constraints, "sbom": bill_of_materials}[sys.argv[1]](), end="")
