"""What the server is installed from: bounds, pinned versions with digests, and the bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

RUNTIME = Path(__file__).parents[1]


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def bounds() -> dict[str, tuple[int, ...]]:
    """The lower bounds of what the server needs."""
    project = tomllib.loads((RUNTIME / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(text for part in project["optional-dependencies"].values() for text in part)]
    found = [re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", text) for text in needed]
    return {match[1]: version(match[2]) for match in found if match}


def test_versions_with_known_vulnerabilities_are_excluded() -> None:
    fixed = {
        "pillow": (13, 0),  # GHSA-8g5g-8vmr-9782, GHSA-462x-pgg6-55fp: overflows in JPEG and TIFF
        "h11": (0, 16),  # CVE-2025-43859: request smuggling
        "python-multipart": (0, 0, 30),  # CVE-2024-53981, CVE-2026-40347, CVE-2026-42561: time; CVE-2026-53537
        "starlette": (1, 3, 1),  # CVE-2025-62727, CVE-2026-54283: time and memory; CVE-2026-48710: Host
    }
    for name, first in fixed.items():
        assert bounds()[name] >= first, name


def test_pinned_versions_are_within_the_bounds_and_have_digests() -> None:
    pins = re.findall(r"^([a-z0-9-]+)==([0-9.]+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$",
                      (RUNTIME / "constraints-serve.txt").read_text(), re.MULTILINE)  # fmt: skip
    found = {name: version(text) for name, text, _ in pins}
    assert len(found) == (RUNTIME / "constraints-serve.txt").read_text().count("==")
    for name, first in bounds().items():
        assert found[name] >= first, name


def test_the_bill_of_materials_lists_what_the_server_needs() -> None:
    done = subprocess.run([sys.executable, RUNTIME / "supply.py", "sbom"], capture_output=True, text=True, check=True)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    server = bill["metadata"]["component"]
    needs = {part["ref"]: part["dependsOn"] for part in bill["dependencies"]}
    listed = {part["bom-ref"]: part["name"] for part in [server, *bill["components"]]}
    assert listed.keys() == needs.keys() >= {ref for refs in needs.values() for ref in refs}
    assert {listed[ref] for ref in needs[server["bom-ref"]]} >= {"numpy", "pillow", "h11", "starlette", "uvicorn"}
