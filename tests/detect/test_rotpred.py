import math

import pytest
import torch
from torch import nn

from moon import Evidence, RotPredScore, Scaled, auroc, open_head, read, rotation_head


def test_formula_by_hand():
    # p = (3/4, 1/4): KL(uniform || p) = 1/2 log(1/2 / (3/4)) + 1/2 log(1/2 / (1/4)) = 1/2 log(4/3).
    # The right rotations have the probabilities 1/2, 1/4, 1/4 and 1/8.
    right = torch.tensor([1 / 2, 1 / 4, 1 / 4, 1 / 8])
    q = ((1 - right) / 3)[:, None].expand(4, 4).clone()
    q.fill_diagonal_(0).add_(right.diag())
    evidence = Evidence(torch.tensor([[0.75, 0.25]]).log(), torch.zeros(1, 5), 2, rotations=q.log()[None])
    divergence, loss = 0.5 * math.log(4 / 3), math.log(2 * 4 * 4 * 8) / 4
    assert RotPredScore().score(evidence).item() == pytest.approx(divergence - loss)
    assert RotPredScore(rotation_weight=0.1).score(evidence).item() == pytest.approx(divergence - 0.1 * loss, abs=1e-6)


def test_each_row_is_a_number_of_turns():
    # Rows are the turns of the image, columns the outputs of the head, here one that always says "one turn".
    always = torch.zeros(1, 4, 4)
    always[:, :, 1] = 50.0
    evidence = Evidence(torch.zeros(1, 2), torch.zeros(1, 5), 2, rotations=always)
    assert RotPredScore().score(evidence).item() == pytest.approx(-50 * 3 / 4)


def test_the_unknown_output_is_not_used(evidence):
    opened = evidence(20)
    closed = Evidence(opened.known_logits, opened.features, 3, rotations=opened.rotations)
    assert torch.equal(RotPredScore().score(opened), RotPredScore().score(closed))


def test_the_temperature_scales_the_class_part_only(evidence):
    validation, query = evidence(60), evidence(20, seed=1)
    detector = Scaled(RotPredScore()).fit(validation)
    assert detector.rotates
    assert detector.reading == {"rotate": True}
    known = query.known_logits / detector.temperature
    expected = -known.log_softmax(1).mean(1) - math.log(3)
    expected = expected + query.rotations.log_softmax(2).diagonal(dim1=1, dim2=2).mean(1)
    torch.testing.assert_close(detector.score(query), expected)


def test_images_whose_rotation_is_not_recognised_are_less_known():
    # A trained head that recognises which corner is bright, and images without a bright corner.
    torch.manual_seed(0)
    model = rotation_head(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].rotation.weight.zero_()
        for turns in range(4):
            corner = torch.zeros(1, 1, 4, 4)
            corner[..., :2, :2] = 1
            model[1].rotation.weight[turns] = corner.rot90(turns, (2, 3)).flatten()
    known = 0.1 * torch.randn(20, 1, 4, 4)
    known[..., :2, :2] += 4
    unknown = 0.1 * torch.randn(20, 1, 4, 4) + 1
    scores = [RotPredScore().score(read(model, x.split(7), rotate=True)) for x in (known, unknown)]
    assert auroc(*scores) == 1.0


def test_what_is_missing_is_named(evidence, small_net):
    plain = Evidence(torch.zeros(2, 3), torch.zeros(2, 5), 3)
    with pytest.raises(ValueError, match=r"read\(model, loader, rotate=True\)"):
        RotPredScore().score(plain)
    with pytest.raises(ValueError, match="Sequential has no rotation head"):
        read(open_head(small_net()), [torch.zeros(2, 1, 8, 8)], rotate=True)
    with pytest.raises(ValueError, match="rotation_weight must be at least 0"):
        RotPredScore(rotation_weight=-1.0)
