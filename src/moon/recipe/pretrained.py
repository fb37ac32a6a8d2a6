"""Weights from a file, for a network to start from or to be scored: safetensors, or a state_dict of PyTorch."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from moon.evidence import OpenHead, classifier_name
from moon.files import sha256
from moon.recipe.model_zoo import parameter_names
from moon.suggest import first_line

_WRAPPED_IN = ("state_dict", "model_state_dict", "model", "net", "network")  # what training scripts save it as
_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
_MAX_LISTED = 4


def weights_digest(path: Path) -> str:
    """The SHA-256 of a file of weights; a ValueError if it cannot be read."""
    try:
        return sha256(path)
    except OSError as error:
        raise ValueError(f"{path}: the weights cannot be read ({error.strerror})") from None


def read_weights(path: Path, net: str = "") -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, or of what `torch.save` wrote, by name. Nothing in it is executed.

    A dictionary that holds the state_dict, as training scripts save it, is unwrapped, and the prefixes of
    DistributedDataParallel and torch.compile are removed. Names of an `openood:` net become ours. A ValueError if the
    file contains anything but tensors and plain values.
    """
    found: Any = _load(path)
    while isinstance(found, Mapping) and (inner := [key for key in _WRAPPED_IN if isinstance(found.get(key), Mapping)]):
        found = found[inner[0]]
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path}: is not a state_dict, a dictionary of tensors; save model.state_dict()")
    ours = parameter_names(net)
    return {ours(_without_prefixes(str(key))): value for key, value in found.items()}


def _load(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # about the age of a file
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported global" in str(error) or "GLOBAL" in str(error):
            raise ValueError(
                f"{path}: contains Python objects besides tensors, which could execute code, so it is not loaded; save "
                "its state_dict alone (torch.save(model.state_dict(), FILE)) or as safetensors"
            ) from None
        raise ValueError(f"{path}: is neither a safetensors file nor a state_dict of PyTorch") from None
    except OSError as error:
        raise ValueError(f"{path}: the weights cannot be read ({error.strerror or error})") from None
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{path}: is damaged, or not a file of weights ({first_line(error)})") from None


def _without_prefixes(key: str) -> str:
    while prefix := next((prefix for prefix in _PREFIXES if key.startswith(prefix)), ""):
        key = key.removeprefix(prefix)
    return key


@torch.no_grad()
def load_pretrained(model: nn.Module, weights: Mapping[str, Tensor], path: Path | str, net: str) -> list[str]:
    """Load weights into a model whose classifier may be another one, and return why parts of its head were not.

    A classifier for the same number of classes is loaded, with or without an unknown output or a rotation head. One for
    another number is not. A ValueError if any other weight is missing, unexpected or of another shape. On the device
    "meta" only names and shapes are checked.
    """
    classifier = classifier_name(model)
    head = model.get_submodule(classifier)
    assert isinstance(head, nn.Linear)
    inside = f"{classifier}." if classifier else ""
    of_head = {f"{inside}weight", f"{inside}bias"}
    own = dict(model.state_dict())
    rotation = {name for name in own if name.startswith(f"{inside}rotation.")}
    is_new = bool(rotation) and not rotation & weights.keys()
    of_head |= rotation if is_new else set()
    body = {name: tensor for name, tensor in own.items() if name not in of_head}
    _check_fit({name: value for name, value in weights.items() if name not in of_head}, body, path, net)
    is_real = next(model.parameters()).device.type != "meta"
    for name in body.keys() & weights.keys() if is_real else ():
        own[name].copy_(weights[name])
    reasons = _load_head(head, {part: weights.get(f"{inside}{part}") for part in ("weight", "bias")}, path, is_real)
    return reasons + ([f"{path} has no rotation head"] if is_new else [])


def _load_head(head: nn.Linear, found: Mapping[str, Tensor | None], path: Path | str, is_real: bool) -> list[str]:
    weight, bias = found["weight"], found["bias"]
    if weight is None:
        return [f"{path} has no classifier"]
    num_known = head.out_features - isinstance(head, OpenHead)
    rows = len(weight) if weight.ndim == 2 else 0
    fits = rows in (num_known, head.out_features) and weight.shape[1:] == head.weight.shape[1:]
    if not fits or (bias is None) != (head.bias is None) or (bias is not None and bias.shape != (rows,)):
        return [
            f"the classifier of {path} has {rows} outputs of {weight.shape[-1]} features, this network "
            f"{head.out_features} of {head.in_features}"
        ]
    if is_real:
        head.weight[:rows] = weight.to(head.weight)
        if bias is not None:
            head.bias[:rows] = bias.to(head.bias)
    return [] if rows == head.out_features else [f"{path} has no unknown output"]


def _check_fit(found: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path | str, net: str) -> None:
    """Raise a ValueError that names the weights that differ."""
    # Old files have no such counters, and nothing depends on them.
    missing = [name for name in own if name not in found and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in found if name not in own]
    misshapen = [
        f"{name} {tuple(found[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in found and found[name].shape != own[name].shape
    ]
    parts = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    if differences := [f"{what}: {_listed(names)}" for what, names in parts.items() if names]:
        raise ValueError(
            f"{path}: has no weights of net '{net}' ({'; '.join(differences)}); name their net (--net, --width)"
        )


def _listed(names: list[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
