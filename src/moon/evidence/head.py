"""Find the classifier of a model, and replace it by one with K+1 outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from moon.evidence.labels import check_labels, label_unknown
from moon.evidence.tracing import output_layers
from moon.suggest import did_you_mean

_log = logging.getLogger(__name__)

# Usual names of classifiers, which are relied on only for models that cannot be traced.
_USUAL_NAMES = {
    "fc", "head", "heads", "classifier", "last_linear", "linear", "out", "output", "logits", "score",
    "output_layer",
}  # fmt: skip
_MAX_LISTED = 8  # layers in an error message

_Linears = dict[str, nn.Linear]
_Found = tuple[list[str], str]  # names, and if there is not exactly one, why
_found: WeakKeyDictionary[nn.Module, tuple[tuple[ReferenceType[nn.Linear], ...], _Found]] = WeakKeyDictionary()


class OpenHead(nn.Linear):
    """The K+1-way classifier of Section 3.1: K known outputs, and the unknown output as the last one.

    Autocast does not apply to it, see `moon.evidence.float32_classifier`.

    Args:
        in_features: D, the number of features.
        num_known: K, the number of known classes.
        bias: Whether to learn a bias.
        device: The device of the parameters.
        dtype: The type of the parameters.

    Example:
        >>> import torch
        >>> from moon import OpenHead
        >>> head = OpenHead(in_features=8, num_known=10)
        >>> head(torch.zeros(4, 8)).shape
        torch.Size([4, 11])
    """

    differs_in_precision_only = True  # its forward pass from that of Linear, see `moon.fast.layers_on_buffers`

    def __init__(
        self,
        in_features: int,
        num_known: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_known + 1, bias=bias, device=device, dtype=dtype)
        self.num_known = num_known

    def forward(self, input: Tensor) -> Tensor:
        device = self.weight.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return super().forward(input)
        with torch.autocast(device, enabled=False):
            return super().forward(input.to(self.weight.dtype))


def classifier_name(model: nn.Module, classifier: str | None = None) -> str:
    """Return the name of the model's classifier, the `Linear` layer whose output is the model's output.

    It is the first of these that applies:

    1. the layer that is called `classifier`, or that was named in an earlier call;
    2. the `OpenHead`;
    3. the `Linear` layer that `model.get_classifier()` returns, a method of timm's models;
    4. the only `Linear` layer;
    5. the layer whose output the forward pass returns, found by tracing it;
    6. if the forward pass cannot be traced, the layer with a usual name, such as `fc` or `head`; this is logged.

    Args:
        model: A model that ends in a `Linear` layer.
        classifier: The name of the classifier. It is remembered: the layer is marked, so that later calls, also for
            copies of the model and models that contain it, need no name.

    Returns:
        The name to give to `model.get_submodule`. It is empty if the model itself is the classifier.

    Raises:
        ValueError: If there is no `Linear` layer of this name, or if the classifier cannot be determined.

    Example:
        >>> from moon import lenet
        >>> from moon.evidence import classifier_name
        >>> classifier_name(lenet())
        'fc'
    """
    linears = linear_layers(model)
    if not linears:
        raise ValueError(f"{type(model).__name__} has no Linear classifier; its last layer must be a torch.nn.Linear")
    if classifier is not None:
        return _named(model, linears, classifier)
    for names in (
        [name for name, layer in linears.items() if "_is_classifier" in vars(layer)],
        [name for name, layer in linears.items() if isinstance(layer, OpenHead)],
    ):
        if len(names) == 1:
            return names[0]
    names, reason = _find(model, linears)
    if len(names) == 1:
        return names[0]
    candidates = _outer_first(names or linears)
    first = candidates[0]
    raise ValueError(
        f"the classifier of {type(model).__name__} is not clear: {reason}. Name one of its Linear layers, as in "
        f"open_head(model, '{first}') or read(model, loader, classifier='{first}'), or give the model a method "
        f"get_classifier() that returns one: {_listed(linears, candidates)}"
    )


def classifier_of(model: nn.Module) -> nn.Linear:
    """Return the model's classifier, the layer that `classifier_name` names."""
    layer = model.get_submodule(classifier_name(model))
    assert isinstance(layer, nn.Linear)
    return layer


