"""Downloads the public sets from their own homes: resumable, checked, and never a part under the final name."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moon.data.dataset import DataError, DataSet, save
from moon.data.readers import IMAGE_SUFFIXES, read_any, read_folders, read_paths
from moon.suggest import did_you_mean

Progress = Callable[[str, int, int | None], object]  # (file, bytes so far, bytes in all if known)
_CHUNK = 2**20
_TRIES = 4
_TIMEOUT = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Published:
    """One published file: where it is, under which name, and its MD5 or SHA-256 as its home or its users state it."""

    home: str
    name: str
    digest: str

    @property
    def url(self) -> str:
        return f"{self.home}/{self.name}"


def _files(home: str, **digests: str) -> tuple[Published, ...]:
    return tuple(Published(home, name, digest) for name, digest in digests.items())


_TORONTO = "https://www.cs.toronto.edu/~kriz"
SOURCES: dict[str, tuple[Published, ...]] = {
    "cifar10": (Published(_TORONTO, "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
    "cifar100": (Published(_TORONTO, "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
    "mnist": _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        **{
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashionmnist": _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        **{
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "svhn": _files(
        "http://ufldl.stanford.edu/housenumbers",
        **{
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "dtd": (
        Published(
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/download",
            "dtd-r1.0.1.tar.gz",
            "fff73e5086ae6bdbea199a49dfb8a4c1",
        ),
    ),
    "tin": (Published("http://cs231n.stanford.edu", "tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    "places": (
        Published("http://data.csail.mit.edu/places/places365", "val_256.tar", "e27b17d8d44f4af9a78502beb927f808"),
    ),
}
_SPLITS = {"cifar10": ("train", "test"), "cifar100": ("train", "test"), "mnist": ("train", "test")}
_SPLITS |= {"fashionmnist": ("train", "test"), "svhn": ("train", "test")}


def download(published: Published, folder: Path, progress: Progress = lambda *_: None) -> Path:
    """The file under the folder, fetched if it is not there; what was fetched of it before is gone on from."""
    path = folder / published.name
    if path.exists():
        _check(path, published)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{published.name}.part"
    for attempt in range(_TRIES):
        try:
            _fetch(published, part, progress)
            break
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise DataError(f"{published.url}: the server answers {error.code} ({error.reason})") from None
            if attempt == _TRIES - 1:
                raise DataError(
                    f"{published.url}: cannot be fetched ({getattr(error, 'reason', None) or error}); "
                    f"what is there of it is kept in {part}: give the command again to go on"
                ) from None
    _check(part, published)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    return path


def _fetch(published: Published, part: Path, progress: Progress) -> None:
    """Append what is missing of the file."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(published.url, headers={"User-Agent": "moon-sparse"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing
            return
        raise
    with answer:
        goes_on = answer.status == 206
        length = answer.headers.get("Content-Length")
        start = have if goes_on else 0  # a server that cannot go on sends all of it
        whole = None if length is None else start + int(length)
        with part.open("ab" if goes_on else "wb") as file:
            done = start
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(published.name, done, whole)
        if whole is not None and done < whole:
            raise ConnectionError(f"the connection ended after {done:,} of {whole:,} bytes")


def _check(path: Path, published: Published) -> None:
    """Refuse, and remove, a file that is not the published one."""
    kind = {32: "md5", 64: "sha256"}[len(published.digest)]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != published.digest:
        path.unlink()
        raise DataError(
            f"{path}: its {kind.upper()} is {found}, that of the published file {published.digest}; it was removed, "
            "fetch it again"
        )


def fetch(
    name: str,
    root: Path,
    progress: Progress = lambda *_: None,
    track: Callable[[list], Iterable] = iter,
    sources: Mapping[str, tuple[Published, ...]] = SOURCES,
) -> list[Path]:
    """Download a set and write its splits under the root."""
    if name not in sources:
        raise ValueError(f"no public home of '{name}' is known{did_you_mean(name, sources)}; known: {', '.join(sources)}")
    folder = root / "downloads" / name
    files = [download(published, folder, progress) for published in sources[name]]
    if name in _SPLITS:
        source = folder if len(files) > 1 else files[0]
        return [save(read_any(source, split), root, name, split) for split in _SPLITS[name]]
    unpacked = _unpack(files[0], folder / "unpacked")
    return [save(_images(name, unpacked, track), root, name, "test")]


def _unpack(archive: Path, folder: Path) -> Path:
    """The archive's files; members that lead out of the folder are refused."""
    if folder.exists():
        return folder
    partial = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as file:
                file.extractall(partial)
        else:
            with tarfile.open(archive) as file:
                file.extractall(partial, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error})") from error
    partial.rename(folder)
    return folder


def _images(name: str, folder: Path, track: Callable[[list], Iterable]) -> DataSet:
    """The images of an unpacked set that are used as unknown ones."""
    if name == "dtd":
        return read_folders(folder / "dtd" / "images", 32, track)
    if name == "tin":  # the validation images, with the number of their WordNet id as label
        notes = folder / "tiny-imagenet-200" / "val" / "val_annotations.txt"
        lines = [line.split("\t") for line in notes.read_text().splitlines() if line.strip()]
        ids = sorted({line[1] for line in lines})
        jobs = [(notes.parent / "images" / line[0], ids.index(line[1])) for line in lines]
        return read_paths(jobs, 32, track, notes)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    return read_paths([(path, 0) for path in paths], 32, track, folder)
