"""What tests of the real model share, and how Hypothesis goes about all of them.

The model is fetched once and kept in the user's cache.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headway.models.sources import resolve_model

# The same examples every time: what a commit did not break does not fail in its run. HEADWAY_FUZZ
# looks for others. How long an example takes says more of the machine than of what it tests.
settings.register_profile(
    "headway",
    deadline=None,
    derandomize="HEADWAY_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headway")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file."""
    return resolve_model()
