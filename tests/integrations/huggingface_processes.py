"""Trains a model in several processes; run by test_huggingface.py with torchrun."""

import sys
from pathlib import Path

import torch
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification

from moon import open_head
from moon.integrations.huggingface import MoonTrainer, SparseCallback

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **small))
    x = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    data = [{"pixel_values": image, "labels": index % 3} for index, image in enumerate(x)]
    trainer = MoonTrainer(
        open_head(model),
        TrainingArguments(
            str(folder), num_train_epochs=4, per_device_train_batch_size=3, learning_rate=1e-2, report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        ),
        train_dataset=data,
        objective="moon",
        objective_options={"quiet_epochs": 1},
        callbacks=[SparseCallback("rigl", 0.5, delta_t=2, t_end_share=0.5, vote_share=0.5)],
    )  # fmt: skip
    trainer.train()
    saved = {
        "weights": trainer.model.state_dict(),
        "masks": trainer.sparse.topology.masks,
        "beta": trainer.objective.weight.beta,
        "processes": trainer.args.world_size,
        "steps": trainer.state.global_step,
    }
    torch.save(saved, folder / f"{trainer.args.process_index}.pt")
