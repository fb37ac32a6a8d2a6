"""A small Vision Transformer of Hugging Face, trained sparse on digits, that answers "unknown" to other images.

Needs the extras hf and demo. Nothing is downloaded: the model has random weights at first, the images are embedded.
"""

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from moon import DataSet, Knn, open_head, open_set
from moon.integrations.huggingface import Examples, MoonTrainer, OpenClassifier, SparseCallback

processor = ViTImageProcessorPil(do_resize=False, image_mean=[0.5], image_std=[0.5])


def images(name: str, split: str) -> DataSet:
    data = open_set("data", name, split)
    assert isinstance(data, DataSet)
    return data


def dataset(name: str, split: str) -> list[dict[str, torch.Tensor]]:
    data = images(name, split)
    x = processor(list(data.images), return_tensors="pt")["pixel_values"]
    return [{"pixel_values": a, "labels": b} for a, b in zip(x, torch.from_numpy(data.labels), strict=True)]


def loader(data: Any) -> DataLoader:
    return DataLoader(data, batch_size=250)


def main(folder: str, epochs: int = 10) -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=28, patch_size=7, num_channels=1, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, initializer_range=0.1,  # the default, 0.02, is too small for sparse layers
        id2label={index: f"digit {index}" for index in range(10)},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    open_head(model)  # one more output and label: "unknown"
    arguments = TrainingArguments(
        output_dir=f"{folder}/training", num_train_epochs=epochs, per_device_train_batch_size=64, learning_rate=4e-3,
        warmup_steps=30, save_strategy="no", logging_strategy="epoch", report_to=[], disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    train = dataset("digits", "train")
    trainer = MoonTrainer(
        model,
        arguments,
        train_dataset=train,
        objective="moon",
        objective_options={"quiet_epochs": 1},
        callbacks=[SparseCallback("rigl", sparsity=0.8, delta_t=20)],
    )
    trainer.train()  # the weights are now the average of the last epochs

    loaders = {name: loader(dataset(name, "test")) for name in ("digits", "letters", "textures")}
    calibration = loader(dataset("digits", "val"))
    classifier = OpenClassifier.fit(model, Knn(k=10), calibration, loader(train), processor=processor)
    metrics = classifier.evaluate(loaders["digits"], {name: loaders[name] for name in ("letters", "textures")})
    print(f"sparsity {classifier.sparsity:.1%}, accuracy {metrics['accuracy']:.1%}")
    for name, values in metrics["unknown"].items():
        print(f"known digits and unknown {name}: AUROC {values['auroc']:.3f}")

    shown = [examples("digits", "digits that were not trained on"), examples("letters", "letters"),
             examples("textures", "textures")]  # fmt: skip
    classifier.save_pretrained(f"{folder}/digits", name="digits", examples=shown)
    loaded = OpenClassifier.from_pretrained(f"{folder}/digits")
    for name in ("digits", "textures"):
        print(f"{name}: {', '.join(loaded(images(name, 'test').images[::125]).labels)}")


def examples(name: str, heading: str) -> Examples:
    data = images(name, "test")
    index = np.linspace(0, len(data.labels) - 1, 10).astype(int)
    labels = [f"digit {label}" if label >= 0 else "unknown" for label in data.labels[index]]
    return Examples(heading, data.images[index], labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to save the classifier; default: a temporary folder")
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    if given.folder:
        main(given.folder, given.epochs)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary, given.epochs)
