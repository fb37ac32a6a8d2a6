"""What a model outputs for its inputs: `Evidence`, `look` and `read`, and the K+1 head."""

from moon.evidence.evidence import Evidence
from moon.evidence.head import OpenHead, autocast, classifier_name, float32_classifier, open_head
from moon.evidence.look import look, read

__all__ = ["Evidence", "OpenHead", "autocast", "classifier_name", "float32_classifier", "look", "open_head", "read"]
