"""The names of the outputs, in the configuration of Hugging Face models."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

_log = logging.getLogger(__name__)

UNKNOWN = "unknown"  # the label of the unknown output


def label_unknown(parents: list[nn.Module], outputs: int) -> None:
    """Name the unknown output of Hugging Face models; `config.num_labels` is the number of names.

    `parents` are the modules that contain the classifier, `outputs` is K, its number of outputs so far.
    """
    configs: dict[int, Any] = {id(config): config for part in parents if (config := getattr(part, "config", None))}
    for config in configs.values():
        names = getattr(config, "id2label", None)
        if not isinstance(names, dict):
            continue
        if sorted(names) != list(range(outputs)):
            _log.warning(
                "config.id2label has %d labels, but the classifier had %d outputs, so no label 'unknown' was added",
                *(len(names), outputs),
            )
            continue
        config.id2label = {**names, outputs: UNKNOWN}
        config.label2id = {label: index for index, label in config.id2label.items()}
        config.num_known = outputs
    for part in parents:
        if getattr(part, "num_labels", None) == outputs:  # for the loss that the model computes itself
            vars(part)["num_labels"] = outputs + 1


def check_labels(parents: list[nn.Module]) -> None:
    """Raise a ValueError if a known class of a Hugging Face model is called "unknown"."""
    for part in parents:
        names = getattr(getattr(part, "config", None), "id2label", None)
        if isinstance(names, dict) and UNKNOWN in names.values():
            raise ValueError(
                f"{type(part).__name__} has a known class that is called '{UNKNOWN}' (config.id2label); open_head "
                "would add a second one: give it another name, or leave its inputs out if they are of no known class"
            )
