from moon import demo


def test_the_recipes_differ_only_in_the_method():
    plain, moon = (runs[0].to_json() for runs in demo.recipes(epochs=10, seeds=1).values())
    differ = {key for key in plain if plain[key] != moon[key]}
    assert differ == {"objective", "objective_options", "lr_start", "lr_end", "lr_hold_share", "vote_share"}
    assert moon["objective_options"] == {"quiet_epochs": 1}
    assert plain["sparsity"] == moon["sparsity"] == 0.95


def test_seeds_are_paired():
    runs = demo.recipes(epochs=10, seeds=3)
    assert [[r.seed for r in recipes] for recipes in runs.values()] == [[0, 1, 2]] * 2


def test_one_epoch_is_enough():
    _, moon = demo.recipes(epochs=1, seeds=1).values()
    assert moon[0].to_json()["objective_options"] == {"quiet_epochs": 0}
