"""Run a model on one batch and find the logits in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any, Self
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle

from moon.evidence.head import classifier_name, linear_layers

_EXPECTED = (
    "forward must return the logits, an object or a mapping with `logits`, or a tuple that contains the output of the "
    "classifier"
)

Inputs = Tensor | Mapping[str, Any]  # the input of a model, or its keyword arguments

_return_several: WeakSet[nn.Module] = WeakSet()  # models that return tensors without saying which are the logits
_checked: WeakKeyDictionary[nn.Module, ReferenceType[nn.Linear]] = WeakKeyDictionary()  # classifiers of models


def logits_of(model: nn.Module, x: Inputs, forward: Callable[[Inputs], Any] | None = None) -> Tensor:
    """Run the model on one batch and return its logits. Objectives call this instead of `model(x)`.

    The model may return the logits, an object or a mapping with `logits` (Hugging Face), or a tuple that contains the
    output of its classifier.

    Args:
        model: The model.
        x: A batch of inputs, or a mapping of keyword arguments.
        forward: A function from `x` to the output, to call instead of the model.

    Returns:
        The logits, of shape (N, outputs).

    Raises:
        ValueError: If the model returns something else.

    Example:
        >>> import torch
        >>> from moon.evidence import logits_of
        >>> class Net(torch.nn.Linear):
        ...     def forward(self, x):
        ...         return {"logits": super().forward(x), "mean": x.mean()}
        >>> logits_of(Net(4, 3), torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """
    forward = forward or (lambda x: model(**x) if isinstance(x, Mapping) else model(x))
    if model not in _return_several:
        output = forward(x)
        logits = _named_logits(output)
        if logits is not None:
            return logits
        _several(model, output)
        # A hook has to record the output of the classifier. It costs one more forward pass, in the first batch only.
        _return_several.add(model)
    with Recording(model, classifier_name(model)) as recording:
        output = forward(x)
    return recording.logits(output)


def only_tensor(model: nn.Module, x: Inputs) -> Tensor | None:
    """The inputs as one tensor, for what computes with inputs: ODIN, Mixup and others.

    Args:
        model: The model.
        x: A batch of inputs, or a mapping of keyword arguments.

    Returns:
        The tensor, if it can be given to the model by itself: the batch, or the only entry of the mapping, if it is the
        first argument of the model's forward pass and contains floating-point numbers. Otherwise None.

    Example:
        >>> import torch
        >>> from moon.evidence.outputs import only_tensor
        >>> x = torch.ones(2, 4)
        >>> only_tensor(torch.nn.Linear(4, 3), {"input": x}) is x
        True
        >>> only_tensor(torch.nn.Linear(4, 3), {"input": x, "mask": x}) is None
        True
    """
    if isinstance(x, Tensor):
        return x
    first = next(iter(signature(model.forward).parameters), None)
    tensor = x.get(first) if len(x) == 1 and first is not None else None
    return tensor if isinstance(tensor, Tensor) and tensor.is_floating_point() else None


class _Memory:
    """The memory of a tensor. It is not kept, but its address is not used again either."""

    def __init__(self, tensor: Any) -> None:
        self.reference = None
        # A layer of another package may return something else, and inside torch.func a tensor has no memory.
        with suppress(AttributeError, NotImplementedError, RuntimeError):
            self.reference = StorageWeakRef(tensor.untyped_storage())

    def __eq__(self, other: object) -> bool:
        mine, theirs = self.reference, getattr(other, "reference", None)
        return mine is not None and theirs is not None and mine == theirs

    def __hash__(self) -> int:
        return hash(self.reference)


class Recording:
    """Context in which hooks record what the classifier of a model takes and returns, without waiting for the device.

    Args:
        model: The model.
        name: The name of its classifier.

    Attributes:
        head: The classifier.
        features: Its inputs, one for each call.
        outputs: Its outputs, one for each call.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        head = model.get_submodule(name)
        assert isinstance(head, nn.Linear)
        self.model, self.name, self.head = model, name, head
        self.features: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self._written: dict[_Memory, str] = {}  # the memory of the layers' outputs
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles.append(self.head.register_forward_hook(self._record, with_kwargs=True))
        if self.model not in _checked or _checked[self.model]() is not self.head:
            for name, layer in linear_layers(self.model).items():
                self._handles.append(layer.register_forward_hook(partial(self._note, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        self.features.append(args[0] if args else kwargs["input"])
        self.outputs.append(output)

    def _note(self, name: str, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self._written[_Memory(output)] = name

    def has_returned(self, tensor: Tensor) -> bool:
        """Whether a tensor is the output of the classifier, or shares its memory."""
        return any(tensor is output or _Memory(tensor) == _Memory(output) for output in self.outputs)

    def logits(self, output: Any) -> Tensor:
        """Find the logits in the output of the model.

        Args:
            output: What the model returned.

        Returns:
            The logits.

        Raises:
            ValueError: If there are none, or if another layer than the classifier computed them.
        """
        kind, logits = type(self.model).__name__, _named_logits(output)
        if logits is None:
            tensors = [tensor for tensor in _several(self.model, output) if self.has_returned(tensor)]
            if not tensors:
                found = f"{_described(output)} without the output of its classifier '{self.name}'"
                raise ValueError(f"{kind} returns {found}; {_EXPECTED}")
            logits = tensors[0]
        if self.has_returned(logits):
            _checked[self.model] = ref(self.head)
        elif (other := self._written.get(_Memory(logits))) is not None:
            raise ValueError(
                f"the output of {kind} is that of '{other}', not of '{self.name}', which was taken for its classifier; "
                f"name it: open_head(model, '{other}') or read(model, loader, classifier='{other}')"
            )
        return logits


def _named_logits(output: Any) -> Tensor | None:
    """The logits, if the output is or names them."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif not isinstance(output, Tensor):
        output = getattr(output, "logits", None)
    return output if isinstance(output, Tensor) else None


def _several(model: nn.Module, output: Any) -> list[Tensor]:
    """The tensors that a model returned."""
    parts = output.values() if isinstance(output, Mapping) else output
    tensors = [part for part in parts if isinstance(part, Tensor)] if isinstance(parts, Iterable) else []
    if not tensors:
        raise ValueError(f"{type(model).__name__} returns {_described(output)}; {_EXPECTED}")
    return tensors


def _described(output: Any) -> str:
    """The type of an output, and of its parts."""
    parts = output.items() if isinstance(output, Mapping) else enumerate(output) if isinstance(output, Iterable) else ()
    inside = ", ".join(
        f"{key}: {tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__}" for key, part in parts
    )
    return f"a {type(output).__name__}" + (f" ({inside})" if inside else "")
