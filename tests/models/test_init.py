"""Initial values by their statistics, as flax draws them for the official code."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.forks import in_processes
from vitrail.models import BiT, ViT, build
from vitrail.models.convolution import StdConv
from vitrail.models.hybrid import ConvBlock, Stem, StemBlock
from vitrail.models.positions.relative import RelativePositions


def is_uniform(weight: Tensor, limit: float) -> bool:
    """Check a uniform draw by its edge and its variance."""
    near = weight.abs().max().item() == pytest.approx(limit, rel=0.02)
    return near and weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.03)


def is_lecun_normal(weight: Tensor) -> bool:
    """Check a truncated normal of variance 1 / inputs."""
    std = math.sqrt(1 / weight[0].numel())
    cut = 2 * std / 0.87962566103423978
    inside = 0.9 * cut < weight.abs().max().item() <= cut
    return inside and weight.std().item() == pytest.approx(std, rel=0.03)


@pytest.fixture(scope="module")
def vit() -> ViT:
    torch.manual_seed(1)
    name = "ViT/16@64,depth=2,width=256,heads=4,mlp=512,representation=200,registers=4"
    model = build(f"{name},layer_scale=0.001")
    assert isinstance(model, ViT)
    return model


def test_projections_are_xavier_each_by_itself(vit: ViT) -> None:
    block = vit.get_submodule("blocks.1")
    for matrix in block.get_parameter("attention.qkv.weight").chunk(3):
        assert is_uniform(matrix, math.sqrt(6 / (256 + 256)))
    assert is_uniform(block.get_parameter("attention.output.weight"), math.sqrt(6 / 512))
    assert is_uniform(block.get_parameter("mlp.hidden.weight"), math.sqrt(6 / (256 + 512)))
    assert is_uniform(block.get_parameter("mlp.output.weight"), math.sqrt(6 / (256 + 512)))


def test_biases(vit: ViT) -> None:
    block = vit.get_submodule("blocks.0")
    for name in ("mlp.hidden.bias", "mlp.output.bias"):
        assert block.get_parameter(name).std().item() == pytest.approx(1e-6, rel=0.15)
    for name in ("attention.qkv.bias", "attention.output.bias"):
        assert not block.get_parameter(name).any()


def test_embedding_tokens_and_positions(vit: ViT) -> None:
    assert is_lecun_normal(vit.embedding.weight)
    assert vit.embedding.bias is not None
    assert not vit.embedding.bias.any()
    assert vit.class_token is not None
    assert not vit.class_token.any()
    assert vit.registers is not None
    assert vit.registers.std().item() == pytest.approx(1e-6, rel=0.1)
    assert vit.get_parameter("positions.0.table").std().item() == pytest.approx(0.02, rel=0.05)


def test_norms_and_scales(vit: ViT) -> None:
    norms = [module for module in vit.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)
    scales = [p for name, p in vit.named_parameters() if name.endswith("factor")]
    assert len(scales) == 4
    assert all((scale == 0.001).all() for scale in scales)


def test_heads_start_at_zero_and_the_hidden_layer_at_lecun(vit: ViT) -> None:
    assert vit.head.hidden is not None
    assert vit.head.output is not None
    assert is_lecun_normal(vit.head.hidden.weight)
    assert not vit.head.output.weight.any()
    assert not vit.head.output.bias.any()


def test_attention_pooling_and_swiglu() -> None:
    model = build("ViT/16@64,depth=1,width=256,heads=4,mlp=256,pool=map,activation=swiglu")
    assert is_uniform(model.get_parameter("pooling.probe"), math.sqrt(6 / (1 + 256)))
    for matrix in model.get_parameter("pooling.key_value.weight").chunk(2):
        assert is_uniform(matrix, math.sqrt(6 / 512))
    for matrix in model.get_parameter("blocks.0.mlp.hidden.weight").chunk(2):
        assert is_uniform(matrix, math.sqrt(6 / 512))


def test_2d_and_relative_tables() -> None:
    model = build("ViT/16@256,depth=2,width=64,heads=4,mlp=8,position=learned-2d")
    for name in ("x", "y"):
        assert model.get_parameter(f"positions.0.{name}").std().item() == pytest.approx(
            0.02, rel=0.1
        )
    relative = "ViT/16@64,depth=2,width=64,heads=4,mlp=8,position=relative,position_at=every-layer"
    for table in (m.table for m in build(relative).modules() if isinstance(m, RelativePositions)):
        assert table.std().item() == pytest.approx(0.02, rel=0.1)


def test_hybrid_stem_starts_each_block_as_its_shortcut() -> None:
    model = build("Hybrid/1@64,stages=1-2,depth=1,width=64,heads=4,mlp=8")
    assert isinstance(model, ViT)
    assert isinstance(model.stem, Stem)
    blocks = [m for m in model.modules() if isinstance(m, StemBlock)]
    assert len(blocks) == 3
    assert all(not b.norm3.weight.any() and (b.norm1.weight == 1).all() for b in blocks)
    assert all(is_lecun_normal(m.weight) for m in model.modules() if isinstance(m, StdConv))


def test_conv_stem_starts_each_shortcut_block_as_its_shortcut() -> None:
    model = build("Hybrid/1@32,stem=conv,stages=1-3,stem_width=32,depth=1,width=64,heads=4,mlp=8")
    blocks = [m for m in model.modules() if isinstance(m, ConvBlock)]
    assert [bool(block.norm.weight.any()) for block in blocks] == [True, True, False, False]
    x = torch.randn(2, 128, 8, 8)
    torch.testing.assert_close(blocks[2](x), x.relu())
    assert all(is_lecun_normal(m.weight) for m in model.modules() if isinstance(m, StdConv))


def test_bit() -> None:
    model = build("BiT-R50x1@64,stages=1-1")
    assert isinstance(model, BiT)
    assert all(is_lecun_normal(m.weight) for m in model.modules() if isinstance(m, StdConv))
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)
    assert model.head.output is not None
    assert not model.head.output.weight.any()


@pytest.mark.parametrize(
    "name", ["ViT/8@16,depth=1,width=8,heads=2,mlp=8", "BiT@32,stages=1,width=32"]
)
def test_the_seed_decides(name: str) -> None:
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(torch.cat([p.flatten() for p in build(name).parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize(
    "name",
    [
        "ViT/8@16,depth=1,width=8,heads=2,mlp=8,registers=2,layer_scale=0.1",
        "ViT/8@16,depth=1,width=8,heads=2,mlp=8,pool=map,position=learned-2d",
        "Hybrid/1@16,stages=1,depth=1,width=8,heads=2,mlp=8",
        "BiT@32,stages=1,width=32,heads=4",
    ],
)
def test_a_meta_model_is_made_real_with_the_same_values(name: str) -> None:
    """Every parameter is filled: nothing of the empty memory is left."""
    torch.manual_seed(5)
    wanted = build(name)
    model = build(name, device="meta").to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    torch.manual_seed(5)
    wanted.init_weights()
    torch.manual_seed(5)
    model.init_weights()
    for key, value in wanted.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_a_seed_gives_a_meta_model_the_values_of_a_built_one() -> None:
    name = "ViT/8@16,depth=1,width=8,heads=2,mlp=8,registers=2"
    state = torch.get_rng_state()
    wanted = build(name, seed=5)
    model = build(name, device="meta", seed=5).to_empty(device="cpu")
    model.init_weights(5)
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in wanted.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


SHARDED = (
    "ViT/8@16,depth=2,width=16,heads=2,mlp=32,registers=2,pool=token,classes=3,representation=4",
    "ViT/8@16,depth=1,width=16,heads=2,mlp=32,pool=map,layer_scale=0.1,activation=swiglu",
    "Hybrid/1@16,stages=1,depth=1,width=8,heads=2,mlp=8",
)


def init_sharded() -> dict[str, bool]:
    """Say of each parameter whether a sharded model gets the values of an unsharded one."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    dist.init_process_group("gloo")
    equal = {}
    for name in SHARDED:
        model = build(name, device="meta")
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            parameter.to_local().data.fill_(float("nan"))
        model.init_weights(3)
        wanted = build(name, seed=3).state_dict()
        for key, value in model.state_dict().items():
            equal[f"{name} {key}"] = torch.equal(value.full_tensor(), wanted[key])
    dist.destroy_process_group()
    return equal


def test_sharded_weights_are_all_filled() -> None:
    for ended in in_processes(init_sharded):
        assert ended.code == 0, ended.error
        assert len(ended.value) > 60
        assert [key for key, equal in ended.value.items() if not equal] == []
