"""Run a model: `look` on one batch, `read` on a whole data set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from moon.evidence.disk import Rows, Storage
from moon.evidence.evidence import Evidence
from moon.evidence.head import classifier_name, known_outputs
from moon.evidence.layers import LayerRecording
from moon.evidence.outputs import Inputs, Recording, only_tensor
from moon.evidence.rotations import find_rotation_head, rotated

_log = logging.getLogger(__name__)

_BATCH = 256  # inputs of a tensor that are read at once
_LABELS = ("labels", "label", "y")  # the key of the labels in a batch that is a mapping


def look(model: nn.Module, x: Inputs, y: Tensor | None = None, classifier: str | None = None) -> Evidence:
    """Run the model on one batch. The evidence is differentiable.

    A temporary hook on the classifier records the features, so any model that ends in a `Linear` layer works. If the
    classifier is applied to every token and the model returns the logits of one, as decoders of texts do, the features
    are those of this token. The model may return the logits, an object or a mapping with `logits`, or a tuple that
    contains the output of the classifier. Its mode (training or evaluation) is not changed.

    Args:
        model: A model whose classifier is a `Linear` or an `OpenHead`.
        x: A batch of inputs, on the model's device, or a mapping of the model's keyword arguments.
        y: Their labels, if known.
        classifier: The name of the classifier, such as "fc", if it cannot be determined; see
            `moon.evidence.classifier_name`. It is remembered for later calls.

    Returns:
        The evidence of the batch.

    Raises:
        ValueError: If the classifier cannot be determined or does not compute the output, if the model does not call it
            exactly once, with features of shape (N, D), or if it does not return logits.

    Example:
        >>> import torch
        >>> from moon import lenet, look, open_head
        >>> evidence = look(open_head(lenet()), torch.zeros(2, 1, 28, 28))
        >>> evidence.logits.shape, evidence.num_known
        (torch.Size([2, 11]), 10)
    """
    return _look(model, x, y, classifier)[0]


def _look(model: nn.Module, x: Inputs, y: Tensor | None, classifier: str | None) -> tuple[Evidence, Recording]:
    recording = Recording(model, classifier_name(model, classifier))
    with recording, recording.head.register_forward_hook(_append_features, with_kwargs=True):
        output = model(**x) if isinstance(x, Mapping) else model(x)
    logits, head, features = recording.logits(output), recording.head, recording.features
    bias = head.weight.new_zeros(head.out_features) if head.bias is None else head.bias
    if len(features) == 1 and features[0].ndim > 2 and logits.ndim == 2:
        logits, features = _split(logits, recording, bias)
    if len(features) != 1 or features[0].ndim != 2:
        found = f"with an input of {features[0].ndim} dimensions" if features else "never"
        raise ValueError(
            f"the classifier '{recording.name}' of {type(model).__name__} was called "
            f"{found if len(features) < 2 else 'repeatedly'}; it must be called once per forward pass, with features "
            "of shape (N, D), or with those of all tokens if the model returns the logits of one"
        )
    num_known = known_outputs(model, head)
    return Evidence(logits, features[0], num_known, y, (head.weight.detach(), bias.detach())), recording


def _append_features(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Any:
    """A hook that lets features of tokens follow their logits, so that the model selects both."""
    features = args[0] if args else kwargs["input"]
    return torch.cat([output, features], -1) if features.ndim > 2 else None


def _split(selected: Tensor, recording: Recording, bias: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits and the features that `_append_features` joined; a ValueError if they do not belong together."""
    head, sizes = recording.head, [recording.head.out_features, recording.head.in_features]
    if selected.shape[1] == sum(sizes):
        logits, features = selected.split(sizes, 1)
        error = (logits - linear(features.to(head.weight), head.weight, bias)).detach().abs().max()
        if not error > 0.05 * logits.detach().abs().max():  # more than rounding to bfloat16
            return logits.to(recording.outputs[0].dtype), [features.to(recording.features[0].dtype)]
    raise ValueError(
        f"{type(recording.model).__name__} changes what its classifier '{recording.name}' computes for each token, so "
        "that the features of its logits cannot be found; let it return the classifier's output for one token"
    )


