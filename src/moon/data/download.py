"""Download public data sets from their official sites: resumable, verified by digest, written atomically."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moon.data.dataset import AnyPath, DataSet, Track, check_root, save
from moon.data.folders import is_image
from moon.data.image_files import read_folders, read_images
from moon.data.limits import VARIABLE, allowed_bytes, check_bytes, max_bytes
from moon.data.parts import own_part
from moon.data.readers import read_any
from moon.data.tiny_imagenet import CLASSES_OF_CIFAR10, read_tiny_imagenet
from moon.errors import DataError
from moon.files import sync, write_atomic, writing
from moon.suggest import did_you_mean

Progress = Callable[[str, int, int | None], object]  # (file name, bytes so far, total bytes if known)
_CHUNK_BYTES = 2**20
_MAX_TRIES = 4
_TIMEOUT_SECONDS = 60.0  # without receiving data


@dataclass(frozen=True)
class PublishedFile:
    """A published file.

    Args:
        site: The URL of its folder.
        name: The name of the file.
        digest: Its SHA-256 or, if none is published, its MD5.

    Example:
        >>> from moon.data.download import PublishedFile
        >>> PublishedFile("https://example.org/data", "images.tar.gz", "0" * 32).url
        'https://example.org/data/images.tar.gz'
    """

    site: str
    name: str
    digest: str

    @property
    def url(self) -> str:
        """The URL of the file."""
        return f"{self.site}/{self.name}"


class _Encrypted(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(self, req: urllib.request.Request, fp, code, msg, headers, newurl):
        if req.type == "https" and not newurl.startswith("https:"):
            raise DataError(f"{req.full_url}: the server redirects to {newurl}, without encryption")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _files(site: str, **digests: str) -> tuple[PublishedFile, ...]:
    return tuple(PublishedFile(site, name, digest) for name, digest in digests.items())


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_TINY_IMAGENET = _files("https://cs231n.stanford.edu", **{"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"})
SOURCES: dict[str, tuple[PublishedFile, ...]] = {
    "cifar10": (
        PublishedFile(
            _TORONTO, "cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
        ),
    ),
    "cifar100": (
        PublishedFile(
            _TORONTO, "cifar-100-python.tar.gz", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"
        ),
    ),
    "mnist": _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        **{
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashionmnist": _files(
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
        **{
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "svhn": _files(
        "https://ufldl.stanford.edu/housenumbers",
        **{
            "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
    ),
    "dtd": (
        PublishedFile(
            "https://www.robots.ox.ac.uk/~vgg/data/dtd/download",
            "dtd-r1.0.1.tar.gz",
            "e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
        ),
    ),
    "tin": _TINY_IMAGENET,
    "tin-open": _TINY_IMAGENET,
    "places": (
        PublishedFile(
            "https://data.csail.mit.edu/places/places365",
            "val_256.tar",
            "24b4e639ef12a0012af525bc4cb443e4ab4aaea8369a1fb009b70e4a4aad5d48",
        ),
    ),
}
# The splits that a download provides; of sets that are used as unknown ones, the test images.
_UNKNOWN = ("dtd", "tin", "tin-open", "places")
SPLITS_OF = {name: ("test",) if name in _UNKNOWN else ("train", "test") for name in SOURCES}


def download_file(published: PublishedFile, folder: Path, progress: Progress = lambda *_: None) -> Path:
    """Download a file and verify its digest. An interrupted download is resumed.

    Args:
        published: The file.
        folder: Where to save it. A file that already exists is only verified.
        progress: Called with the file name, the bytes so far, and the total if the server reports it.

    Returns:
        The path of the file.

    Raises:
        DataError: The server cannot be reached or returns an error, or the digest is wrong; a wrong file is deleted.

    Example:
        >>> from pathlib import Path
        >>> from moon.data.download import SOURCES, download_file
        >>> download_file(SOURCES["cifar10"][0], Path("downloads"))  # doctest: +SKIP
        PosixPath('downloads/cifar-10-python.tar.gz')
    """
    path = folder / published.name
    if path.exists():
        _verify(path, published)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with own_part(path) as part:
        _receive(published, part, progress)
        _verify(part, published)
        sync(part)
        part.replace(path)
        sync(folder)
    return path


def _receive(published: PublishedFile, part: Path, progress: Progress) -> None:
    """Download a file, with several tries."""
    for attempt in range(_MAX_TRIES):
        try:
            _resume(published, part, progress)
            break
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise DataError(f"{published.url}: the server returned {error.code} ({error.reason})") from None
            if attempt == _MAX_TRIES - 1:
                rest = "check the connection, or download the file elsewhere and import it (moon data import)"
                if part.exists() and part.stat().st_size:
                    rest = f"{part} contains the part received so far; download again to resume"
                reason = getattr(error, "reason", None) or error
                raise DataError(f"{published.url}: cannot be downloaded ({reason}); {rest}") from None


def _resume(published: PublishedFile, part: Path, progress: Progress) -> None:
    """Append the missing bytes of a file to `part`."""
    received = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(published.url, headers={"User-Agent": "moon-sparse"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        answer = urllib.request.build_opener(_Encrypted).open(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and received:  # nothing is missing
            return
        raise
    with answer:
        is_partial = answer.status == 206
        length = answer.headers.get("Content-Length")
        done = received if is_partial else 0  # a server that does not support ranges sends the whole file
        total = done + int(length) if length is not None and length.isascii() and length.isdecimal() else None
        _check_length(published, total or done, part)
        with writing(part), part.open("ab" if is_partial else "wb") as file:
            while chunk := answer.read(_CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                _check_length(published, done, part)
                progress(published.name, done, total)
        if total is not None and done < total:
            raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _check_length(published: PublishedFile, count: int, part: Path) -> None:
    """Delete what was received and raise a `DataError` if a server sends more than any published file has."""
    if count > max_bytes():
        part.unlink(missing_ok=True)
        raise DataError(
            f"{published.url}: the server sends {count:,} bytes or more, and no published file has more than "
            f"{max_bytes():,}; is this the right server? {VARIABLE} sets the limit"
        )


def _verify(path: Path, published: PublishedFile) -> None:
    """Delete a file and raise a `DataError` if its digest is not the published one."""
    kind = {32: "md5", 64: "sha256"}[len(published.digest)]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != published.digest:
        path.unlink()
        raise DataError(
            f"{path}: its {kind.upper()} is {found}, but that of the published file is {published.digest}; the file "
            "was deleted, download it again"
        )


def download_set(
    name: str,
    root: AnyPath,
    progress: Progress = lambda *_: None,
    track: Track = iter,
    sources: Mapping[str, tuple[PublishedFile, ...]] = SOURCES,
) -> list[Path]:
    """Download a public set and save its splits under the data root.

    Args:
        name: A key of `sources`.
        root: The data root. The published files are kept in `<root>/downloads/<name>`, those of tin-open with those of
            tin.
        progress: Called with the file name, the bytes so far, and the total if the server reports it.
        track: Wraps the list of images while they are decoded, for example in a progress bar.
        sources: The published files of each set.

    Returns:
        The paths of the splits.

    Raises:
        ValueError: There is no source for this name.
        DataError: The download fails, or a file is not the published one.

    Example:
        >>> from moon.data import download_set
        >>> download_set("cifar10", "data")  # doctest: +SKIP
        [PosixPath('data/cifar10/train.npz'), PosixPath('data/cifar10/test.npz')]
    """
    if name not in sources:
        choices = f"choose from: {', '.join(sources)}"
        raise ValueError(f"no download source for '{name}'{did_you_mean(name, sources)}; {choices}")
    check_root(root)
    folder = Path(root) / "downloads" / name.removesuffix("-open")  # tin-open is made from the archive of tin
    files = [download_file(published, folder, progress) for published in sources[name]]
    if len(splits := SPLITS_OF.get(name, ())) > 1:
        source = folder if len(files) > 1 else files[0]
        return [save(read_any(source, split), root, name, split) for split in splits]
    unpacked = _unpack(files[0], folder / "unpacked")
    return [save(_test_images(name, unpacked, track), root, name, "test")]


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive atomically; members with paths outside the folder are rejected."""

    def extract(partial: Path) -> None:
        partial.mkdir(parents=True)
        allowed = allowed_bytes([archive.stat()])
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as file:
                check_bytes(sum(member.file_size for member in file.infolist()), allowed, archive)
                file.extractall(partial)
        else:
            with tarfile.open(archive) as file:
                check_bytes(sum(member.size for member in file), allowed, archive)
                file.extractall(partial, filter="data")

    if not folder.exists():
        try:
            write_atomic(folder, extract)
        except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{archive}: cannot be unpacked ({error})") from error
    return folder


def _test_images(name: str, folder: Path, track: Track) -> DataSet:
    """Read the images of an unpacked set that are used as unknown images."""
    if name == "dtd":
        return read_folders(folder / "dtd" / "images", 32, track)
    if name in ("tin", "tin-open"):
        return read_tiny_imagenet(folder, track, without=CLASSES_OF_CIFAR10 if name == "tin-open" else ())
    paths = sorted(filter(is_image, folder.rglob("*")))
    return read_images([(path, 0) for path in paths], 32, track, folder)
