"""What timm, Hugging Face's Trainer and DeiT mean otherwise than we do, and our setting for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F

from tests.parity import peers
from tests.parity.transformers_models import shape
from vitrail.config import InputError
from vitrail.models import build
from vitrail.training.losses import DistillConfig, LossConfig, label_loss, teacher_loss
from vitrail.training.optimization.schedule import LRSchedule, rate_at
from vitrail.training.start import start_weights
from vitrail.training.train_config import PreprocessConfig, TrainConfig

TINY = replace(peers.TINY, patch=(8, 8))


def test_the_last_norm_decays_with_the_last_block_as_in_timm() -> None:
    timm, factory = peers.load("timm.models.vision_transformer"), peers.load("timm.optim")
    peer = timm.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4, num_classes=7
    )
    groups = factory.param_groups_layer_decay(peer, layer_decay=0.5)
    scales = {id(each): group["lr_scale"] for group in groups for each in group["params"]}
    theirs = {name: scales[id(each)] for name, each in peer.named_parameters()}

    def ours(last_norm: Literal["head", "block"]) -> dict[str, float]:
        groups = build(TINY).parameter_groups(layer_decay=0.5, lr=1.0, last_norm=last_norm)
        return {name: group["lr_scale"] for group in groups for name in group["names"]}

    names = {"head.output.bias": "head.bias", "class_token": "cls_token", "norm.bias": "norm.bias"}
    names |= {"embedding.bias": "patch_embed.proj.bias"}
    for block in range(2):
        names |= {f"blocks.{block}.mlp.0.bias": f"blocks.{block}.mlp.fc1.bias"}
    found = ours("block")
    names = {name: peer for name, peer in names.items() if name in found}
    assert len(names) >= 4
    assert {name: found[name] for name in names} == {
        name: theirs[peer] / theirs["head.bias"] for name, peer in names.items()
    }
    usual = ours("head")  # of BEiT and MAE
    assert {name for name in found if found[name] != usual[name]} == {"norm.weight", "norm.bias"}
    assert (found["norm.bias"], usual["norm.bias"]) == (0.5, 1)


def test_what_decays_in_hugging_faces_trainer() -> None:
    vit = peers.load("transformers.models.vit.modeling_vit")
    trainer = peers.load("transformers.trainer").Trainer
    config = vit.ViTConfig(**shape(TINY), intermediate_size=TINY.mlp, num_labels=7)
    peer = vit.ViTForImageClassification(config)
    decayed = set(trainer.get_decay_parameter_names(None, peer))
    theirs = sum(each.numel() for name, each in peer.named_parameters() if name in decayed)

    def ours(decays: Literal["weights", "all"]) -> int:
        groups = build(TINY).parameter_groups(weight_decay=0.1, decays=decays)
        decaying = [each for group in groups if group["weight_decay"] for each in group["params"]]
        return sum(each.numel() for each in decaying)

    tokens = (1 + TINY.tokens) * TINY.width
    assert ours("all") == theirs == ours("weights") + tokens


def test_a_mean_over_classes_is_torchs() -> None:
    logits, targets = torch.randn(5, 37), torch.rand(5, 37)
    expected = F.binary_cross_entropy_with_logits(logits, targets)
    found = label_loss(logits, targets, "sigmoid", reduction="mean").mean()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(label_loss(logits, targets, "sigmoid").mean(), 37 * expected)


def test_soft_distillation_as_deits_losses_py_has_it() -> None:
    student, teacher, heat = torch.randn(5, 37), torch.randn(5, 37), 3.0
    expected = F.kl_div(
        F.log_softmax(student / heat, dim=1),
        F.log_softmax(teacher / heat, dim=1),
        reduction="sum",
        log_target=True,
    )
    expected = expected * heat**2 / student.numel()
    config = DistillConfig(teacher="t", temperature=heat, reduction="mean")
    torch.testing.assert_close(teacher_loss(student, teacher, config).mean(), expected)
    plain = teacher_loss(student, teacher, replace(config, reduction="sum")).mean()
    torch.testing.assert_close(plain, 37 * expected)


def rate_of(optimizer: torch.optim.Optimizer) -> float:
    return optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("warmup", [0, 7])
def test_timms_cosine_begins_before_the_warm_up_ends(warmup: int) -> None:
    peer = peers.load("timm.scheduler.cosine_lr")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs = peer.CosineLRScheduler(
        optimizer, t_initial=50, lr_min=0.01, warmup_t=warmup, warmup_lr_init=0.05
    )
    plan = LRSchedule(
        kind="cosine", total=50, warmup=warmup, start=0.1, final=0.02, decay_from="start"
    )
    for step in range(50):
        theirs.step(step)
        assert 0.5 * rate_at(step, plan) == pytest.approx(rate_of(optimizer), rel=1e-12)
    prefixed = peer.CosineLRScheduler(
        optimizer, t_initial=50, lr_min=0.01, warmup_t=warmup, warmup_lr_init=0.05,
        warmup_prefix=True,
    )  # fmt: skip
    after = replace(plan, decay_from="warmup", total=50 + warmup)
    for step in range(50 + warmup):
        prefixed.step(step)
        assert 0.5 * rate_at(step, after) == pytest.approx(rate_of(optimizer), rel=1e-12)


def start(**changes: Any) -> TrainConfig:
    config = TrainConfig(data="d", model="ViT/4@8,depth=1,width=8,heads=1,mlp=8", out=Path("o"))
    return replace(config, **changes)


def test_a_sigmoids_head_begins_at_one_in_a_thousand() -> None:
    """As big_vision's init_head_bias; a row that came with weights keeps its bias."""
    loss = LossConfig(kind="sigmoid", head_bias=-6.9)
    bias = start_weights(start(loss=loss), ["a", "b"]).tensors["head.output.bias"]
    torch.testing.assert_close(bias.sigmoid(), torch.full((2,), 1e-3), rtol=0.01, atol=0)
    assert not start_weights(start(), ["a", "b"]).tensors["head.output.bias"].any()
    with pytest.raises(InputError, match=r"loss\.head_bias is not used with kind softmax"):
        LossConfig(kind="softmax", head_bias=-6.9)


def test_mean_and_std_are_settings() -> None:
    given = PreprocessConfig(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    found = start_weights(start(preprocess=given), ()).preprocess
    assert found is not None
    assert (found.mean, found.std) == (given.mean, given.std)
    with pytest.raises(InputError, match=r"preprocess\.mean requires a number for each of the mo"):
        start_weights(start(preprocess=PreprocessConfig(mean=(0.5,))), ())
    with pytest.raises(InputError, match=r"preprocess\.std\[0\] must be"):
        PreprocessConfig(std=(0.0, 1.0, 1.0))
