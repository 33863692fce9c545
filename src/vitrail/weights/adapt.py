"""Adapt a checkpoint to a new task, described by arguments or by a model's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

from vitrail.config import InputError
from vitrail.data import Preprocess
from vitrail.models import Spec
from vitrail.models.spec import Size, ViTSpec
from vitrail.models.vit_spec import PLAIN_HEAD, QUIET
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids
from vitrail.weights.formats.mae_decoder import fit_decoder
from vitrail.weights.transfer import HeadMode, transfer

_FITTED = ("classes", *PLAIN_HEAD, "head_bias", "image", "channels", "patch")


def adapt_checkpoint(
    checkpoint: Checkpoint,
    *,
    classes: int | Sequence[str] | None = None,
    image: Size | None = None,
    channels: int | None = None,
    patch: Size | None = None,
    head: HeadMode = "replace",
) -> Checkpoint:
    """Fit weights to a new task; the changes are added to their provenance.

    Classes given by name keep their rows of the head where the weights have a class of that name;
    a number of classes gets a head of zeros.
    """
    names = None if classes is None or isinstance(classes, int) else tuple(classes)
    count = classes if classes is None or isinstance(classes, int) else len(classes)
    kept = find_classes(names, checkpoint.classes) if names else ()
    moved = transfer(
        checkpoint.spec,
        checkpoint.tensors,
        classes=count,
        image=image,
        channels=channels,
        patch=patch,
        head=head,
        kept=kept,
    )
    said = tuple(map(str, moved.changes))
    if names and checkpoint.classes is None and head != "keep":
        said += ("the weights have no class names, so no row of the head could be kept",)
    provenance = checkpoint.provenance and replace(
        checkpoint.provenance, changes=(*checkpoint.provenance.changes, *said)
    )
    same_head = classes is None or head == "keep"
    same_task = same_head or any(row is not None for row in kept)
    return Checkpoint(
        spec=moved.spec,
        tensors=moved.tensors,
        classes=checkpoint.classes if same_head else names,
        activation=checkpoint.activation if same_task else "softmax",
        thresholds=checkpoint.thresholds if same_head else None,
        preprocess=checkpoint.preprocess and _refit(checkpoint.preprocess, moved.spec, image),
        trained_on=checkpoint.trained_on,
        provenance=provenance,
        decoder=fit_decoder(checkpoint.decoder, checkpoint.spec, moved.spec),
        changed_by=checkpoint.changed_by,
    )


def find_classes(wanted: Sequence[str], have: Sequence[str] | None) -> tuple[int | None, ...]:
    """Find each wanted class among a model's, by name or, for ImageNet's, by WordNet ID.

    A name that one side has more often than the other stands for nothing certain. ImageNet's are
    found all or none: a few equal names (chair) don't make it the same task, and for another one
    the paper begins with a head of zeros.
    """
    if have is None:
        return (None,) * len(wanted)
    imagenet = tuple(have) == imagenet_classes(len(have))
    wnids = imagenet_wnids(len(have)) or () if imagenet else ()
    have = wnids if wnids and set(wanted) <= set(wnids) else have
    counts, theirs, seen = Counter(wanted), Counter(have), Counter[str]()
    places: dict[tuple[str, int], int] = {}
    for place, name in enumerate(have):
        places[name, seen[name]] = place
        seen[name] += 1
    seen.clear()
    found: list[int | None] = []
    for name in wanted:
        found.append(places[name, seen[name]] if counts[name] == theirs[name] else None)
        seen[name] += 1
    return (None,) * len(wanted) if imagenet and None in found else tuple(found)


def adapt_to_model(
    checkpoint: Checkpoint,
    named: Spec,
    *,
    classes: int | Sequence[str],
    head: HeadMode = "replace",
) -> Checkpoint:
    """Fit weights to a named model's resolution, patch, channels and dropout, and to new classes.

    `classes` and `head` are as for `adapt_checkpoint`.

    What the name leaves open (the form of GELU) stays as the weights have it; an option that it
    asks for and that can't be changed (another pooling) is refused.
    """
    found = checkpoint.spec
    shape = ("depth", "width", "heads", "mlp", "stages", "stem_width")
    have = {field.name for field in fields(found)}
    if type(found) is not type(named) or any(
        getattr(found, key) != getattr(named, key) for key in shape if key in have
    ):
        raise InputError(f"the weights are of {found.name}, which does not fit {named.name}")
    _refuse_others(found, named, fitted={*shape, *QUIET, *_FITTED})
    patch = named.patch if isinstance(named, ViTSpec) else None
    fitted = adapt_checkpoint(
        checkpoint,
        classes=classes,
        image=named.image,
        channels=named.channels,
        patch=patch,
        head=head,
    )
    if not isinstance(named, ViTSpec):
        return fitted
    return replace(fitted, spec=replace(fitted.spec, **{key: getattr(named, key) for key in QUIET}))


def _refuse_others(found: Spec, named: Spec, *, fitted: set[str]) -> None:
    """Refuse a name with an option that the weights don't have and that can't be adapted."""
    rest = [field for field in fields(named) if field.name not in fitted]
    said = {field.name: getattr(named, field.name) for field in rest}
    said = {field.name: said[field.name] for field in rest if said[field.name] != field.default}
    if getattr(found, "layer_scale", 0):  # which only matters before training
        said.pop("layer_scale", None)
    wrong = {name: value for name, value in said.items() if getattr(found, name) != value}
    if wrong:
        listed = ", ".join(f"{k}={getattr(found, k)}, not {k}={v}" for k, v in wrong.items())
        raise InputError(f"the weights of {found.name} have {listed}: leave that out of the name")


def _refit(preprocess: Preprocess, spec: Spec, image: Size | None) -> Preprocess:
    """Bring a preprocessing to the size that was asked for and the model's channel count.

    Without one it keeps its own, which need not be that of the model's positions (DINOv2's).
    """
    count, old = spec.channels, len(preprocess.mean)
    means, stds = preprocess.mean, preprocess.std
    if count != old:
        gray = count == 1  # one channel stands for all
        means = (sum(means) / old,) if gray else tuple(means[i % old] for i in range(count))
        stds = (sum(stds) / old,) if gray else tuple(stds[i % old] for i in range(count))
    return replace(preprocess, size=image or preprocess.size, mean=means, std=stds)