def read(
    model: nn.Module,
    loader: Iterable,
    perturb: Callable[[nn.Module, Tensor], Tensor] | None = None,
    classifier: str | None = None,
    rotate: bool = False,
    storage: Storage | None = None,
    layers: bool = False,
) -> Evidence:
    """Run the model on a data set, in evaluation mode and without gradients.

    The mode of every module is restored afterwards.

    Args:
        model: A model whose classifier is a `Linear` or an `OpenHead`.
        loader: Yields batches: (inputs, labels), inputs alone, or mappings of the model's keyword arguments and
            "labels", such as `{"pixel_values": x, "labels": y}`. They are moved to the model's device. A tensor is
            taken as all inputs, without labels.
        perturb: A function that changes the inputs before the forward pass, such as `Odin().perturb`.
        classifier: The name of the classifier, as for `look`.
        rotate: Whether to run the model on all four rotations of each image, for `Evidence.rotations`, which takes
            four times as long. The model needs a rotation head.
        storage: Where to keep the evidence if it is large; None: in memory.
        layers: Whether to look at inner layers, for `Evidence.layers`.

    Returns:
        The evidence of all inputs, in order, on the model's device.

    Raises:
        ValueError: If the loader yields no batch or something else than tensors, if there is no rotation head for
            `rotate`, or as for `look`.

    Example:
        >>> import torch
        >>> from moon import lenet, read
        >>> loader = [(torch.zeros(4, 1, 28, 28), torch.arange(4)), (torch.zeros(2, 1, 28, 28), torch.arange(2))]
        >>> evidence = read(lenet(), loader)
        >>> len(evidence), evidence.labels
        (6, tensor([0, 1, 2, 3, 0, 1]))
    """
    device = next(model.parameters()).device
    if isinstance(loader, Tensor):
        loader = loader.split(_BATCH)
    if classifier is not None:
        classifier_name(model, classifier)  # `perturb` calls `look` without a name
    if rotate:
        find_rotation_head(model)  # fails before anything is computed
    collected: _Collected | None = None
    with evaluation_mode(model), LayerRecording(model) if layers else nullcontext() as recorded:
        for batch in loader:
            x, y = split_batch(batch, device)
            if perturb is not None or rotate:
                tensor = only_tensor(model, x)
                if tensor is None:
                    what = "rotate" if perturb is None else "perturb"
                    raise ValueError(
                        f"{what} changes one floating-point tensor, but a batch has the inputs {list(x)}; use a "
                        "detector that leaves inputs as they are, or, for images, let the loader yield (images, labels)"
                    )
                x = tensor if perturb is None else perturb(model, tensor)
            with torch.no_grad():
                if recorded is not None:
                    recorded.start()
                evidence, recording = _look(model, x, y, None)
                if recorded is not None:
                    found, sizes = recorded.found(evidence.features)
                    evidence = replace(evidence, layers=found, layer_sizes=sizes)
                if rotate:
                    evidence = _with_rotations(model, x, evidence)
            if collected is None:
                _check_logits(evidence.logits, recording)
                collected = _Collected(evidence, storage)
            collected.add(evidence)
    if collected is None:
        raise ValueError("there is no evidence to concatenate: the loader yielded no batch")
    return collected.evidence()


class _Collected:
    """Evidence, batch by batch, in memory or on disk."""

    def __init__(self, first: Evidence, storage: Storage | None) -> None:
        more = [] if first.layers is None else [first.layers]
        folder = None if storage is None else storage.place(first.logits, torch.cat([first.features, *more], 1))
        self._first = first
        self._parts = {"logits": Rows(folder), "features": Rows(folder), "labels": Rows(None), "rotations": Rows(None)}
        self._parts["layers"] = Rows(folder)
        self._missing: set[str] = set()  # parts that some batch does not have

    def add(self, batch: Evidence) -> None:
        for name, rows in self._parts.items():
            part = getattr(batch, name)
            if part is None:
                self._missing.add(name)
            else:
                rows.add(part)

    def evidence(self) -> Evidence:
        found = {name: None if name in self._missing else rows.tensor() for name, rows in self._parts.items()}
        return replace(self._first, **found)


def _with_rotations(model: nn.Module, x: Tensor, evidence: Evidence) -> Evidence:
    """The evidence of a batch, with what the rotation head says about its four rotations."""
    head = find_rotation_head(model)
    features = [evidence.features, *(look(model, images).features for images in rotated(x))]
    return replace(evidence, rotations=torch.stack([head.predict(part) for part in features], 1))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context in which a model is in evaluation mode; afterwards every module has its mode back.

    Args:
        model: The model.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def split_batch(batch: Any, device: torch.device) -> tuple[Any, Any]:
    """Inputs and labels of a batch that a loader yields, on a device; the labels may be None.

    Args:
        batch: As for the loader of `read`.
        device: The device of the model.

    Returns:
        The inputs, a tensor or a mapping of keyword arguments, and the labels.

    Raises:
        ValueError: If the batch contains something else than tensors.
    """
    if isinstance(batch, Mapping):
        key = next((key for key in _LABELS if key in batch), None)
        x, y = {name: part for name, part in batch.items() if name != key}, None if key is None else batch[key]
    else:
        x, y, *_ = (*batch, None) if isinstance(batch, (tuple, list)) else (batch, None)
    return _moved(x, device), None if y is None else _moved(y, device)


def _moved(part: Any, device: torch.device) -> Any:
    """A part of a batch on the device of the model."""
    if isinstance(part, Mapping):
        return {name: _moved(value, device) for name, value in part.items()}
    if not isinstance(part, Tensor):
        raise ValueError(
            f"a batch contains a {type(part).__name__}; it must be (inputs, labels), inputs, or a mapping of the "
            "model's keyword arguments and 'labels', all of them tensors"
        )
    return part.to(device, non_blocking=True)


def _check_logits(logits: Tensor, recording: Recording) -> None:
    """Warn if the model changes the output of its classifier, for example by a softmax."""
    raw = recording.outputs[0]
    if recording.has_returned(logits) or not isinstance(raw, Tensor) or raw.ndim > 2:  # for tokens, `_split` checks it
        return
    if logits.shape == raw.shape and torch.equal(logits.to(raw), raw):  # a copy
        return
    _log.warning(
        "the output of %s differs from that of its classifier '%s', for example by a softmax; detectors expect the "
        "output of the classifier",
        type(recording.model).__name__,
        recording.name,
    )
