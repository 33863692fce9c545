"""Attention followed from the output back to the patches (Figure 6, Appendix D.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError, suggest
from vitrail.inspection.hooks import (
    AttentionCall,
    Layers,
    attention_layers,
    choose_layers,
    evaluating,
    find_model,
    hooked,
    patches_of,
)
from vitrail.inspection.record import (
    Chunk,
    chunks_of,
    join_chunks,
    pooling_weights,
    record,
    spread,
)
from vitrail.models import ViT
from vitrail.models.spec import Size
from vitrail.plotting.drawable import Drawable
from vitrail.plotting.tiles import stretch

if TYPE_CHECKING:
    from vitrail.plotting.canvas import Plot

Method = Literal["rollout", "gradient", "raw"]
MEMORY = 2**28
"""Bytes of attention that are held at once when every layer's is asked for."""


@dataclass(frozen=True, eq=False)
class Masks(Drawable):
    """How much each patch matters, for some images."""

    values: np.ndarray
    """(images, rows, columns), or by head (images, heads, rows, columns); not scaled."""
    inputs: np.ndarray
    """The images as the model saw them (images, height, width, 3), uint8."""
    method: Method

    def draw(self) -> Plot:
        """Draw the images beside their masks, the mean of the heads."""
        from vitrail.plotting.inspection_plots import draw_overlays

        each = self.values.mean(1) if self.values.ndim == 4 else self.values
        names = [f"{self.method} {number}" for number in range(len(each))]
        masks = resize_masks(np.stack([stretch(mask) for mask in each]), self.inputs.shape[1:3])
        return draw_overlays(list(self.inputs), list(masks), names)

    def resized(self, size: Size) -> np.ndarray:
        """Resize to the model's input or another size, bilinearly, each mask's maximum to 1."""
        return resize_masks(self.values, size)


def attention_masks(
    model: nn.Module,
    x: Tensor,
    *,
    method: Method = "rollout",
    by_head: bool = False,
    layer: int = -1,
    target: int | Sequence[int] | None = None,
) -> Masks:
    """Compute how much attention each patch of images x (batch, channels, height, width) gets.

    `rollout` multiplies all layers' attention, the mean of their heads and the identity for the
    residual; it is the same for every class. `gradient` first weights it by the gradient of the
    class `target` (by default the predicted one). `raw` is the attention of the class token in one
    `layer`; without a class token, that of the patches, weighted as the pooling weights them.
    """
    if method not in get_args(Method):
        known = ", ".join(get_args(Method))
        raise InputError(f"unknown method {method!r}; expected one of {known}"
                         f"{suggest(method, get_args(Method))}")  # fmt: skip
    inner = find_model(model)
    grid = patches_of(inner, x)
    assert isinstance(inner, ViT)
    if method == "gradient":
        maps, read = gradient_maps(inner, x, target=target, by_head=by_head)
    else:
        layers = "all" if method == "rollout" else [layer]
        maps, read = attention_maps(model, x, layers=layers, by_head=by_head)
    if inner.spec.branches > 1 and method != "raw":  # side by side, so their mean is one layer
        step = inner.spec.branches
        maps = [torch.stack(maps[i : i + step]).mean(0) for i in range(0, len(maps), step)]
    if by_head:
        read = read[:, None].expand(-1, inner.spec.heads, -1)
    with torch.autocast(x.device.type, enabled=False):
        values = _follow(maps[0], read) if method == "raw" else rollout(maps, read)
    patches = values[..., inner.spec.prefix :].unflatten(-1, grid)
    return Masks(patches.float().cpu().numpy(), _to_pixels(x), method)


