"""`log.jsonl` is read with limits: a file from somebody else may be huge without occupying anything on disk."""

import json

import pytest

from moon.run.log import read_log
from moon.training import DamagedCheckpoint

LINES = "".join(json.dumps({"epoch": epoch, "seconds": 1.5, "loss": 0.5}) + "\n" for epoch in range(3))


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
