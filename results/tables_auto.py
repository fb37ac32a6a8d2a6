"""The tables about `--detector auto`: how far its choices are from the best detector of each kept network.

Regret is the AUROC of the best detector that a network was scored with, minus that of the detector that a rule names,
in points. It is computed on the test images, with the mean of near and far unless stated. Each network counts once:
where it was also scored without the classes of CIFAR-10 in the near set (`cifar10-open`), these scores are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean

from cells import Blocks, markdown
from kept import Kept, is_same

from moon.recipe import Recipe, pick
from moon.recipe.variants import LOSS, normalises_logits, temperature_from
from moon.results.collect import Run
from moon.results.format import MISSING
from moon.score.auto import best_of, choose_by_rule

BLOCKS = Blocks()
COLLECTIONS = {"cifar10": "CIFAR-10", "cifar10-open": "CIFAR-10", "tin100": "100 classes", "mnist": "MNIST"}
CLASSES = {"CIFAR-10": 10, "100 classes": 100, "MNIST": 10}
KINDS = ("normalised logits", "unknown output", "neither")
GROUPS = ("CIFAR-10, 95%", "100 classes, 95%", "CIFAR-10, other", "100 classes, other", "MNIST")
PARTS = ("mean", "near", "far")
NAMES = {"msp": "MSP", "ebo": "EBO", "gen": "GEN", "knn": "KNN", "fdbd": "FDBD", "odin": "ODIN", "fisher": "Fisher"}
Rule = Callable[["Network"], str]


@dataclass(frozen=True)
class Network:
    """A kept network: what it knows, how it was trained, and the AUROC of its detectors.

    `areas` has the mean of near and far, near, and far, in percent; `choice` has that on validation images, if it was
    computed (`choose.py`).
    """

    data: str
    recipe: Recipe
    areas: Mapping[str, Mapping[str, float]]
    choice: Mapping[str, Mapping[str, float]]

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

    def scaled(self, name: str) -> str:
        """The name of a detector at the fitted temperature."""
        return f"{name}:scaled" if temperature_from(name, self.recipe.objective) == LOSS else name

    def regret(self, detector: str, part: str = "mean") -> float | None:
        """The regret of a detector; None if the network was not scored with it."""
        if detector not in self.areas:
            return None
        return max(areas[part] for areas in self.areas.values()) - self.areas[detector][part]


@lru_cache(maxsize=1)
def networks(kept: Kept) -> list[Network]:
    """Every kept network that was scored with more than the paper's detectors."""
    found: dict[str, Network] = {}
    read: dict[str, Run] = {}
    for collection, data in COLLECTIONS.items():
        for name, runs in kept.collection(collection).items():
            for run in () if name.endswith("+mirrored") else runs.values():
                network, earlier = _network(run, data), found.get(run.folder.name)
                if earlier is not None and not network.choice and is_same(run, read[run.folder.name]):
                    network = replace(network, choice=earlier.choice)
                found[run.folder.name], read[run.folder.name] = network, run
    return list(found.values())


def _network(run: Run, data: str) -> Network:
    areas = {}
    for name, table in run.summary["detectors"].items():
        near, far = (100 * table[group]["auroc"] for group in ("near", "far"))
        areas[name] = {"mean": (near + far) / 2, "near": near, "far": far}
    return Network(data, run.recipe, areas, run.summary.get("choice", {}).get("auroc", {}))


def by_rule(network: Network) -> str:
    """The choice of `auto` without unknown images."""
    return choose_by_rule(network.recipe.objective, CLASSES[network.data])["detector"]


def by_validation(network: Network, sets: Sequence[str] = ()) -> str:
    """The choice of `auto` on unknown images that are not tested, or on some sets of them."""
    found = {
        name: {key: value for key, value in areas.items() if not sets or key in (*sets, "refused")}
        for name, areas in network.choice.items()
    }
    return next(name for _, name in best_of(found) if name in network.areas)


def by_near(network: Network) -> str:
    """The choice of `auto` on the near images alone."""
    return by_validation(network, ["cifar100-part"])


def best_for_each_kind(chosen_on: Iterable[Network]) -> dict[str, str]:
    """For each kind of network the detector with the lowest mean regret, of those that all were scored with."""
    found = {}
    for kind in KINDS:
        those = [network for network in chosen_on if network.kind == kind]
        common = set.intersection(*({*network.areas} for network in those))
        found[kind] = min(sorted(common), key=lambda name: _mean(those, lambda _: name))
    return found


def _regrets(those: Iterable[Network], rule: Rule, part: str = "mean") -> list[float]:
    found = [network.regret(rule(network), part) for network in those]
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


