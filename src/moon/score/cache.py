"""A cache for the evidence of a model on sets of images: in memory and, if requested, in files.

Large evidence of training images is read from disk instead of memory (`Storage`).

evidence/<set>.safetensors   logits, features and labels of one set, and the classifier. The header identifies the model
                             and the images, and contains a digest. A file that is damaged, or for another model or
                             other images, is computed again. <set>.float16 and <set>.mirrored are evidence computed in
                             float16 or with mirror images.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from moon.data import AnySet
from moon.evidence import MEMORY_GIB, Evidence, Storage, mapped
from moon.files import open_regular, own_folder, write_atomic
from moon.records import arrays_digest
from moon.run.images import BenchmarkImages
from moon.score.evidence_file import map_tensors, write_tensors

EVIDENCE = "evidence"
TRAINING = "fit/train"  # the name of the training images; it cannot be the name of a set

_log = logging.getLogger(__name__)


@dataclass
class EvidenceCache:
    """Evidence by the name of a set.

    Args:
        images: The benchmark.
        model: The network.
        model_digest: The SHA-256 of its file.
        folder: The folder of the scores; evidence that is kept there is reused.
        keep: Whether to write evidence to the folder.
        precision: As for `BenchmarkImages.evidence`.
        mirrored: As for `BenchmarkImages.evidence`.
        memory_gib: Evidence of training images that needs more memory than this is read from temporary files in the
            folder instead.
        layers: As for `BenchmarkImages.evidence`.
    """

    images: BenchmarkImages
    model: nn.Module
    model_digest: str = ""
    folder: Path | None = None
    keep: bool = False
    precision: str = "float32"
    mirrored: bool = False
    memory_gib: float = MEMORY_GIB
    layers: bool = False
    _found: dict[str, Evidence] = field(default_factory=dict)
    _faster: nn.Module | None = None

    def __getitem__(self, name: str) -> Evidence:
        return self._found[name]

    def get(self, name: str, data: AnySet) -> Evidence:
        """The evidence on a set; a name must always refer to the same set."""
        if name not in self._found:
            self._found[name] = self._load(name, data) or self._compute(name, data)
        return self._found[name]

    def _storage(self, name: str, data: AnySet) -> Storage | None:
        if name != TRAINING:  # test sets are much smaller
            return None
        folder = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        copies = 2 + self.mirrored + self.keep  # two views and their mean; the file that is kept
        return Storage(len(data.labels), folder, self.memory_gib, "training images", copies)

    def _path(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        how = ("" if self.precision == "float32" else f".{self.precision}") + (".mirrored" if self.mirrored else "")
        return self.folder / EVIDENCE / f"{name.replace('/', '-')}{how}.safetensors"

    def _header(self, data: AnySet) -> dict[str, str]:
        return {"model": self.model_digest, "images": data.digest(), "format": "2"}

    def _load(self, name: str, data: AnySet) -> Evidence | None:
        path = self._path(name)
        if path is None or not path.exists():
            return None
        device = next(self.model.parameters()).device
        try:
            open_regular(path).close()  # opening a named pipe would wait for a writer
            with safe_open(path, "pt", device=str(device)) as file:
                header = file.metadata() or {}
                if any(header.get(key) != value for key, value in self._header(data).items()):
                    return None
                if self.layers and "layers" not in header:
                    return None
                if device.type == "cpu" and path.stat().st_size > self.memory_gib * 2**30:
                    tensors = map_tensors(path)
                else:
                    tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                if header.get("sha256") != _digest(tensors):
                    raise ValueError("its content does not match its SHA-256")
        except (SafetensorError, OSError, ValueError) as error:
            _log.warning("%s: is damaged (%s) and is computed again", path, error)
            return None
        logits = mapped(Tensor.double, tensors["logits"])  # as BenchmarkImages.evidence returns them
        labels = tensors.get("labels")
        sizes = tuple(map(int, header.get("layers", "").split()))
        kept = tensors["features"], int(header["num_known"]), labels, _head(tensors), None, tensors.get("layers"), sizes
        return Evidence(logits, *kept)

    def _compute(self, name: str, data: AnySet) -> Evidence:
        faster = self.images.faster_model(self._faster or self.model, data, self.precision, self.layers)
        self._faster = faster  # traced only once
        how = {"precision": self.precision, "mirrored": self.mirrored, "storage": self._storage(name, data)}
        how["layers"] = self.layers
        found = self.images.evidence(self._faster, data, **how)
        path = self._path(name)
        if path is not None and self.keep:
            own_folder(path.parent)
            tensors = {"logits": mapped(Tensor.float, found.logits), "features": found.features}
            tensors |= {} if found.labels is None else {"labels": found.labels}
            tensors |= {} if found.layers is None else {"layers": found.layers}
            tensors |= {} if found.head is None else dict(zip(("weight", "bias"), found.head, strict=True))
            tensors = {key: value.cpu().contiguous() for key, value in tensors.items()}
            header = self._header(data) | {"num_known": str(found.num_known), "sha256": _digest(tensors)}
            header |= {"layers": " ".join(map(str, found.layer_sizes))} if self.layers else {}
            write_atomic(path, lambda partial: write_tensors(partial, tensors, header))
        return found


def _head(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    return (tensors["weight"], tensors["bias"]) if "weight" in tensors else None


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    bytes_of = {name: tensor.cpu().contiguous().view(torch.uint8).numpy() for name, tensor in tensors.items()}
    return arrays_digest(bytes_of)
