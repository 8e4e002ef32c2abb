"""What tests of the real model share: the model is fetched once and kept in the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.models.sources import resolve_model


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file."""
    return resolve_model()
