"""The build backend: scikit-build-core's, with the kernels built by `build_kernels`.

So an installation without a compiler succeeds and says why it has no kernels: the log takes
their place in the package. An editable installation builds them in place.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import build_kernels
from scikit_build_core import build as packager
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

# No hook prepares metadata: the wheel's tag depends on whether the kernels can be built.
__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

Settings = Mapping[str, list[str] | str]

_STAGE = Path("build", "wheel")


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, _: str | None = None
) -> str:
    build_kernels.build()
    settings = {**(config_settings or {}), "wheel.cmake": "false"}
    return packager.build_editable(wheel_directory, settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, _: str | None = None
) -> str:
    shutil.rmtree(_STAGE, ignore_errors=True)
    _STAGE.mkdir(parents=True)
    built = build_kernels.build(_STAGE)
    settings = {
        **(config_settings or {}),
        "wheel.cmake": "false",
        "wheel.platlib": str(built.name == build_kernels.MODULE).lower(),
        f"wheel.force-include.{built}": f"headway/runtime/{built.name}",
    }
    return packager.build_wheel(wheel_directory, settings)
