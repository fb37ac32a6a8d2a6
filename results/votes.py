"""Train MOON once for several numbers of votes: python results/votes.py OUT --seed 0 --votes 0 2 5 10

The number of voting epochs changes nothing before the weights are averaged, so runs that differ only in it need one
training. This trains MOON (RigL, 95%) and writes, for each smaller number of votes, the last checkpoint of that run
into its folder. `moon paper run ablations` resumes from there: it averages the votes and scores the network.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moon.errors import RunLocked
from moon.files import own_folder
from moon.paper.recipes import recipe_for
from moon.paper.spec import FULL, Measurement
from moon.recipe import Recipe
from moon.run.folder import claim, is_trained, load_result
from moon.run.identity import identity
from moon.run.images import BenchmarkImages
from moon.run.log import Log, read_log
from moon.run.machine import conditions
from moon.run.train import train_run
from moon.training import Checkpoints, Training, WeightVote, locked
from moon.training.loop import Record


def train_once(
    recipe: Recipe, others: Sequence[Recipe], out: Path, images: BenchmarkImages, device: str, exact: bool = True
) -> None:
    """Train a recipe, and write the last checkpoint of recipes that only have fewer votes into their folders in `out`.

    A ValueError if recipes differ in more than the votes, if another run has more votes, if one of them is trained
    already, or if the run is resumed after the first vote: the weights of earlier epochs are lost then.
    """
    folder = out / recipe.name
    if more := [other.name for other in others if replace(other, vote_share=recipe.vote_share) != recipe]:
        raise ValueError(f"{more[0]} differs from {recipe.name} in more than its votes; train it on its own")
    if more := [other.name for other in others if other.vote_share > recipe.vote_share]:
        raise ValueError(f"{more[0]} has more votes than {recipe.name}; train it on its own")
    if done := [out / each.name for each in (recipe, *others) if is_trained(out / each.name)]:
        raise ValueError(f"{done[0]}: is trained already; choose another folder")
    voting = {}
    for other in others:
        first = recipe.epochs if other.vote_from is None else other.vote_from
        voting[other.name] = range(first, recipe.epochs, other.vote_every)
    votes: dict[str, WeightVote] = {}
    started: list[Training] = []

    def begin(training: Training) -> None:
        if any(training.next_epoch > epochs.start for epochs in voting.values()):
            raise ValueError(f"{folder}: was interrupted after the first vote, so some weights are lost; delete it")
        started.append(training)
        votes.update({name: WeightVote(training.model, training.topology) for name in voting})

    def vote(_: Record) -> None:
        for name, epochs in voting.items():
            if started[0].next_epoch - 1 in epochs:
                votes[name].cast(started[0].model)

    train_run(recipe, folder, images, device=device, exact=exact, on_start=begin, on_epoch=vote)
    result, records = load_result(folder), read_log(folder)
    for other in others:
        with locked(out / other.name):
            claim(own_folder(out / other.name), other, images)
            log = Log(out / other.name, 0)
            for record in records:
                log.write(record)
            log.close()
            checkpoints = Checkpoints(own_folder(out / other.name / "checkpoints"))
            facts = conditions(device, ranks=1) | {"inexact": result.get("inexact", [])}
            checkpoints.about = facts | identity(out / other.name)
            checkpoints.save(recipe.epochs, started[0].state_dict() | {"vote": votes[other.name].state_dict()})
            checkpoints.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the runs, as for moon paper --out")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--votes", type=int, nargs="+", default=[0, 2, 5, 10], help="votes besides MOON's 20")
    parser.add_argument("--benchmark", default="cifar10-part")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--epochs", type=int, default=FULL.epochs)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    try:
        scale = replace(FULL, epochs=given.epochs, settings={"precision": given.precision})
        images = BenchmarkImages.open(given.data, given.benchmark)
        names = ["moon", *(f"votes={count}" if count else "without-vt" for count in given.votes)]
        networks = [Measurement("cifar10", "rigl", 0.95, name) for name in names]
        recipe, *others = [recipe_for(each, scale, images.benchmark, given.seed, given.data) for each in networks]
        train_once(recipe, others, given.out, images, given.device, exact=given.device == "cpu")
    except (ValueError, RunLocked) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
