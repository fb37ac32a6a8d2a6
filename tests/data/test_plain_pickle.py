import datetime
import os
import pickle

import numpy as np
import pytest

from moon.data.plain_pickle import PickleError, read

BATCH = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "labels": [3, 1, 70000, -5],
    "name": "batch",
    b"bytes": b"\x00\xff",
    "nested": ({"a": (1, 2.5, None, True)}, [[]], ()),
    "big": 2**70,
}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_it_reads_what_pickle_writes(protocol):
    found = read(pickle.dumps(BATCH, protocol))
    array = found.pop("data")
    assert array.dtype == np.uint8
    assert np.array_equal(array, BATCH["data"])
    assert found == {key: value for key, value in BATCH.items() if key != "data"}


def test_it_reads_a_fortran_array_and_other_types():
    value = np.asfortranarray(np.random.default_rng(0).normal(size=(3, 5)))
    assert np.array_equal(read(pickle.dumps(value, 2)), value)
    assert np.array_equal(read(pickle.dumps(np.arange(5, dtype=">i4"), 2)), np.arange(5))


def test_it_reads_python_2_s_byte_strings():
    # {'data': array([[1, 255]], uint8), 'labels': [7]} as Python 2 writes it, protocol 2, by hand.
    stream = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01b\x87Rq\x05(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x01\xfftbU\x06labelsq\x08]q\x09K\x07au."
    )
    found = read(stream)
    assert found["data"].tolist() == [[1, 255]]
    assert found["labels"] == [7]


class Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("value", [Attack(), [Attack()], {"data": Attack()}, datetime.date(2024, 1, 1), os.mkdir])
def test_nothing_is_executed(protocol, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PickleError, match="not plain data"):
        read(pickle.dumps(value, protocol))
    assert not list(tmp_path.iterdir())


def nested(make, levels=60):
    """A value that contains itself exponentially often: its repr, hash or conversion would never end."""
    value = make(())
    for _ in range(levels):
        value = make((value, value))
    return value


def test_values_may_be_shared():
    labels = list(range(1000))
    assert read(pickle.dumps({"labels": labels, "fine_labels": labels}, 2))["fine_labels"] == labels


def test_keys_that_take_long_to_hash_are_rejected():
    key = pickle.dumps(nested(tuple, 40), 2)[2:-1]  # without protocol and STOP; unpickling would hash it
    with pytest.raises(PickleError, match="a dict with a tuple as key"):
        read(b"\x80\x02}" + key + b"K\x01s.")


def test_the_number_of_values_is_bounded():
    with pytest.raises(PickleError, match="more than 1,000,000 values"):
        read(b"\x80\x02](" + b"K\x01" * 1_000_001 + b"e.")


@pytest.mark.parametrize("kind", ["O", "U9", "V99999999", "i4,i4", "M8", "f16"])
def test_arrays_of_other_types_than_numbers_are_rejected(kind):
    stream = pickle.dumps(np.zeros(1, np.uint8), 2)
    assert b"X\x02\x00\x00\x00u1" in stream
    changed = stream.replace(b"X\x02\x00\x00\x00u1", b"X" + len(kind).to_bytes(4, "little") + kind.encode())
    with pytest.raises(PickleError, match="a type that is not a number"):
        read(changed)


@pytest.mark.parametrize("length", [0, 1, 10, 50, -1])
def test_damaged_streams_are_rejected(length):
    with pytest.raises(PickleError, match="damaged"):
        read(pickle.dumps(BATCH, 2)[:length])
    with pytest.raises(PickleError):
        read(b"not a pickle")
