"""Images from disk: the same batches with any number of workers and processes."""

import numpy as np
import pytest
import torch
from PIL import Image

from moon.data import DataError, ImageList, StreamedBatches
from moon.data.streams import _random_box, random_resized_crop

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    paths = []
    for index in range(11):
        pixels = rng.integers(0, 256, (30 + index, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        paths.append(f"{index}.png")
    return ImageList(tmp_path, tuple(paths), np.arange(11) % 3)


def streamed(images, **settings):
    return StreamedBatches(images, MEAN, STD, **({"size": 16, "resize": 20, "batch_size": 4} | settings))


def test_iterating_yields_all_images_in_order_without_augmentation(images):
    batches = list(streamed(images))
    assert [len(y) for _, y in batches] == [4, 4, 3]
    assert torch.cat([y for _, y in batches]).tolist() == [i % 3 for i in range(11)]
    x = torch.cat([x for x, _ in batches])
    assert x.shape == (11, 3, 16, 16)
    # By hand: shorter side to 20, the central 20x20 pixels, then their central 16x16.
    with Image.open(images.root / "0.png") as image:
        resized = np.asarray(image.resize((27, 20), Image.Resampling.BILINEAR))[:, 3:23][2:18, 2:18]
    expected = (torch.from_numpy(resized.copy()).permute(2, 0, 1) / 255 - torch.tensor(MEAN)[:, None, None]) / (
        torch.tensor(STD)[:, None, None]
    )
    torch.testing.assert_close(x[0], expected)
    assert x.is_contiguous(memory_format=torch.channels_last) or x[:4].stride(1) == 1


def test_an_epoch_yields_every_image_once_and_depends_only_on_seed_and_epoch(images):
    def labels(epoch, **settings):
        return torch.cat([y for _, y in streamed(images, **settings).epoch(epoch)]).tolist()

    assert sorted(labels(0)) == sorted(i % 3 for i in range(11))
    assert labels(0) != labels(1)
    a, b = (torch.cat([x for x, _ in streamed(images).epoch(2)]) for _ in range(2))
    assert torch.equal(a, b)
    c = torch.cat([x for x, _ in streamed(images, seed=1).epoch(2)])
    assert not torch.equal(a, c)


def test_workers_do_not_change_the_batches(images):
    without = list(streamed(images).epoch(1))
    with_workers = list(streamed(images, workers=2).epoch(1))
    for (x, y), (other_x, other_y) in zip(without, with_workers, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


def test_the_parts_of_all_processes_make_up_the_batch(images):
    batches = list(streamed(images).epoch(3))
    parts = [list(streamed(images, part=(rank, 2)).epoch(3)) for rank in range(2)]
    assert streamed(images, part=(0, 2)).sizes == [4, 4, 3]
    for number in range(2):
        for rank in range(2):
            assert torch.equal(parts[rank][number][0], batches[number][0][rank::2])
    assert torch.equal(parts[0][2][0], batches[2][0])  # too small to be divided
    assert torch.equal(parts[1][2][0], batches[2][0])


def test_random_crops_have_the_stated_sizes():
    rng = np.random.default_rng(0)
    shares, ratios = [], []
    for _ in range(500):
        left, top, right, bottom = _random_box(100, 80, rng)
        assert 0 <= left < right <= 100
        assert 0 <= top < bottom <= 80
        shares.append((right - left) * (bottom - top) / 8000)
        ratios.append((right - left) / (bottom - top))
    assert 0.07 < min(shares) < 0.15
    assert max(shares) > 0.8
    assert min(ratios) > 0.7
    assert max(ratios) < 1.4
    assert _random_box(1000, 2, np.random.default_rng(0)) == (499, 0, 501, 2)  # the centre of an elongated image


def test_images_need_not_be_square(images):
    batches = streamed(images, size=(16, 24), resize=18, augment="trivial+cutout")
    assert {tuple(x.shape[1:]) for x, _ in [*batches, *batches.epoch(0)]} == {(3, 16, 24)}
    with Image.open(images.root / "0.png") as image:  # 30x40, so that its shorter side is 18
        pixels = np.asarray(image.resize((24, 18), Image.Resampling.BILINEAR).crop((0, 1, 24, 17)))
    expected = (pixels / 255 - MEAN) / STD
    assert np.allclose(next(iter(batches))[0][0].permute(1, 2, 0), expected, atol=1e-5)
    boxes = [_random_box(90, 80, np.random.default_rng(seed), 1.5) for seed in range(200)]
    ratios = [(right - left) / (bottom - top) for left, top, right, bottom in boxes]
    assert 1.05 < min(ratios) < 1.2
    assert 1.8 < max(ratios) < 2.1
    assert _random_box(2, 1000, np.random.default_rng(0), 1.5) == (0, 499, 2, 500)


def test_half_of_the_images_are_flipped(tmp_path):
    Image.fromarray(np.repeat(np.arange(32, dtype=np.uint8)[None, :, None] * 8, 3, 2).repeat(32, 0)).save(
        tmp_path / "a.png"
    )
    crops = [random_resized_crop(tmp_path / "a.png", 8, seed)[0] for seed in range(200)]
    flipped = [bool(crop[0, 0, 0] > crop[0, -1, 0]) for crop in crops]
    assert 70 < sum(flipped) < 130


def test_missing_and_damaged_images_are_rejected_naming_the_file(images, tmp_path):
    (tmp_path / "3.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"3\.png"):
        list(streamed(images).epoch(0))
    (tmp_path / "3.png").unlink()
    with pytest.raises(DataError, match=r"3\.png"):
        list(streamed(images))
    with pytest.raises(ValueError, match="resize=8 at least size"):
        streamed(images, resize=8)


def test_a_last_batch_of_one_is_merged_into_the_previous_one(images):
    assert streamed(images, batch_size=5).sizes == [5, 6]
    assert streamed(images.take(np.arange(4))).sizes == [4]


@pytest.mark.parametrize("workers", [0, 2])
def test_transparent_images_are_put_on_white_and_that_is_said_once(images, caplog, workers):
    for name in ("3.png", "5.png"):
        Image.new("LA", (40, 30), (0, 0)).save(images.root / name)
    batches = streamed(images, workers=workers)
    for _ in range(2):
        shown = torch.cat([x for x, _ in batches])[[3, 5]]
        list(batches.epoch(0))
    list(streamed(images).epoch(0))
    white = (torch.ones(3) - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(shown, white[:, None, None].expand(2, 3, 16, 16))
    text = f"{images.root}: 3.png is partly transparent; such images are shown on white"
    assert [record.getMessage() for record in caplog.records] == [text]
