"""BEiT's relative positions on another grid: timm's rule and transformers', which differ."""

import pytest
import torch

from tests.parity import peers
from vitrail.models.positions.grid_resizing import resize_offsets
from vitrail.models.spec import Size

timm_layers = peers.load("timm.layers")
hf_beit = peers.load("transformers.models.beit.modeling_beit")
SIDES = [1, 3, 4, 14]
GRIDS: list[Size] = [(4, 4), (5, 5), (7, 7), (4, 6), (24, 9), (3, 2), (32, 32)]
HEADS = 3


def make_table(side: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(side)
    return torch.randn((2 * side - 1) ** 2 + 3, HEADS, generator=generator)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of timm's own code
@pytest.mark.parametrize("new", GRIDS)
@pytest.mark.parametrize("side", SIDES)
def test_timms_rule(side: int, new: Size) -> None:
    table = make_table(side)
    shape = ((2 * new[0] - 1) * (2 * new[1] - 1) + 3, HEADS)
    theirs = timm_layers.resize_rel_pos_bias_table(table, new, shape)
    ours = resize_offsets(table, (side, side), new, "timm")
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("new", GRIDS)
@pytest.mark.parametrize("side", SIDES)
def test_transformers_rule(side: int, new: Size) -> None:
    config = hf_beit.BeitConfig(image_size=8 * side, patch_size=8, num_attention_heads=HEADS)
    module = hf_beit.BeitRelativePositionBias(config)
    module.relative_position_bias_table.data = make_table(side)
    index = module.generate_relative_position_index(new)
    with torch.no_grad():
        theirs = module(new)[0]
    ours = resize_offsets(make_table(side), (side, side), new, "huggingface")
    torch.testing.assert_close(ours[index].permute(2, 0, 1), theirs, atol=1e-5, rtol=0)
