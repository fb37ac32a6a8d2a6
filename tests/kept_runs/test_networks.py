"""The names of kept runs."""

import pytest
from networks import COLLECTIONS, network_name

from moon import make_recipe


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"preset": "control"}, "rigl95/control"),
        ({"preset": "best-1"}, "rigl95/moon-logitnorm@300"),
        ({"preset": "best-2"}, "rigl95/quick@300"),
        ({"objective": "moon", "topology": "dense"}, "dense/moon"),
        ({"objective": "moon", "options": {"final": 4.0}, "sparsity": 0.8}, "rigl80/w_f=4"),
        ({"objective": "moon", "options": {"quiet_epochs": 2}}, "rigl95/T_e=2"),
        ({"objective": "moon", "vote_share": 0.05}, "rigl95/votes=5"),
        ({"preset": "without-vt"}, "rigl95/without-vt"),
        ({"objective": "logitnorm", "rates": "moon", "vote_share": 0.2, "epochs": 300}, "rigl95/logitnorm+vote@300"),
        (
            {"objective": "moon-logitnorm", "options": {"temperature": 0.02}, "weight_decay": 0.001},
            "rigl95/moon-logitnorm,temperature=0.02,weight_decay=0.001",
        ),
    ],
)
def test_names_of_networks(settings, name):
    sparsity = {} if settings.get("topology") == "dense" else {"sparsity": 0.95}
    recipe = make_recipe("cifar10", **(sparsity | settings))
    assert network_name(recipe, COLLECTIONS["cifar10"]) == name


def test_options_that_are_usual_in_a_collection_are_not_part_of_the_name():
    recipes = [make_recipe("cifar10", "moon", options={"final": final}, sparsity=0.95) for final in (1.0, 2.0)]
    names = [network_name(recipe, COLLECTIONS["tin100"]) for recipe in recipes]
    assert names == ["rigl95/w_f=1", "rigl95/moon"]
