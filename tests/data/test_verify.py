import numpy as np
import pytest

from moon.data import DataError, DataSet, compare_with_published, save, verify as module, verify_sets


@pytest.fixture
def published(monkeypatch):
    dataset = DataSet(np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 1), np.array([0, 1]))
    monkeypatch.setattr(module, "PUBLISHED", {("mine", "test"): (2, dataset.digest())})
    return dataset


def test_comparison_with_the_published_set(published):
    assert compare_with_published(published, "mine", "test") == "identical to the published set"
    part = published.take(np.array([0]))
    assert "1 image, the published set has 2" in compare_with_published(part, "mine", "test")
    assert "no published digest" in compare_with_published(published, "other", "test")
    with pytest.raises(DataError, match="different pixels, labels or order"):
        compare_with_published(published.take(np.array([1, 0])), "mine", "test")


def test_all_splits_are_reported_before_the_error(published, tmp_path):
    for name in ("mine", "other"):
        save(published, tmp_path, name, "test")
    assert len(list(verify_sets(tmp_path))) == 2
    assert list(verify_sets(tmp_path, "mine")) == ["mine/test: identical to the published set"]
    (tmp_path / "mine" / "test.npz").write_bytes(b"damaged")
    lines = []
    with pytest.raises(DataError, match="1 of 2 splits cannot be used; import them again"):  # noqa: PT012
        for line in verify_sets(tmp_path):
            lines.append(line)  # noqa: PERF402
    assert "mine/test.npz: cannot be read as .npz" in lines[0]
    assert lines[1].startswith("other/test: complete and readable; SHA-256 ")


def test_nothing_to_verify_is_an_error(published, tmp_path):
    with pytest.raises(DataError, match="no set to verify"):
        list(verify_sets(tmp_path))
    save(published, tmp_path, "mine", "test")
    with pytest.raises(DataError, match=r"no set 'mina' \(did you mean 'mine'"):
        list(verify_sets(tmp_path, "mina"))
