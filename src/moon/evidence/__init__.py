"""What a model outputs for its inputs: `Evidence`, `look` and `read`, and the K+1 head."""

from moon.evidence.derived import is_finite
from moon.evidence.disk import MEMORY_GIB, DiskTensor, Storage, chunks, mapped, taken
from moon.evidence.evidence import Evidence
from moon.evidence.head import OpenHead, classifier_name, open_head
from moon.evidence.look import evaluation_mode, look, read, split_batch
from moon.evidence.outputs import Inputs, logits_of
from moon.evidence.precision import autocast, float32_classifier

__all__ = [
    "MEMORY_GIB", "DiskTensor", "Evidence", "Inputs", "OpenHead", "Storage", "autocast", "chunks", "classifier_name",
    "evaluation_mode", "float32_classifier", "is_finite", "logits_of", "look", "mapped", "open_head", "read",
    "split_batch", "taken",
]  # fmt: skip
