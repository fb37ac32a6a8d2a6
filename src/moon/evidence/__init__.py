"""What a model outputs for its inputs: `Evidence`, `look` and `read`, the K+1 head and the rotation head."""

from moon.evidence.derived import is_finite, version_of
from moon.evidence.disk import MEMORY_GIB, DiskTensor, Storage, chunks, mapped, taken
from moon.evidence.evidence import Evidence
from moon.evidence.head import OpenHead, classifier_name, classifier_of, open_head
from moon.evidence.look import evaluation_mode, look, read, split_batch
from moon.evidence.outputs import Inputs, logits_of
from moon.evidence.precision import autocast, float32_classifier, replaced_forward
from moon.evidence.rotations import RotationHead, find_rotation_head, rotated, rotation_head

__all__ = [
    "MEMORY_GIB", "DiskTensor", "Evidence", "Inputs", "OpenHead", "RotationHead", "Storage", "autocast", "chunks",
    "classifier_name", "classifier_of", "evaluation_mode", "find_rotation_head", "float32_classifier", "is_finite",
    "logits_of", "look", "mapped", "open_head", "read", "replaced_forward", "rotated", "rotation_head", "split_batch",
    "taken", "version_of",
]  # fmt: skip
