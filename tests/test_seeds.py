import torch

from moon.seeds import derive, generator


def test_seeds_differ_by_purpose_keys_and_order():
    seeds = [
        derive("a"),
        derive("b"),
        derive("a", 0),
        derive("a", 0, 0),
        derive("a", 1, 2),
        derive("a", 2, 1),
        derive("a", 12),
        derive("a", 2**32 + 5),
        derive("a", 5, 1),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_they_are_the_same_everywhere():
    assert derive("batches", 0, 3) == derive("batches", 0, 3)
    assert torch.rand(3, generator=generator("x", 1)).tolist() == torch.rand(3, generator=generator("x", 1)).tolist()
