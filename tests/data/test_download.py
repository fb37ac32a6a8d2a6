"""Downloads from a local server: complete, interrupted, and of a wrong file."""

import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, download as module, load
from moon.data.download import SOURCES, PublishedFile, download_file, download_set
from moon.data.tiny_imagenet import CLASSES_OF_CIFAR10

CONTENT = bytes(range(256)) * 4000


class Server:
    """Serves `files`; interrupts the first `interruptions` answers after `interrupt_after` bytes."""

    def __init__(self):
        self.files, self.interruptions, self.interrupt_after = {}, 0, 100_000
        self.ranges, self.supports_ranges, self.declares = [], True, True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = outer.files.get(self.path.lstrip("/"))
                if content is None:
                    self.send_error(404)
                    return
                requested = self.headers.get("Range")
                outer.ranges.append(requested)
                start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and outer.supports_ranges else 0
                if requested and outer.supports_ranges and start >= len(content):
                    self.send_error(416)
                    return
                body = content[start:]
                self.send_response(206 if start else 200)
                if outer.declares:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if outer.interruptions:
                    outer.interruptions -= 1
                    body = body[: outer.interrupt_after]
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.site = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def publish(self, name, content, kind="sha256"):
        self.files[name] = content
        return PublishedFile(self.site, name, hashlib.new(kind, content).hexdigest())


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_is_downloaded_and_verified(server, tmp_path, kind):
    reports = []
    path = download_file(server.publish("file.bin", CONTENT, kind), tmp_path, lambda *report: reports.append(report))
    assert path.read_bytes() == CONTENT
    assert reports[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.bin"]
    download_file(server.publish("file.bin", CONTENT, kind), tmp_path)
    assert len(server.ranges) == 1  # the second call only verifies the file


def test_an_interrupted_connection_is_resumed(server, tmp_path):
    server.interruptions = 3
    assert download_file(server.publish("file.bin", CONTENT), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_an_incomplete_download_is_kept_under_another_name_and_resumed_later(server, tmp_path):
    published = server.publish("file.bin", CONTENT)
    server.interruptions = 100
    with pytest.raises(DataError, match=r"ended after 400,000 of 1,024,000 bytes.*download again to resume"):
        download_file(published, tmp_path)
    (part,) = tmp_path.iterdir()
    assert re.fullmatch(r"file\.bin\.[0-9a-f]{8}\.part", part.name)
    server.interruptions = 0
    assert download_file(published, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=400000-"


def test_a_server_without_ranges_sends_the_whole_file(server, tmp_path):
    server.supports_ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"wrong" * 100)
    assert download_file(server.publish("file.bin", CONTENT), tmp_path).read_bytes() == CONTENT


def test_two_downloads_of_a_file_at_the_same_time(server, tmp_path):
    published = server.publish("file.bin", CONTENT)
    seen = []

    def download_again(*_):  # while the first one is receiving
        if not seen:
            seen.append(None)
            assert download_file(published, tmp_path).read_bytes() == CONTENT
            seen.append(sorted(p.name for p in tmp_path.iterdir()))

    assert download_file(published, tmp_path, download_again).read_bytes() == CONTENT
    assert server.ranges == [None, None]  # the second has not resumed what the first was writing
    assert [name for name in seen[1] if name.endswith(".part")] != []
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("declares", [True, False])
def test_an_endless_download_is_stopped(server, tmp_path, monkeypatch, declares):
    monkeypatch.setenv("MOON_MAX_BYTES", "3000000")
    published, server.declares = server.publish("file.bin", CONTENT * 4), declares
    with pytest.raises(DataError, match=r"file.bin: the server sends .* bytes or more, and no published file has more"):
        download_file(published, tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(server.ranges) == 1  # it is not tried again
    monkeypatch.setenv("MOON_MAX_BYTES", "5000000")
    assert download_file(published, tmp_path).stat().st_size == 4 * len(CONTENT)


def test_a_file_with_a_wrong_digest_is_rejected_and_deleted(server, tmp_path):
    published = server.publish("file.bin", CONTENT)
    server.files["file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=r"its SHA256 is .*, but that of the published file"):
        download_file(published, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match="the file was deleted"):
        download_file(published, tmp_path)


def test_missing_files_and_unknown_sets_are_rejected(server, tmp_path):
    with pytest.raises(DataError, match="the server returned 404"):
        download_file(PublishedFile(server.site, "nothing", "0" * 32), tmp_path)
    with pytest.raises(ValueError, match=r"no download source for 'cifar' \(did you mean 'cifar10'"):
        download_set("cifar", tmp_path)


def test_an_unreachable_server_is_a_data_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_TRIES", 1)
    message = r"http://127.0.0.1:9/x: cannot be downloaded \(.*\); check the connection"  # nothing was received
    with pytest.raises(DataError, match=message):
        download_file(PublishedFile("http://127.0.0.1:9", "x", "0" * 32), tmp_path)


def image(color):
    file = io.BytesIO()
    Image.new("RGB", (40, 36), color).save(file, "PNG")
    return file.getvalue()


def tar_of(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def test_archives_of_images_become_test_splits(server, tmp_path):
    files = {"dtd/images/banded/b_1.png": image("red"), "dtd/images/woven/w_1.png": image("blue")}
    sources = {"dtd": (server.publish("dtd.tar.gz", tar_of(files)),)}
    (path,) = download_set("dtd", tmp_path, sources=sources)
    assert path == tmp_path / "dtd" / "test.npz"
    data = load(tmp_path, "dtd", "test")
    assert data.labels.tolist() == [0, 1]
    assert data.images[:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    places = server.publish("p.tar", tar_of({"val_256/a.jpg": image("red")}))
    download_set("places", tmp_path, sources={"places": (places,)})
    assert load(tmp_path, "places", "test").images.shape == (1, 32, 32, 3)


def test_tiny_imagenet_with_and_without_the_classes_of_cifar10(server, tmp_path):
    gazelle, beacon, goldfish = "n02423022", "n02814860", "n01443537"  # CIFAR-10 has deer
    lines = [f"val_{number}.JPEG\t{name}\t0\n" for number, name in enumerate((beacon, gazelle, goldfish))]
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for number, color in enumerate(("red", "blue", "lime")):
            archive.writestr(f"tiny-imagenet-200/val/images/val_{number}.JPEG", image(color))
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "".join(lines))
    archive = (server.publish("tin.zip", zipped.getvalue()),)
    for name in ("tin", "tin-open"):
        download_set(name, tmp_path, sources={name: archive})
    every, others = load(tmp_path, "tin", "test"), load(tmp_path, "tin-open", "test")
    assert every.labels.tolist() == [2, 1, 0]
    assert others.labels.tolist() == [2, 0]
    assert np.array_equal(others.images, every.images[[0, 2]])
    assert len(server.ranges) == 1  # both are made from one archive
    counts = {"dog": 6, "automobile": 5, "bird": 4, "cat": 3, "frog": 2, "ship": 2, "deer": 1, "truck": 1}
    assert Counter(CLASSES_OF_CIFAR10.values()) == counts


def test_archive_members_outside_the_folder_are_rejected(server, tmp_path):
    sources = {"dtd": (server.publish("dtd.tar.gz", tar_of({"../../outside.png": image("red")})),)}
    with pytest.raises(DataError, match="cannot be unpacked"):
        download_set("dtd", tmp_path / "root", sources=sources)
    assert not list(tmp_path.rglob("outside.png"))
    assert not (tmp_path / "root" / "downloads" / "dtd" / "unpacked").exists()


def test_sets_with_two_splits(server, tmp_path):
    record = b"\x03" + bytes(3072)
    archive = tar_of(
        {"cifar-10-batches-bin/data_batch_1.bin": record * 2, "cifar-10-batches-bin/test_batch.bin": record}
    )
    paths = download_set("cifar10", tmp_path, sources={"cifar10": (server.publish("cifar.tar.gz", archive),)})
    assert [path.name for path in paths] == ["train.npz", "test.npz"]
    assert load(tmp_path, "cifar10", "train").labels.tolist() == [3, 3]
    assert np.array_equal(load(tmp_path, "cifar10", "test").labels, [3])


def test_every_source_has_a_digest_and_a_url():
    for name, files in SOURCES.items():
        for published in files:
            # No SHA-256 of Tiny ImageNet is published.
            assert re.fullmatch("[0-9a-f]{32}" if "tin" in name else "[0-9a-f]{64}", published.digest), name
            assert published.url.startswith("https://"), name
