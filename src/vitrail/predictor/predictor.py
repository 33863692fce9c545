"""The predictor, which the command, the server, export and reports share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
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
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import choose_device
from vitrail.models import BiT, ViT
from vitrail.predictor.batching_config import BatchingConfig, usual_pace
from vitrail.predictor.fused import fuse
from vitrail.predictor.images import ImageLike, is_one, prepare, read_content
from vitrail.predictor.last_block import twin_of
from vitrail.predictor.predictions import Answer, Prediction, rank
from vitrail.weights.load import LoadedModel, load

if TYPE_CHECKING:
    from vitrail.inspection.attention import Method

Engine = Callable[[Tensor], Tensor]
"""What computes logits (n, classes) of normalized images (n, channels, height, width)."""
_Item = tuple[str, Callable[[], ImageLike]]


class Predictor:
    """A model with its preprocessing and class names, in eval mode; several threads may use it.

    An image's answer is the same alone and in any batch, up to 1e-5. The weights are those of the
    first answer; a model that is trained on needs a new predictor.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        name: str = "model",
        device: str | torch.device | None = None,
        engine: Engine | None = None,
        pace: BatchingConfig | None = None,
    ) -> None:
        """Take `engine` to compute the logits instead of the model, as `optimize` finds them."""
        if loaded.preprocess is None:
            raise InputError(
                f"{name} does not say how its images are prepared; give a source that does, "
                "such as timm:… or google:…, or a model folder"
            )
        self.device = choose_device(device)
        self.name = name
        """What a message calls the model."""
        self.model: ViT | BiT = loaded.model.eval().to(self.device, torch.float32)
        self.preprocess: Preprocess = loaded.preprocess
        self.classes = loaded.classes
        """The names of the head's outputs; None where the weights came without."""
        self.pace = pace or usual_pace(self.model.spec, on_gpu=self.device.type != "cpu")
        self._engine = engine
        self._listening = threading.Lock()

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        model: str | None = None,
        device: str | torch.device | None = None,
    ) -> Predictor:
        """Load a run's or a model's folder, or weights: timm:…, hf:…, google:…, file:…, a path.

        `model` names what the source holds, where its shapes alone don't say.
        """
        return cls(load(str(source), model=model), name=str(source), device=device)

    def with_engine(self, engine: Engine | None, pace: BatchingConfig) -> Predictor:
        """Give a predictor of the same model that computes its logits another way."""
        loaded = LoadedModel(self.model, self.classes, self.preprocess, None)
        return Predictor(loaded, name=self.name, device=self.device, engine=engine, pace=pace)

    @overload
    def predict(self, images: ImageLike, *, top: int = 5) -> Prediction: ...
    @overload
    def predict(self, images: Iterable[ImageLike], *, top: int = 5) -> list[Prediction]: ...
    def predict(
        self, images: ImageLike | Iterable[ImageLike], *, top: int = 5
    ) -> Prediction | list[Prediction]:
        """Name the most likely classes of an image, or of each of many.

        The first that can't be used raises ImageError, which says which one and why; `answers`
        goes on.
        """
        if is_one(images):
            return self.rank(self.logits(images)[None], top=top)[0]
        return self.rank(self.logits(images), top=top)

    def logits(self, images: ImageLike | Iterable[ImageLike]) -> Tensor:
        """Give an image's logits (classes), or those of many (n, classes)."""
        self._check_classifier()
        return self._gather(images, self.run)

    def embed(self, images: ImageLike | Iterable[ImageLike]) -> Tensor:
        """Give an image's representation, the pre-logits (width), or those of many (n, width)."""
        return self._gather(images, self.run_features)

    def rank(self, logits: Tensor, *, top: int = 5) -> list[Prediction]:
        """Name the most likely classes of each row of logits (n, classes)."""
        return rank(logits, self.classes, top)

    def answers(
        self, images: ImageLike | Iterable[ImageLike], *, features: bool = False
    ) -> Iterator[Answer]:
        """Answer each of many images in their order; one that can't be used says why.

        Images are decoded and run by `pace.workers` threads at once, a few ahead of the reader.
        """
        return self._stream(_items(images), self._pick(features))

    def answers_of(self, source: ImageDataset, *, features: bool = False) -> Iterator[Answer]:
        """Answer each image of a data set, in its order."""
        indices = range(len(source))
        items = ((source.where(index), partial(source.read, index)) for index in indices)
        return self._stream(items, self._pick(features))

    def attention(self, image: ImageLike, *, method: Method = "rollout") -> np.ndarray:
        """Say how much each patch of an image counts (rows, columns), as inspection does."""
        from vitrail.inspection.attention import attention_masks

        with self._listening:  # hooks hear every thread, so one is heard at a time
            x = self._normalize(self.prepare(image)[None])
            return attention_masks(self._twin, x, method=method).values[0]

    def overlay(self, image: ImageLike, *, method: Method = "rollout") -> np.ndarray:
        """Blend the heat of `attention` into the whole upright image: (height, width, 3)."""
        from vitrail.inspection.overlay import overlay

        content = read_content(image, self.preprocess.channels)
        return overlay(content, self.attention(image, method=method), self.preprocess)

    @cached_property
    def _fast(self) -> ViT | BiT:
        """The model as it runs fastest here; made when first needed, in eval mode."""
        return fuse(self.model)

    @cached_property
    def _twin(self) -> ViT | BiT:
        """What attention is read from; nobody else's calls are heard."""
        return twin_of(self.model)

    def prepare(self, image: ImageLike) -> Tensor:
        """Make the model's input of an image, as evaluation does: uint8 (height, width, channels).

        ImageError where it can't be used.
        """
        return prepare(image, self.preprocess)

    def run(self, prepared: Tensor) -> Tensor:
        """Give the logits (n, classes) of prepared images, `pace.micro` at a time.

        They are uint8 (n, height, width, channels), as `prepare` makes them, or floating point and
        normalized (n, channels, height, width).
        """
        return self._run(self._engine or self._fast, prepared)

    def run_features(self, prepared: Tensor) -> Tensor:
        """Give the representations (n, width) of prepared images."""
        return self._run(self._fast.features, prepared)

    @torch.inference_mode()
    def _run(self, compute: Engine, prepared: Tensor) -> Tensor:
        parts = []
        for part in prepared.split(self.pace.micro):
            parts.append(compute(self._normalize(part)).float().cpu())
        return torch.cat(parts)

    def _normalize(self, prepared: Tensor) -> Tensor:
        """Bring prepared images to the model, those that are normalized already as they are."""
        if prepared.dtype == torch.uint8:
            return normalize(prepared, self.preprocess, device=self.device)
        return prepared.to(self.device, torch.float32)

    def _pick(self, features: bool) -> Engine:
        if not features:
            self._check_classifier()
        return self.run_features if features else self.run

    def _check_classifier(self) -> None:
        if not self.model.spec.classes:
            raise InputError(f"{self.name} has no classes, only a representation: embed with it")

    def _gather(self, images: ImageLike | Iterable[ImageLike], compute: Engine) -> Tensor:
        """Compute for one image on all of torch's threads; for many, side by side."""
        if is_one(images):
            return compute(self.prepare(images)[None])[0]
        outputs: list[Tensor] = []
        for answer in self._stream(_items(images), compute):
            if answer.error is not None:
                raise ImageError(f"{answer.where}: {answer.error}", answer.error.kind)
            assert answer.output is not None
            outputs.append(answer.output)
        if not outputs:
            raise InputError("there are no images to predict")
        return torch.stack(outputs)

    def _stream(self, items: Iterable[_Item], compute: Engine) -> Iterator[Answer]:
        """Prepare and run micro-batches side by side, and answer in order."""
        ready = iter(items)
        chunks = iter(lambda: list(islice(ready, self.pace.micro)), [])
        first = list(islice(chunks, 2))
        if len(first) < 2:  # nothing to share out
            for chunk in first:
                yield from self._answer(chunk, compute)
            return
        before = torch.get_num_threads()

        def make(chunk: list[_Item]) -> list[Answer]:
            torch.set_num_threads(self.pace.threads)  # of this thread and of those that begin later
            return self._answer(chunk, compute)

        tasks = (chunk for some in (first, chunks) for chunk in some)
        config = LoaderConfig(workers=self.pace.workers)
        with closing(each for each in Loader(make, tasks, config)) as made:
            try:
                for answers in made:
                    yield from answers
            finally:
                torch.set_num_threads(before)

    def _answer(self, chunk: Sequence[_Item], compute: Engine) -> list[Answer]:
        """Answer a few images: those of one shape at once."""
        answers: dict[int, Answer] = {}
        groups: dict[tuple, list[tuple[int, Tensor]]] = {}
        for place, (where, give) in enumerate(chunk):
            try:
                ready = self.prepare(give())
            except ImageError as error:
                answers[place] = Answer(where, None, error)
            except OSError as error:  # vanished, or lost its permission, since it was listed
                fault = ImageError(error.strerror or str(error), "unreadable")
                answers[place] = Answer(where, None, fault)
            else:
                groups.setdefault((ready.dtype, ready.shape), []).append((place, ready))
        for group in groups.values():
            outputs = compute(torch.stack([ready for _, ready in group]))
            for (place, _), output in zip(group, outputs, strict=True):
                answers[place] = Answer(chunk[place][0], output)
        return [answers[place] for place in range(len(chunk))]


def _items(images: ImageLike | Iterable[ImageLike]) -> Iterator[_Item]:
    """Name each image: a file by its path, any other by its place."""
    for place, image in enumerate([images] if is_one(images) else images):
        named = isinstance(image, str | Path)
        yield str(image) if named else f"image {place}", partial(_same, image)


def _same(image: ImageLike) -> ImageLike:
    return image
