"""`moon.integrations.pytorch_ood`: their detectors on our evidence, ours in their interface."""

import pytest
import torch
from torch import nn

from moon import Energy, Knn, Msp, Odin, auroc, open_head, read
from moon.detect import Scaled, Vim
from moon.integrations.pytorch_ood import FromPytorchOod, to_pytorch_ood

pytest.importorskip("pytorch_ood", minversion="0.4")
from pytorch_ood.api import Detector as TheirDetector, RequiresFittingException
from pytorch_ood.detector import (
    KNN,
    ODIN,
    EnergyBased,
    KLMatching,
    Mahalanobis,
    MaxSoftmax,
    ReAct,
)
from pytorch_ood.metrics import OODMetrics


def net(is_open: bool = False) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5))
    return open_head(model) if is_open else model


def batches(count: int = 3, seed: int = 2) -> list:
    torch.manual_seed(seed)
    return [(torch.randn(40, 1, 4, 4), torch.arange(40) % 5) for _ in range(count)]


def test_their_logit_detectors_give_our_scores_with_our_sign(make_evidence):
    evidence = make_evidence()
    torch.testing.assert_close(FromPytorchOod(MaxSoftmax(None)).score(evidence), Msp().score(evidence))
    torch.testing.assert_close(FromPytorchOod(EnergyBased(None)).score(evidence), Energy().score(evidence))
    assert FromPytorchOod(EnergyBased(None)).fits_on == "nothing"


def test_the_unknown_output_is_left_out_unless_all_outputs_are_asked_for(make_evidence):
    evidence = make_evidence(is_open=True)
    known = FromPytorchOod(EnergyBased(None)).score(evidence)
    torch.testing.assert_close(known, evidence.known_logits.logsumexp(1))
    every = FromPytorchOod(EnergyBased(None), outputs="all").score(evidence)
    torch.testing.assert_close(every, evidence.logits.logsumexp(1))


def test_their_feature_detectors_are_fitted_on_our_evidence(make_evidence):
    known, query = make_evidence(), make_evidence(seed=1)
    theirs = FromPytorchOod(KNN(None, k=10))
    with pytest.raises(ValueError, match="KNN is not fitted"):
        theirs.score(query)
    assert theirs.fits_on_splits == ("train",)
    score = theirs.fit(known).score(query)
    ours = Knn(k=10).fit(known).score(query)  # theirs is the distance, ours the squared one
    torch.testing.assert_close(-score.square(), ours.to(score), rtol=1e-4, atol=1e-4)
    far = make_evidence(seed=3)
    far.features.mul_(-3)
    theirs = FromPytorchOod(Mahalanobis(None)).fit(known)
    assert auroc(theirs.score(query), theirs.score(far)) > 0.9


def test_their_feature_map_detectors_take_our_features_as_maps_of_one_pixel(make_evidence):
    evidence = make_evidence()
    weight, bias = evidence.head
    theirs = ReAct(lambda x: x, lambda maps: maps.flatten(1) @ weight.T + bias, threshold=1.0)
    expected = (evidence.features.clamp(max=1.0) @ weight.T + bias).logsumexp(1)
    torch.testing.assert_close(FromPytorchOod(theirs).score(evidence), expected)


def test_what_cannot_be_adapted_is_refused(make_evidence):
    with pytest.raises(ValueError, match="ODIN of pytorch-ood needs images, not evidence"):
        FromPytorchOod(ODIN(net()))
    with pytest.raises(ValueError, match="expected a detector from pytorch-ood"):
        FromPytorchOod(Msp())
    with pytest.raises(ValueError, match="outputs must be known or all"):
        FromPytorchOod(MaxSoftmax(None), outputs="both")
    evidence = make_evidence()
    unlabelled = type(evidence)(evidence.logits, evidence.features, evidence.num_known)
    with pytest.raises(ValueError, match="KLMatching needs labels"):
        FromPytorchOod(KLMatching(None)).fit(unlabelled)


@pytest.mark.parametrize("is_open", [False, True])
def test_our_detectors_have_their_interface_and_sign(is_open):
    model, loader = net(is_open), batches()
    theirs = to_pytorch_ood(Energy(), model)
    assert isinstance(theirs, TheirDetector)
    assert not theirs.requires_fit
    x = loader[0][0]
    model.train()  # dropout must not matter
    torch.testing.assert_close(theirs(x), -Energy().score(read(model, [x])))
    assert model.training
    metrics = OODMetrics()
    metrics.update(theirs(x), torch.zeros(len(x)))
    metrics.update(theirs(x) + 100, -torch.ones(len(x)))  # unknown: higher, label -1
    assert metrics.compute()["AUROC"] == 1


def test_our_detectors_are_fitted_by_their_loaders_without_unknown_inputs():
    model, loader = net(), batches()
    theirs = to_pytorch_ood(Knn(k=5), model)
    assert theirs.requires_fit
    with pytest.raises(RequiresFittingException):
        theirs.predict(loader[0][0])
    unknown = (torch.full((7, 1, 4, 4), 50.0), -torch.ones(7, dtype=torch.int64))
    theirs.fit([*loader, unknown])
    expected = Knn(k=5).fit(read(model, loader)).score(read(model, [unknown[0]]))
    torch.testing.assert_close(theirs.predict(unknown[0]), -expected)
    with pytest.raises(ValueError, match=r"Knn is fitted on train: give 1 loader\(s\)"):
        theirs.fit(loader, loader)


@pytest.mark.parametrize(("inner", "splits"), [(Energy, "validation"), (Vim, "train and validation")])
def test_a_detector_at_the_fitted_temperature_is_fitted(inner, splits):
    model, loader, validation = net(), batches(), batches(seed=3)
    loaders = [loader, validation][-len(splits.split(" and ")) :]
    theirs = to_pytorch_ood(Scaled(inner()), model)
    assert theirs.requires_fit
    with pytest.raises(RequiresFittingException):
        theirs.predict(loader[0][0])
    with pytest.raises(ValueError, match=rf"Scaled is fitted on {splits}: give {len(loaders)} loader\(s\)"):
        theirs.fit(*loaders, *loaders) if len(loaders) == 1 else theirs.fit(loader)
    theirs.fit(*loaders)
    ours = Scaled(inner()).fit(*(read(model, each) for each in loaders))
    torch.testing.assert_close(theirs.predict(loader[0][0]), -ours.score(read(model, [loader[0][0]])))


def test_a_detector_that_perturbs_does_so_in_predict():
    model, x = net(), batches()[0][0]
    odin = Odin(epsilon=0.1)
    assert not torch.equal(odin.perturb(model.eval(), x), x)
    expected = odin.score(read(model, [x], odin.perturb))
    torch.testing.assert_close(to_pytorch_ood(odin, model).predict(x), -expected)
