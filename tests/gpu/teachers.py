"""What teachers cost in a training step on a GPU, and whether the faster path predicts the same.

    python tests/gpu/teachers.py [--net resnet18] [--size 32] [--batch 128] [--teachers 1 3] [--rounds 8] [--steps 100]

First the predictions of one teacher: in bfloat16 as it is (`Teacher(model)`) and as a copy (`Teacher(model,
precision=torch.bfloat16)`, as in `moon train`), and in float32. Then the milliseconds of a captured bfloat16 step of a
RigL student, without teachers and with dense ones of both kinds, measured in turn. Exits with 1 if the copy differs
from the network by more than twice as much as bfloat16 differs from float32.
"""

import argparse
import sys
import time
from statistics import median

import torch
from torch import Tensor, nn

from moon import CosineRate, CrossEntropy, Distill, DropSchedule, RigL, Teacher, Training
from moon.fast import FlatBuffers
from moon.recipe.registry import pick

CLASSES = 10


def made(net: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = pick("net", net)(num_classes=CLASSES, in_channels=3)
    return model.cuda().to(memory_format=torch.channels_last)


def trained(net: str, seed: int, size: int, count: int) -> nn.Module:
    """A dense network after a few steps, so that the statistics of its BatchNorm layers are no longer 0 and 1."""
    model = made(net, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(30):
        x, y = batch(size, count, step)
        optimizer.zero_grad()
        CrossEntropy()(model, x, y, epoch=0).backward()
        optimizer.step()
    return model.eval()


def batch(size: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise with a mean that tells the class."""
    generator = torch.Generator("cuda").manual_seed(seed)
    y = torch.randint(CLASSES, (count,), device="cuda", generator=generator)
    x = torch.randn(count, 3, size, size, device="cuda", generator=generator)
    x = x + (y.view(-1, 1, 1, 1) - CLASSES / 2) / CLASSES
    return x.to(memory_format=torch.channels_last), y


def training_of(net: str, teachers: list[Teacher]) -> Training:
    model = made(net, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    topology = RigL(model, optimizer, sparsity=0.95, schedule=DropSchedule(t_end=1_000_000, delta_t=100))
    parts = Distill(teachers) if teachers else CrossEntropy(), topology, CosineRate(0.01, 0.01)
    how = {"epochs": 1, "captured": True, "precision": torch.bfloat16}
    training = Training(model, optimizer, *parts, [], **how)  # pyright: ignore[reportArgumentType]
    training.begin()
    model.train()
    return training


def milliseconds(training: Training, x: Tensor, y: Tensor, steps: int) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        training.step(x, y, 0, 0.01)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / steps


def time_steps(arguments: argparse.Namespace, models: list[nn.Module]) -> None:
    x, y = batch(arguments.size, arguments.batch, 1)
    contenders = {"no teacher": training_of(arguments.net, [])}
    for count in arguments.teachers:
        plain, copies = ([Teacher(m, None, p) for m in models[:count]] for p in (None, torch.bfloat16))
        contenders[f"{count} as they are"] = training_of(arguments.net, plain)
        contenders[f"{count} copies"] = training_of(arguments.net, copies)
    for training in contenders.values():
        milliseconds(training, x, y, 10)  # captures
    times = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, training in contenders.items():
            times[name].append(milliseconds(training, x, y, arguments.steps))
    for name, own in times.items():
        ratio = median(a / b for a, b in zip(own, times["no teacher"], strict=True))
        print(f"{name:16} {median(own):7.3f} ms per step, {ratio:.2f} times that without teachers", flush=True)


def check_predictions(arguments: argparse.Namespace, model: nn.Module) -> bool:
    x, _ = batch(arguments.size, arguments.batch, 2)
    exact = Teacher(model)(x).softmax(1)
    with torch.autocast("cuda", torch.bfloat16):
        plain = Teacher(model)(x).softmax(1)
    dummy = nn.Linear(1, 1).cuda()  # kernels are used in steps on flat buffers
    with FlatBuffers(torch.optim.SGD(dummy.parameters(), lr=0.1), {}, None).step():
        copied = Teacher(model, None, torch.bfloat16)(x).softmax(1)
    found = {}
    for name, one, other in (
        ("as it is, against float32", plain, exact), ("copy, against float32", copied, exact),
        ("copy, against as it is", copied, plain),
    ):  # fmt: skip
        found[name] = (one - other).abs().max().item()
        agree = (one.argmax(1) == other.argmax(1)).float().mean().item()
        print(f"{name:26} largest difference of a probability {found[name]:.2e}, same class {agree:.1%}")
    rounding = found["as it is, against float32"]
    return found["copy, against float32"] <= 2 * rounding and found["copy, against as it is"] <= 2 * rounding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="resnet18")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--teachers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU")
    torch.backends.cudnn.benchmark = True
    models = [trained(arguments.net, seed, arguments.size, arguments.batch) for seed in range(max(arguments.teachers))]
    agrees = check_predictions(arguments, models[0])
    time_steps(arguments, models)
    if not agrees:
        sys.exit("the copy disagrees with the network")


if __name__ == "__main__":
    main()
