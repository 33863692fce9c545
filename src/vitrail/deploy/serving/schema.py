"""What the answers hold, as OpenAPI describes it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ClassScore(BaseModel):
    """A class that an image may show."""

    index: int
    label: str
    probability: float


class Prediction(BaseModel):
    """An image's most likely classes, or why there are none."""

    top: list[ClassScore] | None = None
    error: str | None = None
    kind: str | None = None


class Predicted(BaseModel):
    """What images show, in their order."""

    model: str
    images: list[Prediction]


class Embedding(BaseModel):
    """An image's representation, or why there is none."""

    embedding: list[float] | None = None
    error: str | None = None
    kind: str | None = None


class Embedded(BaseModel):
    """Images' representations, in their order."""

    model: str
    images: list[Embedding]


class View(BaseModel):
    """An image as the model saw it: base64 of red, green, blue, row by row."""

    height: int
    width: int
    rgb: str


class Explanation(BaseModel):
    """What a model looks at in an image, or why that can't be said."""

    grid: list[int] | None = None
    """Rows and columns of patches."""
    method: str | None = None
    layer: int | None = None
    head: int | None = None
    prefix: int | None = None
    """Tokens before the patches: the class token and registers."""
    mask: list[list[float]] | None = None
    """How much each patch counts."""
    weights: list[list[float]] | None = None
    """What each token attends to; for `raw` only."""
    distances: list[list[float]] | None = None
    """Pixels, by layer and head."""
    view: View | None = None
    error: str | None = None
    kind: str | None = None


class Attention(BaseModel):
    """What a model looks at, image by image."""

    model: str
    images: list[Explanation]


class Alike(BaseModel):
    """An image of the index."""

    id: int
    """`/similar/ID` shows it."""
    label: str
    similarity: float
    """The cosine of both representations."""


class Neighbors(BaseModel):
    """The images of the index nearest to one, or why there are none."""

    similar: list[Alike] | None = None
    error: str | None = None
    kind: str | None = None


class Found(BaseModel):
    """Images of the index, image by image."""

    model: str
    images: list[Neighbors]


class Layers(BaseModel):
    """A model's attention layers."""

    layers: int
    heads: int


class Model(BaseModel):
    """A model that is served."""

    name: str
    model: str
    classes: int
    features: int
    image: list[int]
    attention: Layers | None
    index: int | None
    """Images of its index, if it has one."""


class Health(BaseModel):
    """Whether all is well."""

    status: str


class Error(BaseModel):
    """Why a request got no answer."""

    error: str


_REASONS = {
    400: "The request can't be read.",
    401: "An API key is needed.",
    403: "Another site's page asks.",
    404: "There is no such model, index or image.",
    408: "The request came too slowly.",
    413: "The request is too large.",
    415: "The body is compressed.",
    421: "The server is not called that.",
    422: "No image could be used, or an option is wrong.",
    503: "Too much to do; Retry-After says when to try again.",
    504: "No answer in time.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text} for status, text in _REASONS.items()
}
_BYTES = {"type": "string", "format": "binary"}
BODY = {
    "requestBody": {
        "required": True,
        "description": "Images as a form's files, or one as the whole body.",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "array", "items": _BYTES, "minItems": 1}},
                    "required": ["file"],
                }
            },
            "image/*": {"schema": _BYTES},
        },
    }
}
"""What is sent, which FastAPI can't see, for we read it ourselves."""
