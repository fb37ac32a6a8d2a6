"""Two processes that train together have the same masks, and the same result as one process."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from moon.training.ranks import Ranks

SCRIPT = '''
import sys
from pathlib import Path
import torch
from torch import nn
from moon import AutoWeight, DropSchedule, Moon, RigL, SET, open_head
from moon.data import ImageList, StreamedBatches
from moon.training import CosineRate, Training
from moon.training.ranks import Ranks

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

class Noise:
    """Batches of 16, 16 and 9 that depend on the epoch only."""
    def __len__(self):
        return 3
    def epoch(self, epoch):
        generator = torch.Generator().manual_seed(epoch)
        for size in (16, 16, 9):
            y = torch.randint(4, (size,), generator=generator)
            x = torch.randn(size, 1, 8, 8, generator=generator)
            x[torch.arange(size), 0, 2 * y] += 3
            yield x, y

class Grey(StreamedBatches):
    """The images of a folder, in float64 and grey."""
    def epoch(self, epoch):
        for x, y in super().epoch(epoch):
            yield x.double().mean(1, keepdim=True), y

def train(kind, batches, where):
    torch.manual_seed(0)
    model = open_head(nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4),
    ))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    topology = kind(model, optimizer, 0.8, DropSchedule(14, 3))
    objective = Moon(AutoWeight(6, quiet_epochs=2)).double()
    losses = []
    training = Training(model, optimizer, objective, topology, CosineRate(0.1, 0.01), batches, epochs=6, vote_from=4,
                        seed=7, ranks=ranks)
    elected = training.run(on_epoch=lambda record: losses.append(record["loss"]))
    state = {f"weight {k}": v for k, v in elected.state_dict().items()}
    masks = {f"mask {k}": v for k, v in topology.masks.items()}
    values = {"beta": objective.weight.beta, "loss": torch.tensor(losses)}
    torch.save(state | masks | values, f"{where}-{ranks.rank}.pt")

ranks = Ranks.join(torch.device("cpu"))
images, where = map(Path, sys.argv[1:])
paths = sorted(path.name for path in images.iterdir())
listed = ImageList(images, tuple(paths), torch.arange(len(paths)).remainder(4).numpy())
loaded = Grey(listed, (0.5,) * 3, (0.2,) * 3, size=8, resize=8, batch_size=16, part=(ranks.rank, ranks.count))
train(RigL, Noise(), where / "rigl")
train(SET, Noise(), where / "set")
train(RigL, loaded, where / "images")
'''


@pytest.fixture(scope="module")
def trained(start_ranks_once, tmp_path_factory):
    """A folder for the number of processes; each trains everything, so that Python and PyTorch start only once."""
    generator, images = np.random.default_rng(0), tmp_path_factory.mktemp("images")
    for index in range(41):  # the last batch has nine images: five and four
        pixels = generator.integers(0, 256, (12, 14, 3), dtype=np.uint8)
        pixels[3 * (index % 4) :][:3] //= 4
        Image.fromarray(pixels).save(images / f"{index:02}.png")
    folders = {}
    for count in (1, 2):
        folders[count] = tmp_path_factory.mktemp("trained")
        processes = start_ranks_once(count, "-W", "error", "-c", SCRIPT, images, folders[count])
        assert [process.wait(600) for process in processes] == [0] * count
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rigl", "set", "images"])
def test_two_processes_give_the_same_result_as_one(trained, name):
    """With "images", each process loads its own images."""
    one, first, second = (
        torch.load(trained[count] / f"{name}-{rank}.pt", weights_only=True) for count, rank in ((1, 0), (2, 0), (2, 1))
    )
    for key, value in one.items():
        assert torch.equal(first[key], second[key]), key
        if key.startswith("mask"):
            assert torch.equal(first[key], value), key
        else:
            torch.testing.assert_close(first[key], value, rtol=1e-10, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}")
    assert any(key.startswith("mask") and not value.all() for key, value in one.items())
    assert one["beta"] > 0


def test_a_single_process_gets_the_whole_batch():
    ranks = Ranks()
    x = torch.arange(5)
    share, (part,) = ranks.part(x)
    assert share == 1
    assert part is x
    ranks.sum([x])
    ranks.wait()
    assert ranks.is_first
    model = nn.BatchNorm2d(2)
    ranks.share_norms(model)
    assert type(model) is nn.BatchNorm2d


def test_the_parts_add_up_to_the_batch_and_the_shares_to_one():
    x, y = torch.arange(9), torch.arange(9) * 2
    parts = [Ranks(rank, 2).part(x, y) for rank in range(2)]
    assert sum(share for share, _ in parts) == 1
    assert sorted(torch.cat([a for _, (a, _) in parts]).tolist()) == x.tolist()
    assert all(torch.equal(2 * a, b) for _, (a, b) in parts)
    small = [Ranks(rank, 2).part(x[:3]) for rank in range(2)]
    assert [(share, len(part)) for share, (part,) in small] == [(0.5, 3), (0.5, 3)]  # too small to divide
