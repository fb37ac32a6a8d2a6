"""KNN's search in few directions finds the same neighbours as all products."""

import pytest
import torch
from torch.nn.functional import normalize

from moon import Evidence, Knn
from moon.detect import knn as module

DIRECTIONS = 4


def unit_vectors(count, seed, noise=0.003, width=32):
    """Vectors that are longest in a few directions, as features of trained networks are."""
    rng = torch.Generator().manual_seed(seed)
    z = noise * torch.randn(count, width, generator=rng)
    z[:, :DIRECTIONS] += torch.rand(count, DIRECTIONS, generator=rng)
    return normalize(z)


@pytest.fixture
def all_products(monkeypatch):
    """How many queries were compared with the whole bank."""
    counts = []
    original = module.nearest_rows
    monkeypatch.setattr(module, "nearest_rows", lambda q, *a: counts.append(len(q)) or original(q, *a))
    return counts


def expected_scores(queries, k, bank):
    return -torch.cdist(queries.double(), bank.double()).square().sort(1).values[:, k - 1].float()


def check(queries, k, bank):
    found = module.kth_rows(queries, k, bank)
    scores = -(queries - bank[found]).square().sum(1)
    torch.testing.assert_close(scores, expected_scores(queries, k, bank), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3])
def test_most_rows_are_excluded_without_computing_their_product(all_products, k):
    bank, queries = unit_vectors(1000, 0), unit_vectors(100, 1)
    check(queries, k, bank)
    assert sum(all_products) < 20
    _, (projection, short) = module._shorts[bank]
    assert projection.shape[1] <= 32 / 4
    bounds = module._shortened(queries, projection) @ short.T
    assert (queries @ bank.T <= bounds).all()


def test_where_the_bounds_are_loose_all_products_are_computed(all_products, monkeypatch):
    monkeypatch.setattr(module, "_LENGTH", 0.9)
    bank, queries = unit_vectors(1000, 0, noise=0.05), unit_vectors(100, 1, noise=0.3)  # unlike each other
    check(queries, 3, bank)
    assert module._shorts[bank] is not None
    assert 0 < sum(all_products) <= 100


def test_features_without_preferred_directions_are_searched_with_all_products(all_products):
    bank, queries = normalize(torch.randn(1000, 32)), normalize(torch.randn(100, 32))
    check(queries, 3, bank)
    assert all_products == [100]


def test_few_queries_and_small_banks_are_searched_with_all_products(all_products):
    check(unit_vectors(10, 1), 3, unit_vectors(1000, 0))
    check(unit_vectors(100, 1), 3, unit_vectors(800, 0))
    assert all_products == [10, 100]


def test_queries_whose_length_is_rounded_are_searched_exactly():
    generator = torch.Generator().manual_seed(0)
    width, away = 64, 40
    queries = torch.zeros(20_000, width)
    queries[:, :4] = torch.randn(20_000, 4, generator=generator)
    queries = normalize(queries)
    queries[:, away] = 0.08  # outside of the directions in which the bank is long
    queries = queries.bfloat16()
    z = normalize(queries).float()  # longer than 1 by up to 0.4%
    longest = z[:, :4].square().sum(1).argsort(descending=True)[:300]
    queries, z = queries[longest], z[longest]
    bank = torch.zeros(60_300, width)
    bank[:60_000, :4] = normalize(torch.randn(60_000, 4, generator=generator))
    bank[60_000:, :4] = normalize(z[:, :4]) * (1 - 0.04**2) ** 0.5
    bank[60_000:, away] = 0.04
    knn = Knn(k=1).fit(Evidence(torch.zeros(len(bank), 2), bank, 2))
    assert module._few_directions(z, 1, knn.bank) is not None
    found = knn.score(Evidence(torch.zeros(300, 2), queries, 2))
    nearest = knn.bank[(z @ knn.bank.T).argmax(1)]
    torch.testing.assert_close(found, -(z - nearest).square().sum(1), rtol=1e-4, atol=1e-6)


def test_a_bank_that_was_changed_in_place_is_searched_anew():
    queries, bank = unit_vectors(100, 0), unit_vectors(2_000, 1)
    check(queries, 1, bank)
    bank.copy_(unit_vectors(2_000, 2))
    check(queries, 1, bank)


def test_features_that_are_zero_have_a_neighbour():
    z = unit_vectors(1000, 0)
    z[:500], queries = 0, unit_vectors(100, 1)
    queries[:5] = 0
    scores = Knn(3).fit(Evidence(z, z, 32)).score(Evidence(queries, queries, 32))
    torch.testing.assert_close(scores, expected_scores(queries, 3, z), rtol=1e-4, atol=1e-6)
