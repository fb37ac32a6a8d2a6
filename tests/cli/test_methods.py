import pytest


def test_options_are_printed_by_name(moon):
    code, out, _ = moon("methods", "rigl")
    assert code == 0
    assert (
        "options: schedule=None, allocation=erk, dense=(), seed=0, pattern=unstructured, first_mask='random'\n" in out
    )


@pytest.mark.parametrize("kind", ["objective", "topology", "allocation", "rates", "detector", "net", "preset"])
def test_nothing_is_printed_by_its_address(moon, kind):
    from moon.recipe import table

    for name in table(kind):
        assert " at 0x" not in moon("methods", name)[1]


def test_nets_of_other_packages_are_mentioned(moon):
    code, out, _ = moon("methods", "net")
    assert code == 0
    assert "timm:NAME" in out
