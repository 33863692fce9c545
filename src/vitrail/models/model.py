"""The interface of all models: tokens, features, logits, head, parameter groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.config import InputError
from vitrail.models.init import init_layers, seeded
from vitrail.models.layers.heads import Head
from vitrail.models.spec import BiTSpec, Size, ViTSpec
from vitrail.models.vit_spec import PLAIN_HEAD

S = TypeVar("S", bound=ViTSpec | BiTSpec)


class Model(nn.Module, ABC, Generic[S]):
    """An image classifier built from a spec."""

    spec: S
    blocks: nn.ModuleList
    norm: nn.Module
    checkpointing: int = 0
    """Training keeps only the input of every so many-th block and recomputes the rest; 0 for none,
    True (1) for each."""

    def __init__(self, spec: S) -> None:
        super().__init__()
        self.spec = spec
        self.head = self.make_head()

    @abstractmethod
    def tokens(self, x: Tensor) -> Tensor:
        """Encode images (batch, channels, height, width) to tokens (batch, tokens, width)."""

    @abstractmethod
    def pool(self, tokens: Tensor) -> Tensor:
        """Pool encoded tokens to what the head reads (batch, width)."""

    def init_weights(self, seed: int | None = None) -> None:
        """Fill all parameters as the official code does, sharded ones (DTensor) too.

        With a `seed` the values depend on it alone; else on torch's global generator.
        """
        if seed is None:
            self.init_parameters()
            return
        device = next(self.parameters()).device
        with seeded(seed, device):
            self.init_parameters()

    @abstractmethod
    def init_parameters(self) -> None:
        """Fill all parameters, with torch's global generator."""

    @abstractmethod
    def layer_of(self, parameter: str) -> int:
        """Return a parameter's depth: 0 at the input, then block by block, the head last."""

    def features(self, x: Tensor) -> Tensor:
        """Encode images to their representation, the pre-logits (batch, width)."""
        return self.head.features(self.pool(self.tokens(x)))

    def forward(self, x: Tensor) -> Tensor:
        """Classify images (batch, channels, height, width) to logits (batch, classes)."""
        return self.head(self.features(x))

    def intermediates(
        self,
        x: Tensor,
        layers: int | Sequence[int] | None = None,
        *,
        grid: bool = False,
        norm: bool = False,
        stop_early: bool = True,
    ) -> list[Tensor]:
        """Return the outputs of blocks, each (batch, tokens, channels).

        `layers` are block numbers, negative ones from the end; a number stands for that many last
        ones, None for all. `grid` leaves class token and registers out and gives feature maps
        (batch, channels, rows, columns). `norm` applies the model's last norm to each. Blocks after
        the last one asked for do not run, unless `stop_early` is off. There are no hooks: it can be
        compiled whole, and gradients flow through all of it.
        """
        asked = self._choose_blocks(layers, norm)
        stop = max(asked) if asked and stop_early else len(self.blocks) - 1
        outputs = self.run_to(x, asked, stop)
        tokens = [self.flatten_tokens(outputs[index]) for index in asked]
        tokens = [self.norm(each) for each in tokens] if norm else tokens
        if not grid:
            return tokens
        sizes = [self.map_size(x, outputs[index]) for index in asked]
        prefix = self.spec.prefix if isinstance(self.spec, ViTSpec) else 0
        pairs = zip(tokens, sizes, strict=True)
        return [each[:, prefix:].transpose(1, 2).unflatten(2, size) for each, size in pairs]

    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, norm: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the encoded tokens, and the outputs of blocks as `intermediates` does."""
        asked, last = self._choose_blocks(indices, norm), len(self.blocks) - 1
        outputs = self.run_to(x, [*asked, last], last)
        tokens = [self.flatten_tokens(outputs[index]) for index in asked]
        return self.finish(outputs[last]), [self.norm(each) for each in tokens] if norm else tokens

    def _choose_blocks(self, layers: int | Sequence[int] | None, norm: bool) -> list[int]:
        """Return the numbers of blocks that were asked for, from 0."""
        count = len(self.blocks)
        if isinstance(layers, int):
            if not 1 <= layers <= count:
                raise InputError(f"{self.spec.name} has {count} blocks, not the last {layers}")
            layers = range(count - layers, count)
        asked = list(range(count)) if layers is None else list(layers)
        for index in asked:
            if not -count <= index < count:
                raise InputError(f"{self.spec.name} has blocks 0 to {count - 1}, not {index}")
        if norm and not isinstance(self.norm, nn.LayerNorm | nn.RMSNorm):
            raise InputError(f"the last norm of {self.spec.name} fits its last block only")
        # A search, because it makes a compiler's symbols numbers again.
        return [next(n for n in range(count) if index in (n, n - count)) for index in asked]

    @abstractmethod
    def run_to(self, x: Tensor, layers: Sequence[int], stop: int) -> dict[int, Tensor]:
        """Run images up to a block; return outputs of some blocks as they are."""

    @abstractmethod
    def finish(self, output: Tensor) -> Tensor:
        """Return the encoded tokens (batch, tokens, channels) of the last block's output."""

    @abstractmethod
    def map_size(self, x: Tensor, output: Tensor) -> Size:
        """Return the rows and columns of a block's output."""

    @abstractmethod
    def flatten_tokens(self, x: Tensor) -> Tensor:
        """Reshape a block's output to (batch, tokens, channels)."""

    def replace_head(self, head: int | nn.Module) -> None:
        """Replace the whole head by one zero-initialized linear layer.

        A module is used as it is and gets the pooled features (batch, width). A linear layer
        becomes an ordinary head, which `save` keeps; for any other module `classes` becomes 0, and
        its weights are yours to save.
        """
        linear = head if isinstance(head, nn.Linear) else None
        if linear is not None and linear.in_features != self.spec.pooled:
            raise InputError(
                f"the head gets {self.spec.pooled} features, the layer takes {linear.in_features}"
            )
        classes = head if isinstance(head, int) else linear.out_features if linear else 0
        changes: dict[str, Any] = {"classes": classes}
        if isinstance(self.spec, ViTSpec):
            biased = linear is None or linear.bias is not None
            changes |= {**PLAIN_HEAD, "head_bias": biased}
        elif linear is not None and linear.bias is None:
            raise InputError(f"the head of {self.spec.name} has a bias; give a layer with one")
        self.spec = replace(self.spec, **changes)
        old = next(self.parameters())
        self.head = self.make_head().to(old.device, old.dtype)
        init_layers(self.head)
        if isinstance(head, nn.Module):
            self.head.output = head  # pyright: ignore[reportAttributeAccessIssue]

    def make_head(self) -> Head:
        """Build the head that the spec describes."""
        if isinstance(self.spec, ViTSpec):
            return Head(
                self.spec.pooled,
                self.spec.classes,
                representation=self.spec.representation,
                tanh=self.spec.representation_tanh,
                hidden_bias=self.spec.representation_bias,
                unit=self.spec.unit_features,
                bias=self.spec.head_bias,
            )
        return Head(self.spec.pooled, self.spec.classes)

    def parameter_groups(
        self,
        *,
        weight_decay: float = 0.0,
        layer_decay: float = 1.0,
        lr: float | None = None,
        last_norm: Literal["head", "block"] = "head",
        decays: Literal["weights", "all"] = "weights",
    ) -> list[dict[str, Any]]:
        """Group the parameters for any torch optimizer, by layer and by whether they decay.

        `weights` of dense layers and convolutions decay, as in big_vision, or `all` but biases and
        norms, as in Hugging Face's Trainer. The last norm is a layer with the head, or with the
        last block, as in timm. With `lr`, each group gets a learning rate of its own: `lr_scale`
        times it, which is `layer_decay` to the power of the layers above. Without it, optimizers
        give all groups one, so that a `layer_decay` is refused.
        """
        if lr is None and layer_decay != 1:
            raise InputError(
                "layer_decay requires lr: the optimizer's own would be that of all layers; give "
                f"parameter_groups(layer_decay={layer_decay:g}, lr=…)"
            )
        groups: dict[tuple[int, bool], dict[str, Any]] = {}
        deepest = self.layer_of("head")
        for name, parameter in self.named_parameters():
            layer = self.layer_of(name)
            if last_norm == "block" and name.removeprefix("encoder.").startswith("norm."):
                layer -= 1
            decaying = name.endswith(".weight") and parameter.ndim > 1
            if decays == "all" and not decaying:
                decaying = not name.endswith("bias") and "norm" not in name
            group = groups.setdefault((layer, decaying), {"params": [], "names": []})
            group["params"].append(parameter)
            group["names"].append(name)
            group["layer"] = layer
            group["weight_decay"] = weight_decay if decaying else 0.0
            group["lr_scale"] = layer_decay ** (deepest - layer)
            if lr is not None:
                group["lr"] = lr * group["lr_scale"]
        return [groups[key] for key in sorted(groups)]

    def run_block(self, block: nn.Module, *inputs: Any) -> Tensor:
        """Run one block; when checkpointing, only its input is kept for the backward pass."""
        if self.checkpointing and torch.is_grad_enabled() and self._recomputes(block):
            result = checkpoint(block, *inputs, use_reentrant=False)
            assert isinstance(result, Tensor)
            return result
        return block(*inputs)

    def _recomputes(self, block: nn.Module) -> bool:
        if self.checkpointing == 1:
            return True
        stem = getattr(self, "stem", None)
        order = [*(stem.blocks if stem is not None else ()), *self.blocks]
        places = [place for place, each in enumerate(order) if each is block]
        return places[0] % self.checkpointing == 0

    def check_input(self, x: Tensor) -> None:
        """Refuse anything but a batch of images for this model."""
        shape, channels = tuple(x.shape), self.spec.channels
        if x.ndim != 4:
            raise InputError(f"expected (batch, {channels}, height, width) images, got {shape}")
        if x.shape[1] != channels:
            last = "; channels come second, not last" if x.shape[3] == channels else ""
            raise InputError(f"expected {channels} channels, got {x.shape[1]} in {shape}{last}")
        if not x.is_floating_point():
            raise InputError(f"expected floating-point images, got {x.dtype}; scale them first")
