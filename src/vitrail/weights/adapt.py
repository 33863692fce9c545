"""Weights with all that came with them, fitted to a new task: by what is asked, or by a name."""

from __future__ import annotations

from dataclasses import fields, replace

from vitrail.config import InputError
from vitrail.data import Preprocess
from vitrail.models import Spec
from vitrail.models.spec import Size, ViTSpec
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.transfer import HeadMode, transfer

_FITTED = ("classes", "representation", "head_bias", "image", "channels", "patch")


def adapt_checkpoint(
    checkpoint: Checkpoint,
    *,
    classes: int | None = None,
    image: Size | None = None,
    channels: int | None = None,
    patch: Size | None = None,
    head: HeadMode = "replace",
) -> Checkpoint:
    """Fit weights to a new task; the changes are added to their provenance."""
    moved = transfer(
        checkpoint.spec,
        checkpoint.tensors,
        classes=classes,
        image=image,
        channels=channels,
        patch=patch,
        head=head,
    )
    said = tuple(f"{change.deed} {change.parameter}: {change.detail}" for change in moved.changes)
    provenance = checkpoint.provenance and replace(
        checkpoint.provenance, changes=(*checkpoint.provenance.changes, *said)
    )
    same_head = classes is None or head == "keep"
    return Checkpoint(
        spec=moved.spec,
        tensors=moved.tensors,
        classes=checkpoint.classes if same_head else None,
        activation=checkpoint.activation if same_head else "softmax",
        thresholds=checkpoint.thresholds if same_head else None,
        preprocess=checkpoint.preprocess and _refit(checkpoint.preprocess, moved.spec, image),
        provenance=provenance,
    )


def adapt_to_model(checkpoint: Checkpoint, named: Spec, *, classes: int) -> Checkpoint:
    """Fit weights to a named model's resolution, patch, channels and dropout, and to new classes.

    What the name leaves open, such as the form of GELU, stays as the weights have it; what it says
    and no fitting brings about, such as another pooling, is refused.
    """
    found = checkpoint.spec
    shape = ("depth", "width", "heads", "mlp", "stages", "stem_width")
    have = {field.name for field in fields(found)}
    if type(found) is not type(named) or any(
        getattr(found, key) != getattr(named, key) for key in shape if key in have
    ):
        raise InputError(f"the weights are of {found.name}, which {named.name} has no place for")
    noise = ("dropout", "attention_dropout", "stochastic_depth")
    _refuse_others(found, named, fitted={*shape, *noise, *_FITTED})
    patch = named.patch if isinstance(named, ViTSpec) else None
    fitted = adapt_checkpoint(
        checkpoint, classes=classes, image=named.image, channels=named.channels, patch=patch
    )
    if not isinstance(named, ViTSpec):
        return fitted
    return replace(fitted, spec=replace(fitted.spec, **{key: getattr(named, key) for key in noise}))


def _refuse_others(found: Spec, named: Spec, *, fitted: set[str]) -> None:
    """Refuse a name that says of an option what the weights are not, and nothing makes them."""
    rest = [field for field in fields(named) if field.name not in fitted]
    said = {field.name: getattr(named, field.name) for field in rest}
    said = {field.name: said[field.name] for field in rest if said[field.name] != field.default}
    if getattr(found, "layer_scale", 0):  # its first value is no longer of interest
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
