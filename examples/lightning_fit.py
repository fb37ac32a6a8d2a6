"""MOON and RigL in Lightning. The lines that differ from ordinary Lightning are marked with `# moon`."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from moon import AutoWeight, DataSet, Moon, lenet, open_head, open_set, read
from moon.integrations.lightning import Sparse


class Classifier(L.LightningModule):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.net = open_head(lenet(num_classes=10, norm=True))  # moon: K+1 outputs
        self.objective = Moon(AutoWeight(epochs=epochs, quiet_epochs=1))  # moon

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return self.objective(self.net, x, y, epoch=self.current_epoch)  # moon: instead of cross-entropy

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader(name: str, split: str, shuffle: bool = False) -> DataLoader:
    data = open_set("data", name, split)  # the extra "demo" installs these sets
    assert isinstance(data, DataSet)
    x = torch.from_numpy(data.images).permute(0, 3, 1, 2) / 255
    return DataLoader(TensorDataset(x, torch.from_numpy(data.labels)), batch_size=64, shuffle=shuffle)


def main(epochs: int = 4) -> None:
    L.seed_everything(0, verbose=False)
    module = Classifier(epochs)
    sparse = Sparse("rigl", sparsity=0.95, network="net")  # moon: masks, vote, BatchNorm
    trainer = L.Trainer(
        max_epochs=epochs, callbacks=[sparse], gradient_clip_val=1.0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader("digits", "train", shuffle=True))  # the weights are the average of the last epochs
    print(f"sparsity {1 - trainer.callback_metrics['density']:.1%}")

    known, letters = read(module.net, loader("digits", "test")), read(module.net, loader("letters", "test"))
    print(f"accuracy {(known.prediction == known.labels).float().mean():.1%}")
    print(f"confidence on digits {known.confidence.mean():.2f}, on letters {letters.confidence.mean():.2f}")


if __name__ == "__main__":
    main()
