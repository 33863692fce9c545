"""The responses, as OpenAPI describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ImageResult(BaseModel):
    """What every image gets that could not be used: the reason, in a line and in two words."""

    error: str | None = None
    kind: str | None = None


class ClassScore(BaseModel):
    """A class and its probability."""

    index: int
    label: str
    probability: float
    predicted: bool | None = None
    """Whether the probability reaches the class's threshold; only for a multi-label model."""


class ImagePrediction(ImageResult):
    """An image's most likely classes, or why there are none."""

    labels: list[str] | None = None
    """The classes that reach their thresholds; only for a multi-label model."""
    unsure: bool | None = None
    """Whether the answer is withheld at the error rate of `--unsure`; only with that."""
    ood: float | None = None
    """How unlike the training images it is, from 0 to 1; only for a calibrated model."""
    top: list[ClassScore] | None = None
    values: dict[str, float] | None = None
    """The numbers that a regression predicts, by their names; it has no classes."""


class PredictResponse(BaseModel):
    """Predictions for the images, in their order."""

    model: str
    images: list[ImagePrediction]


class ImageEmbedding(ImageResult):
    """An image's features, or why there are none."""

    embedding: list[float] | None = None


class EmbedResponse(BaseModel):
    """Features of the images, in their order."""

    model: str
    images: list[ImageEmbedding]


class View(BaseModel):
    """An image as the model sees it: base64 of red, green, blue, row by row."""

    height: int
    width: int
    rgb: str


class ImageAttention(ImageResult):
    """What a model attends to in an image, or why that is not available."""

    grid: list[int] | None = None
    """Rows and columns of patches."""
    method: str | None = None
    layer: int | None = None
    head: int | None = None
    prefix: int | None = None
    """Tokens before the patches: the class token and registers."""
    mask: list[list[float]] | None = None
    """How much attention each patch gets; with `gradient`, what of it speaks for the class."""
    weights: list[list[float]] | None = None
    """What each token attends to; only for `raw`."""
    distances: list[list[float]] | None = None
    """Mean attention distance in pixels, by layer and head."""
    view: View | None = None


class AttentionResponse(BaseModel):
    """Attention for the images, in their order."""

    model: str
    images: list[ImageAttention]


class SimilarImage(BaseModel):
    """An image of the index."""

    id: int
    """`/similar/ID` shows it."""
    label: str
    similarity: float
    """Cosine similarity of the features."""


class ImageNeighbors(ImageResult):
    """The images of the index nearest to one, or why there are none."""

    similar: list[SimilarImage] | None = None


class SimilarResponse(BaseModel):
    """Nearest images of the index for the images, in their order."""

    model: str
    images: list[ImageNeighbors]


class AttentionShape(BaseModel):
    """The size of a model's attention."""

    layers: int
    heads: int


class ModelInfo(BaseModel):
    """A model that is served."""

    name: str
    model: str
    classes: int
    targets: list[str] | None
    """Names of the numbers that a regression predicts; none for a model of classes."""
    features: int
    image: list[int]
    fit: str
    """`stretch`: the whole image; `crop` or `small`: its center."""
    crop: float
    """The fraction that is kept of the short side, or of both with `stretch`."""
    attention: AttentionShape | None
    index: int | None
    """Number of images in its index, if it has one."""


class Health(BaseModel):
    """Whether all model processes are healthy."""

    status: str


class Error(BaseModel):
    """Why a request was refused."""

    error: str


_REASONS = {
    400: "The request can't be read.",
    401: "An API key is required.",
    403: "The request comes from a page of another site.",
    404: "There is no such model, index or image.",
    408: "The request arrived too slowly.",
    413: "The request is too large.",
    415: "The body is compressed.",
    421: "Unknown host name.",
    422: "No image could be used, or an option is wrong.",
    503: "Overloaded; Retry-After says when to try again.",
    504: "No result in time.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text} for status, text in _REASONS.items()
}
_BYTES = {"type": "string", "format": "binary"}
BODY = {
    "requestBody": {
        "required": True,
        "description": "Images as files of a form, or one image as the whole body.",
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
"""The request body, which FastAPI can't describe because we read it ourselves."""
