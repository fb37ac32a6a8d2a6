"""Nets of timm and torchvision on a GPU: do captured steps compute what plain ones do, and how long does a step take?

    python tests/gpu/nets.py [--size 64] [--batch 128] [--rounds ROUNDS] [NET ...]

For each net: the losses of five float32 steps with a sparse topology, plain and captured, without dropout; whether the
random numbers of dropout and stochastic depth differ from step to step in a captured step; and the time of a bfloat16
step of both kinds. `resnet18-imagenet` is ours, the comparison for the other ResNet-18s, as `resnet50` is for theirs.
Exits with 1 if any disagrees. With --rounds only captured steps are timed, of all nets in turn, several times, after
the GPU has been busy for a second. Masks change every third step where losses are compared, and every 100th, as in
training, where steps are timed.
"""

import argparse
import sys
import time
from copy import deepcopy
from statistics import median

import torch
from torch import nn

from moon import CosineRate, DropSchedule, RigL, Training
from moon.objectives import CrossEntropy
from moon.recipe.registry import pick

NETS = [
    "resnet18-imagenet", "timm:resnet18", "torchvision:resnet18", "resnet50", "timm:resnet50", "torchvision:resnet50",
    "timm:mobilenetv3_small_100", "torchvision:mobilenet_v3_small", "timm:efficientnet_b0",
    "torchvision:efficientnet_b0", "timm:convnext_tiny", "torchvision:convnext_tiny",
]  # fmt: skip
CLASSES = 100


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = pick("net", name)(num_classes=CLASSES, in_channels=3)
    return model.cuda().to(memory_format=torch.channels_last)


def without_chance(model: nn.Module) -> int:
    """Turn dropout and stochastic depth off; returns how many such layers there are."""
    found = 0
    for module in model.modules():
        for setting in ("p", "drop_prob"):
            if isinstance(getattr(module, setting, None), float) and getattr(module, setting) > 0:
                setattr(module, setting, 0.0)
                found += 1
    return found


def with_visible_branches(model: nn.Module) -> nn.Module:
    """ConvNeXt multiplies its branches by 1e-6 at first: whether one is skipped does not change the loss in float32."""
    with torch.no_grad():
        for name, scale in model.named_parameters():
            if name.endswith(("layer_scale", "gamma")):
                scale.fill_(0.1)
    return model


def training_of(model: nn.Module, captured: bool, precision: torch.dtype, delta_t: int) -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    topology = RigL(model, optimizer, sparsity=0.8, schedule=DropSchedule(t_end=10_000, delta_t=delta_t))
    parts = CrossEntropy(), topology, CosineRate(0.01, 0.01)
    how = {"epochs": 1, "captured": captured, "precision": precision}
    training = Training(model, optimizer, *parts, [], **how)  # pyright: ignore[reportArgumentType]
    training.begin()
    model.train()
    return training


def batch(size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(count, 3, size, size, device="cuda", generator=generator).to(memory_format=torch.channels_last)
    return x, torch.randint(CLASSES, (count,), device="cuda", generator=generator)


def losses(model: nn.Module, captured: bool, x: torch.Tensor, y: torch.Tensor, lr: float = 0.01) -> list[float]:
    training = training_of(model, captured, torch.float32, delta_t=3)
    torch.manual_seed(2)
    return [float(training.step(x, y, 0, lr)) for _ in range(5)]


def seconds(model: nn.Module, captured: bool, x: torch.Tensor, y: torch.Tensor) -> float:
    """The median time of a step, over 5 times 20 steps."""
    training = training_of(model, captured, torch.bfloat16, delta_t=100)
    times = []
    for repetition in range(6):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            training.step(x, y, 0, 0.01)
        torch.cuda.synchronize()
        if repetition:  # the first captures
            times.append((time.perf_counter() - started) / 20)
    return median(times)


def check(name: str, size: int, count: int) -> bool:
    x, y = batch(size, count)
    model = made(name)
    random_layers = without_chance(quiet := deepcopy(model))
    plain, captured = losses(deepcopy(quiet), False, x, y), losses(quiet, True, x, y)
    worst = max(abs(a - b) / abs(a) for a, b in zip(plain, captured, strict=True))
    agrees = worst < 1e-2 and abs(plain[0] - captured[0]) < 1e-4 * abs(plain[0])
    varies = not random_layers or len(set(losses(with_visible_branches(deepcopy(model)), True, x, y, lr=0.0)[:2])) == 2
    slow, fast = seconds(deepcopy(model), False, x, y), seconds(model, True, x, y)
    print(
        f"{name:32} loss {plain[0]:.5f} {plain[-1]:.5f}, captured {captured[0]:.5f} {captured[-1]:.5f}: "
        f"{'agree' if agrees else 'DISAGREE'} ({worst:.1e}); random layers {random_layers}"
        f"{'' if varies else ' FROZEN'}; step {1000 * slow:.2f} ms, captured {1000 * fast:.2f} ms ({slow / fast:.2f}x)",
        flush=True,
    )
    return agrees and varies


def time_in_turn(names: list[str], size: int, count: int, rounds: int) -> None:
    """Print the time of a captured step of each net in each round, and its median as a multiple of the first net's."""
    x, y = batch(size, count)
    busy, until = torch.randn(4096, 4096, device="cuda"), time.perf_counter() + 1
    while time.perf_counter() < until:  # the clock of the GPU rises only under load
        (busy @ busy).sum().item()
    times = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            times[name].append(1000 * seconds(made(name), True, x, y))
            torch.cuda.empty_cache()
    first = median(times[names[0]])
    for name, found in times.items():
        listed = ", ".join(f"{each:.2f}" for each in found)
        print(f"{name:32} captured {listed} ms; median {median(found):.2f} ms, {median(found) / first:.2f}x {names[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS, metavar="NET")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=0)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if arguments.rounds:
        time_in_turn(arguments.nets, arguments.size, arguments.batch, arguments.rounds)
        return
    results = {}
    for name in arguments.nets:
        try:
            results[name] = check(name, arguments.size, arguments.batch)
        except ValueError as error:  # a net that is not installed, or steps that cannot be captured
            print(f"{name:32} {error}", flush=True)
            results[name] = False
        torch.cuda.empty_cache()
    if failed := [name for name, agrees in results.items() if not agrees]:
        sys.exit(f"{len(failed)} of {len(results)} failed: {', '.join(failed)}")
    print(f"all {len(results)} agree")


if __name__ == "__main__":
    main()
