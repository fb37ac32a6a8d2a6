import numpy as np
import pytest
import torch

from moon.data import Batches, DataSet


def dataset(count=10, size=6):
    pixels = np.random.default_rng(0).integers(1, 256, (count, size, size, 3)).astype(np.uint8)
    return DataSet(pixels, np.arange(count))


def batches(count=10, **settings):
    return Batches(dataset(count), (0.0,) * 3, (1 / 255,) * 3, **{"batch_size": 4} | settings)


def epoch(b, e=0):
    """Return {label: image} of one epoch."""
    return {int(y): x for xs, ys in b.epoch(e) for x, y in zip(xs, ys, strict=True)}


def test_iterating_yields_all_images_in_order_without_augmentation():
    b = batches(crop=2, flip=True)
    assert [len(y) for _, y in b] == [4, 4, 2]
    assert len(b) == 3
    x = torch.cat([x for x, _ in b])
    assert torch.equal(torch.cat([y for _, y in b]), torch.arange(10))
    torch.testing.assert_close(x, torch.from_numpy(dataset().images).permute(0, 3, 1, 2).float())


def test_normalisation():
    b = Batches(dataset(2), (0.5, 0.4, 0.3), (0.2, 0.1, 0.5))
    ((x, _),) = list(b)
    expected = dataset(2).images[1, 2, 3] / 255
    torch.testing.assert_close(
        x[1, :, 2, 3], torch.tensor((expected - [0.5, 0.4, 0.3]) / [0.2, 0.1, 0.5], dtype=torch.float32)
    )
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_an_epoch_yields_every_image_once_in_a_new_order():
    b = batches()
    orders = [[int(y) for _, ys in b.epoch(e) for y in ys] for e in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] == [int(y) for _, ys in batches().epoch(0) for y in ys]
    assert orders[0] != [int(y) for _, ys in batches(seed=1).epoch(0) for y in ys]


def test_augmented_images_are_shifted_and_flipped_views_of_the_image():
    b = batches(crop=2, flip=True)
    padded = np.pad(dataset().images, ((0, 0), (2, 2), (2, 2), (0, 0))).transpose(0, 3, 1, 2)
    views_used = set()
    for e in range(8):
        for label, x in epoch(b, e).items():
            views = {
                (top, left, flip): padded[label][:, top : top + 6, left : left + 6][:, :, :: -1 if flip else 1]
                for top in range(5)
                for left in range(5)
                for flip in (False, True)
            }
            matches = [key for key, view in views.items() if np.array_equal(view, x.round().numpy())]
            assert len(matches) == 1
            views_used.add(matches[0])
    assert {flip for _, _, flip in views_used} == {False, True}
    assert {top for top, _, _ in views_used} == {left for _, left, _ in views_used} == set(range(5))


def test_augmentation_does_not_depend_on_the_batch_size():
    small, large = epoch(batches(crop=2, flip=True, batch_size=3), 5), epoch(batches(crop=2, flip=True), 5)
    assert all(torch.equal(small[label], large[label]) for label in small)


def test_without_crop_and_flip_an_epoch_does_not_change_images():
    for label, x in epoch(batches()).items():
        assert torch.equal(x, torch.from_numpy(dataset().images[label]).permute(2, 0, 1).float())


def test_a_last_batch_of_one_is_merged_into_the_previous_one():
    assert [len(y) for _, y in batches(9).epoch(0)] == [4, 5]
    assert [len(y) for _, y in batches(1)] == [1]
    assert [len(y) for _, y in batches(3, batch_size=1)] == [1, 1, 1]


def test_invalid_settings_are_rejected():
    with pytest.raises(ValueError, match="batch_size"):
        batches(batch_size=0)
    with pytest.raises(ValueError, match="3 channel"):
        Batches(dataset(), (0.5,), (0.5,))
