"""Labels distinguish the methods of a comparison."""

from dataclasses import replace

from moon.recipe.expand import expand
from moon.recipe.labels import differences, labels

SMALL = {"benchmark": "mnist", "net": "lenet-norm", "epochs": 2, "batch_size": 64}


def test_presets_are_labelled_by_their_names(data_root):
    def labelled(*grids):
        found = [recipe for axes in grids for recipe in expand(data_root, SMALL | {"seed": [0, 1]} | axes)]
        return list(dict.fromkeys(labels(found).values()))

    quiet = {"set": {"quiet_epochs": 1}}
    trainings = {"preset": ["plain", "control", "without-vt"]} | quiet, {"objective": ["moon", "mixup"]} | quiet
    assert labelled(*trainings) == ["plain", "control", "without-vt", "moon", "mixup"]
    assert labelled({"preset": ["plain"]}) == ["cross-entropy"]
    assert labelled({"preset": ["control"]}) == ["control"]
    assert labelled({"preset": ["plain", "without-lm"], "epochs": 9}) == ["cross-entropy", "without-lm"]
    both = {"preset": ["plain", "control"], "sparsity": [0.8, 0.9]}
    assert labelled(both) == ["plain 80%", "plain 90%", "control 80%", "control 90%"]
    assert labelled({"preset": ["plain", "control"]}, {"objective": "cross-entropy", "lr": 0.3}) == [
        "cross-entropy lr_start=0.1",
        "cross-entropy lr_start=0.12",
        "cross-entropy lr_start=0.3",
    ]
    assert labelled({"objective": "moon", "set": {"quiet_epochs": 1, "final": [1, 2]}}) == [
        "moon final=1.0",
        "moon final=2.0",
    ]
    changes = [{"lr": 0.3}, {"weight_decay": [1e-3, 1e-4]}, {"lr": 0.3, "vote": 0.0}]
    assert labelled(*({"objective": "mixup", "vote": 0.2} | change for change in [{}, *changes])) == [
        "mixup",
        "mixup lr_start=0.3",
        "mixup weight_decay=0.001",
        "mixup weight_decay=0.0001",
        "mixup lr_start=0.3 vote_share=0.0",
    ]
    long, short = {"preset": "best-1", "epochs": 300}, {"objective": "moon-logitnorm", "epochs": 9}
    assert labelled(long) == ["best-1"]
    assert labelled(long, short) == ["best-1", "moon-logitnorm"]
    assert labelled(long, {"objective": "moon-logitnorm", "epochs": 300, "vote": 0.0}) == [
        "moon-logitnorm vote_share=0.2",
        "moon-logitnorm vote_share=0.0",
    ]
    assert labelled({"preset": ["quick", "control"], "epochs": 100}) == ["quick", "control"]
    assert labelled({"preset": ["best", "control"], "epochs": 300}) == ["best-2", "control"]
    assert labelled({"preset": ["plain", "control"], "epochs": 9, "warmup": 1}) == ["plain", "control"]
    several = {"set": {"quiet_epochs": 1, "final": 5}}
    assert labelled({"preset": "without-vt"} | several, {"objective": "moon"} | quiet) == [
        "moon final=5.0",
        "moon final=0.01",
    ]


def test_values_that_follow_from_the_length_of_a_run_are_not_shown(data_root):
    short, long = ({"objective": ["cross-entropy", "moon"], "epochs": epochs, "batch_size": 8} for epochs in (3, 60))
    found = [recipe for axes in (short, long) for recipe in expand(data_root, SMALL | axes)]
    assert len({(recipe.delta_t_steps, recipe.objective_options) for recipe in found}) == 4
    assert list(labels(found).values()) == [
        "cross-entropy epochs=3", "moon epochs=3", "cross-entropy epochs=60", "moon epochs=60",
    ]  # fmt: skip
    old = [replace(recipe, objective_options=(("final", 0.01),)) for recipe in found if recipe.objective == "moon"]
    assert len({*labels([*found, *old]).values()}) == 6  # runs of earlier versions had five quiet epochs


def test_labels_contain_only_what_differs(data_root):
    one = expand(data_root, SMALL | {"objective": "mixup", "seed": [0, 1]})
    assert set(labels(one).values()) == {"mixup"}
    several = expand(data_root, SMALL | {"objective": "mixup", "topology": ["rigl", "set"], "sparsity": [0.5, 0.9]})
    assert set(labels(several).values()) == {"mixup rigl 50%", "mixup rigl 90%", "mixup set 50%", "mixup set 90%"}


def test_the_settings_in_which_methods_differ(data_root):
    axes = SMALL | {"epochs": 20}
    grids = {
        "plain": {"objective": "cross-entropy"},
        "moon": {"objective": "moon"},
        "moon 99": {"objective": "moon", "sparsity": 0.99},
        "control": {"preset": "control"},
        "voted": {"objective": "mixup", "rates": "moon", "vote": 0.2},
        "final": {"objective": "moon", "set": {"final": 5}},
        "dense": {"objective": "moon", "topology": "dense"},
        "tickets": {"objective": "moon", "topology": "sup-tickets"},
        "long": {"objective": "moon", "epochs": 30},
        "adamw": {"objective": "moon", "optimizer": "adamw"},
    }
    (recipes,) = zip(*(expand(data_root, axes | each) for each in grids.values()), strict=True)
    found = differences(dict(zip(grids, recipes, strict=True)))
    assert {a: names for (a, b), names in found.items() if b == "moon"} == {
        "moon 99": ["sparsity"],
        "control": ["objective"],
        "voted": ["objective"],
        "final": ["final"],
        "dense": ["topology"],
        "tickets": ["topology"],
        "long": ["epochs"],
        "adamw": ["optimizer"],
    }
    assert {a: names for (a, b), names in found.items() if b == "plain"} == {
        "moon": ["training"],
        "moon 99": ["sparsity", "training"],
        "control": ["training"],
        "voted": ["objective", "vote_share", "learning rate"],
        "final": ["objective", "vote_share", "learning rate", "final"],
        "dense": ["topology", "training"],
        "tickets": ["objective", "topology"],
        "long": ["epochs", "training"],
        "adamw": ["objective", "optimizer", "vote_share"],
    }
