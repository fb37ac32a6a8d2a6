"""Recipes, runs and what is made of them."""
