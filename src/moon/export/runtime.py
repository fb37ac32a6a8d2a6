"""The package moon-runtime, which runs networks as plain data. It is a separate distribution and may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moon.errors import MissingPackage

if TYPE_CHECKING:
    from torch import nn

    from moon.export.graph import Graph

_IMAGES, _TOLERANCE = 4, 1e-3  # images to compare on; the largest difference, relative to the largest logit


def runtime() -> Any:
    """Import moon_runtime. Raises MissingPackage if it is not installed, or was compiled for another machine."""
    try:
        import moon_runtime
    except ModuleNotFoundError as error:
        if error.name != "moon_runtime":
            raise
        how = "pip install moon-runtime, or pip install ./runtime in moon's repository"
        raise MissingPackage(f"moon-runtime is not installed ({how})", name="moon_runtime") from None
    except (ImportError, OSError) as error:
        raise MissingPackage(f"moon-runtime cannot be loaded ({error})", name="moon_runtime") from error
    return moon_runtime


def checked_graph(model: nn.Module, shape: tuple[int, ...], layers: bool = False) -> Graph:
    """Trace a network, and check that moon-runtime computes the same logits as PyTorch, on random images.

    With `layers` the statistics of inner layers are compared, too.

    The network is in evaluation mode, on a CPU. Raises a ValueError if it cannot be traced, its output is not that of
    its classifier, or the logits differ; MissingPackage if moon-runtime is not installed.
    """
    import torch

    from moon.evidence import classifier_name, read
    from moon.export.file import network_bytes
    from moon.export.tracing import trace

    graph, name = trace(model, shape, layers), classifier_name(model)
    made = next(op["weight"] for op in graph.ops if op["out"] == graph.logits)
    if made != f"{name}.weight".lstrip("."):  # the name is empty if the model itself is the classifier
        raise ValueError(f"its output is that of '{made.removesuffix('.weight')}', not of its classifier '{name}'")
    network = runtime().Network(network_bytes(graph), limit=float("inf"))
    images = torch.randn(_IMAGES, *shape, generator=torch.Generator().manual_seed(0))
    evidence, found = read(model, images, layers=layers), network(images.numpy())
    pairs = {"logits": (evidence.logits, torch.from_numpy(found["logits"]))}
    if evidence.layers is not None and evidence.layer_sizes:
        width = evidence.features.shape[1]
        pairs["statistics of layers"] = evidence.layers, torch.from_numpy(found["features"])[:, width:]
    for what, (expected, actual) in pairs.items():
        largest, fits = float(expected.abs().max()), actual.shape == expected.shape
        difference = float((actual - expected).abs().max()) if fits else float("inf")
        if not difference <= _TOLERANCE * max(1.0, largest):
            raise ValueError(
                f"moon-runtime and PyTorch compute different {what} (a difference of {difference:.2g} on random "
                "images); please report this network"
            )
    return graph
