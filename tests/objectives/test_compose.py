import pytest
import torch

from moon import (
    CigL,
    LogitNorm,
    Mixup,
    Moon,
    MoonLogitNorm,
    Objective,
    RotPred,
    T2FNorm,
    make_recipe,
    open_head,
    rotation_head,
)
from moon.objectives import compose
from moon.recipe import build
from moon.recipe.defaults import options_of
from moon.recipe.registry import pick


def test_the_parts_are_built_from_the_options_of_both(small_net):
    kind = compose(RotPred, MoonLogitNorm)
    assert (kind.extra_logits, kind.rotates, kind.normalises_logits) == (1, True, True)
    assert (kind.rates, kind.vote_share) == ("moon", 0.2)
    made = kind.for_run(epochs=10, copies=1, temperature=0.1, final=2.0)
    same = RotPred(copies=1, inner=MoonLogitNorm.for_run(epochs=10, temperature=0.1, final=2.0))
    model, x, y = rotation_head(open_head(small_net())).eval(), torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    losses = []
    for objective in (made, same):
        torch.manual_seed(1)
        losses.append(objective(model, x, y, epoch=9).item())
    assert losses[0] == losses[1]
    assert made.log(9) == {"w": 2.0}
    assert made.phase(0) != made.phase(9)  # MOON's quiet epochs are captured separately


def test_names_can_be_nested():
    kind = pick("objective", "rotpred+t2fnorm+moon")
    assert kind is compose(RotPred, compose(T2FNorm, Moon))
    assert isinstance(kind.for_run(epochs=10).inner.inner, Moon)
    assert {"copies", "tau", "final"} <= options_of("rotpred+t2fnorm+moon").keys()


def test_what_each_part_declares_is_kept():
    assert compose(CigL, LogitNorm).vote_share == 0.2  # that of the outer objective
    assert compose(T2FNorm, RotPred).rotates
    assert compose(LogitNorm, Mixup).rates == "plain"
    step = compose(LogitNorm, RotPred).for_run(copies=1).step_inputs(torch.zeros(2, 1, 4, 4))
    assert len(step) == 4


def test_recipes_take_composed_objectives():
    recipe = make_recipe("digits", "rotpred+moon", options={"copies": 1}, epochs=20)
    assert dict(recipe.objective_options) == {"copies": 1, "quiet_epochs": 1}
    assert (recipe.lr_start, recipe.vote_share) == (0.12, 0.2)
    assert recipe.name.startswith("digits-rigl95-rotpred+moon-s0-")
    assert dict(make_recipe("mnist", "t2fnorm+moon").objective_options)["final"] == 0.01  # as for moon itself


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixup+moon", "Mixup takes no inner objective"),
        ("logitnorm+moon-logitnorm", "both have the parameter 'temperature'"),
        ("rotpred+mooon", "unknown objective 'mooon' .did you mean 'moon'"),
        ("rotpred+", "unknown objective ''"),
        ("rotpred+hod", "Hod computes with features, which RotPred may change, so it cannot be its inner objective"),
        ("logitnorm+vos", "Vos computes with features"),
    ],
)
def test_what_cannot_be_composed_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        pick("objective", name)


def test_an_objective_of_another_package_keeps_its_declaration():
    class Mine(LogitNorm):
        """Without capturable = True, its steps are not captured, composed or not."""

    class Declared(LogitNorm):
        capturable = True

    assert compose(Mine, Moon).__module__ == Mine.__module__
    assert "capturable" not in vars(compose(Mine, Moon))
    assert vars(compose(Declared, Moon))["capturable"] is True
    assert issubclass(compose(Mine, Moon), Objective)


def test_a_run_is_built():
    recipe = make_recipe("digits", "rotpred+moon-logitnorm", epochs=5)
    from moon.data import BENCHMARKS

    model = build.network(recipe, BENCHMARKS["digits"], "cpu")
    assert model.fc.out_features == 11
    assert model.fc.rotation.out_features == 4
