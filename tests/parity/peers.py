"""What the comparisons share: importing a peer, giving both models the same weights, climbing.

Two models climb the same rungs side by side: embedding, one block, tokens, features, logits.
"""

import importlib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Literal, TypeVar

import pytest
import torch
from torch import Tensor, nn

from vitrail.models import Spec, ViT, ViTSpec

M = TypeVar("M", bound=nn.Module)
Rules = Iterable[tuple[str, str]]
Cursor = tuple[nn.Module, Literal["input", "output"]]

TINY = ViTSpec(
    depth=2,
    width=48,
    heads=4,
    mlp=96,
    patch=(8, 8),
    image=(32, 32),
    classes=7,
    activation="gelu",
)
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.float32, 1e-5, id="float32"),
        pytest.param(torch.float64, 1e-10, id="float64"),
    ],
)
FLOAT32_RESIZE = 1e-6  # some peers resize positions in float32 whatever the model's type


def load(module: str) -> ModuleType:
    """Import a peer's module; where the peer is not installed, skip the tests that ask for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mend_torchvision()
        return pytest.importorskip(module)


@cache
def mend_torchvision() -> torch.library.Library | None:
    """Let torchvision's CUDA wheel, which timm and transformers need, import beside a CPU torch.

    Only two operators' schemas are missing; they last as long as the library that is given back.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return None
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def randomize(peer: M, dtype: torch.dtype, seed: int = 0) -> M:
    """Fill all parameters from a seeded normal, so that none is zero, one or without effect.

    So are the statistics of BatchNorm, where there are any.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in peer.parameters():
        matrix = parameter.ndim > 1 and len(parameter) > 1
        std = 1.5 * parameter[0].numel() ** -0.5 if matrix else 0.5
        nn.init.normal_(parameter, std=std, generator=generator)
    for name, buffer in peer.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(generator=generator)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0, generator=generator)
    return peer.to(dtype).eval()


def images(spec: Spec, dtype: torch.dtype, size: tuple[int, int] | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (2, spec.channels, *(size or spec.image))
    return torch.randn(shape, generator=generator).to(dtype)


def translate(state: Mapping[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """Rename by all rules in turn; then stack the parts of one name, marked #0, #1 and so on."""
    parts: defaultdict[str, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, value in state.items():
        for pattern, ours in rules:
            name = re.sub(pattern, ours, name)
        parts[re.sub(r"#\d", "", name)].append((name, value))
    return {
        name: torch.cat([value for _, value in sorted(pair, key=lambda pair: pair[0])])
        for name, pair in parts.items()
    }


def fill(model: M, state: Mapping[str, Tensor]) -> M:
    """Load a peer's translated parameters, all of them and no other, in our shapes and its type."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert state.keys() == shapes.keys(), sorted(state.keys() ^ shapes.keys())
    model.load_state_dict({name: state[name].reshape(shape) for name, shape in shapes.items()})
    return model.to(next(iter(state.values())).dtype).eval()


def climb(
    places: Mapping[str, Cursor], call: Callable[[Tensor], Tensor], x: Tensor
) -> dict[str, Tensor]:
    """Run a model once and give what passed the named places on the way, and its result."""
    seen: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module, side: str) -> torch.utils.hooks.RemovableHandle:
        if side == "input":
            return module.register_forward_pre_hook(
                lambda _, inputs: seen.update({name: inputs[0].clone()})
            )
        return module.register_forward_hook(
            lambda _, inputs, output: seen.update({name: output.clone()})
        )

    handles = [watch(name, *place) for name, place in places.items()]
    with torch.no_grad():
        result = call(x)
    for handle in handles:
        handle.remove()
    return {**{name: seen[name] for name in places}, "result": result}


def places(first: nn.Module, norm: nn.Module, **heads: nn.Module | None) -> dict[str, Cursor]:
    """Say where an encoder's rungs are: its first block, its last norm, its head's layers."""
    return {
        "embedding": (first, "input"),
        "block": (first, "output"),
        "tokens": (norm, "output"),
        **{name: (layer, "input") for name, layer in heads.items() if layer is not None},
    }


def climb_ours(model: ViT, x: Tensor, **more: Cursor) -> dict[str, Tensor]:
    """Give our ViT's rungs; without classes, its result is the features."""
    head = model.head
    ours = places(model.blocks[0], model.norm, pooled=head.hidden, features=head.output)
    rungs = climb({**more, **ours}, model, x)
    # Classifying normalizes the class token alone, so all tokens are asked for apart.
    with torch.no_grad():
        return {**rungs, "tokens": model.tokens(x)}


def assert_equal_rungs(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: float
) -> None:
    """Hold each rung's largest difference to a part of its largest value; name the first wrong."""
    assert list(ours) == list(theirs)
    for rung, wanted in theirs.items():
        assert_near(ours[rung], wanted, tolerance, rung)


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float, what: str = "values") -> None:
    assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)}, not {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype, f"{what}: {ours.dtype}, not {theirs.dtype}"
    assert theirs.std() > 0.01, f"{what}: the peer's values hardly vary"
    off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert off <= tolerance, f"{what}: off by {off:.1e} of the largest value, not {tolerance:.0e}"
