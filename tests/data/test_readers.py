import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from moon.data import DataError, read_any, read_cifar, read_folders, read_idx, read_list, read_svhn

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
FLAT = PIXELS.transpose(0, 3, 1, 2).reshape(6, 3072)
LABELS = np.array([3, 1, 4, 1, 5, 9])


def assert_same(data, pixels=PIXELS, labels=LABELS):
    assert np.array_equal(data.images, pixels)
    assert np.array_equal(data.labels, labels)


def binary(flat, *labels):
    return np.concatenate([*[np.asarray(x, np.uint8)[:, None] for x in labels], flat], 1).tobytes()


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, part in enumerate((slice(0, 4), slice(4, 6)), start=1):
        batch = {b"data": FLAT[part], b"labels": LABELS[part].tolist(), b"batch_label": b"x"}
        (folder / f"data_batch_{number}").write_bytes(pickle.dumps(batch, 2))
    (folder / "test_batch").write_bytes(pickle.dumps({"data": FLAT[:2], "labels": [0, 1]}, 2))
    (folder / "batches.meta").write_bytes(b"not a batch")
    return folder


def test_cifar10_pickles(cifar10):
    assert_same(read_cifar(cifar10, "train"))
    assert_same(read_cifar(cifar10, "test"), PIXELS[:2], [0, 1])
    assert_same(read_cifar(cifar10 / "test_batch", "test"), PIXELS[:2], [0, 1])


