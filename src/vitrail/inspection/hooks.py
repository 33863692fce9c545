"""Hooks on a model's attention layers and blocks, which change nothing.

A compiled model runs as it was compiled, and then once more without its compiled code, for the
hooks: in compiled code they would not be called, or would be compiled in and stay there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models import BiT, Model, ViT
from vitrail.models.layers.differential import DifferentialMix, split_pairs
from vitrail.models.layers.self_attention import SelfAttention
from vitrail.models.spec import Size

Axis = Literal["grid", "row", "column"]
Layers = Sequence[int] | Literal["all"]


@dataclass(frozen=True)
class AttentionCall:
    """The inputs and outputs of one attention layer.

    A line is what attends to itself: a whole image, or with axial attention a row or a column.
    """

    layer: int
    query: Tensor
    """(lines, heads, tokens, head size), as are the others."""
    key: Tensor
    value: Tensor
    mixed: Tensor
    """Values weighted by attention."""
    bias: Tensor | None
    """Added to the logits (lines or 1, heads or 1, tokens, tokens)."""
    axis: Axis
    lines: int
    """Lines of an image."""
    subtracted: tuple[Tensor, Tensor, Tensor] | None = None
    """Query, key and factor of the second of two attentions, where a layer has their difference."""

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.lines * self.query.shape[2]


def find_model(module: nn.Module) -> ViT | BiT:
    """Return the model that a module is or, compiled or wrapped, contains."""
    for part in module.modules():
        if isinstance(part, Model):
            assert isinstance(part, ViT | BiT)
            return part
    raise InputError(
        f"expected a model of vitrail.build or vitrail.load, got {type(module).__name__}"
    )


def attention_layers(model: ViT | BiT) -> list[SelfAttention]:
    """List a model's attention layers; an axial block has two, over rows and then over columns."""
    return [part for part in model.blocks.modules() if isinstance(part, SelfAttention)]


def choose_layers(asked: Layers | None, count: int, what: str, name: str) -> list[int]:
    """Count layers from the end where negative, and refuse what is out of range."""
    if asked is None:
        return []
    if isinstance(asked, str):
        if asked != "all":
            raise InputError(f"layers are numbers or 'all', not {asked!r}")
        return list(range(count))
    wrong = [layer for layer in asked if not -count <= layer < count]
    if wrong:
        raise InputError(
            f"{name} has no {what} {wrong[0]}; it has {count}: 0 to {count - 1}, or -1 for the last"
        )
    return [layer % count for layer in asked]


@contextmanager
def hooked(
    module: nn.Module,
    *,
    attention: Sequence[int] = (),
    on_attention: Callable[[AttentionCall], None] = lambda found: None,
    tokens: Sequence[int] = (),
    on_tokens: Callable[[int, Tensor], None] = lambda layer, output: None,
    on_pooling: Callable[[Tensor, Tensor], None] | None = None,
    eager: bool = False,
) -> Iterator[None]:
    """Call back with each forward pass's attention, block outputs, and pooling's query and key.

    Nothing stays behind, however the context ends. With `eager`, compiled code does not run at
    all, and the caller calls `forward`.
    """
    model = find_model(module)
    sites = attention_layers(model)
    axial = isinstance(model, BiT) or model.spec.attention == "axial"

    def register(stack: ExitStack) -> None:
        for layer in dict.fromkeys(attention):
            axis: Axis = "grid" if not axial else "column" if layer % 2 else "row"
            _hook_attention(stack, sites[layer], layer, axis, on_attention)
        for layer in dict.fromkeys(tokens):
            hook = _hook_output(on_tokens, layer)
            stack.callback(model.blocks[layer].register_forward_hook(hook).remove)
        if on_pooling is not None and isinstance(model, ViT) and model.pooling is not None:
            _hook_pooling(stack, model.pooling, on_pooling)

    with ExitStack() as stack:
        # Otherwise blocks would run, and call the hooks, once more in the backward pass.
        stack.callback(setattr, model, "checkpointing", model.checkpointing)
        model.checkpointing = False
        compiled = _is_compiled(module)
        if compiled and eager:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if compiled and not eager:
            hook = module.register_forward_hook(_replay(register), with_kwargs=True)
            stack.callback(hook.remove)
        else:
            register(stack)
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run a module in eval mode without gradients, and restore its mode afterwards."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def _is_compiled(module: nn.Module) -> bool:
    if "torch._dynamo" not in sys.modules:  # compiling imports it, and importing it takes seconds
        return False
    return any(
        isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None
        for part in module.modules()
    )


def _replay(register: Callable[[ExitStack], None]) -> Callable[..., None]:
    """Make the hook that runs a compiled module again, without its compiled code."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        devices = {part.device for part in args if isinstance(part, Tensor) and part.is_cuda}
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.no_grad())
            register(stack)
            module.forward(*args, **kwargs)

    disabled: Any = torch.compiler.disable(hook)  # where the root is compiled, so would this be
    return disabled


def _hook_attention(
    stack: ExitStack,
    site: SelfAttention,
    layer: int,
    axis: Axis,
    callback: Callable[[AttentionCall], None],
) -> None:
    lines = 1

    def count_lines(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal lines
        lines = inputs[0].shape[1] if axis != "grid" else 1

    def finish(mix: nn.Module, inputs: tuple[Any, ...], mixed: Tensor) -> None:
        query, key, value, bias = inputs
        subtracted = None
        if isinstance(mix, DifferentialMix):
            (query, query2), (key, key2) = split_pairs(query), split_pairs(key)
            subtracted = query2, key2, mix.factor
        found = AttentionCall(layer, query, key, value, mixed, bias, axis, lines, subtracted)
        with torch.autocast(query.device.type, enabled=False):  # it is the model's, not the hook's
            callback(found)

    stack.callback(site.register_forward_pre_hook(count_lines).remove)
    stack.callback(site.mix.register_forward_hook(finish).remove)


def _hook_output(callback: Callable[[int, Tensor], None], layer: int) -> Callable[..., None]:
    return lambda _, inputs, output: callback(layer, output)


def _hook_pooling(
    stack: ExitStack, pooling: nn.Module, callback: Callable[[Tensor, Tensor], None]
) -> None:
    seen: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        seen.append(output)

    def finish(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        query, both = seen
        seen.clear()
        with torch.autocast(query.device.type, enabled=False):
            callback(query, both.chunk(2, dim=-1)[0])

    stack.callback(seen.clear)
    for name in ("query", "key_value"):  # in the order of their calls
        stack.callback(pooling.get_submodule(name).register_forward_hook(note).remove)
    stack.callback(pooling.register_forward_hook(finish).remove)


def patches_of(model: ViT | BiT, x: Tensor) -> Size:
    """Return the grid of patches of images (batch, channels, height, width)."""
    if isinstance(model, BiT):
        raise InputError(f"{model.spec.name} has no patches; use a ViT, a hybrid or an AxialViT")
    return x.shape[2] // model.spec.stride[0], x.shape[3] // model.spec.stride[1]