def linear_layers(model: nn.Module) -> _Linears:
    """The Linear layers of a model by name, without those inside `nn.MultiheadAttention`, which are never called."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)
    }


def _named(model: nn.Module, linears: _Linears, name: str) -> str:
    """Mark the layer of this name as the classifier."""
    if name not in linears:
        modules = dict(model.named_modules())
        found = f"'{name}' is a {type(modules[name]).__name__}" if name in modules else f"there is no '{name}'"
        raise ValueError(
            f"{type(model).__name__} has no Linear layer of this name: {found}{did_you_mean(name, linears)}. Its "
            f"Linear layers: {_listed(linears, _outer_first(linears))}"
        )
    for layer in linears.values():
        vars(layer).pop("_is_classifier", None)
    vars(linears[name])["_is_classifier"] = True
    return name


def _find(model: nn.Module, linears: _Linears) -> _Found:
    """`_search`, once for each model and its Linear layers: training calls this in every step."""
    layers = tuple(map(ref, linears.values()))
    if model not in _found or _found[model][0] != layers:
        _found[model] = layers, _search(model, linears)
    return _found[model][1]


def _search(model: nn.Module, linears: _Linears) -> _Found:
    """The layers that may be the classifier of a model, and why there is not exactly one."""
    get_classifier = getattr(model, "get_classifier", None)  # a method of timm models
    if callable(get_classifier):
        found = get_classifier()
        heads = list(found) if isinstance(found, (tuple, list)) else [found]
        names = [name for name, layer in linears.items() if any(layer is head for head in heads)]
        if names:  # it may also return a module that contains the classifier
            return names, "get_classifier() returns several layers"
    if len(linears) == 1:
        return list(linears), ""
    names = output_layers(model)
    if names is not None:
        reason = "its outputs come from several layers" if names else "its output is not that of a Linear layer"
        return [name for name in linears if name in names], reason
    children = list(model.named_children())
    if len(children) == 1:  # a wrapper, such as DistributedDataParallel or torch.compile
        ((prefix, child),) = children
        names, reason = _find(child, linear_layers(child))
        return [".".join(filter(None, (prefix, name))) for name in names], reason
    names = _usual(children)
    if len(names) == 1:
        _log.info("%s cannot be traced; by its name, '%s' is its classifier", type(model).__name__, names[0])
    return names, f"its forward pass cannot be traced, and {len(names) or 'no'} layers have a usual name such as 'fc'"


def _usual(children: Iterable[tuple[str, nn.Module]]) -> list[str]:
    """The layers with a usual name, and those that end a module with such a name."""
    names = []
    for name, child in children:
        if name in _USUAL_NAMES and isinstance(child, nn.Linear):
            names.append(name)
        elif name in _USUAL_NAMES:
            names += [f"{name}.{last}" for last in output_layers(child) or []]
    return names


def _outer_first(names: Iterable[str]) -> list[str]:
    """Names sorted by how deep in the model the layers are."""
    return sorted(names, key=lambda name: name.count("."))


def _listed(linears: _Linears, names: list[str]) -> str:
    """Names and sizes of layers."""
    rest = len(names) - _MAX_LISTED
    listed = [f"'{name}' ({linears[name].in_features} -> {linears[name].out_features})" for name in names[:_MAX_LISTED]]
    return ", ".join([*listed, f"and {rest} more"] if rest > 0 else listed)


def open_head(model: nn.Module, classifier: str | None = None) -> nn.Module:
    """Replace the model's classifier by an `OpenHead` with one more output.

    The rows of the known classes keep their weights; the new row has PyTorch's default initialisation. A Hugging Face
    model also gets the label "unknown": `config.id2label`, `config.label2id` and `num_labels` count the new output, and
    `config.num_known` is K. If such a model was saved and loaded, its classifier has the unknown output already; it
    becomes an `OpenHead` again, with the same weights.

    Args:
        model: A model whose output is that of a `torch.nn.Linear` with K outputs. It is changed in place.
        classifier: The name of this layer, such as "fc"; needed only if it cannot be determined, see
            `moon.evidence.classifier_name`.

    Returns:
        The model, now with K+1 outputs. If the model is itself a `Linear`, the new `OpenHead`.

    Raises:
        ValueError: If the classifier cannot be determined, if the model already has an open head, or if a known class
            is called "unknown".

    Example:
        >>> from moon import open_head, resnet18
        >>> model = open_head(resnet18(10))
        >>> model.fc
        OpenHead(in_features=512, out_features=11, bias=True)
    """
    opened = [name for name, module in model.named_modules() if isinstance(module, OpenHead)]
    if opened:
        raise ValueError(f"{type(model).__name__} already has an open head ('{opened[0]}'); call open_head only once")
    name = classifier_name(model, classifier)
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    parent, _, attribute = name.rpartition(".")
    steps = parent.split(".") if parent else []
    parents = [model.get_submodule(".".join(steps[:count])) for count in range(len(steps) + 1)] if name else []
    num_known = known_outputs(model, old)
    is_new = num_known == old.out_features
    if is_new:
        check_labels(parents)
    head = OpenHead(old.in_features, num_known, old.bias is not None, old.weight.device, old.weight.dtype)
    with torch.no_grad():
        head.weight[: old.out_features] = old.weight
        if old.bias is not None:
            head.bias[: old.out_features] = old.bias
    head.train(old.training)
    for part, module in old.named_children():  # a rotation head
        head.add_module(part, module)
    if not name:  # the model is the classifier
        return head
    setattr(parents[-1], attribute, head)
    if is_new:
        label_unknown(parents, num_known)
    return model


def known_outputs(model: nn.Module, head: nn.Linear) -> int:
    """K, the number of outputs of a classifier that stand for known classes.

    Args:
        model: The model.
        head: Its classifier: an `OpenHead`, or the Linear layer of a Hugging Face model that was saved with one.

    Returns:
        The number of outputs, without the unknown output.
    """
    if isinstance(head, OpenHead):
        return head.num_known
    saved = getattr(getattr(model, "config", None), "num_known", None)
    return head.out_features - 1 if saved == head.out_features - 1 else head.out_features
