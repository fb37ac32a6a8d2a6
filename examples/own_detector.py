"""Write your own detector: a class with `score` and, if it learns from data, `fit`. A higher score means more known.

`moon.register` makes it available by name, for example to `moon.score_run`.
"""

from typing import Self

import torch
from torch import Tensor

from moon import Detector, Evidence, auroc, register


class NearestMean(Detector):
    """The negative distance to the nearest class mean in feature space."""

    fits_on = "train"

    def fit(self, evidence: Evidence) -> Self:
        assert evidence.labels is not None
        features, labels = evidence.features, evidence.labels
        self.means = torch.stack([features[labels == k].mean(0) for k in range(evidence.num_known)])
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return -torch.cdist(evidence.features, self.means).amin(1)


register("detector", "nearest-mean", NearestMean)


def main() -> None:
    # Evidence consists of plain tensors, so a detector can be tried without a model.
    torch.manual_seed(0)
    labels = torch.arange(300) % 3
    centres = torch.eye(3) * 5
    known = Evidence(torch.zeros(300, 3), centres[labels] + torch.randn(300, 3), 3, labels)
    unknown = Evidence(torch.zeros(300, 3), torch.randn(300, 3), 3)
    detector = NearestMean().fit(known)
    print(f"AUROC {auroc(detector.score(known), detector.score(unknown)):.3f}")


if __name__ == "__main__":
    main()
