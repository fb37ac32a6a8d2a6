"""TrivialAugment against Pillow, Cutout by hand, and both as a part of batches."""

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch._subclasses.fake_tensor import FakeTensorMode

from moon.data import Batches, DataSet, ImageList, StreamedBatches
from moon.data.augment import _CHOICES, _LEVELS, _OPERATIONS, Augmentation, recolour
from moon.data.benchmarks import AUGMENTATIONS

SIZE = 32
BLENDS = ("brightness", "contrast", "color", "sharpness")


def pictures(count=6, channels=3, height=SIZE, width=SIZE):
    """Smooth images with noise, of which some have a small range, one one value and one black borders."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    base = np.stack([np.sin(3 * rows + k) * np.cos(2 * columns - k) for k in range(channels)], -1)
    images = 127 + 90 * base + rng.normal(0, 20, (count, height, width, channels))
    images = images.clip(0, 255).astype(np.uint8)
    images[1] = images[1] // 4 + 90
    images[2] = 77
    images[3, :5] = images[3, :, -4:] = 0
    return images


def reference(name, image, level, sign):
    """One operation by Pillow, with the strengths of the paper's wide space."""
    m = level / (_LEVELS - 1)
    picture = Image.fromarray(image.squeeze())
    width, height = picture.size
    enhance = {"brightness": "Brightness", "contrast": "Contrast", "color": "Color", "sharpness": "Sharpness"}
    affine = {
        "shear_x": (1, sign * 0.99 * m, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, sign * 0.99 * m, 1, 0),
        "translate_x": (1, 0, sign * min(32, width) * m, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, sign * min(32, height) * m),
    }
    if name in enhance:
        changed = getattr(ImageEnhance, enhance[name])(picture).enhance(0.01 + 1.99 * m)
    elif name in affine:
        changed = picture.transform(picture.size, Image.Transform.AFFINE, affine[name])
    elif name == "rotate":
        changed = picture.rotate(sign * 135 * m)
    elif name == "posterize":
        changed = ImageOps.posterize(picture, 8 - round(6 * m))
    elif name == "solarize":
        changed = ImageOps.solarize(picture, 256 - int(256 * m))
    else:
        changed = {"autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}.get(name, lambda x: x)(picture)
    return np.asarray(changed).reshape(image.shape).astype(int)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", _OPERATIONS)
def test_each_operation_is_that_of_pillow(name, channels):
    images = pictures(channels=channels, height=SIZE, width=SIZE if name == "rotate" else 28)
    augmentation = Augmentation("trivial", *images.shape[1:3])
    wrong = total = 0
    for level in range(_LEVELS):
        for direction in (0, 1):
            choice = (_OPERATIONS.index(name) * _LEVELS + level) * 2 + direction
            numbers = torch.tensor([choice, 0, 0])[:, None].expand(3, len(images))
            found = augmentation.change(torch.from_numpy(images), numbers).numpy().astype(int)
            expected = np.stack([reference(name, image, level, 1 - 2 * direction) for image in images])
            if name in BLENDS or name == "autocontrast":
                assert abs(found - expected).max() <= 1
            wrong, total = wrong + (found != expected).sum(), total + found.size
    # Pillow's rounding may differ: of places (it has 16 binary digits), of stretched values and, on some machines, of
    # the sum and product in a blend.
    few = {"rotate": 0.002, "shear_x": 0.001, "shear_y": 0.001, "autocontrast": 0.01} | dict.fromkeys(BLENDS, 1e-5)
    assert wrong / total <= few.get(name, 0)
    if (name, channels) not in (("identity", 1), ("identity", 3), ("color", 1)):
        assert not np.array_equal(found, images)


def test_choices_cover_every_operation_level_and_direction():
    numbers = Augmentation("trivial", SIZE, SIZE).draw(200_000, seed=0, epoch=0)
    counts = torch.bincount(numbers[0], minlength=_CHOICES)
    assert len(_OPERATIONS) == 14
    assert len(counts) == 14 * 31 * 2
    assert counts.min() > 150  # 230 on average
    assert counts.max() < 320
    assert numbers[1].unique().tolist() == numbers[2].unique().tolist() == list(range(SIZE))


def test_cutout_hides_a_square_around_its_centre():
    x = torch.ones(4, 3, 32, 28).contiguous(memory_format=torch.channels_last)
    augmentation = Augmentation("cutout", 32, 28)
    hidden = augmentation.hide(x, torch.tensor([[0] * 4, [16, 0, 31, 3], [10, 0, 27, 20]]))
    assert hidden.is_contiguous(memory_format=torch.channels_last)
    expected = torch.ones(4, 3, 32, 28)
    expected[0, :, 9:23, 3:17] = 0  # half of the shorter side
    expected[1, :, :7, :7] = 0
    expected[2, :, 24:, 20:] = 0
    expected[3, :, :10, 13:27] = 0
    assert torch.equal(hidden, expected)
    assert (Augmentation("cutout", 32, 32).hide(x[:1, :, :, :].new_ones(1, 3, 32, 32), torch.tensor([[0], [16], [16]]))
            == 0).sum() == 3 * 16 * 16  # fmt: skip


def batches(augment="none", count=50, **settings):
    images = pictures(count, settings.pop("channels", 3), 8, 8)
    statistics = (0.5,) * images.shape[3], (0.25,) * images.shape[3]
    return Batches(
        DataSet(images, np.arange(count)), *statistics, augment=augment,
        **{"batch_size": 16, "crop": 2, "flip": True, "seed": 3} | settings,
    )  # fmt: skip


def epoch(made, e=0):
    """Return {label: image} of one epoch."""
    return {int(y): x for xs, ys in made.epoch(e) for x, y in zip(xs, ys, strict=True)}


def test_without_an_augmentation_no_bit_changes():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3)).astype(np.uint8)
    made = Batches(
        DataSet(pixels, np.arange(50)), (0.5,) * 3, (0.25,) * 3, batch_size=16, crop=2, flip=True, seed=3
    )  # fmt: skip
    digest = hashlib.sha256()
    for e in range(2):
        for x, y in made.epoch(e):
            digest.update(x.contiguous().numpy().tobytes() + y.numpy().tobytes())
    # Computed by the version that had no other augmentation.
    assert digest.hexdigest() == "eb9422e889043b1e9ad60baa9790897ffbe458975bde8e329a7437c2cfa0a1dd"


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_changed_then_cropped_flipped_and_normalised_then_hidden(channels):
    made, plain = batches("trivial+cutout", channels=channels), batches(channels=channels)
    _, corner, flipped, numbers = made._augmentation(1)
    changed = made.augmentation.change(torch.from_numpy(pictures(50, channels, 8, 8)), numbers)
    by_hand = Batches(DataSet(changed.numpy(), np.arange(50)), (0.5,) * channels, (0.25,) * channels, crop=2)
    found, before = epoch(made, 1), epoch(plain, 1)
    for label in range(50):
        top, left = corner[:, label]
        image = by_hand.images[label, top : top + 8, left : left + 8]
        image = by_hand._normalise((image.flip(1) if flipped[label] else image)[None])
        assert torch.equal(found[label], made.augmentation.hide(image, numbers[:, label : label + 1])[0])
    same = sum(torch.equal(found[label], before[label]) for label in range(50))
    assert same < 15  # a hole may be in a black corner of 8x8 pixels
    assert epoch(plain, 1).keys() == found.keys()


