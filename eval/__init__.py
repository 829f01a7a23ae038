"""Evaluation: held-out scoring and its reports."""
