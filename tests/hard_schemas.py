"""Schemas that grow with what they are asked for."""

from __future__ import annotations

from typing import Any

__all__ = ["nested", "values"]


def nested(depth: int, kind: str, width: int = 3) -> dict[str, Any]:
    """Choices of choices: as many leaves as `width` to the power of `depth`."""
    schema: dict[str, Any] = {"type": "string"}
    for level in range(depth):
        options = [
            {"type": "object", "properties": {f"{level}{i}": schema}, "required": [f"{level}{i}"]}
            for i in range(width)
        ]
        schema = {kind: options}
    return schema


def values(count: int) -> list[str]:
    return [f"aba {index}" for index in range(count)]
