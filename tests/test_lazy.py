import pytest

import moon
from moon import recipe


def test_names_are_found_where_the_stub_says():
    assert recipe.make_recipe is recipe.defaults.make_recipe
    assert moon.make_recipe is recipe.make_recipe
    assert {"make_recipe", "defaults", "Recipe"} <= set(dir(recipe))
    assert recipe.__all__ == sorted(recipe.__all__)
    assert all(hasattr(recipe, name) for name in recipe.__all__)


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"module 'moon\.recipe' has no attribute 'nothing'"):
        recipe.nothing  # noqa: B018
