"""Streams: images from disk by worker processes, the same whoever decodes them."""

import numpy as np
import pytest
import torch
from PIL import Image

from moon.data import DataError
from moon.data.streams import Listed, Streams, _box, random_part

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def listed(tmp_path):
    chance = np.random.default_rng(0)
    paths = []
    for index in range(11):
        pixels = chance.integers(0, 256, (30 + index, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        paths.append(f"{index}.png")
    return Listed(tmp_path, tuple(paths), np.arange(11) % 3)


def streams(listed, **settings):
    return Streams(listed, MEAN, STD, **({"size": 16, "resize": 20, "batch_size": 4} | settings))


def test_in_order_as_they_are(listed):
    batches = list(streams(listed))
    assert [len(y) for _, y in batches] == [4, 4, 3]
    assert torch.cat([y for _, y in batches]).tolist() == [i % 3 for i in range(11)]
    x = torch.cat([x for x, _ in batches])
    assert x.shape == (11, 3, 16, 16)
    # By hand: shorter side to 20, the middle 20x20, then its middle 16x16.
    with Image.open(listed.root / "0.png") as image:
        resized = np.asarray(image.resize((27, 20), Image.Resampling.BILINEAR))[:, 3:23][2:18, 2:18]
    expected = (torch.from_numpy(resized.copy()).permute(2, 0, 1) / 255 - torch.tensor(MEAN)[:, None, None]) / (
        torch.tensor(STD)[:, None, None]
    )
    torch.testing.assert_close(x[0], expected)
    assert x.is_contiguous(memory_format=torch.channels_last) or x[:4].stride(1) == 1


def test_an_epoch_is_everything_once_and_depends_on_seed_and_epoch_alone(listed):
    def labels(epoch, **settings):
        return torch.cat([y for _, y in streams(listed, **settings).epoch(epoch)]).tolist()

    assert sorted(labels(0)) == sorted(i % 3 for i in range(11))
    assert labels(0) != labels(1)
    a, b = (torch.cat([x for x, _ in streams(listed).epoch(2)]) for _ in range(2))
    assert torch.equal(a, b)
    c = torch.cat([x for x, _ in streams(listed, seed=1).epoch(2)])
    assert not torch.equal(a, c)


def test_workers_change_nothing(listed):
    alone = list(streams(listed).epoch(1))
    helped = list(streams(listed, workers=2).epoch(1))
    for (x, y), (other_x, other_y) in zip(alone, helped, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


def test_parts_of_processes_are_the_batch(listed):
    whole = list(streams(listed).epoch(3))
    parts = [list(streams(listed, part=(rank, 2)).epoch(3)) for rank in range(2)]
    assert streams(listed, part=(0, 2)).sizes == [4, 4, 3]
    for number in range(2):
        for rank in range(2):
            assert torch.equal(parts[rank][number][0], whole[number][0][rank::2])
    assert torch.equal(parts[0][2][0], whole[2][0])  # too small to be divided
    assert torch.equal(parts[1][2][0], whole[2][0])


def test_random_parts_are_of_the_stated_sizes():
    chance = np.random.default_rng(0)
    shares, ratios = [], []
    for _ in range(500):
        left, top, right, bottom = _box(100, 80, chance)
        assert 0 <= left < right <= 100
        assert 0 <= top < bottom <= 80
        shares.append((right - left) * (bottom - top) / 8000)
        ratios.append((right - left) / (bottom - top))
    assert 0.07 < min(shares) < 0.15
    assert max(shares) > 0.8
    assert min(ratios) > 0.7
    assert max(ratios) < 1.4
    assert _box(1000, 2, np.random.default_rng(0)) == (499, 0, 501, 2)  # the middle of a very long one


def test_half_of_the_images_are_flipped(tmp_path):
    Image.fromarray(np.repeat(np.arange(32, dtype=np.uint8)[None, :, None] * 8, 3, 2).repeat(32, 0)).save(
        tmp_path / "a.png"
    )
    flipped = [
        bool(part[0, 0, 0] > part[0, -1, 0]) for part in (random_part(tmp_path / "a.png", 8, s) for s in range(200))
    ]
    assert 70 < sum(flipped) < 130


def test_a_missing_or_damaged_image_is_named(listed, tmp_path):
    (tmp_path / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3\.png"):
        list(streams(listed).epoch(0))
    (tmp_path / "3.png").unlink()
    with pytest.raises(DataError, match=r"3\.png"):
        list(streams(listed))
    with pytest.raises(ValueError, match="resize=8 at least size"):
        streams(listed, resize=8)


def test_a_last_batch_of_one_joins_the_one_before(listed):
    assert streams(listed, batch_size=5).sizes == [5, 6]
    assert streams(listed.take(np.arange(4))).sizes == [4]
