import pytest

from moon.recipe import kinds, table


def test_options_are_printed_by_name(moon):
    code, out, _ = moon("methods", "rigl")
    assert code == 0
    assert (
        "options: schedule=None, allocation=erk, dense=(), seed=0, pattern=unstructured, first_mask='random'\n" in out
    )


@pytest.mark.parametrize("kind", kinds())
def test_nothing_is_printed_by_its_address(moon, kind):
    for name in table(kind):
        assert " at 0x" not in moon("methods", name)[1]


def test_nets_of_other_packages_are_mentioned(moon):
    code, out, _ = moon("methods", "net")
    assert code == 0
    assert "timm:NAME" in out