@pytest.mark.parametrize("augment", AUGMENTATIONS[1:])
def test_the_augmentation_depends_on_seed_epoch_and_index_only(augment):
    found = epoch(batches(augment), 4)
    for other in (batches(augment, batch_size=7), batches(augment)):
        again = epoch(other, 4)
        assert all(torch.equal(found[label], again[label]) for label in found)
    for other in (epoch(batches(augment), 5), epoch(batches(augment, seed=4), 4), epoch(batches(), 4)):
        assert sum(not torch.equal(found[label], other[label]) for label in found) > 25
    plain = batches(augment)
    assert torch.equal(torch.cat([x for x, _ in plain]), torch.cat([x for x, _ in batches()]))  # for evaluation


def test_the_order_of_images_is_that_without_augmentation():
    orders = [torch.cat([y for _, y in batches(augment).epoch(2)]) for augment in AUGMENTATIONS]
    assert all(torch.equal(order, orders[0]) for order in orders)


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_drawn_images_are_augmented_as_well_and_nothing_depends_on_values(augment):
    made = batches(augment)
    torch.manual_seed(1)
    x, y = made.draw(20)
    assert x.shape == (20, 3, 8, 8)
    assert x.is_contiguous(memory_format=torch.channels_last)
    torch.manual_seed(1)
    plain, labels = batches().draw(20)
    assert torch.equal(y, labels)
    assert torch.equal(x, plain) == (augment == "none")
    # Fake tensors have no values: what would wait for the device, such as `item` or a boolean index, raises.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        index, numbers = (mode.from_tensor(part) for part in (y, made.augmentation.draw(20, 0, 0)))
        corner, flipped = torch.zeros(2, 20, dtype=torch.int64), torch.zeros(20, dtype=torch.bool)
        assert made._gather(index, corner, flipped, numbers)[0].shape == (20, 3, 8, 8)


