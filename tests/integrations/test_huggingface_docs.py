"""The code of docs/huggingface.md runs, from top to bottom."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")
from torch.utils.data import DataLoader
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification, ViTImageProcessorPil

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quiet = {"disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "save_strategy": "no"}
    monkeypatch.setattr(
        "transformers.TrainingArguments", lambda *args, **more: TrainingArguments(*args, **more | quiet)
    )
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **small)
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
    processor = ViTImageProcessorPil(do_resize=False, image_mean=[0.5], image_std=[0.5])
    x = processor(list(images), return_tensors="pt")["pixel_values"]
    data = [{"pixel_values": a, "labels": index % 3} for index, a in enumerate(x)]
    names = {
        "model": ViTForImageClassification(config), "train_dataset": data, "images": images[:4], "processor": processor,
        "labels": ["LABEL_0", "LABEL_1", "LABEL_2", "LABEL_0"],
    }  # fmt: skip
    names |= {f"{name}_loader": DataLoader(data, 20) for name in ("train", "test", "unknown", "calibration")}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(block, names)
    assert capsys.readouterr().out.splitlines()[-1] == "unknown"
    assert names["loaded"](images).labels == names["classifier"](images).labels
    assert names["trainer"].sparse.training.vote.voters == 2
    assert names["classifier"].sparsity == pytest.approx(0.8, abs=0.02)
