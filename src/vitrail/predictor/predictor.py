"""The predictor, shared by predict, serve, export, bench and reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.decoding.decode import ImageError
from vitrail.data.image_inputs import ImageLike, is_one, preprocess_image, read_content
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import choose_device
from vitrail.evaluation.uncertainty.calibrate import features_and_logits
from vitrail.evaluation.uncertainty.selective import parse_rate
from vitrail.models import BiT, ViT
from vitrail.predictor.batching_config import BatchingConfig, default_batching, keep_threads
from vitrail.predictor.doubts import doubts_of
from vitrail.predictor.fused import InferencePrecision, check_precision, fuse
from vitrail.predictor.int8 import measure_ranges
from vitrail.predictor.last_block import inference_copy
from vitrail.predictor.predictions import (
    ClassScore,
    ModelOutput,
    Prediction,
    rank,
    reach_thresholds,
)
from vitrail.weights.checkpoint import Activation
from vitrail.weights.load import load
from vitrail.weights.loaded import LoadedModel, with_patches
from vitrail.weights.text.prompts import Texts
from vitrail.weights.text.zero_shot import zero_shot_model

if TYPE_CHECKING:
    from vitrail.inspection.attention import Method

Engine = Callable[[Tensor], Tensor]
"""Computes logits (n, classes) from normalized images (n, channels, height, width)."""
_SAME = 0.02  # of the mean size of numbers, up to which they count as the same
_Item = tuple[str, ImageLike | Callable[[], ImageLike]]


class Predictor:
    """A model with its preprocessing and class names, in eval mode and safe to share by threads.

    An image's prediction is the same alone and in any batch, up to 1e-5. The weights are those of
    the first prediction; after more training, make a new predictor.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        name: str = "model",
        device: str | torch.device | None = None,
        engine: Engine | None = None,
        batching: BatchingConfig | None = None,
        unsure: float | str | None = None,
    ) -> None:
        """Wrap a loaded model on a device, the best by default; `engine` computes the logits.

        `unsure` is the error rate that its answers may have, 0.05 or "5%"; the others are unsure.
        """
        if loaded.preprocess is None:
            raise InputError(
                f"{name} does not say how images are preprocessed; use a source that does (timm:…, "
                "google:…, a model folder)"
            )
        self.device = choose_device(device)
        self.name = name
        """What messages call the model."""
        self.model: ViT | BiT = loaded.model.eval().to(self.device, torch.float32)
        self.preprocess: Preprocess = loaded.preprocess
        self.classes = loaded.classes
        """Names of the head's outputs; None if the weights came without."""
        self.activation: Activation = loaded.activation
        self.thresholds = loaded.thresholds
        on_gpu = self.device.type != "cpu"
        self.batching = batching or default_batching(self.model.spec, on_gpu=on_gpu)
        self.unsure = None if unsure is None else parse_rate(unsure)
        """The error rate of the answers that are given."""
        self.doubts = doubts_of(loaded, name, self.unsure)
        self.temperature = loaded.temperature
        """What logits are divided by to give probabilities."""
        self.precision: InferencePrecision = "float32"
        """What matrix products are computed in; `with_precision` changes it."""
        self._engine, self._loaded = engine, loaded
        self._hooking = threading.Lock()

    @classmethod
    def load(
        cls,
        source: ModelLike,
        *,
        model: str | None = None,
        classes: Texts | None = None,
        templates: Texts | None = None,
        device: str | torch.device | None = None,
        unsure: float | str | None = None,
    ) -> Predictor:
        """Load a run folder, a model folder, or weights: timm:…, hf:…, google:…, file:…, a path.

        A model or predictor that is loaded already is taken as it is. `model` names the
        architecture where the shapes of the source don't determine it. `classes`, as text, makes a
        zero-shot classifier of a CLIP or SigLIP; `templates` are its prompts. `unsure` is the error
        rate that its answers may have.
        """
        rate = None if unsure is None else parse_rate(unsure)
        if classes is not None:
            if not isinstance(source, str | Path):
                raise InputError("classes need a text tower: give the model as text, not loaded")
            made = zero_shot_model(source, classes, templates=templates)
            return cls(made, name=str(source), device=device, unsure=rate)
        if templates is not None:
            raise InputError("--templates requires --classes")
        if isinstance(source, Predictor):
            return source if rate is None else source.with_unsure(rate)
        if isinstance(source, ViT | BiT):
            source = LoadedModel(source, None, None, None)
        if isinstance(source, LoadedModel):
            return cls(source, name=source.model.spec.name, device=device, unsure=rate)
        loaded = load(str(source), model=model)
        return cls(loaded, name=str(source), device=device, unsure=rate)

    def with_patches(self, patches: int) -> Predictor:
        """Give a predictor that takes images at their own aspect ratio, within a patch budget."""
        loaded = replace(self._loaded, model=self.model, preprocess=self.preprocess)
        loaded = with_patches(loaded, patches)
        return Predictor(loaded, name=self.name, device=self.device, unsure=self.unsure)

    def with_unsure(self, rate: float | str) -> Predictor:
        """Give a predictor that withholds answers: at most `rate` of the others is wrong."""
        made = copy(self)
        made.unsure = parse_rate(rate)
        made.doubts = doubts_of(self._loaded, self.name, made.unsure)
        return made

    def with_engine(self, engine: Engine | None, batching: BatchingConfig) -> Predictor:
        """Give a predictor of the same model whose logits another engine computes."""
        if engine is not None and self.preprocess.patches:
            raise InputError("a patch budget gives images of many sizes; use --backend pytorch")
        made = copy(self)
        made._engine, made.batching = engine, batching
        return made

    def with_precision(
        self, precision: InferencePrecision, images: Tensor | None = None
    ) -> Predictor:
        """Give a predictor whose matrix products are in bfloat16, or on a CPU in int8.

        For int8, prepared `images` (n, height, width, channels) show the ranges of its layers'
        inputs; take training images.
        """
        if self._engine is not None:
            raise InputError(f"--precision {precision} is computed by PyTorch; omit --backend")
        made, ranges = copy(self), None
        made.precision = precision
        if self.device.type == "cpu":
            check_precision(self.model, precision)
        elif precision == "int8":
            raise InputError(f"--precision int8 runs on the CPU, not on {self.device}")
        if precision == "int8":
            if images is None or self.preprocess.patches:
                raise InputError("--precision int8 needs images of the model's size to calibrate")
            parts = images.split(self.batching.batch_size)
            ranges = measure_ranges(self.model, map(self._normalize, parts))
        made.__dict__["_fast"] = fuse(self.model, precision=precision, ranges=ranges)
        return made

    @overload
    def predict(  # pyright: ignore[reportOverlappingOverload]  # an open file has lines
        self, images: ImageLike, *, top: int = 5
    ) -> Prediction: ...
    @overload
    def predict(self, images: Iterable[ImageLike], *, top: int = 5) -> list[Prediction]: ...
    def predict(
        self, images: ImageLike | Iterable[ImageLike], *, top: int = 5
    ) -> Prediction | list[Prediction]:
        """Classify one image, or each of many.

        Raises ImageError for the first image that can't be used, with its name and the reason;
        `predictions` continues instead.
        """
        if is_one(images):
            path = str(images) if isinstance(images, str | Path) else "image 0"
            return self._answer(path, self._gather(images, self._pick_scores()), top)
        scores = [
            (output.path, _values(output))
            for output in self._stream(_items(images), self._pick_scores())
        ]
        if not scores:
            raise InputError("no images to predict")
        return [self._answer(path, row, top) for path, row in scores]

    def predictions(
        self, images: ImageLike | Iterable[ImageLike] | ImageDataset, *, top: int = 5
    ) -> Iterator[Prediction]:
        """Classify images in their order; one that can't be used has an error instead of classes.

        `batching.workers` threads decode and run images, a few ahead of the caller.
        """
        for output in self._stream(_items(images), self._pick_scores()):
            if output.values is None:
                assert output.error is not None
                yield Prediction(output.path, (), str(output.error), output.error.kind)
            else:
                yield self._answer(output.path, output.values, top)

    def outputs(
        self, images: ImageLike | Iterable[ImageLike] | ImageDataset, *, features: bool = False
    ) -> Iterator[ModelOutput]:
        """Compute each image's logits, or its features, as `predictions` does."""
        return self._stream(_items(images), self._pick(features=features))

    def logits(self, images: ImageLike | Iterable[ImageLike]) -> Tensor:
        """Compute an image's logits (classes), or those of many (n, classes)."""
        return self._gather(images, self._pick(features=False))

    def embed(self, images: ImageLike | Iterable[ImageLike]) -> Tensor:
        """Compute an image's features, the pre-logits (width), or those of many (n, width)."""
        return self._gather(images, self.run_features)

    def rank(self, logits: Tensor, *, top: int = 5) -> list[tuple[ClassScore, ...]]:
        """Give the classes of each row of logits (n, classes), as `predictions.rank` does."""
        return rank(
            logits,
            self.classes,
            top,
            activation=self.activation,
            thresholds=self.thresholds,
            temperature=self.temperature,
        )

    @property
    def targets(self) -> tuple[str, ...] | None:
        """Names of the numbers that a regression predicts; None for a model of classes."""
        if self.activation != "none":
            return None
        return self.classes or tuple(map(str, range(self.model.spec.classes)))

    def _answer(self, path: str, scores: Tensor, top: int) -> Prediction:
        """Make a prediction of logits, which the distance follows where it is known."""
        if self.targets is not None:
            return Prediction(path, values=dict(zip(self.targets, scores.tolist(), strict=True)))
        logits, distance = scores[: self.model.spec.classes], scores[self.model.spec.classes :]
        return Prediction(
            path,
            self.rank(logits[None], top=top)[0],
            unsure=self.doubts.unsure(logits),
            ood=self.doubts.ood(distance) if len(distance) else None,
        )

    def same_predictions(self, logits: Tensor, others: Tensor) -> Tensor:
        """Tell for each row of logits whether both give the same class, or the same labels.

        Numbers of a regression are the same within 2 % of their mean size.
        """
        if self.targets is not None:
            size = logits.abs().mean(0).clamp_min(1e-6)
            return ((logits - others).abs() <= _SAME * size).all(1)
        if self.activation == "softmax":
            return logits.argmax(1) == others.argmax(1)
        both = (each.double().sigmoid() for each in (logits, others))
        first, second = (reach_thresholds(each, self.thresholds) for each in both)
        return (first == second).all(1)

    def attention(self, image: ImageLike, *, method: Method = "rollout") -> np.ndarray:
        """Compute how much attention each patch of an image gets (rows, columns).

        Rollout and raw attention know no class; `gradient` weights by the predicted one.
        """
        from vitrail.inspection.attention import attention_masks

        with self._hooking:  # hooks see the calls of every thread
            x = self._normalize(self.prepare(image)[None])
            return attention_masks(self._inference_copy, x, method=method).values[0]

    def overlay(self, image: ImageLike, *, method: Method = "rollout") -> np.ndarray:
        """Blend `attention` as a heat map into the whole upright image: (height, width, 3)."""
        from vitrail.inspection.overlay import overlay

        content = read_content(image, self.preprocess)
        return overlay(content, self.attention(image, method=method), self.preprocess)

    @cached_property
    def _fast(self) -> ViT | BiT:
        """The model as it runs fastest here; made when first needed."""
        return fuse(self.model)

    @cached_property
    def _inference_copy(self) -> ViT | BiT:
        """What attention is read from: nobody else's calls reach its hooks."""
        return inference_copy(self.model)

    def prepare(self, image: ImageLike) -> Tensor:
        """Preprocess an image as in evaluation: uint8 (height, width, channels).

        Raises ImageError if it can't be used.
        """
        return preprocess_image(image, self.preprocess)

    def run(self, prepared: Tensor) -> Tensor:
        """Compute the logits (n, classes) of prepared images, `batching.batch_size` at a time.

        They are uint8 (n, height, width, channels), as `prepare` gives them, or float and
        normalized (n, channels, height, width).
        """
        return self._run(self._engine or self._fast, prepared)

    def run_features(self, prepared: Tensor) -> Tensor:
        """Compute the features (n, width) of prepared images."""
        return self._run(self._fast.features, prepared)

    @torch.inference_mode()
    def _run(self, compute: Engine, prepared: Tensor) -> Tensor:
        parts = []
        # On a CPU, fused layers round by themselves.
        rounded = self.precision == "bfloat16" and self.device.type != "cpu"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=rounded):
            for part in prepared.split(self.batching.batch_size):
                parts.append(compute(self._normalize(part)).float().cpu())
        return torch.cat(parts)

    def _normalize(self, prepared: Tensor) -> Tensor:
        """Move prepared images to the device, normalized."""
        if prepared.dtype == torch.uint8:
            return normalize(prepared, self.preprocess, device=self.device)
        return prepared.to(self.device, torch.float32)

    def _pick_scores(self) -> Engine:
        """Give what computes logits, and in the same pass the features' distance if it is known."""
        logits = self._pick(features=False)
        measured = self._engine is None and self.doubts.means is not None
        return self._run_scores if measured else logits

    def _run_scores(self, prepared: Tensor) -> Tensor:
        """Compute logits and distance (n, classes + 1) of prepared images."""

        def compute(images: Tensor) -> Tensor:
            features, logits = features_and_logits(self._fast, images)
            distance = self.doubts.distance(features)
            return torch.cat([logits, distance.to(logits)[:, None]], 1)

        return self._run(compute, prepared)

    def _pick(self, *, features: bool) -> Engine:
        if features:
            return self.run_features
        if not self.model.spec.classes:
            raise InputError(f"{self.name} has no classes; use embed to compute features")
        return self.run

    def _gather(self, images: ImageLike | Iterable[ImageLike], compute: Engine) -> Tensor:
        """Compute one image on all of torch's threads; many images by the workers."""
        if is_one(images):
            return compute(self.prepare(images)[None])[0]
        outputs = [_values(output) for output in self._stream(_items(images), compute)]
        if not outputs:
            raise InputError("no images to predict")
        return torch.stack(outputs)

    def _stream(self, items: Iterable[_Item], compute: Engine) -> Iterator[ModelOutput]:
        """Prepare and run batches in parallel, and give the outputs in order."""
        ready = iter(items)
        batches = iter(lambda: list(islice(ready, self.batching.batch_size)), [])
        first = list(islice(batches, 2))
        if len(first) < 2:  # nothing to run in parallel
            for batch in first:
                yield from self._compute(batch, compute)
            return

        def make(batch: list[_Item]) -> list[ModelOutput]:
            torch.set_num_threads(self.batching.threads)  # for this thread and those started later
            return self._compute(batch, compute)

        tasks = (batch for some in (first, batches) for batch in some)
        config = LoaderConfig(workers=self.batching.workers)
        with keep_threads(), closing(each for each in Loader(make, tasks, config)) as made:
            for outputs in made:
                yield from outputs

    def _compute(self, batch: Sequence[_Item], compute: Engine) -> list[ModelOutput]:
        """Compute the outputs of a batch; images of one shape run together."""
        outputs: dict[int, ModelOutput] = {}
        groups: dict[tuple, list[tuple[int, Tensor]]] = {}
        for index, (path, image) in enumerate(batch):
            try:
                prepared = self.prepare(image() if callable(image) else image)
            except ImageError as error:
                outputs[index] = ModelOutput(path, None, error)
            except OSError as error:  # the file was removed or changed since it was listed
                reason = error.strerror or str(error)
                outputs[index] = ModelOutput(path, None, ImageError(reason, "unreadable"))
            else:
                groups.setdefault((prepared.dtype, prepared.shape), []).append((index, prepared))
        for group in groups.values():
            values = compute(torch.stack([prepared for _, prepared in group]))
            for (index, _), row in zip(group, values, strict=True):
                outputs[index] = ModelOutput(batch[index][0], row)
        return [outputs[index] for index in range(len(batch))]


ModelLike = str | Path | LoadedModel | ViT | BiT | Predictor
"""A run folder, model folder or source of weights; or a model that is loaded already."""


def _values(output: ModelOutput) -> Tensor:
    """Give the values, or raise the error with the image's name."""
    if output.error is not None:
        raise ImageError(f"{output.path}: {output.error}", output.error.kind)
    assert output.values is not None
    return output.values


def _items(images: ImageLike | Iterable[ImageLike] | ImageDataset) -> Iterator[_Item]:
    """Name each image: a file by its path, any other by its position."""
    if isinstance(images, ImageDataset):
        for index in range(len(images)):
            yield images.where(index), partial(images.read, index)
        return
    for index, image in enumerate([images] if is_one(images) else images):
        named = isinstance(image, str | Path)
        yield str(image) if named else f"image {index}", image