@pytest.mark.parametrize("limit", [1, 3 * 8 * 8 * 7, 1 << 24])
def test_a_large_batch_is_changed_in_parts_with_the_same_result(limit, monkeypatch):
    images, augmentation = torch.from_numpy(pictures(50, height=8, width=8)), Augmentation("trivial", 8, 8)
    numbers = augmentation.draw(50, 0, 0)
    row, column = torch.randint(-2, 10, (2, 50, 8))
    whole = augmentation.change(images, numbers), augmentation.change(images, numbers, row, column)
    expected, sizes = epoch(batches("trivial+cutout"), 1), []

    def counted(x, *rest):
        sizes.append(len(x))
        return recolour(x, *rest)

    monkeypatch.setattr("moon.data.augment.recolour", counted)
    monkeypatch.setattr("moon.data.augment._AT_ONCE", limit)
    parts = augmentation.change(images, numbers), augmentation.change(images, numbers, row, column)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
    assert sizes == 2 * {1: [1] * 50, 1344: [7] * 7 + [1], 1 << 24: [50]}[limit]
    found = epoch(batches("trivial+cutout"), 1)
    assert all(torch.equal(found[label], expected[label]) for label in expected)


@pytest.mark.parametrize("augment", AUGMENTATIONS[1:])
def test_images_that_are_streamed_from_disk_are_augmented(augment, tmp_path):
    for index, pixels in enumerate(pictures(9, height=30, width=26)):
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    images = ImageList(tmp_path, tuple(f"{index}.png" for index in range(9)), np.arange(9))

    def streamed(augment, **settings):
        return StreamedBatches(images, (0.5,) * 3, (0.25,) * 3, size=16, resize=20, augment=augment, **settings)

    found, plain = epoch(streamed(augment, batch_size=4), 1), epoch(streamed("none"), 1)
    augmentation = Augmentation(augment, 16, 16)
    numbers = augmentation.draw(9, 0, 1)
    for label in range(9):
        pixels = ((plain[label] * 0.25 + 0.5) * 255).round().to(torch.uint8).permute(1, 2, 0)[None]
        drawn = numbers[:, label : label + 1]
        changed = augmentation.change(pixels, drawn) if augmentation.trivial else pixels
        changed = ((changed.permute(0, 3, 1, 2) / 255) - 0.5) / 0.25
        changed = augmentation.hide(changed, drawn) if augmentation.cutout else changed
        torch.testing.assert_close(found[label], changed[0])
    parts = [epoch(streamed(augment, batch_size=4, part=(rank, 2)), 1) for rank in range(2)]
    assert all(torch.equal(x, found[label]) for part in parts for label, x in part.items())
    assert torch.equal(next(iter(streamed(augment)))[0], next(iter(streamed("none")))[0])  # for evaluation
