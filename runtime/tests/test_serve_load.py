"""Mixed load: broken, slow, oversized and aborted requests among many good ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from load import mixed

FILE = Path(__file__).parent / "kept" / "format1.moon"


def test_no_answer_is_wrong_or_lost_under_mixed_load() -> None:
    report = mixed(str(FILE), connections=16, options=[], requests=400, share=0.1)
    assert report["wrong"] == report["lost"] == report["other_5xx"] == 0, report
    assert report["requests"] == 400
    assert len(report["kinds"]) == 8  # right images and every kind of fault
    assert report["drain"]["answered"] == report["drain"]["asked"]
    assert report["drain"]["exit_code"] == 0
