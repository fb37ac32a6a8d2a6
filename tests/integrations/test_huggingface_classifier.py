"""Hugging Face models with a detector and a threshold: evidence, answers, saved folders and model cards."""

import json
import re

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from moon import Detector, Energy, Knn, Msp, Odin, OpenHead, RotPredScore, Scaled, open_head, read
from moon.detect import DETECTORS
from moon.integrations.huggingface import Examples, OpenClassifier

CLASSES = ("cat", "dog", "owl")
WORDS = ["[PAD]", "[UNK]", "the", "a", "cat", "dog", "owl", "sat", "on", "mat", "ran", "flew", "far", "away"]


def vit(is_open=True):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    size = {"image_size": 8, "patch_size": 4, "num_channels": 1, "id2label": dict(enumerate(CLASSES))}
    model = ViTForImageClassification(ViTConfig(**small, **size, initializer_range=0.3)).eval()
    return open_head(model) if is_open else model


def bert(is_open=True):
    torch.manual_seed(0)
    small = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 8}
    labels = {"id2label": dict(enumerate(CLASSES))}
    config = DistilBertConfig(vocab_size=len(WORDS), **small, **labels, initializer_range=0.3)
    model = DistilBertForSequenceClassification(config).eval()
    x = tokenizer()(sentences(100, seed=5), padding=True, return_tensors="pt")
    with torch.no_grad():
        model.classifier.bias -= model(**x).logits.mean(0)  # so that it predicts every class
    return open_head(model) if is_open else model


def image_processor():
    return ViTImageProcessorPil(do_resize=False, image_mean=[0.5], image_std=[0.5])


def tokenizer():
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_input_names": ["input_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=8, **names)


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)


def sentences(count, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[2:], random.integers(2, 7))) for _ in range(count)]


KINDS = {
    "vit": (vit, image_processor, pixels, AutoModelForImageClassification),
    "bert": (bert, tokenizer, sentences, AutoModelForSequenceClassification),
}


def batches(kind, model, count=120, seed=1):
    """Inputs in batches, labelled by the model itself so that every class is predicted correctly somewhere."""
    _, processor, draw, _ = KINDS[kind]
    classifier = OpenClassifier(model, Msp(), None, np.zeros(1), processor())
    found = []
    for start in range(0, count, 40):
        x = dict(classifier.prepare(draw(40, seed=100 * seed + start)))
        found.append(x | {"labels": read(model, [x]).prediction})
    return found


def fitted(kind, detector=None, model=None, **settings):
    make, processor, _, _ = KINDS[kind]
    model = make() if model is None else model
    known = batches(kind, model)
    detector = Knn(k=5) if detector is None else detector
    return OpenClassifier.fit(model, detector, known, batches(kind, model, seed=2), processor=processor(), **settings)


