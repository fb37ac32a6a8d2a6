"""What a model says about sets of images, read once: in memory, and in files for those who come later.

evidence/<set>.safetensors   logits, features and labels of one set, and the classifier; of which model and images is in
                             the file's head, and a file of others is read anew; <set>.float16 or <set>.mirrored where
                             it was read so
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from moon.data import AnySet
from moon.evidence import Evidence
from moon.files import write_atomic
from moon.run.images import Bench

EVIDENCE = "evidence"


@dataclass
class Readings:
    """Evidence by the name of a set. With a `folder` it is looked for there first, and with `keep` left there."""

    bench: Bench
    model: nn.Module
    model_digest: str = ""
    folder: Path | None = None
    keep: bool = False
    precision: str = "float32"
    mirrored: bool = False
    _read: dict[str, Evidence] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Evidence:
        return self._read[name]

    def of(self, name: str, data: AnySet) -> Evidence:
        """The reading of this set, which is always the same set for one name."""
        if name not in self._read:
            self._read[name] = self._from_file(name, data) or self._anew(name, data)
        return self._read[name]

    def _path(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        how = ("" if self.precision == "float32" else f".{self.precision}") + (".mirrored" if self.mirrored else "")
        return self.folder / EVIDENCE / f"{name.replace('/', '-')}{how}.safetensors"

    def _about(self, data: AnySet) -> dict[str, str]:
        return {"model": self.model_digest, "images": data.digest(), "format": "1"}

    def _from_file(self, name: str, data: AnySet) -> Evidence | None:
        path = self._path(name)
        if path is None or not path.exists():
            return None
        device = next(self.model.parameters()).device
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                about = file.metadata() or {}
                if any(about.get(key) != value for key, value in self._about(data).items()):
                    return None
                part = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None  # cut short; it is read anew
        logits = part["logits"].double()  # as Bench.read widens them
        return Evidence(logits, part["features"], int(about["num_known"]), part.get("labels"), _head(part))

    def _anew(self, name: str, data: AnySet) -> Evidence:
        found = self.bench.read(self.model, data, precision=self.precision, mirrored=self.mirrored)
        path = self._path(name)
        if path is not None and self.keep:
            path.parent.mkdir(exist_ok=True)
            part = {"logits": found.logits.float(), "features": found.features}
            part |= {} if found.labels is None else {"labels": found.labels}
            part |= {} if found.head is None else dict(zip(("weight", "bias"), found.head, strict=True))
            part = {key: value.detach().cpu().contiguous() for key, value in part.items()}
            about = self._about(data) | {"num_known": str(found.num_known)}
            write_atomic(path, lambda partial: partial.write_bytes(save(part, about)))
        return found


def _head(part: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    return (part["weight"], part["bias"]) if "weight" in part else None
