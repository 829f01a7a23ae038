"""Recipes: one script for each thing you train."""
