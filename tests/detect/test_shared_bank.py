"""KNN, Fisher and NNGuide keep the features of the training inputs once, and score as if each had its own copy."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from moon import Evidence, Fisher, Knn, NnGuide, Scaled


def knn_alone(train, new, k):
    """KNN with a copy of its own."""
    bank, z = normalize(train.features), normalize(new.features)
    kth = (z @ bank.T).topk(k, sorted=True).indices[:, -1]
    return -(z - bank[kth]).square().sum(1)


def nnguide_alone(train, new, k, count):
    """NNGuide with a copy of its own."""
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:count]
    energy = train.known_logits[chosen].logsumexp(1, keepdim=True)
    bank = normalize(train.features[chosen]) * energy.to(train.features)
    return new.known_logits.logsumexp(1) * (normalize(new.features) @ bank.T).topk(k, dim=1).values.mean(1)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_there_is_one_bank(evidence):
    train, validation = evidence(300), evidence(80, seed=1)
    knn, fisher = Knn(5).fit(train), Fisher(5).fit(train, validation)
    guide, scaled = NnGuide(5, share=1.0).fit(train), Scaled(NnGuide(5, share=1.0)).fit(train, validation)
    banks = [knn.bank, fisher.parts["knn"].bank, guide.bank, scaled.inner.bank]
    assert len({address(bank) for bank in banks}) == 1
    assert address(knn.bank) != address(train.features)


def test_the_scores_are_those_of_separate_banks(evidence):
    train, validation, new = evidence(300), evidence(80, seed=1), evidence(60, seed=2)
    alone = Fisher(5).fit(replace(train, features=train.features.clone()), validation).score(new)
    fitted = Knn(5).fit(train), Fisher(5).fit(train, validation), NnGuide(5, share=0.1).fit(train)
    expected = knn_alone(train, new, 5), alone, nnguide_alone(train, new, 5, 30)
    for detector, scores in zip(fitted, expected, strict=True):
        assert torch.equal(detector.score(new), scores)
    all_of_them = NnGuide(5, share=1.0).fit(train).score(new)
    torch.testing.assert_close(all_of_them, nnguide_alone(train, new, 5, 300))  # in another order


def test_a_bank_that_was_changed_in_place_is_not_shared_any_more(evidence):
    train = evidence(300)
    changed = Knn(k=1).fit(train)
    changed.bank.zero_()
    assert Knn(k=1).fit(train).bank.abs().sum() > 0


def test_a_bank_lives_as_long_as_a_detector_that_uses_it(evidence):
    train = evidence(100)
    knn = Knn(5).fit(train)
    bank = weakref.ref(knn.bank)
    del knn
    gc.collect()
    assert bank() is None
    assert len(train.features) == 100


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_features_that_were_changed_in_place_get_a_new_bank(mode):
    with mode():
        z = torch.eye(3).repeat(2, 1)
        train = Evidence(z, z.clone(), num_known=3)
        before = Knn(1).fit(train)
        train.features.copy_(train.features.flip(1) + 1)
        assert torch.equal(Knn(1).fit(train).bank, normalize(train.features))
        assert torch.equal(before.bank, normalize(z))
