"""What the tests of formats share: reading a peer's tensors as the package does, and back."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.parity import peers
from vitrail.models import BiT, Spec, ViT, build
from vitrail.models.names import parse_said
from vitrail.weights.formats.format import FileFacts, Format
from vitrail.weights.formats.keymap import read_table, write_table


def named(model: str | Spec) -> FileFacts:
    """Know of a file what a model's name says."""
    return FileFacts({}, *parse_said(str(model)))


def convert(
    format: Format, theirs: Mapping[str, Tensor], known: Mapping[str, Any] | FileFacts
) -> ViT | BiT:
    """Read as the package does: recognize, infer, fill every parameter; then write it back."""
    facts = known if isinstance(known, FileFacts) else FileFacts(known)
    named = format.normalize(theirs)
    shapes = {key: tuple(value.shape) for key, value in named.items()}
    assert format.recognizes(shapes)
    spec = format.infer(shapes, facts)
    ours, left_out = read_table(format.table(spec), named, format.left_out)
    model = build(spec)
    model.load_state_dict(ours, strict=True)
    back = write_table(format.table(spec), model.state_dict())
    assert back.keys() == named.keys() - left_out.keys()
    for key, value in back.items():
        assert value.dtype == named[key].dtype
        assert torch.equal(value, named[key]), key
    return model.eval()


def assert_same_outputs(ours: ViT | BiT, peer: Callable[[Tensor], Tensor]) -> None:
    x = peers.images(ours.spec, torch.float32)
    with torch.no_grad():
        peers.assert_near(ours(x), peer(x), 1e-5, "outputs")
