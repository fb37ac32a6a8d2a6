import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=("base", "neon", "avx2", "avx512"))
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with all instructions that this CPU has."""
    from files import pack
    from moon_runtime import Network

    monkeypatch.setenv("MOON_INSTRUCTIONS", request.param)
    graph = [{"op": "act", "in": [0], "out": 1, "act": "relu"}]
    try:
        assert Network(pack(graph, {}, input=[1, 1, 1], outputs={"y": 1})).instructions == request.param
    except ValueError:
        pytest.skip(f"this CPU has no {request.param}")
