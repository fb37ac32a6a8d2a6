"""MOON and RigL in your own training loop. The lines that differ from ordinary PyTorch are marked with `# moon`."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from moon import AutoWeight, DataSet, DropSchedule, Moon, RigL, WeightVote, lenet, open_head, open_set, read


def loader(name: str, split: str, shuffle: bool = False) -> DataLoader:
    data = open_set("data", name, split)  # the extra "demo" installs these sets
    assert isinstance(data, DataSet)  # in memory; large benchmarks are streamed from disk
    x = torch.from_numpy(data.images).permute(0, 3, 1, 2) / 255
    return DataLoader(TensorDataset(x, torch.from_numpy(data.labels)), batch_size=64, shuffle=shuffle)


def main(epochs: int = 10) -> None:
    torch.manual_seed(0)
    train = loader("digits", "train", shuffle=True)
    model = open_head(lenet(num_classes=10, norm=True))  # moon: K+1 outputs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    objective = Moon(AutoWeight(epochs=epochs, quiet_epochs=1))  # moon
    topology = RigL(  # moon: 95% of the weights are zero from here on
        model, optimizer, sparsity=0.95, schedule=DropSchedule(t_end=int(0.7 * epochs * len(train)), delta_t=20)
    )
    vote = WeightVote(model, topology=topology)  # moon
    for epoch in range(epochs):
        loss = torch.tensor(0.0)
        for x, y in train:
            optimizer.zero_grad()
            loss = objective(model, x, y, epoch=epoch)  # moon: instead of cross-entropy
            loss.backward()
            topology.step()  # moon: instead of optimizer.step()
        if epoch >= 0.8 * epochs:
            vote.cast(model)  # moon
        print(f"epoch {epoch}: loss {loss.item():.3f}, sparsity {1 - topology.density():.1%}")
    model = vote.elect(train)  # moon

    known, letters = read(model, loader("digits", "test")), read(model, loader("letters", "test"))
    print(f"accuracy {(known.prediction == known.labels).float().mean():.1%}")
    print(f"confidence on digits {known.confidence.mean():.2f}, on letters {letters.confidence.mean():.2f}")


if __name__ == "__main__":
    main()