def head_masks(model: nn.Module, x: Tensor) -> np.ndarray:
    """Compute the raw masks of all layers (layers, images, heads, rows, columns).

    As many layers are recorded in a pass as fit into MEMORY.
    """
    inner = find_model(model)
    grid = patches_of(inner, x)
    assert isinstance(inner, ViT)
    layers = range(len(attention_layers(inner)))
    tokens = inner.spec.prefix + grid[0] * grid[1]
    step = max(1, MEMORY // (4 * len(x) * inner.spec.heads * tokens**2))
    found = list[Tensor]()
    for start in range(0, len(layers), step):
        maps, read = attention_maps(model, x, layers=layers[start : start + step], by_head=True)
        read = read[:, None].expand(-1, inner.spec.heads, -1)
        found += [_follow(weights, read)[..., inner.spec.prefix :].cpu() for weights in maps]
    return torch.stack(found).unflatten(-1, grid).float().numpy()


def rollout(maps: Sequence[Tensor], read: Tensor) -> Tensor:
    """Follow weights of the output tokens (…, tokens) back through layers to their first input.

    Maps (…, tokens, tokens) are the layers', the first one first. To each the identity is added,
    for the residual, and its rows made to add up to one.
    """
    for weights in reversed(maps):
        scaled = read / (1 + weights.sum(-1))
        read = scaled + _follow(weights, scaled)
    return read


def _follow(weights: Tensor, read: Tensor) -> Tensor:
    return (read[..., None, :] @ weights)[..., 0, :]


def attention_maps(
    model: nn.Module, x: Tensor, *, layers: Layers = "all", by_head: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Return layers' attention (batch, tokens, tokens) and the pooling weights (batch, tokens).

    Attention is the mean of the heads, or by head (batch, heads, tokens, tokens).
    """
    sums = _Sums()
    each = None if by_head else sums.add
    with evaluating(model), record(model, attention=layers, each=each) as tape:
        model(x)
    maps = dict(tape.attention) if by_head else sums.means()
    inner = find_model(model)
    assert isinstance(inner, ViT)
    asked = choose_layers(layers, len(attention_layers(inner)), "attention layer", inner.spec.name)
    return [maps[layer] for layer in asked], _read(inner, maps[asked[0]], tape.pooling)


def gradient_maps(
    model: ViT, x: Tensor, *, target: int | Sequence[int] | None = None, by_head: bool = False
) -> tuple[list[Tensor], Tensor]:
    """Return all layers' attention like `attention_maps`, weighted by the target's gradient.

    Weights whose growth would lower the target's logit count as zero. The fused kernel keeps no
    weights, but their gradient is a product of the values and the gradient of what it gave.
    """
    if model.spec.classes == 0:
        raise InputError(
            f"{model.spec.name} has no head, so there is no class to take the gradient of"
        )
    found: list[AttentionCall] = []
    pooling: list[Tensor] = []
    pool_heads = model.spec.pool_heads or model.spec.heads
    layers = range(len(attention_layers(model)))
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        with hooked(
            model,
            attention=layers,
            on_attention=found.append,
            on_pooling=lambda q, k: pooling.append(pooling_weights(q, k, pool_heads)),
            eager=True,
        ):
            logits = model.forward(x)
        classes = _targets(logits, target)
        score = logits.gather(1, classes[:, None]).sum()
        gradients = torch.autograd.grad(score, [layer.mixed for layer in found])
    with torch.autocast(x.device.type, enabled=False):
        maps = [_weigh(*pair, by_head=by_head) for pair in zip(found, gradients, strict=True)]
    return maps, _read(model, maps[0], pooling[0] if pooling else None)


@torch.no_grad()
def _weigh(found: AttentionCall, gradient: Tensor, *, by_head: bool) -> Tensor:
    """Multiply one layer's attention by its positive gradient."""
    sums = _Sums()
    whole: list[Chunk] = []
    for chunk in chunks_of(found):
        lines = slice(chunk.images.start * found.lines, chunk.images.stop * found.lines)
        sides = (side[lines, chunk.heads].to(chunk.weights) for side in (gradient, found.value))
        slope = next(sides) @ next(sides).mT
        if found.axis != "grid":
            slope, _ = spread(slope, found)
        weighed = chunk._replace(weights=chunk.weights * slope.clamp(min=0))
        if by_head:
            whole.append(weighed)
        else:
            sums.add(weighed)
    return join_chunks(whole) if by_head else sums.means()[found.layer]


class _Sums:
    """Layers' attention, added up over heads as its chunks come."""

    def __init__(self) -> None:
        self.sums: dict[int, dict[int, Tensor]] = {}
        self.heads = 0

    def add(self, chunk: Chunk) -> None:
        layer = self.sums.setdefault(chunk.layer, {})
        first, part = chunk.images.start, chunk.weights.sum(1)
        layer[first] = layer[first] + part if chunk.heads.start else part
        self.heads = max(self.heads, chunk.heads.stop)

    def means(self) -> dict[int, Tensor]:
        sums = {layer: torch.cat(list(parts.values())) for layer, parts in self.sums.items()}
        return {layer: total / self.heads for layer, total in sums.items()}


def _read(model: ViT, like: Tensor, pooling: Tensor | None) -> Tensor:
    """Return the weight of each token (batch, tokens) in what the head gets."""
    read = like.new_zeros(len(like), like.shape[-1])
    prefix = 0 if model.spec.pool_prefix else model.spec.prefix
    if pooling is not None:
        read[:, prefix:] = pooling.mean(1)
    elif model.spec.pool == "token":
        read[:, 0] = 1
    else:
        read[:, prefix:] = 1 / (read.shape[1] - prefix)
    if model.spec.pool == "token-gap":
        read[:, 0] = 1
        read /= 2
    return read


def _targets(logits: Tensor, target: int | Sequence[int] | None) -> Tensor:
    """Return a class for each image: the given one, or the predicted one."""
    count, classes = logits.shape
    if target is None:
        return logits.argmax(1)
    asked = [target] * count if isinstance(target, int) else list(target)
    wrong = [number for number in asked if not 0 <= number < classes]
    if wrong:
        raise InputError(f"target class {wrong[0]} does not exist; expected 0 to {classes - 1}")
    if len(asked) != count:
        raise InputError(f"{len(asked)} target classes for {count} images; give one or {count}")
    return torch.tensor(asked, device=logits.device)


def _to_pixels(x: Tensor) -> np.ndarray:
    """Make normalized images (batch, channels, height, width) visible again."""
    x = x.detach().float().cpu()
    x = x[:, :3] if x.shape[1] > 2 else x[:, :1].expand(-1, 3, -1, -1)
    low, high = x.amin((1, 2, 3)), x.amax((1, 2, 3))
    low, high = low.view(-1, 1, 1, 1), high.view(-1, 1, 1, 1)
    bright = (x - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    return (255 * bright).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def resize_masks(values: np.ndarray, size: Size) -> np.ndarray:
    """Resize masks (…, rows, columns) bilinearly, and scale each so that its maximum is 1."""
    grid = torch.from_numpy(values).float().flatten(0, -3)[None]
    large = F.interpolate(grid, size, mode="bilinear", align_corners=False)[0]
    large /= large.amax((1, 2), keepdim=True).clamp(min=torch.finfo(large.dtype).tiny)
    return large.unflatten(0, values.shape[:-2]).numpy()
