"""A second reading of a ViT's weights: a plain forward pass on a file's own tensors.

`convert` checks its files with it. It uses neither the tables nor the models that it is there to
check, only each project's names and layouts, written down once more, and what its config says. What
it does not know it declines, so that nothing counts as checked that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.models import Spec, ViTSpec
from vitrail.weights.conversion.reference_names import (
    ENDINGS,
    GATED,
    PROJECTS,
    UNDERSTOOD,
    ReferenceNames,
)
from vitrail.weights.formats.timm.timm_architectures import VITS


class NoReferenceError(Exception):
    """Why there is no second reading of a file."""


_GELUS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("gelu", "gelu_python"), F.gelu),
    **dict.fromkeys(
        ("gelu-tanh", "gelu_tanh", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    **dict.fromkeys(("quick-gelu", "quick_gelu"), lambda x: x * torch.sigmoid(1.702 * x)),
}
"""By our names, timm's and transformers'."""


def run_reference(
    format: str,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    spec: Spec,
    images: Tensor,
) -> tuple[Tensor, Tensor]:
    """Give the features and logits of images by a file's own tensors, in the images' type.

    Heads, epsilon and activation are the config's or the project's; the spec's where the project's
    files say nothing of them. Raise NoReferenceError for what the pass does not know.
    """
    names = PROJECTS.get(format)
    if names is None or type(spec) is not ViTSpec:
        raise NoReferenceError(f"there is no reference forward pass for {format} {spec.name}")
    for field in fields(spec):
        if field.name not in UNDERSTOOD and getattr(spec, field.name) != field.default:
            raise NoReferenceError(f"the reference forward pass has no {field.name}")
    if spec.activation == "swiglu":
        names = replace(names, mlp=GATED.get(format, names.mlp))
    marks = (f"{names.patch}.weight", f"{names.patch}/kernel")
    first = next((key for key in tensors if key.endswith(marks)), marks[0])
    root = first[: first.rindex(names.patch)]  # such as "vit.", "params/"
    bare = {key.removeprefix(root): tensor for key, tensor in tensors.items()}
    run = _Pass(names, bare, images.dtype, *_settings(format, config, spec))
    try:
        return run.outputs(images, hidden=spec.representation > 0)
    except KeyError as error:
        raise NoReferenceError(f"the file has no tensor {error.args[0][:80]!r}") from None


def _settings(format: str, config: Mapping[str, Any], spec: ViTSpec) -> tuple[int, float, str]:
    """Give the number of heads, the norms' epsilon and the name of the activation."""
    heads, eps, activation = spec.heads, 1e-5 if spec.pre_norm else 1e-6, str(spec.activation)
    if format == "timm":
        arguments = config.get("model_args") or {}
        entry = VITS.get(str(config.get("architecture") or "").partition(".")[0])
        activation = arguments.get("act_layer") or (entry[0] if entry else activation)
        heads = arguments.get("num_heads") or (entry[1] if entry else heads)
    if format.startswith("transformers"):
        vision = config.get("vision_config") or config
        heads = vision.get("num_attention_heads", heads)
        eps = vision.get("layer_norm_eps", spec.norm_eps)
        activation = vision.get("hidden_act", activation)
    return heads, eps, "swiglu" if spec.activation == "swiglu" else activation


