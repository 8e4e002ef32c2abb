"""Models: where they come from (`sources`), what they are (`spec`, `families`), their weights.

A model begins in `sources.resolve_model` and is opened by `weights.open_model`.
"""
