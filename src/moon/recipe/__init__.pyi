"""The names of this package and where they are defined; type checkers and `__init__.py` read this file."""

from moon.recipe.defaults import make_recipe as make_recipe
from moon.recipe.names import names_of as names_of
from moon.recipe.presets import Preset as Preset
from moon.recipe.recipe import PARAMETERS as PARAMETERS, Recipe as Recipe
from moon.recipe.registry import (
    kinds as kinds,
    pick as pick,
    register as register,
    table as table,
    unregister as unregister,
)
