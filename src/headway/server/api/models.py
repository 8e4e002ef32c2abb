"""`/v1/models`, `/v1/models/{id}`, `/version`, `/health`: what is served, and how it is."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from headway.server.generation import ServedModel

__all__ = ["Health", "ModelCard", "ModelDetails", "ModelList", "Version", "card"]


class ModelDetails(Struct, kw_only=True):
    exact: bool
    """Answers are bit for bit those of a request alone."""
    exactness: str
    """That in words, with the reason."""
    sampling_defaults: dict[str, Any]
    """What holds where a request leaves it out, beside the API's own defaults."""


class ModelCard(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["headway"] = "headway"
    max_model_len: int
    headway: ModelDetails


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Version(Struct):
    version: str


class Health(Struct):
    status: Literal["ok"] = "ok"


def card(model: ServedModel, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=model.created,
        max_model_len=model.max_model_len,
        headway=ModelDetails(
            exact=model.exactness.promised,
            exactness=str(model.exactness),
            sampling_defaults=dict(model.sampling_defaults),
        ),
    )
