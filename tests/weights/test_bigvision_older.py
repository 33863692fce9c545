"""big_vision files from before 2022: positions in the encoder, MAP head at the top."""

import torch

from tests.golden.reader import arrays, images
from vitrail.models import build
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.keymap import read_table


def read(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    named = BIGVISION.normalize(tensors)
    shapes = {key: tuple(value.shape) for key, value in named.items()}
    assert BIGVISION.recognizes(shapes)
    spec = BIGVISION.infer(shapes, FileFacts())
    ours, left_out = read_table(BIGVISION.table(spec), named, BIGVISION.left_out)
    assert left_out == {}
    model = build(spec).eval()
    model.load_state_dict(ours)
    return model


def golden(name: str) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in arrays(name).items()}


def test_an_inlined_map_head_is_found() -> None:
    tensors = golden("bigvision-vit-map")
    older = {key.removeprefix("MAPHead_0/"): value for key, value in tensors.items()}
    assert older.keys() != tensors.keys()
    older["Transformer/pos_embedding"] = older.pop("pos_embedding")
    x, outputs = images("bigvision-vit-map")
    torch.testing.assert_close(read(older)(x), outputs["logits"], rtol=1e-5, atol=1e-5)


def test_a_class_tokens_position_is_kept() -> None:
    """What big_vision folds into the token when it reads such a file gives the same logits."""
    tensors = golden("bigvision-vit-tok-rep")
    row = torch.randn(1, 1, 48)
    older = dict(tensors)
    positions = older.pop("pos_embedding")
    older["Transformer/pos_embedding"] = torch.cat([row, positions], dim=1)
    older["cls"] = tensors["cls"] - row
    model = read(older)
    assert len(model.get_parameter("positions.0.table")) == 17
    x, outputs = images("bigvision-vit-tok-rep")
    torch.testing.assert_close(model(x), outputs["logits"], rtol=1e-5, atol=1e-5)