SMALL = {"knn": {"k": 5}, "nnguide": {"k": 5}, "fisher": {"k": 5}, "vim": {"dim": 4}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_detectors_score_images_and_texts_and_are_restored(name, kind, tmp_path):
    if (name, kind) == ("odin", "bert"):
        with pytest.raises(ValueError, match="perturb changes one floating-point tensor"):
            fitted(kind, Odin())
        return
    if (name, kind) == ("layers", "bert"):
        with pytest.raises(ValueError, match="no convolutions"):
            fitted(kind, DETECTORS[name]())
        return
    if name == "rotpred":
        with pytest.raises(ValueError, match="needs a rotation head, which a saved model would not have"):
            fitted(kind, RotPredScore())
        return
    try:
        detector = DETECTORS[name](**SMALL.get(name, {}))
    except TypeError:
        detector = DETECTORS[name]()
    classifier = fitted(kind, detector)
    inputs = KINDS[kind][2](7, seed=9)
    answers = classifier(inputs)
    assert np.isfinite(answers.score).all()
    classifier.save_pretrained(tmp_path)
    loaded = OpenClassifier.from_pretrained(tmp_path)
    again = loaded(inputs)
    assert again.labels == answers.labels
    np.testing.assert_array_equal(again.score, answers.score)
    np.testing.assert_array_equal(again.p_value, answers.p_value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_saved_model_is_an_ordinary_one(kind, is_open, tmp_path):
    make, _, draw, auto = KINDS[kind]
    classifier = fitted(kind, model=make(is_open))
    x = classifier.prepare(draw(5, seed=3))
    logits = classifier.model(**x).logits
    classifier.save_pretrained(tmp_path)
    plain = auto.from_pretrained(tmp_path, local_files_only=True).eval()
    assert torch.equal(plain(**x).logits, logits)
    labels = [*CLASSES, "unknown"] if is_open else list(CLASSES)
    assert list(plain.config.id2label.values()) == labels
    assert read(plain, [x]).num_known == 3  # the unknown output is not taken for a class
    loaded = OpenClassifier.from_pretrained(tmp_path)
    assert torch.equal(loaded.model(**x).logits, logits)
    assert (loaded.classes, loaded.threshold) == (list(CLASSES), classifier.threshold)
    assert any(isinstance(module, OpenHead) for module in loaded.model.modules()) == is_open


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (LlamaForSequenceClassification, LlamaConfig),
        (Qwen2ForSequenceClassification, Qwen2Config),
        (GPT2ForSequenceClassification, GPT2Config),
    ],
)
def test_of_a_decoder_the_features_are_those_of_the_last_token_that_is_not_padding(make, config, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
    more = {} if config is GPT2Config else {"intermediate_size": 32, "num_key_value_heads": 2}
    model = make(config(vocab_size=20, id2label=dict(enumerate(CLASSES)), **sizes, **more)).eval()
    ids, lengths = torch.randint(1, 20, (3, 6)), torch.tensor([6, 4, 1])
    mask = (torch.arange(6) < lengths[:, None]).long()
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    found = read(open_head(model), [inputs])
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state
        assert torch.equal(found.logits, model(**inputs).logits)
    assert torch.equal(found.features, hidden[torch.arange(3), lengths - 1])
    torch.testing.assert_close(found.features @ model.score.weight.T, found.logits)
    classifier = OpenClassifier.fit(model, Energy(), [inputs] * 10, accept=0.8)
    classifier.save_pretrained(tmp_path)
    assert np.array_equal(OpenClassifier.from_pretrained(tmp_path)(inputs).score, classifier(inputs).score)


def test_answers_are_a_class_or_unknown():
    classifier = fitted("vit", accept=0.8)
    answers = classifier(pixels(200, seed=7))
    for label, name, score, p, known in zip(
        answers.labels, answers.classes, answers.score, answers.p_value, answers.is_known, strict=True
    ):
        assert known == (score >= classifier.threshold.value) == (p > 1 - 0.8)
        assert label == (name if known else "unknown")
    assert set(answers.classes) <= set(CLASSES)
    assert 0.6 < answers.is_known.mean() < 0.95
    assert len(answers) == 200
    tensors = classifier({"pixel_values": torch.zeros(2, 1, 8, 8)})
    assert tensors.labels[0] == tensors.labels[1]


def test_a_detector_of_validation_inputs_and_the_threshold_get_different_ones():
    model = vit()
    known = batches("vit", model)
    classifier = OpenClassifier.fit(model, Scaled(Energy()), known)
    assert classifier.threshold.images == 60
    assert OpenClassifier.fit(model, Energy(), known).threshold.images == 120


def test_scaled_detectors_are_restored(tmp_path):
    classifier = fitted("vit", Scaled(Energy()))
    classifier.save_pretrained(tmp_path)
    loaded = OpenClassifier.from_pretrained(tmp_path)
    np.testing.assert_array_equal(loaded(pixels(5)).score, classifier(pixels(5)).score)


def test_evaluate_measures_known_and_unknown_inputs():
    classifier = fitted("vit")
    known = batches("vit", classifier.model, seed=4)
    metrics = classifier.evaluate(known, {"white": [{"pixel_values": 9 * torch.ones(10, 1, 8, 8)}], "same": known})
    assert metrics["accuracy"] == 1.0
    assert metrics["accepted"] == pytest.approx(1 - metrics["unknown"]["same"]["rejected"])
    assert metrics["unknown"]["same"]["auroc"] == pytest.approx(0.5)
    assert metrics["unknown"]["white"]["inputs"] == 10
    with pytest.raises(ValueError, match="the known batches have no labels"):
        classifier.evaluate([{"pixel_values": torch.zeros(2, 1, 8, 8)}], {})


def test_the_record_has_sparsity_threshold_and_detector(tmp_path):
    model = vit()
    with torch.no_grad():
        model.vit.layers[0].mlp.fc1.weight[:24] = 0
    classifier = fitted("vit", model=model)
    classifier.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "moon.json").read_text())
    assert record["density_of_layers"]["vit.layers.0.mlp.fc1.weight"] == 0.25
    assert record["sparsity"] == pytest.approx(classifier.sparsity)
    assert record["nonzero_parameters"] == record["parameters"] - 24 * 16
    assert record["detector"] == {"name": "knn", "options": classifier.detector.options(), "is_scaled": False}
    assert record["threshold"]["value"] == classifier.threshold.value
    loaded = OpenClassifier.from_pretrained(tmp_path)
    assert not loaded.masks["vit.layers.0.mlp.fc1.weight"][:24].any()


