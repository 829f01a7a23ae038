"""Data preparation: corpora of edits, oracle programs, splits, and fingerprints."""