def test_cifar10_archive(cifar10, tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(cifar10, cifar10.name)
    assert_same(read_any(archive, "train"))
    archive.write_bytes(archive.read_bytes()[:3000])
    with pytest.raises(DataError, match="cannot be read as an archive"):
        read_any(archive, "train")


def test_cifar_binary(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(binary(FLAT, LABELS))
    (tmp_path / "test_batch.bin").write_bytes(binary(FLAT, LABELS)[:-1])
    assert_same(read_any(tmp_path, "train"))
    with pytest.raises(DataError, match=r"test_batch\.bin: .* not a multiple of a CIFAR record"):
        read_any(tmp_path, "test")


def test_cifar100_has_fine_labels(tmp_path):
    (tmp_path / "train.bin").write_bytes(binary(FLAT, LABELS // 2, LABELS))
    assert_same(read_cifar(tmp_path, "train"))
    batch = {"data": FLAT, "fine_labels": LABELS.tolist(), "coarse_labels": [0] * 6}
    (tmp_path / "test").write_bytes(pickle.dumps(batch, 2))
    assert_same(read_cifar(tmp_path, "test"))


def test_invalid_cifar_is_rejected_naming_the_file(cifar10, tmp_path):
    (cifar10 / "test_batch").write_bytes(pickle.dumps({"data": FLAT[:2], "labels": [0]}, 2))
    with pytest.raises(DataError, match=r"test_batch: 2 images but 1 label;"):
        read_cifar(cifar10, "test")
    (cifar10 / "test_batch").write_bytes(pickle.dumps({"labels": [0]}, 2))
    with pytest.raises(DataError, match=r"test_batch: has no 'data'"):
        read_cifar(cifar10, "test")
    (cifar10 / "test_batch").write_bytes(pickle.dumps({"data": FLAT[:, :9], "labels": [0] * 6}, 2))
    with pytest.raises(DataError, match=r"\(6, 9\)"):
        read_cifar(cifar10, "test")
    (cifar10 / "test_batch").write_bytes(pickle.dumps(io.BytesIO, 2))
    with pytest.raises(DataError, match="not plain data"):
        read_cifar(cifar10, "test")
    with pytest.raises(DataError, match="not 'val'"):
        read_cifar(cifar10, "val")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no CIFAR train batch"):
        read_cifar(tmp_path / "empty", "train")


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_idx(tmp_path, zipped):
    for name, array in (("images-idx3", PIXELS[..., 0]), ("labels-idx1", LABELS.astype(np.uint8))):
        content = idx(array)
        path = tmp_path / f"t10k-{name}-ubyte{'.gz' * zipped}"
        path.write_bytes(gzip.compress(content) if zipped else content)
    assert_same(read_any(tmp_path, "test"), PIXELS[..., :1])
    assert_same(read_idx(next(tmp_path.glob("*images*")), "test"), PIXELS[..., :1])
    with pytest.raises(DataError, match="no train-images"):
        read_idx(tmp_path, "train")


def test_invalid_idx_is_rejected_naming_the_file(tmp_path):
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    images.write_bytes(idx(PIXELS[..., 0]))
    with pytest.raises(DataError, match="its labels, train-labels-idx1-ubyte, are not in the same folder"):
        read_idx(tmp_path, "train")
    labels.write_bytes(idx(LABELS[:5].astype(np.uint8)))
    with pytest.raises(DataError, match="6 images but 5 labels"):
        read_idx(tmp_path, "train")
    for content, what in (
        (idx(PIXELS[..., 0])[:-1], "is it truncated"),
        (idx(PIXELS[..., 0])[:7], "truncated inside its header"),
        (b"\0\0\x0d\x03", "is not an idx file"),
        (gzip.compress(idx(PIXELS[..., 0]))[:40], "damaged gzip"),
    ):
        images.write_bytes(content)
        with pytest.raises(DataError, match=f"train-images-idx3-ubyte: .*{what}"):
            read_idx(tmp_path, "train")


def test_svhn(tmp_path):
    labels = np.where(LABELS == 9, 10, LABELS).astype(np.uint8)[:, None]
    savemat(tmp_path / "test_32x32.mat", {"X": PIXELS.transpose(1, 2, 3, 0), "y": labels})
    assert_same(read_any(tmp_path, "test"), labels=[3, 1, 4, 1, 5, 0])  # label 10 is the digit zero
    assert_same(read_svhn(tmp_path / "test_32x32.mat", "test"), labels=[3, 1, 4, 1, 5, 0])
    with pytest.raises(DataError, match=r"train_32x32\.mat: no such file"):
        read_svhn(tmp_path, "train")
    (tmp_path / "train_32x32.mat").write_bytes(b"not a mat file")
    with pytest.raises(DataError, match=r"train_32x32\.mat: is not a MAT-file of level 5"):
        read_svhn(tmp_path, "train")
    savemat(tmp_path / "train_32x32.mat", {"X": PIXELS[0], "y": labels})
    with pytest.raises(DataError, match="X has shape"):
        read_svhn(tmp_path, "train")


@pytest.fixture
def tree(tmp_path):
    for index, name in enumerate(("cat/a.png", "cat/b.png", "dog/c.png")):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[index]).save(path)
    return tmp_path / "tree"


def test_class_folders(tree):
    assert_same(read_any(tree, "test"), PIXELS[:3], [0, 0, 1])
    assert read_folders(tree, 16).images.shape == (3, 16, 16, 3)


def test_images_of_other_shapes_are_resized_and_cropped(tree):
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 16:44] = 255
    Image.fromarray(wide).save(tree / "dog" / "d.png")
    assert (read_folders(tree, 10).images[3] == 255).all()


def test_unreadable_images_are_rejected_naming_the_file(tree):
    (tree / "dog" / "broken.jpg").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"dog/broken\.jpg: cannot be read as an image"):
        read_folders(tree, 32)
    (tree / "dog" / "broken.jpg").unlink()
    (tree / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no images"):
        read_folders(tree, 32)
    with pytest.raises(DataError, match=r"no class folders; .*images of no known class: in one folder of any name"):
        read_folders(tree / "cat", 32)


def test_all_images_that_cannot_be_read_are_counted(tree):
    for name in "12345":
        (tree / "cat" / f"{name}.png").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"/1\.png: cannot .*; 4 more of \d+ images: .*/2\.png, .*/3\.png, .*/4\.png and 1 more$"
    ):
        read_folders(tree, 32)


def test_image_lists(tree, tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbftree/cat/b.png 7\r\n\r\ntree/dog/c.png -1\r\n")
    assert_same(read_any(path, "test"), PIXELS[[1, 2]], [7, -1])
    (tmp_path / "lists").mkdir()
    other = tmp_path / "lists" / "a.txt"
    other.write_text("cat/a.png 0\n")
    assert_same(read_list(other, tree, 32), PIXELS[:1], [0])


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ("cat/a.png 0\n../secret.png 1\n", "list.txt:2: .*is outside the root"),
        ("/etc/passwd 1\n", "list.txt:1: .*is outside the root"),
        ("link/x.png 1\n", "list.txt:1: .*is outside the root"),
        ("cat/a.png\n", "list.txt:1: .*is not '<path> <label>'"),
        ("cat/a.png x\n", "list.txt:1: .*is not '<path> <label>'"),
        ("cat/a.png 0\ncat/none.png 0\n", "list.txt:2: no such file: .*none.png"),
        ("\n", "list is empty"),
    ],
)
def test_invalid_lists_are_rejected_naming_the_line(tree, tmp_path, lines, what):
    (tree / "link").symlink_to(tmp_path)
    (tree / "list.txt").write_text(lines)
    with pytest.raises(DataError, match=what):
        read_list(tree / "list.txt", None, 32)