@dataclass(frozen=True)
class _Pass:
    """One forward pass; tensors are brought to its type one at a time, to save memory."""

    names: ReferenceNames
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype
    heads: int
    eps: float
    activation: str

    def outputs(self, images: Tensor, *, hidden: bool) -> tuple[Tensor, Tensor]:
        """Give the pooled features and the logits, which are the features without a classifier."""
        names = self.names
        x, tokens, prefix = self.embed(images)
        x = self.norm(x, names.pre) if self.has(names.pre) else x
        layer = 0
        while self.has((block := names.block.format(layer)) + names.norms.split()[0]):
            x, layer = self.run_block(x, block), layer + 1
        x = self.norm(x, names.last)
        heads = [head for head in names.heads.split() if self.has(head)]
        if tokens:
            pooled = x[:, 0]
            if heads == ["classifier"] and self.weight(heads[0]).shape[1] == 2 * x.shape[2]:
                pooled = torch.cat([pooled, x[:, prefix:].mean(1)], 1)  # DINOv2's
        elif self.has(names.pool.partition(" ")[0]) and heads != ["classifier"]:
            pooled = self.pool(x)
        else:  # as SigLIP's classifier in transformers does
            pooled = x[:, prefix:].mean(1)
        pooled = self.linear(pooled, names.hidden).tanh() if hidden else pooled
        if len(heads) == 2:
            return pooled, (self.linear(pooled, heads[0]) + self.linear(x[:, 1], heads[1])) / 2
        return pooled, self.linear(pooled, heads[0]) if heads else pooled

    def embed(self, images: Tensor) -> tuple[Tensor, int, int]:
        """Make tokens of images; also count those with a head, and all before the patches."""
        names = self.names
        weight = self.weight(names.patch)
        if weight.ndim == 2:  # SigLIP 2's, over flat RGB patches with their channels last
            side = round((weight.shape[1] / 3) ** 0.5)
            weight = weight.reshape(-1, side, side, 3).permute(0, 3, 1, 2)
        weight = weight if f"{names.patch}.weight" in self.tensors else weight.permute(3, 2, 0, 1)
        size = (int(weight.shape[2]), int(weight.shape[3]))
        x = F.conv2d(images, weight, self.bias(names.patch), stride=size)
        x = x.flatten(2).transpose(1, 2)
        tokens = [self.rows(name, len(x)) for name in names.tokens.split() if self.has(name)]
        if not self.has(names.positions):
            x = torch.cat([*tokens, x], 1)
        elif (positions := self.rows(names.positions, 1)).shape[1] == x.shape[1]:
            x = torch.cat([*tokens, x + positions], 1)
        else:
            x = torch.cat([*tokens, x], 1) + positions
        if not self.has(names.registers):
            return x, len(tokens), len(tokens)
        registers = self.rows(names.registers, len(x))
        x = torch.cat([x[:, : len(tokens)], registers, x[:, len(tokens) :]], 1)
        return x, len(tokens), len(tokens) + registers.shape[1]

    def run_block(self, x: Tensor, block: str) -> Tensor:
        names = self.names
        parts = (names.norms, names.scales, names.qkv, names.mlp)
        norms, scales, qkv, mlp = ([block + name for name in part.split()] for part in parts)
        inner = self.norm(x, norms[0])
        y = self.attend(inner, inner, qkv, (f"{block}attn.q_norm", f"{block}attn.k_norm"))
        x = x + self.scale(self.linear(y, block + names.out), scales[0])
        return x + self.scale(self.mlp(self.norm(x, norms[1]), *mlp), scales[1])

    def attend(
        self, x: Tensor, context: Tensor, qkv: list[str], norms: tuple[str, str] = ("", "")
    ) -> Tensor:
        if len(qkv) == 1:
            parts = [*self.linear(x, qkv[0]).chunk(3, -1)[:1]]
            parts += self.linear(context, qkv[0]).chunk(3, -1)[1:]
        else:
            parts = [self.linear(x, qkv[0])]
            parts += torch.cat([self.linear(context, name) for name in qkv[1:]], -1).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.has(norms[0]):
            q, k = self.norm(q, norms[0]), self.norm(k, norms[1])
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def pool(self, x: Tensor) -> Tensor:
        probe, out, norm, *mlp = self.names.pool.split()
        qkv = self.names.pool_qkv.split()
        x = self.linear(self.attend(self.rows(probe, len(x)), x, qkv), out)
        return (x + self.mlp(self.norm(x, norm), *mlp))[:, 0]

    def mlp(self, x: Tensor, hidden: str, output: str) -> Tensor:
        x = self.linear(x, hidden)
        if self.activation == "swiglu":
            gate, up = x.chunk(2, -1)
            return self.linear(F.silu(gate) * up, output)
        return self.linear(_GELUS[self.activation](x), output)

    def scale(self, x: Tensor, name: str) -> Tensor:
        return x * self.get(name) if name in self.tensors else x

    def norm(self, x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        bias = self.bias(name)
        return x * self.weight(name) + (0 if bias is None else bias)

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight = self.weight(name)
        if f"{name}/kernel" in self.tensors:
            weight = weight.reshape(x.shape[-1], -1).T
        elif name in self.tensors:  # CLIP's projection multiplies from the right
            weight = weight.T
        return F.linear(x, weight, self.bias(name))

    def weight(self, name: str) -> Tensor:
        found = [name + ending for ending in ENDINGS if name + ending in self.tensors]
        return self.get(found[0] if found else f"{name}.weight")

    def bias(self, name: str) -> Tensor | None:
        found = (name + ending for ending in (".bias", "/bias", "_bias"))
        key = next((key for key in found if key in self.tensors), None)
        return None if key is None else self.get(key).flatten()

    def rows(self, name: str, batch: int) -> Tensor:
        table = self.get(name)
        return table.reshape(1, -1, table.shape[-1]).expand(batch, -1, -1)

    def has(self, name: str) -> bool:
        return bool(name) and any(name + ending in self.tensors for ending in ENDINGS)

    def get(self, name: str) -> Tensor:
        return self.tensors[name].to(self.dtype)
