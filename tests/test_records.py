"""JSON files that are read strictly, and their digests."""

import json

import numpy as np
import pytest

from moon.records import arrays_digest, parse_json, read_record, write_record


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[NaN]", "NaN is not a finite number"),
        ("[-Infinity]", "-Infinity is not a finite number"),
        ("[1e999]", "1e999 is not a finite number"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting"),
    ],
    ids=["nan", "infinity", "overflow", "deep", "cut"],
)
def test_json_is_read_strictly(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_json(text)


def test_a_record_is_read_as_it_was_written(tmp_path):
    value = {"b": [1, 2.5, None, True], "a": {"x": "±"}}
    write_record(tmp_path / "a.json", value)
    assert read_record(tmp_path / "a.json") == value


def test_a_changed_record_is_detected(tmp_path):
    write_record(tmp_path / "a.json", {"a": 0.5})
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace("0.5", "0.6"))
    with pytest.raises(ValueError, match="its content does not match its SHA-256"):
        read_record(tmp_path / "a.json")


def test_a_record_without_a_digest_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}))
    assert read_record(tmp_path / "a.json") == {"a": 1}


def test_the_digest_of_arrays_covers_names_types_shapes_and_values():
    zeros = np.zeros((2, 3))
    arrays = [
        {"a": zeros}, {"b": zeros}, {"a": zeros + 1}, {"a": zeros.astype(np.float32)}, {"a": zeros.T}, {"a": zeros[:1]},
    ]  # fmt: skip
    assert len({arrays_digest(each) for each in arrays}) == len(arrays)
    assert arrays_digest({"a": zeros, "b": zeros + 1}) == arrays_digest({"b": zeros + 1, "a": zeros})
