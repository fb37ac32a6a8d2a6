"""Forward passes of a sparse network on a CPU with moon-runtime, which multiplies only the non-zero weights."""

from __future__ import annotations

import logging
import math
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from moon.errors import MissingPackage
from moon.evidence import classifier_name, evaluation_mode
from moon.export.file import network_bytes
from moon.export.runtime import checked_graph, runtime
from moon.sparse.flops import layer_costs, net_cost
from moon.sparse.weights import sparse_weights

if TYPE_CHECKING:
    from moon_runtime import Network

_log = logging.getLogger(__name__)

# Measured with ResNet-18 (docs/LOG.md).
_MAX_SHARE = 0.65  # of the FLOPs that have a non-zero weight; above it, dense products are as fast
_MIN_FLOPS = 1e11  # of all dense products; below it, tracing takes longer than it saves

_failures: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # why models cannot be traced; trying takes long


def faster_model(
    model: nn.Module, shape: tuple[int, int, int], images: int, precision: str = "float32", layers: bool = False
) -> nn.Module:
    """A model for `read` that computes the same as another one, up to rounding, in less time; or the model itself.

    Sparse networks on a CPU are computed by moon-runtime, if it is installed and there is enough to compute. If it is
    missing or does not support the network, this is logged once. It takes about a second, most of it for tracing. The
    new model has the same classifier and the present weights, without gradients. float16 is faster on CPUs that support
    it, and less exact; it raises a ValueError if moon-runtime cannot compute the network.
    """
    if isinstance(model, _RuntimeModel):
        assert model.precision == precision
        return model
    is_half = precision == "float16"
    reason = _reason_for_torch(model, shape, math.inf if is_half else images)
    if reason is None:
        try:
            return _RuntimeModel(model, *_network(model, shape, precision, layers), precision)
        except ValueError as error:
            reason = str(error)
            if not is_half:
                _tell(f"{type(model).__name__} is evaluated with dense products, which is slower: {reason}")
    if is_half:
        raise ValueError(f"the network cannot run in float16: {reason}")
    return model


class _RuntimeModel(nn.Module):
    """The features from moon-runtime, and the classifier of the model."""

    def __init__(self, model: nn.Module, network: Network, layer_sizes: tuple[int, ...], precision: str) -> None:
        super().__init__()
        self.model, self.precision = model, precision
        self._network, self._layer_sizes = network, layer_sizes
        self._name = classifier_name(model)

    def get_classifier(self) -> nn.Module:
        """The classifier, for `moon.evidence.classifier_name`."""
        return self.model.get_submodule(self._name)

    def forward(self, x: Tensor) -> Tensor:
        classifier = self.get_classifier()
        found = torch.from_numpy(self._network(x.detach().numpy())["features"])
        layers = sum(self._layer_sizes)
        features, summary = found.split([found.shape[1] - layers, layers], 1)
        self.last_layers = summary, self._layer_sizes  # for `LayerRecording`
        return classifier(features.contiguous())


def _reason_for_torch(model: nn.Module, shape: tuple[int, int, int], images: float) -> str | None:
    """Why PyTorch should compute a network, or None."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return "it is not on a CPU"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "its layers have hooks"
    try:
        densities = {name: int(w.count_nonzero()) / w.numel() for name, w in sparse_weights(model).items()}
        cost = net_cost(layer_costs(model, shape, densities))
    except Exception as error:  # code of the user that fails on the meta device may raise anything
        return f"its FLOPs cannot be counted ({error})"
    if cost.sparse > _MAX_SHARE * cost.dense:
        return "it is not sparse"
    return "there is too little to compute" if images * cost.dense < _MIN_FLOPS else None


def _network(
    model: nn.Module, shape: tuple[int, int, int], precision: str, layers: bool
) -> tuple[Network, tuple[int, ...]]:
    """The network in moon-runtime, and the sizes of its layers; a ValueError says why that is impossible."""
    try:
        kind = runtime().Network
    except MissingPackage as error:
        raise ValueError(str(error)) from None
    if model in _failures:
        raise ValueError(_failures[model])
    try:
        with evaluation_mode(model):
            graph = checked_graph(model, shape, layers)
    except ValueError as error:
        _failures[model] = str(error)
        raise
    network = kind(network_bytes(graph), threads=torch.get_num_threads(), precision=precision)
    return network, graph.layer_sizes


@cache
def _tell(message: str) -> None:
    """Log a message, once."""
    _log.info(message)