# In the order in which equally good ones are preferred: `auto` depends on the number of classes, too, so it comes last.
RULES: dict[str, Rule] = {
    "KNN for all": lambda _: "knn",
    "Fisher for all": lambda _: "fisher",
    "FDBD for all": lambda _: "fdbd",
    "ODIN for all": lambda _: "odin",
    "GEN, scaled, for all": lambda network: network.scaled("gen"),
    "EBO, scaled, for all": lambda network: network.scaled("ebo"),
    "MSP for all": lambda _: "msp",
    "Fisher for normalised logits, else GEN, scaled": _by_kind("fisher", lambda network: network.scaled("gen")),
    "Fisher for normalised logits, else KNN": _by_kind("fisher", lambda _: "knn"),
    "**`auto`**": by_rule,
}


@BLOCKS.add
def auto_rules(kept: Kept) -> str:
    """Mean and largest regret of rules, by group of networks."""
    every = networks(kept)
    groups = [[network for network in every if network.group == group] for group in GROUPS]
    learned = best_for_each_kind(groups[0])
    names = ", ".join(NAMES.get(learned[kind], learned[kind]) for kind in KINDS)
    rules = dict(reversed(RULES.items()))
    rules[f"best for each kind of network on CIFAR-10 at 95%: {names}"] = lambda network: learned[network.kind]
    rows = [["networks", *(str(len(group)) for group in groups)]]
    rows += [[label, *(_cell(group, rule) for group in groups)] for label, rule in rules.items()]
    return markdown(["", *GROUPS], rows)


@BLOCKS.add
def auto_held_out(kept: Kept) -> str:
    """The rule with the lowest mean regret on two of the three data sets, and its regret on the third."""
    rows = []
    for held_out in CLASSES:
        of_data = {data: [each for each in networks(kept) if each.data == data] for data in CLASSES}
        rest = [those for data, those in of_data.items() if data != held_out]
        usable = {label: rule for label, rule in RULES.items() if all(_regrets(those, rule) for those in rest)}
        label = min(usable, key=lambda label: round(mean(_mean(those, RULES[label]) for those in rest), 9))
        cells = [
            _cell(of_data[held_out], RULES[name]) for name in (label, "**`auto`**", "Fisher for all", "KNN for all")
        ]
        rows.append([held_out, label.strip("*"), *cells])
    return markdown(["held out", "chosen on the others", "its regret", "`auto`", "Fisher", "KNN"], rows)


@BLOCKS.add
def auto_kinds(kept: Kept) -> str:
    """Regret of single detectors by kind of network and data, on networks that were scored with all of them."""
    shown = ("fisher", "knn", "fdbd", "gen", "scale", "msp")
    rows = []
    for kind in KINDS:
        for data in CLASSES:
            those = [network for network in networks(kept) if (network.kind, network.data) == (kind, data)]
            those = [network for network in those if {*shown} <= {*network.areas}]
            if not those:
                continue
            best = Counter(max(network.areas, key=lambda name: network.areas[name]["mean"]) for network in those)
            (name, count), *_ = best.most_common(1)
            cells = [
                " / ".join(f"{mean(_regrets(those, lambda _: name, part)):.1f}" for part in PARTS)  # noqa: B023
                for name in shown
            ]
            rows.append([kind, data, str(len(those)), f"{name} ({count})", *cells])
    return markdown(["network", "known", "n", "most often best", *(NAMES.get(name, name) for name in shown)], rows)


@BLOCKS.add
def auto_validation(kept: Kept) -> str:
    """Regret of choosing on unknown images that are not tested, and of the rule, on the networks where both exist."""
    rows = []
    for kind in (*KINDS, "all"):
        those = [network for network in networks(kept) if network.choice and kind in (network.kind, "all")]
        if not those:
            continue
        rules: list[Rule] = [by_validation, by_near, by_rule, lambda _: "knn", lambda _: "msp"]
        cells = [" / ".join(f"{mean(_regrets(those, rule, part)):.2f}" for part in PARTS) for rule in rules]
        names = [
            ", ".join(f"{NAMES.get(name, name)} {count}" for name, count in Counter(map(rule, those)).most_common())
            for rule in rules[:2]
        ]
        rows.append([kind, str(len(those)), names[0], cells[0], names[1], cells[1], *cells[2:]])
    headings = ["network", "n", "chosen on three sets", "regret", "chosen on the near set", "regret"]
    return markdown([*headings, "`auto` by the rule", "KNN", "MSP"], rows)
