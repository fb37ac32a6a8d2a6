import json
import threading
from concurrent import futures

import pytest
import torch

from moon.files import write_json
from moon.training import Checkpoints, DamagedCheckpoint

STATE = {
    "epoch": 3,
    "rate": 0.1,
    "name": "x",
    "nothing": None,
    "flag": True,
    "optimizer": {"state": {0: {"momentum": torch.randn(2, 3)}, 1: {}}, "groups": [{"params": [0, 1], "lr": 0.1}]},
    "mask": torch.tensor([True, False]),
    "beta": torch.tensor(torch.nan),
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def test_what_is_saved_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.latest() is None
    checkpoints.save(3, STATE)
    number, state = checkpoints.latest()
    assert number == 3
    same(state, STATE)


def test_other_layouts_and_shared_memory_are_saved(tmp_path):
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"a": image, "b": image, "c": image[0]})
    assert torch.equal(checkpoints.latest()[1]["c"], image[0])


def test_the_two_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2, 9, 10):
        checkpoints.save(number, {"n": number})
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000009", "000010"]


@pytest.mark.parametrize("file", ["tensors.safetensors", "tree.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_one_is_passed_over_saying_so(tmp_path, file, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE | {"epoch": 1})
    checkpoints.save(2, STATE | {"epoch": 2})
    checkpoints.wait()
    path = tmp_path / "000002" / file
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        content = content[: len(content) // 2]
    path.write_bytes(content)
    if damage == "remove":
        path.unlink()
    said = []
    number, state = checkpoints.latest(said.append)
    assert (number, state["epoch"]) == (1, 1)
    assert len(said) == 1
    assert "000002" in said[0]
    checkpoints.save(2, STATE)  # writes over the damaged one
    assert checkpoints.latest(said.append)[0] == 2


def test_a_damaged_one_does_not_take_the_place_of_a_good_one(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(8, STATE)
    checkpoints.save(20, STATE)
    checkpoints.wait()
    (tmp_path / "000020" / "tree.json").write_text("{}")
    assert checkpoints.latest(lambda _: None)[0] == 8
    checkpoints.save(9, STATE)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000008", "000009"]


def test_all_damaged_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    checkpoints.wait()
    (tmp_path / "000001" / "manifest.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match="none of the 1"):
        checkpoints.latest(lambda _: None)


def test_a_checkpoint_cut_off_while_it_was_written_is_not_seen(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    checkpoints.wait()
    (tmp_path / ".000002.part").mkdir()
    (tmp_path / ".000002.part" / "tree.json").write_text("{")
    assert checkpoints.latest()[0] == 1
    checkpoints.save(2, STATE)
    assert checkpoints.latest()[0] == 2


def test_what_is_not_data_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"/x: a set cannot be saved"):
        Checkpoints(tmp_path).save(1, {"x": {1, 2}})


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    write_json(tmp_path / "a.json", {"x": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}


def slowed(monkeypatch) -> threading.Event:
    """Checkpoints are written once this is set."""
    may_write, whole = threading.Event(), Checkpoints._save
    monkeypatch.setattr(Checkpoints, "_save", lambda *task: may_write.wait(10) and whole(*task))
    return may_write


def test_what_is_saved_is_the_state_of_that_moment_and_the_disk_is_not_waited_for(tmp_path, monkeypatch):
    may_write = slowed(monkeypatch)
    checkpoints, weight = Checkpoints(tmp_path), torch.ones(3)
    checkpoints.save(1, {"weight": weight})
    weight.zero_()
    assert not any(tmp_path.iterdir())
    may_write.set()
    assert torch.equal(checkpoints.latest()[1]["weight"], torch.ones(3))


def test_a_disk_that_fails_is_not_passed_over(tmp_path):
    (tmp_path / "c").write_text("a file in its place")
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(1, STATE)
    with pytest.raises(FileExistsError):
        checkpoints.wait()
    checkpoints.wait()  # said once
    checkpoints.save(2, STATE)
    with pytest.raises(FileExistsError):
        checkpoints.save(3, STATE)


def test_whoever_is_stopped_while_waiting_waits_all_the_same(tmp_path, monkeypatch):
    """Else another process could begin to write into the folder."""
    whole, calls = futures.wait, []

    def stopped_twice(tasks):
        calls.append(tasks)
        if len(calls) < 3:
            raise KeyboardInterrupt
        may_write.set()
        return whole(tasks)

    may_write = slowed(monkeypatch)
    monkeypatch.setattr(futures, "wait", stopped_twice)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.wait()
    assert len(calls) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
