import json
import os
import threading
from concurrent import futures

import pytest
import torch

from moon.files import sha256, write_json
from moon.training import Checkpoints, DamagedCheckpoint
from moon.training.checkpoint import load_tensors

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


def check_equal(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            check_equal(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            check_equal(x, y)
    else:
        assert a == b


def test_a_saved_state_can_be_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.latest() is None
    checkpoints.save(3, STATE)
    number, state = checkpoints.latest()
    assert number == 3
    check_equal(state, STATE)


def test_channels_last_and_shared_tensors_can_be_saved(tmp_path):
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
@pytest.mark.parametrize("damage", ["flip a bit", "truncate", "remove"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, file, damage, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE | {"epoch": 1})
    checkpoints.save(2, STATE | {"epoch": 2})
    checkpoints.wait()
    path = tmp_path / "000002" / file
    content = bytearray(path.read_bytes())
    if damage == "flip a bit":
        content[len(content) // 2] ^= 1
    elif damage == "truncate":
        content = content[: len(content) // 2]
    path.write_bytes(content)
    if damage == "remove":
        path.unlink()
    number, state = checkpoints.latest()
    assert (number, state["epoch"]) == (1, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "damaged" in caplog.messages[0]
    assert "000002" in caplog.messages[0]
    checkpoints.save(2, STATE)  # overwrites the damaged one
    assert checkpoints.latest()[0] == 2
    assert len(caplog.messages) == 1


def test_a_damaged_checkpoint_does_not_replace_an_intact_one(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(8, STATE)
    checkpoints.save(20, STATE)
    checkpoints.wait()
    (tmp_path / "000020" / "tree.json").write_text("{}")
    assert checkpoints.latest()[0] == 8
    checkpoints.save(9, STATE)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000008", "000009"]


def test_it_is_an_error_if_all_checkpoints_are_damaged(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    checkpoints.wait()
    (tmp_path / "000001" / "manifest.json").write_text("{}")
    with pytest.raises(DamagedCheckpoint, match=r"all 1 checkpoint\(s\) are damaged; delete the run folder"):
        checkpoints.latest()


def test_a_huge_checkpoint_is_refused_before_it_is_parsed(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    checkpoints.wait()
    tree, manifest = (tmp_path / "000001" / name for name in ("tree.json", "manifest.json"))
    os.truncate(tree, 2**28 + 1)  # occupies almost nothing on disk
    write_json(manifest, json.loads(manifest.read_text()) | {"tree.json": sha256(tree)})
    with pytest.raises(DamagedCheckpoint, match="are damaged"):
        checkpoints.latest()
    assert "tree.json: has more than 268,435,456 bytes" in caplog.text


def test_an_incomplete_checkpoint_is_ignored(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    checkpoints.wait()
    (tmp_path / ".000002.part").mkdir()
    (tmp_path / ".000002.part" / "tree.json").write_text("{")
    assert checkpoints.latest()[0] == 1
    checkpoints.save(2, STATE)
    assert checkpoints.latest()[0] == 2


def test_a_state_that_cannot_be_saved_is_rejected(tmp_path):
    with pytest.raises(TypeError, match=r"/x: a set cannot be saved"):
        Checkpoints(tmp_path).save(1, {"x": {1, 2}})


def test_json_files_do_not_contain_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    write_json(tmp_path / "a.json", {"x": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}


def delay_writing(monkeypatch) -> threading.Event:
    """Delay the writing of checkpoints until the returned event is set."""
    may_write, save = threading.Event(), Checkpoints._save
    monkeypatch.setattr(Checkpoints, "_save", lambda *arguments: may_write.wait(600) and save(*arguments))
    return may_write


def test_saving_copies_the_state_and_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    may_write = delay_writing(monkeypatch)
    checkpoints, weight = Checkpoints(tmp_path), torch.ones(3)
    checkpoints.save(1, {"weight": weight})
    weight.zero_()
    assert not any(tmp_path.iterdir())
    may_write.set()
    assert torch.equal(checkpoints.latest()[1]["weight"], torch.ones(3))


def test_an_error_while_writing_is_raised_by_the_next_call(tmp_path):
    (tmp_path / "c").write_text("not a folder")
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(1, STATE)
    with pytest.raises(ValueError, match="is a file"):
        checkpoints.wait()
    checkpoints.wait()  # raised only once
    checkpoints.save(2, STATE)
    with pytest.raises(ValueError, match="is a file"):
        checkpoints.save(3, STATE)


def test_an_interrupt_while_waiting_is_raised_after_the_checkpoint_is_written(tmp_path, monkeypatch):
    """Otherwise another process could start to write to the folder."""
    wait, calls = futures.wait, []

    def interrupt_twice(tasks):
        calls.append(tasks)
        if len(calls) < 3:
            raise KeyboardInterrupt
        may_write.set()
        return wait(tasks)

    may_write = delay_writing(monkeypatch)
    monkeypatch.setattr(futures, "wait", interrupt_twice)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, STATE)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.wait()
    assert len(calls) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


@pytest.mark.parametrize("name", ["manifest.json", "tree.json", "tensors.safetensors"])
def test_a_named_pipe_in_a_checkpoint_is_damage_and_does_not_block(tmp_path, name):
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2):
        checkpoints.save(number, {"weight": torch.ones(2)})
    checkpoints.wait()
    (tmp_path / "000002" / name).unlink()
    os.mkfifo(tmp_path / "000002" / name)
    number, _ = checkpoints.latest()
    assert number == 1
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(DamagedCheckpoint, match="named pipe"):
        load_tensors(tmp_path / "model.safetensors")
