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
from vitrail.models.layers import SelfAttention
from vitrail.models.positions import RelativePositions
from vitrail.models.spec import Size

Axis = Literal["grid", "row", "column"]
Layers = Sequence[int] | Literal["all"]


@dataclass(frozen=True)
class Attended:
    """The inputs and outputs of one attention layer.

    A line is what attends to itself: a whole image, or with axial attention a row or a column.
    """

    layer: int
    query: Tensor
    """(lines, heads, tokens, head size), as are the other two."""
    key: Tensor
    value: Tensor
    mixed: Tensor
    """Values weighted by attention (…, tokens, width)."""
    relative: RelativePositions | None
    axis: Axis
    lines: int
    """Lines of an image."""

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
def listening(
    module: nn.Module,
    *,
    attention: Sequence[int] = (),
    attended: Callable[[Attended], None] = lambda found: None,
    tokens: Sequence[int] = (),
    encoded: Callable[[int, Tensor], None] = lambda layer, output: None,
    pooled: Callable[[Tensor, Tensor], None] | None = None,
    eagerly: bool = False,
) -> Iterator[None]:
    """Call back with each forward pass's attention, block outputs, and pooling's query and key.

    Nothing stays behind, however the context ends. With `eagerly`, compiled code does not run at
    all, and the caller calls `forward`.
    """
    model = find_model(module)
    sites = attention_layers(model)
    axial = isinstance(model, BiT) or model.spec.attention == "axial"

    def listen(stack: ExitStack) -> None:
        for layer in dict.fromkeys(attention):
            axis: Axis = "grid" if not axial else "column" if layer % 2 else "row"
            _hear_attention(stack, sites[layer], layer, axis, attended)
        for layer in dict.fromkeys(tokens):
            hook = _hear_output(encoded, layer)
            stack.callback(model.blocks[layer].register_forward_hook(hook).remove)
        if pooled is not None and isinstance(model, ViT) and model.pooling is not None:
            _hear_pooling(stack, model.pooling, pooled)

    with ExitStack() as stack:
        # Else blocks would run, and be heard, once more in the backward pass.
        stack.callback(setattr, model, "checkpointing", model.checkpointing)
        model.checkpointing = False
        compiled = _is_compiled(module)
        if compiled and eagerly:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if compiled and not eagerly:
            hook = module.register_forward_hook(_replay(listen), with_kwargs=True)
            stack.callback(hook.remove)
        else:
            listen(stack)
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


def _replay(listen: Callable[[ExitStack], None]) -> Callable[..., None]:
    """Make the hook that runs a compiled module again, without its compiled code."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        devices = {part.device for part in args if isinstance(part, Tensor) and part.is_cuda}
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.no_grad())
            listen(stack)
            module.forward(*args, **kwargs)

    disabled: Any = torch.compiler.disable(hook)  # where the root is compiled, so would this be
    return disabled


def _hear_attention(
    stack: ExitStack,
    site: SelfAttention,
    layer: int,
    axis: Axis,
    tell: Callable[[Attended], None],
) -> None:
    heard: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda _, inputs, output: heard.update({name: output})

    def note_input(_: nn.Module, inputs: tuple[Tensor]) -> None:
        heard["mixed"] = inputs[0]

    def finish(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, relative = inputs[0], inputs[1] if len(inputs) > 1 else None
        qkv = heard.pop("qkv")
        value = qkv.view(-1, x.shape[-2], 3, site.heads, x.shape[-1] // site.heads)[:, :, 2]
        query, key, mixed = (heard.pop(name) for name in ("query", "key", "mixed"))
        value, lines = value.transpose(1, 2), x.shape[1] if axis != "grid" else 1
        with torch.autocast(x.device.type, enabled=False):  # it is the model's, not the listener's
            tell(Attended(layer, query, key, value, mixed, relative, axis, lines))

    stack.callback(heard.clear)
    for name, part in (("qkv", site.qkv), ("query", site.query_norm), ("key", site.key_norm)):
        stack.callback(part.register_forward_hook(note(name)).remove)
    stack.callback(site.output.register_forward_pre_hook(note_input).remove)
    stack.callback(site.register_forward_hook(finish).remove)


def _hear_output(tell: Callable[[int, Tensor], None], layer: int) -> Callable[..., None]:
    return lambda _, inputs, output: tell(layer, output)


def _hear_pooling(
    stack: ExitStack, pooling: nn.Module, tell: Callable[[Tensor, Tensor], None]
) -> None:
    heard: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        heard.append(output)

    def finish(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        query, both = heard
        heard.clear()
        with torch.autocast(query.device.type, enabled=False):
            tell(query, both.chunk(2, dim=-1)[0])

    stack.callback(heard.clear)
    for name in ("query", "key_value"):  # in the order of their calls
        stack.callback(pooling.get_submodule(name).register_forward_hook(note).remove)
    stack.callback(pooling.register_forward_hook(finish).remove)


def patches_of(model: ViT | BiT, x: Tensor) -> Size:
    """Return the grid of patches of images (batch, channels, height, width)."""
    if isinstance(model, BiT):
        raise InputError(f"{model.spec.name} has no patches; use a ViT, a hybrid or an AxialViT")
    return x.shape[2] // model.spec.stride[0], x.shape[3] // model.spec.stride[1]
