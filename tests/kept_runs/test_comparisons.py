"""Numbers, differences and tests of networks with invented values."""

from types import SimpleNamespace

import cells
import pytest
import sources


def test_differences_are_paired_by_seed(invented):
    kept = invented(
        {
            "x/a/one": {"accuracy": {0: 5.0}},
            "x/a/all": {"accuracy": {0: 1.0, 1: 2.0, 2: 6.0}},
            "x/a/other": {"ece": {1: 1}},
        }
    )
    assert sources.read_source(kept, "x/a/one - x/a/all accuracy") == 4  # not 5 minus the mean of three seeds
    assert sources.read_source(kept, "x/a/one - x/a/all accuracy n") == 1
    assert sources.read_source(kept, "x/a/all accuracy") == 3
    assert sources.read_source(kept, "x/a/all accuracy max") == 6
    low, high = (sources.read_source(kept, f"x/a/all accuracy {end}") for end in ("low", "high"))
    assert low == pytest.approx(3 - 4.302653 * 7**0.5 / 3**0.5)  # t with 2 degrees of freedom, deviation sqrt(7)
    assert high == pytest.approx(3 + 4.302653 * 7**0.5 / 3**0.5)


def test_ablations_are_compared_with_moon_of_the_same_seeds(invented):
    a, b = "cifar10/rigl95/w_f=4", "cifar10/rigl95/moon"
    kept = invented({a: {"accuracy": {0: 95.0}}, b: {"accuracy": {0: 94.0, 1: 90.0, 2: 92.0}}})
    table = cells.differences_table(kept, "ablations", [(a, b)], ["accuracy %", "ECE"])
    assert table.splitlines()[2] == "| w_f = 4 - MOON | 1 | +1.0 | - |"
    assert table.endswith("No comparison has three seeds, so none is tested.")
    kept = invented({a: {"accuracy": {0: 95.0, 1: 91.1, 2: 92.9}}, b: {"accuracy": {0: 94.0, 1: 90.0, 2: 92.0}}})
    table = cells.differences_table(kept, "ablations", [(a, b)], ["accuracy %"])
    assert table.splitlines()[2] == "| w_f = 4 - MOON | 3 | **+1.0 [+0.8, +1.2]** |"
    assert "over the 1 comparison with three seeds" in table


def test_cells_show_the_seeds_that_exist(invented):
    kept = invented({"x/a/all": {"accuracy": {0: 1.0, 1: 3.0}, "ece": {1: 0.5}}})
    rows = [(["all"], "x/a/all"), (["none"], "x/a/none")]
    table = cells.networks_table(kept, ["name"], rows, ["accuracy %", "ECE", "ECE, scaled"])
    assert table.splitlines()[2:] == [
        "| all | 2 | 2.0 ± 1.4 | 0.500 (n = 1) | - |",
        "| none | 0 | - | - | - |",
    ]


PAIR = ("cifar10/rigl/moon", "cifar10/rigl/plain")


def of_seeds(*values):
    return dict(enumerate(values))


def test_p_values_are_corrected_over_the_whole_family(invented):
    far = {"msp far": of_seeds(1.0, 2.0, 3.3)}, {"msp far": of_seeds(0.0, 0.0, 0.0)}
    near = {"msp near": of_seeds(1.0, 1.1, 0.9)}, {"msp near": of_seeds(0.0, 0.0, 0.0)}
    alone = invented(dict(zip(PAIR, near, strict=True)))
    both = invented({name: near[i] | far[i] for i, name in enumerate(PAIR)})
    a, b, metric = *PAIR, "msp near"
    p = sources.tested(alone, "summary", sources.Pair(a, b, metric)).p
    assert 0.002 < p < 0.005  # t = 17.3 with 2 degrees of freedom
    assert sources.tested(both, "summary", sources.Pair(a, b, metric)).p == pytest.approx(2 * p)
    assert sources.read_source(both, f"{a} - {b} {metric} p:summary") == pytest.approx(2 * p)


def test_two_seeds_have_neither_an_interval_nor_a_test(invented):
    kept = invented({PAIR[0]: {"accuracy": of_seeds(5, 6)}, PAIR[1]: {"accuracy": of_seeds(1, 1)}})
    table = cells.differences_table(kept, "summary", [PAIR], ["accuracy %"])
    assert table.splitlines()[2] == "| MOON - plain | 2 | +4.5 |"
    with pytest.raises(ValueError, match="too few seeds"):
        sources.read_source(kept, f"{PAIR[0]} - {PAIR[1]} accuracy p:summary")


def test_a_topology_without_sparsity_is_the_mean_over_the_sparsities(kept, monkeypatch):
    given = {
        f"x/rigl{sparsity}/moon": of_seeds(*values)
        for sparsity, values in {80: (1, 2), 90: (2, 4), 95: (3, 9), 99: (6,)}.items()
    }
    values = type(kept).values
    monkeypatch.setattr(type(kept), "runs", lambda self, network: given.get(network, {}))
    monkeypatch.setattr("kept.value", lambda run, metric: run)
    assert values(kept, "x/rigl/moon", "accuracy") == {0: 3.0}  # seed 1 has no 99%
    assert values(kept, "x/rigl90/moon", "accuracy") == {0: 2, 1: 4}


def test_the_chosen_detector_is_one_that_no_seed_refused(invented, monkeypatch):
    runs = {}

    def choice(seed, **auroc):
        found = {
            name: values if isinstance(values, dict) else {"a": values, "b": values} for name, values in auroc.items()
        }
        runs[seed] = SimpleNamespace(summary={"choice": {"auroc": found, "near": ["a"], "far": ["b"]}})

    kept = invented({})
    monkeypatch.setattr(kept, "runs", lambda _: runs)
    choice(0, msp=0.8, knn=0.9, vim=0.99)
    choice(1, msp=0.9, knn={"a": 0.9, "b": 0.82}, vim={"refused": "too few directions"})
    assert kept.chosen("x/a/one") == "knn"  # 0.88 on average, MSP 0.85
    choice(1, msp=0.9)
    with pytest.raises(ValueError, match="other detectors were ranked for one seed"):
        kept.chosen("x/a/one")
