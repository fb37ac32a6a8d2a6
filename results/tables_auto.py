"""The tables about `--detector auto`: how far its choices are from the best detector of each kept network.

Regret is the AUROC of the best detector that a network was scored with, minus that of the detector that a rule names,
in points. It is computed on the test images, with the mean of near and far. Each network counts once:
where it was also scored without the classes of CIFAR-10 in the near set (`cifar10-open`), these scores are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean

from cells import Blocks, markdown
from kept import Kept

from moon.recipe import Recipe, pick
from moon.recipe.variants import normalises_logits
from moon.results.collect import Run
from moon.results.format import MISSING
from moon.score.auto import choose_by_rule

BLOCKS = Blocks()
COLLECTIONS = {"cifar10": "CIFAR-10", "cifar10-open": "CIFAR-10", "tin100": "100 classes", "mnist": "MNIST"}
CLASSES = {"CIFAR-10": 10, "100 classes": 100, "MNIST": 10}
KINDS = ("normalised logits", "unknown output", "neither")
GROUPS = ("CIFAR-10, 95%", "100 classes, 95%", "CIFAR-10, other", "100 classes, other", "MNIST")
NAMES = {"msp": "MSP", "ebo": "EBO", "gen": "GEN", "knn": "KNN", "fdbd": "FDBD", "odin": "ODIN", "fisher": "Fisher"}
Rule = Callable[["Network"], str]


@dataclass(frozen=True)
class Network:
    """A kept network: what it knows, how it was trained, and the AUROC of its detectors.

    `areas` has the mean of near and far in percent, by detector.
    """

    data: str
    recipe: Recipe
    areas: Mapping[str, float]

    @property
    def kind(self) -> str:
        """What the rule asks for."""
        if normalises_logits(self.recipe.objective):
            return KINDS[0]
        return KINDS[1] if pick("objective", self.recipe.objective).extra_logits else KINDS[2]

    @property
    def group(self) -> str:
        """The column of the network."""
        if self.data == "MNIST":
            return self.data
        return f"{self.data}, {'95%' if self.recipe.topology != 'dense' and self.recipe.sparsity == 0.95 else 'other'}"

    def regret(self, detector: str) -> float | None:
        """The regret of a detector; None if the network was not scored with it."""
        return max(self.areas.values()) - self.areas[detector] if detector in self.areas else None


@lru_cache(maxsize=1)
def networks(kept: Kept) -> list[Network]:
    """Every kept network that was scored with more than the paper's detectors."""
    found: dict[str, Network] = {}
    for collection, data in COLLECTIONS.items():
        for name, runs in kept.collection(collection).items():
            for run in () if name.endswith("+mirrored") else runs.values():
                found[run.folder.name] = _network(run, data)
    return list(found.values())


def _network(run: Run, data: str) -> Network:
    areas = {}
    for name, table in run.summary["detectors"].items():
        near, far = (100 * table[group]["auroc"] for group in ("near", "far"))
        areas[name] = (near + far) / 2
    return Network(data, run.recipe, areas)


def by_rule(network: Network) -> str:
    """The choice of `auto` without unknown images."""
    return choose_by_rule(network.recipe.objective, CLASSES[network.data])["detector"]


def best_for_each_kind(chosen_on: Iterable[Network]) -> dict[str, str]:
    """For each kind of network the detector with the lowest mean regret, of those that all were scored with."""
    found = {}
    for kind in KINDS:
        those = [network for network in chosen_on if network.kind == kind]
        common = set.intersection(*({*network.areas} for network in those))
        found[kind] = min(sorted(common), key=lambda name: _mean(those, lambda _: name))
    return found


def _regrets(those: Iterable[Network], rule: Rule) -> list[float]:
    found = [network.regret(rule(network)) for network in those]
    return [regret for regret in found if regret is not None]


def _mean(those: Iterable[Network], rule: Rule) -> float:
    return mean(_regrets(those, rule))


def _cell(those: Sequence[Network], rule: Rule) -> str:
    found = _regrets(those, rule)
    if not found:
        return MISSING
    count = f" (n = {len(found)})" if len(found) < len(those) else ""
    return f"{mean(found):.2f}, {max(found):.1f}{count}"


def _by_kind(first: str, others: Callable[[Network], str]) -> Rule:
    return lambda network: first if network.kind == KINDS[0] else others(network)


RULES: dict[str, Rule] = {
    "**`auto`**": by_rule,
    "Fisher for normalised logits, else KNN": _by_kind("fisher", lambda _: "knn"),
    "KNN for all": lambda _: "knn",
    "Fisher for all": lambda _: "fisher",
    "ODIN for all": lambda _: "odin",
    "MSP for all": lambda _: "msp",
}


@BLOCKS.add
def auto_rules(kept: Kept) -> str:
    """Mean and largest regret of rules, by group of networks."""
    every = networks(kept)
    groups = [[network for network in every if network.group == group] for group in GROUPS]
    learned = best_for_each_kind(groups[0])
    names = ", ".join(NAMES.get(learned[kind], learned[kind]) for kind in KINDS)
    learned_rule: Rule = lambda network: learned[network.kind]  # noqa: E731
    rules = RULES | {f"best for each kind of network on CIFAR-10 at 95%: {names}": learned_rule}
    rows = [["networks", *(str(len(group)) for group in groups)]]
    rows += [[label, *(_cell(group, rule) for group in groups)] for label, rule in rules.items()]
    return markdown(["", *GROUPS], rows)
