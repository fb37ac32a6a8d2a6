"""Compact banks: fewer training images, in fewer directions, with almost the same scores."""

from dataclasses import replace

import pytest
import torch

from moon.deploy.bank import CompactKnn, features_kept, reduced, sample
from moon.detect import Energy, Fisher, Knn, NnGuide, Scaled, She
from moon.evidence import Evidence
from moon.evidence.disk import Rows


def evidence(images, seed=0, width=32, classes=4):
    """Features that are longest in a few directions, as those of a trained network are."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % classes
    features = 0.1 * torch.randn(images, width, generator=rng)
    features[:, :classes] += torch.nn.functional.one_hot(labels, classes) * 3
    features[:, classes : classes + 4] += torch.randn(images, 4, generator=rng)
    head = (torch.eye(classes, width), torch.zeros(classes))
    return Evidence((features @ head[0].T).double(), features, classes, labels, head)


def test_all_images_in_all_directions_are_knn():
    train, new = evidence(200), evidence(50, seed=1)
    expected = Knn(k=5).fit(train).score(new)
    assert torch.allclose(CompactKnn(k=5, bank=200, directions=32).fit(train).score(new), expected, atol=0.02)


def test_fewer_directions_keep_the_order():
    train, new = evidence(400), evidence(100, seed=1)
    new = Evidence.concatenate([new, Evidence(new.logits, new.features.roll(8, 1), 4, new.labels, new.head)])
    expected = Knn(k=20).fit(train).score(new)
    compact = CompactKnn(k=20, bank=200).fit(train)
    assert compact.projection.shape[1] < 32  # the others are short
    assert (compact.kept.shape[0], compact.rank) == (200, 10)
    found = compact.score(new)
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.99


def test_samples_have_the_same_share_of_each_class():
    train = evidence(400)
    labels = torch.tensor([0] * 200 + [1] * 100 + [2] * 60 + [3] * 40)
    train = Evidence(train.logits, train.features, 4, labels, train.head)
    index = sample(train, 40)
    assert labels[index].bincount().tolist() == [20, 10, 6, 4]
    assert (index.diff() > 0).all()
    assert torch.equal(index, sample(train, 40))
    unlabelled = sample(Evidence(train.logits, train.features, 4, None, train.head), 40)
    assert len(unlabelled) == 40
    assert (unlabelled.diff() > 0).all()
    assert unlabelled[-1] > 200  # not the first ones
    assert sample(train, 1000).tolist() == list(range(400))


def test_reduced_detectors():
    train, validation = evidence(400), evidence(80, seed=2)
    energy = Energy()
    assert reduced(energy, 100, 400) is energy
    knn = reduced(Knn(20), 100, 400).fit(train)
    assert (features_kept(knn), knn.rank) == (100, 5)
    fisher = reduced(Fisher(20), 100, 400).fit(train, validation)
    assert features_kept(fisher) == 100
    assert (
        torch.corrcoef(torch.stack([fisher.score(validation), Fisher(20).fit(train, validation).score(validation)]))[
            0, 1
        ]
        > 0.95
    )
    without = reduced(Fisher(parts=("msp", "fdbd")), 100, 400).fit(train, validation)
    assert features_kept(without) == 0
    guided = reduced(Fisher(parts=("msp", "nnguide"), scaled=True), 2, 400)
    assert isinstance(guided.parts["nnguide"], Scaled)
    assert guided.parts["nnguide"].inner.share == 2 / 400
    guide = reduced(Scaled(NnGuide(k=10, share=0.5)), 40, 400).fit(train, validation)
    assert features_kept(guide) == 40
    assert features_kept(reduced(NnGuide(k=10, share=0.01), 100, 400).fit(train)) == 10  # it keeps fewer by itself
    assert features_kept(She().fit(train)) == 0


def test_training_features_may_be_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("moon.evidence.disk._CHUNK", 1000)  # several chunks
    train, new = evidence(400), evidence(50, seed=1)
    rows = Rows(tmp_path)
    rows.add(train.features)
    expected, found = (CompactKnn(k=20, bank=200).fit(each) for each in (train, replace(train, features=rows.tensor())))
    assert torch.equal(found.score(new), expected.score(new))


def test_an_empty_bank_is_an_error():
    with pytest.raises(ValueError, match=r"at least one training image must be kept \(bank\), not 0"):
        reduced(Knn(), 0, 100)
    with pytest.raises(ValueError, match="needs 50 known features, found 20"):
        CompactKnn(50).fit(evidence(20))
    with pytest.raises(ValueError, match="not fitted"):
        CompactKnn().score(evidence(20))
