"""Recipes: what to train, as one YAML file."""
