"""A small DistilBERT of Hugging Face, trained sparse, that says which package a sentence is about, or "unknown".

The texts are real and on every machine: sentences from the docstrings of Python's standard library. Known classes are
some packages, unknown texts come from others. Needs the extra hf; nothing is downloaded.
"""

import argparse
import ast
import re
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

from moon import Knn, open_head
from moon.integrations.huggingface import Examples, MoonTrainer, OpenClassifier, SparseCallback

KNOWN = {
    "mail": ["email", "mailbox", "smtplib", "imaplib", "poplib"],
    "numbers": ["decimal", "_pydecimal", "fractions", "statistics", "random", "datetime", "_pydatetime", "calendar"],
    "processes": ["asyncio", "multiprocessing", "concurrent", "threading", "subprocess"],
    "testing": ["unittest", "doctest", "pdb", "bdb", "trace"],
}
UNKNOWN = ["turtle", "tkinter", "idlelib", "xml", "http", "urllib", "sqlite3", "zipfile", "tarfile", "curses"]
LENGTH = 24  # words


def sentences(modules: list[str]) -> list[str]:
    """The distinct sentences of six words or more in the docstrings of some modules."""
    library, found = Path(sysconfig.get_path("stdlib")), dict[str, None]()
    for name in modules:
        folder = library / name
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [library / f"{name}.py"]:
            if not path.is_file() or "test" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = re.sub(r"^\s*(>>>|\.\.\.).*$", "", ast.get_docstring(node) or "", flags=re.MULTILINE)
                    parts = [part.split() for part in re.split(r"(?<=[.:])\s+|\n\n", text) if "|" not in part]
                    found |= dict.fromkeys(" ".join(words) for words in parts if len(words) >= 6)
    return list(found)


def split() -> dict[str, list[tuple[str, int]]]:
    """Texts with their classes, for training, calibration and testing."""
    order, parts = np.random.default_rng(0), {"train": [], "calibration": [], "test": []}
    for label, modules in enumerate(KNOWN.values()):
        texts = [(text, label) for text in sentences(modules)]
        order.shuffle(texts)
        first, second = int(0.7 * len(texts)), int(0.85 * len(texts))
        for name, part in zip(parts, (texts[:first], texts[first:second], texts[second:]), strict=True):
            parts[name] += part
    unknown = [(text, -1) for text in sentences(UNKNOWN)]
    order.shuffle(unknown)
    return parts | {"unknown": unknown[:500]}


def word_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, made from the training texts."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]"]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(min_frequency=2, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", model_max_length=LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def main(folder: str, epochs: int = 4) -> None:
    torch.manual_seed(0)
    texts = split()
    tokenizer = word_tokenizer([text for text, _ in texts["train"]])
    data = {
        name: [{**tokenizer(text, truncation=True), "labels": label} for text, label in part]
        for name, part in texts.items()
    }
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=48, n_layers=2, n_heads=4, hidden_dim=96, max_position_embeddings=LENGTH,
        initializer_range=0.1,  # the default, 0.02, is too small for sparse layers
        id2label=dict(enumerate(KNOWN)),
    )  # fmt: skip
    model = DistilBertForSequenceClassification(config)
    open_head(model)  # one more output and label: "unknown"
    arguments = TrainingArguments(
        output_dir=f"{folder}/training", num_train_epochs=epochs, per_device_train_batch_size=64, learning_rate=4e-3,
        warmup_steps=20, save_strategy="no", logging_strategy="epoch", report_to=[], disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = MoonTrainer(
        model,
        arguments,
        train_dataset=data["train"],
        processing_class=tokenizer,
        objective="moon",
        objective_options={"quiet_epochs": 1},
        callbacks=[SparseCallback("rigl", sparsity=0.8, delta_t=10)],
    )
    trainer.train()  # the weights are now the average of the last epochs

    collate = DataCollatorWithPadding(tokenizer)
    sets: dict[str, Any] = data
    loaders = {name: DataLoader(part, 128, collate_fn=collate) for name, part in sets.items()}
    classifier = OpenClassifier.fit(
        model, Knn(k=10), loaders["calibration"], loaders["train"], accept=0.9, processor=tokenizer
    )
    metrics = classifier.evaluate(loaders["test"], {"other modules": loaders["unknown"]})
    print(f"{len(texts['train'])} texts, sparsity {classifier.sparsity:.1%}, accuracy {metrics['accuracy']:.1%}")
    for name, values in metrics["unknown"].items():
        print(f"known texts and unknown ones of {name}: AUROC {values['auroc']:.3f}")

    known, unknown = texts["test"][:: len(texts["test"]) // 5][:5], texts["unknown"][:5]
    shown = [
        Examples("known", [text for text, _ in known], [list(KNOWN)[label] for _, label in known]),
        Examples("other modules", [text for text, _ in unknown], ["unknown"] * len(unknown)),
    ]
    classifier.save_pretrained(f"{folder}/docstrings", name="docstrings", examples=shown)
    loaded = OpenClassifier.from_pretrained(f"{folder}/docstrings")
    for text in ("Send a message to the SMTP server.", "Draw a circle with the turtle's pen."):
        print(f"{text} -> {loaded([text]).labels[0]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to save the classifier; default: a temporary folder")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    if given.folder:
        main(given.folder, given.epochs)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary, given.epochs)
