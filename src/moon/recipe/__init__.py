"""The description of a run: a frozen recipe, the tables of names, and how names become objects."""

from moon.recipe.defaults import make_recipe
from moon.recipe.presets import Preset
from moon.recipe.recipe import PARAMETERS, Recipe
from moon.recipe.registry import kinds, pick, register, table, unregister

__all__ = ["PARAMETERS", "Preset", "Recipe", "kinds", "make_recipe", "pick", "register", "table", "unregister"]
