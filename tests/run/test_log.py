"""`log.jsonl` is read with limits: a file from somebody else may be huge without occupying anything on disk."""

import json
import os
import tracemalloc

import pytest

from moon.data import DataError
from moon.run.log import read_log
from moon.training import DamagedCheckpoint

LINES = "".join(json.dumps({"epoch": epoch, "seconds": 1.5, "loss": 0.5}) + "\n" for epoch in range(3))


def test_a_huge_log_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "log.jsonl").touch()
    os.truncate(tmp_path / "log.jsonl", 3 * 2**30)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="has more than 134,217,728 bytes") as raised:
            read_log(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**22
    assert str(raised.value).startswith(str(tmp_path / "log.jsonl"))
    assert "\n" not in str(raised.value)


def test_only_an_incomplete_last_line_is_skipped(tmp_path):
    whole = [json.loads(line) for line in LINES.splitlines()]
    for tail in ("", '{"epoch": 3, "sec', "\0" * 4000):
        (tmp_path / "log.jsonl").write_text(LINES + tail)
        assert read_log(tmp_path) == whole
    (tmp_path / "log.jsonl").write_text(LINES[:-1])  # without the last line break
    assert read_log(tmp_path) == whole
    (tmp_path / "log.jsonl").write_text('{"epoch": 0, "sec\n' + LINES)
    with pytest.raises(DamagedCheckpoint, match="line 1 is damaged"):
        read_log(tmp_path)