def test_the_card_of_texts_has_a_table_and_its_code_runs(tmp_path, monkeypatch):
    classifier = fitted("bert")
    shown = [Examples("known", ["the cat | sat <on> the mat"], ["cat"]), Examples("other", ["a b c"], ["unknown"])]
    classifier.save_pretrained(tmp_path / "animals", examples=shown)
    card = (tmp_path / "animals" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    answer, p = classifier(shown[0].inputs).labels[0], classifier(shown[0].inputs).p_value[0]
    assert f"| known | the cat \\| sat &lt;on> the mat | cat | {answer} | {p:.3f} |" in card
    assert "| metrics | not measured |" in card
    monkeypatch.chdir(tmp_path)
    names = {"texts": ["the cat sat on the mat"]}
    for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        exec(block, names)
    assert names["answers"].labels == classifier(names["texts"]).labels
    assert names["model"].config.id2label[3] == "unknown"


def test_another_models_weights_are_refused(tmp_path):
    classifier = fitted("vit")
    classifier.save_pretrained(tmp_path)
    with torch.no_grad():
        classifier.model.classifier.weight += 1
    classifier.model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="detector and threshold belong to other weights"):
        OpenClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "moon.json").unlink(), r"moon\.json: no such file; OpenClassifier\.save_pretrained"),
        (lambda folder: (folder / "moon.json").write_text("{}"), "is damaged or of another version: format is None"),
        (lambda folder: (folder / "moon.json").write_text("{"), "is damaged or of another version"),
        (lambda folder: (folder / "moon.safetensors").unlink(), r"moon\.safetensors: is missing"),
        (lambda folder: (folder / "moon.safetensors").write_bytes(b"x"), "belong to other weights"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors: is missing"),
    ],
)
def test_damaged_folders_are_refused(change, message, tmp_path):
    fitted("vit").save_pretrained(tmp_path)
    change(tmp_path)
    with pytest.raises(ValueError, match=message):
        OpenClassifier.from_pretrained(tmp_path)


def test_a_changed_record_is_refused(tmp_path):
    fitted("vit").save_pretrained(tmp_path)
    record = json.loads((tmp_path / "moon.json").read_text())
    record["threshold"]["value"] -= 100
    (tmp_path / "moon.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="its content does not match its SHA-256"):
        OpenClassifier.from_pretrained(tmp_path)


def test_a_detector_needs_a_name_to_be_saved(tmp_path):
    class Margin(Detector):
        def score(self, evidence):
            return evidence.known.amax(1)

    with pytest.raises(ValueError, match=r"Margin has no name, which is needed to load it again; moon.register"):
        fitted("vit", Margin()).save_pretrained(tmp_path)
    assert not (tmp_path / "moon.json").exists()
