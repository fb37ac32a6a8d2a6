"""A fitted detector as plain data: a program of operations on vectors, for programs without PyTorch.

`detector.score` is traced with `torch.export`, so that its formula is written once.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.export import default_decompositions, export

from moon.detect import Detector
from moon.evidence import Evidence
from moon.export.vector_program import Program
from moon.export.vectors import IMAGES, program_of
from moon.suggest import first_line


def trace_detector(detector: Detector, evidence: Evidence) -> Program:
    """Trace the score of a fitted detector: for every image the program computes what `detector.score` does.

    `evidence` may be that of any images: it shows the shapes and contains the classifier. Raises a ValueError that says
    why if the detector changes or rotates its inputs, is not fitted, or computes something that is not supported.
    """
    check_single_pass(detector)
    name = type(detector).__name__
    detector.score(evidence)  # says so if it is not fitted
    head = None if evidence.head is None else (evidence.head[0].detach().cpu(), evidence.head[1].detach().cpu())

    width, sizes = evidence.features.shape[1], evidence.layer_sizes if detector.layered else ()

    class Score(nn.Module):
        def forward(self, logits: Tensor, features: Tensor) -> Tensor:
            features, layers = features.split([width, sum(sizes)], 1) if sizes else (features, None)
            return detector.score(Evidence(logits, features, evidence.num_known, None, head, None, layers, sizes))

    inputs = (
        torch.zeros(IMAGES, evidence.logits.shape[1], dtype=evidence.logits.dtype),
        torch.zeros(IMAGES, width + sum(sizes), dtype=evidence.features.dtype),
    )
    decompositions = default_decompositions()
    decompositions.pop(torch.ops.aten.logsumexp.default, None)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.", FutureWarning)  # torch warns of itself
            exported = export(Score(), inputs).run_decompositions(decompositions)
    except Exception as error:  # the detector's own code may raise anything
        raise ValueError(f"the score of {name} cannot be traced ({first_line(error)})") from error
    return program_of(exported, name)


def check_single_pass(detector: Detector) -> None:
    """Raise a ValueError if a detector changes or rotates its inputs (ODIN, RotPred). It need not be fitted."""
    if detector.perturbs:
        raise ValueError(
            f"{type(detector).__name__} changes each image by the gradient of the network, which only PyTorch "
            "computes; choose another detector, such as tempscale (ODIN without this change)"
        )
    if detector.rotates:
        name = "Fisher with rotpred" if detector.parts else type(getattr(detector, "inner", detector)).__name__
        raise ValueError(
            f"{name} runs the network on four rotations of each image, but a packed or exported network runs once; "
            "choose another detector, such as msp or ebo"
        )
