"""Downloads from a local server: whole, in pieces, broken off, wrong."""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, load
from moon.data import fetch as module
from moon.data.download import SOURCES, Published, download, fetch

CONTENT = bytes(range(256)) * 4000


class Server:
    """Serves `files`; breaks off answers after `break_after` bytes, `breaks` times."""

    def __init__(self):
        self.files, self.breaks, self.break_after, self.ranges, self.knows_ranges = {}, 0, 100_000, [], True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = outer.files.get(self.path.lstrip("/"))
                if content is None:
                    self.send_error(404)
                    return
                wanted = self.headers.get("Range")
                outer.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and outer.knows_ranges else 0
                if wanted and outer.knows_ranges and start >= len(content):
                    self.send_error(416)
                    return
                body = content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if outer.breaks:
                    outer.breaks -= 1
                    body = body[: outer.break_after]
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.home = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def publish(self, name, content, kind="sha256"):
        self.files[name] = content
        return Published(self.home, name, hashlib.new(kind, content).hexdigest())


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_is_fetched_and_checked(server, tmp_path, kind):
    seen = []
    path = download(server.publish("file.bin", CONTENT, kind), tmp_path, lambda *told: seen.append(told))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.bin"]
    download(server.publish("file.bin", CONTENT, kind), tmp_path)
    assert len(server.ranges) == 1  # it is there


def test_a_connection_that_breaks_is_gone_on_from(server, tmp_path):
    server.breaks = 3
    assert download(server.publish("file.bin", CONTENT), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_what_was_fetched_is_kept_for_the_next_time_but_not_under_the_final_name(server, tmp_path):
    published = server.publish("file.bin", CONTENT)
    server.breaks = 100
    with pytest.raises(DataError, match=r"ended after 400,000 of 1,024,000 bytes.*give the command again"):
        download(published, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin.part"]
    server.breaks = 0
    assert download(published, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=400000-"


def test_a_server_that_cannot_go_on_sends_all_of_it(server, tmp_path):
    server.knows_ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"wrong" * 100)
    assert download(server.publish("file.bin", CONTENT), tmp_path).read_bytes() == CONTENT


def test_a_whole_part_is_only_checked(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(server.publish("file.bin", CONTENT), tmp_path).read_bytes() == CONTENT


def test_another_file_than_the_published_one_is_refused_and_removed(server, tmp_path):
    published = server.publish("file.bin", CONTENT)
    server.files["file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=r"its SHA256 is .*, that of the published file"):
        download(published, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match="it was removed"):
        download(published, tmp_path)


def test_what_is_not_there_is_said_at_once(server, tmp_path):
    with pytest.raises(DataError, match="the server answers 404"):
        download(Published(server.home, "nothing", "0" * 32), tmp_path)
    with pytest.raises(ValueError, match="no public home of 'cifar' is known, did you mean 'cifar10'"):
        fetch("cifar", tmp_path)


def test_no_server_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TRIES", 1)
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/x: cannot be fetched"):
        download(Published("http://127.0.0.1:9", "x", "0" * 32), tmp_path)


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


def test_archives_of_images_become_sets(server, tmp_path):
    files = {"dtd/images/banded/b_1.png": image("red"), "dtd/images/woven/w_1.png": image("blue")}
    sources = {"dtd": (server.publish("dtd.tar.gz", tar_of(files)),)}
    (path,) = fetch("dtd", tmp_path, sources=sources)
    assert path == tmp_path / "dtd" / "test.npz"
    data = load(tmp_path, "dtd", "test")
    assert data.labels.tolist() == [0, 1]
    assert data.images[:, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("tiny-imagenet-200/val/images/val_0.JPEG", image("red"))
        archive.writestr("tiny-imagenet-200/val/images/val_1.JPEG", image("blue"))
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "val_0.JPEG\tn02\t0\nval_1.JPEG\tn01\t0\n")
    fetch("tin", tmp_path, sources={"tin": (server.publish("tin.zip", zipped.getvalue()),)})
    assert load(tmp_path, "tin", "test").labels.tolist() == [1, 0]
    fetch("places", tmp_path, sources={"places": (server.publish("p.tar", tar_of({"val_256/a.jpg": image("red")})),)})
    assert load(tmp_path, "places", "test").images.shape == (1, 32, 32, 3)


def test_an_archive_that_leads_out_of_its_folder_is_refused(server, tmp_path):
    sources = {"dtd": (server.publish("dtd.tar.gz", tar_of({"../../outside.png": image("red")})),)}
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch("dtd", tmp_path / "root", sources=sources)
    assert not list(tmp_path.rglob("outside.png"))


def test_tables_of_numbers_become_both_splits(server, tmp_path):
    record = b"\x03" + bytes(3072)
    archive = tar_of(
        {"cifar-10-batches-bin/data_batch_1.bin": record * 2, "cifar-10-batches-bin/test_batch.bin": record}
    )
    paths = fetch("cifar10", tmp_path, sources={"cifar10": (server.publish("cifar.tar.gz", archive),)})
    assert [path.name for path in paths] == ["train.npz", "test.npz"]
    assert load(tmp_path, "cifar10", "train").labels.tolist() == [3, 3]
    assert np.array_equal(load(tmp_path, "cifar10", "test").labels, [3])


def test_every_home_has_a_digest():
    for name, files in SOURCES.items():
        for published in files:
            assert len(published.digest) in (32, 64), name
            assert published.url.startswith("http"), name