def test_unrecognised_sources_are_rejected(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        read_any(tmp_path / "none", "test")
    (tmp_path / "x.doc").write_text("x")
    with pytest.raises(DataError, match="not recognised"):
        read_any(tmp_path / "x.doc", "test")
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.npz: is not imported; copy it to <root>/<name>/<split>\.npz"):
        read_any(tmp_path / "x.npz", "test")


def test_names_of_cifar_are_read_without_executing_anything(cifar10, tmp_path, caplog):
    (cifar10 / "batches.meta").write_bytes(pickle.dumps({b"label_names": [f"c{n}".encode() for n in range(10)]}, 2))
    assert read_cifar(cifar10, "train").classes == tuple(f"c{n}" for n in range(10))
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(cifar10, cifar10.name)
    assert read_cifar(archive, "test").classes == tuple(f"c{n}" for n in range(10))
    assert not caplog.messages
    (cifar10 / "batches.meta").write_bytes(pickle.dumps({"label_names": io.BytesIO}, 2))
    assert read_cifar(cifar10, "train").classes == ()
    assert "batches.meta: names of classes cannot be read" in caplog.text
    (cifar10 / "batches.meta").write_bytes(pickle.dumps({"label_names": ["c0", "c1"]}, 2))
    assert read_cifar(cifar10, "train").classes == ()  # fewer names than labels


def test_names_of_the_binary_version_and_of_cifar100(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(binary(FLAT, LABELS))
    (tmp_path / "batches.meta.txt").write_text("".join(f"c{n}\n" for n in range(10)) + "\n", encoding="utf-8")
    assert read_cifar(tmp_path, "train").classes == tuple(f"c{n}" for n in range(10))
    fine = tmp_path / "fine"
    fine.mkdir()
    (fine / "train").write_bytes(pickle.dumps({"data": FLAT, "fine_labels": LABELS.tolist()}, 2))
    names = {"coarse_label_names": ["x"] * 20, "fine_label_names": [f"f{n}" for n in range(100)]}
    (fine / "meta").write_bytes(pickle.dumps(names, 2))
    assert read_cifar(fine, "train").classes[:2] == ("f0", "f1")


def test_resizing_is_logged_with_the_original_sizes(tree, caplog):
    caplog.set_level("INFO", "moon")
    read_folders(tree, 32)
    assert not caplog.messages  # all images are 32x32
    Image.new("RGB", (60, 40)).save(tree / "dog" / "d.png")
    read_folders(tree, 32)
    assert caplog.messages == [
        f"{tree}: 1 of 4 images resized from 40x60 to 32x32 (height x width): scaled to cover it, centre cropped"
    ]
    read_folders(tree, 16)
    assert caplog.messages[1] == (
        f"{tree}: 4 of 4 images resized from 32x32..40x60 to 16x16 (height x width): scaled to cover it, centre cropped"
    )


@pytest.mark.parametrize(("mode", "value"), [("I;16", 40000), ("I", 40000), ("F", 0.5)])
def test_images_with_more_than_8_bits_are_rejected(tmp_path, mode, value):
    (tmp_path / "a").mkdir()
    Image.new(mode, (8, 8), value).save(tmp_path / "a" / "1.tiff")
    with pytest.raises(DataError, match=rf"1.tiff: has more than 8 bits per channel \(mode {mode}"):
        read_folders(tmp_path, 8)


def test_photographs_are_turned_upright(tmp_path):
    (tmp_path / "a").mkdir()
    image, exif = Image.new("RGB", (16, 8)), Image.Exif()
    image.paste((255, 255, 255), (0, 0, 8, 8))  # the left half is white
    exif[0x0112] = 6  # rotate by 90 degrees: the left half is at the top
    image.save(tmp_path / "a" / "1.png", exif=exif)
    (found,) = read_folders(tmp_path, 8).images  # 8x16 when upright, cropped at the centre
    assert found[0].min() > found[-1].max()
