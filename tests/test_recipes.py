"""Recipes against the tables of their papers, written out here once more, by hand."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.parity import peers
from vitrail import recipes
from vitrail.config import Duration, InputError, merge
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.augment import AUGMENTS
from vitrail.models import parse
from vitrail.models.pretraining.mim import count_chosen
from vitrail.recipes import RECIPES, TRANSFERS, apply_recipe, shorten_warmup
from vitrail.run import TrainConfig
from vitrail.training.optimization.schedule import rate_at
from vitrail.training.start import start_weights

IMAGENET, IMAGENET21K, JFT = 1_281_167, 14_197_122, 303_000_000  # images

TABLE_3 = """
ViT-B/16       jft          7    8e-4  linear  0.1   0.0
ViT-B/32       jft          7    8e-4  linear  0.1   0.0
ViT-L/32       jft          7    6e-4  linear  0.1   0.0
ViT-L/16       jft          14   4e-4  linear  0.1   0.0
ViT-H/14       jft          14   3e-4  linear  0.1   0.0
BiT-R50x1      jft          7    1e-3  linear  0.1   0.0
BiT-R50x2      jft          7    1e-3  linear  0.1   0.0
BiT-R101x1     jft          7    8e-4  linear  0.1   0.0
BiT-R152x1     jft          7    6e-4  linear  0.1   0.0
BiT-R152x2     jft          7    6e-4  linear  0.1   0.0
R50+ViT-B/16   jft          7    8e-4  linear  0.1   0.0
R50+ViT-B/32   jft          7    8e-4  linear  0.1   0.0
R50+ViT-L/32   jft          7    2e-4  linear  0.1   0.0
R50+ViT-L/16   jft          14   4e-4  linear  0.1   0.0
ViT-B/16       imagenet21k  90   1e-3  linear  0.03  0.1
ViT-B/32       imagenet21k  90   1e-3  linear  0.03  0.1
ViT-L/16       imagenet21k  90   1e-3  linear  0.03  0.1
ViT-L/32       imagenet21k  90   1e-3  linear  0.03  0.1
ViT-B/16       imagenet     300  3e-3  cosine  0.3   0.1
ViT-B/32       imagenet     300  3e-3  cosine  0.3   0.1
ViT-L/16       imagenet     300  3e-3  cosine  0.3   0.1
ViT-L/32       imagenet     300  3e-3  cosine  0.3   0.1
"""
TABLE_4 = """
imagenet  20000  0.003 0.01 0.03 0.06
cifar100  10000  0.001 0.003 0.01 0.03
cifar10   10000  0.001 0.003 0.01 0.03
pets      500    0.001 0.003 0.01 0.03
flowers   500    0.001 0.003 0.01 0.03
vtab      2500   0.01
"""


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def begin(model: str = "ViT-B/16") -> TrainConfig:
    return TrainConfig(data="digits", model=model, out=Path("run"))


def field(config: TrainConfig, name: str) -> Any:
    return getattr(parse(config.model), name)


@pytest.mark.parametrize(
    ("mode", "optim"),
    [("all", ("sgd", 0.01)), ("head", ("adamw", 5e-3)), ("last", ("adamw", 1e-3)),
     ("lora", ("adamw", 2e-3))],
)  # fmt: skip
def test_each_tuning_mode_has_its_optimizer(mode: str, optim: tuple[str, float]) -> None:
    """LoRA at SGD's 0.01 learned nothing but the head in a short run."""
    changes = ({"batch": 8, "tune": {"mode": mode}}, {"optim": {"clip": 2.0}})
    config = apply_recipe(begin(), "finetune-default", *changes)
    assert (config.optim.kind, config.optim.lr) == optim
    assert (config.tune.mode, config.batch) == (mode, 64)
    changed = merge(config, *changes, {"optim": {"lr": 0.5}})
    assert (changed.optim.kind, changed.optim.lr, changed.optim.clip) == (optim[0], 0.5, 2.0)


@pytest.mark.parametrize("row", rows(TABLE_3), ids=" ".join)
def test_pretraining_is_table_3(row: list[str]) -> None:
    model, data, epochs, lr, decay, weight_decay, dropout = row
    config = RECIPES["pretrain" if data == "imagenet" else f"pretrain:{data}"](begin(model))
    assert config.length == Duration(int(epochs), "epochs")
    assert (config.optim.lr, config.optim.weight_decay) == (float(lr), float(weight_decay))
    assert (config.optim.kind, config.optim.betas) == ("adamw", (0.9, 0.999))
    assert config.optim.clip == (1.0 if data == "imagenet" else None)
    assert config.schedule.kind == decay
    assert (config.batch, config.schedule.warmup) == (4096, Duration(10_000, "steps"))
    assert config.loss.kind == (None if data == "imagenet" else "sigmoid")  # None: as the data
    assert parse(config.model).image == (224, 224)
    if "ViT" in model:
        assert field(config, "dropout") == float(dropout)
        assert field(config, "representation") == field(config, "width")
    images = {"imagenet": IMAGENET, "imagenet21k": IMAGENET21K, "jft": JFT}[data]
    total = config.length.steps(images=images, batch=config.batch)
    assert config.schedule.plan(total=total, images=images, batch=4096).warmup == 10_000


@pytest.mark.parametrize("row", rows(TABLE_4), ids=" ".join)
def test_finetuning_is_table_4(row: list[str]) -> None:
    data, steps, *rates = row
    config = RECIPES[f"finetune:{data}"](begin())
    assert config.length == Duration(int(steps), "steps")
    assert TRANSFERS[data].rates == tuple(map(float, rates))
    assert config.optim.lr in TRANSFERS[data].rates
    assert (config.optim.kind, config.optim.momentum, config.optim.nesterov) == ("sgd", 0.9, False)
    assert (config.optim.weight_decay, config.optim.clip) == (0, 1)
    assert (config.schedule.kind, config.batch) == ("cosine", 512)
    assert parse(config.model) == parse("ViT-B/16@384")


def test_finetuning_resolution() -> None:
    assert recipes.paper_finetune(begin("ViT-L/16@512")).model == "ViT-L/16@512"
    assert recipes.paper_finetune(begin("ViT-H/14")).model == "ViT-H/14@518"
    assert recipes.paper_finetune(begin("BiT-R50x1")).model == "BiT-R50x1@384"


def test_finetuning_warms_up_as_the_official_code_where_the_run_is_long() -> None:
    found = {data: recipes.paper_finetune(begin(), data) for data in TRANSFERS}
    steps = {data: config.schedule.warmup.amount for data, config in found.items()}
    assert steps["imagenet"] == steps["cifar10"] == 500
    assert steps["pets"] == steps["flowers"] == 100  # of 500, in transfer.py and augreg.py
    assert steps["vtab"] == 125


def test_a_name_keeps_what_it_says_itself() -> None:
    config = recipes.pretrain(begin("ViT-B/16@384,dropout=0,representation=0,classes=7"))
    assert parse(config.model) == parse("ViT-B/16@384,classes=7")
    assert recipes.deit(begin("ViT-S/16,stochastic_depth=0.3")).model.endswith("=0.3")
    assert recipes.plain(begin("ViT-S/16,pool=token")).model.count("gap") == 0


def test_augreg_levels() -> None:
    config = RECIPES["augreg:strong1"](begin())
    assert config.augment.randaugment is not None
    assert (config.augment.randaugment.magnitude, config.augment.mixup) == (20, 0.5)
    assert (config.optim.lr, config.optim.weight_decay, config.optim.clip) == (1e-3, 0.1, 1)
    assert (config.batch, config.length) == (4096, Duration(300, "epochs"))
    assert recipes.augreg(begin("ViT-Ti/16")).augment == AUGMENTS["light1"]
    assert recipes.augreg(begin("ViT-S/32@384")).augment == AUGMENTS["light2"]
    assert recipes.augreg(begin("ViT-B/16,dropout=0.1")).augment == AUGMENTS["medium2"]
    assert recipes.augreg(begin("R26+ViT-S/32")).augment == AUGMENTS["medium1"]


@pytest.mark.parametrize("epochs", [90, 150, 300])
def test_better_plain_vit(epochs: int) -> None:
    config = RECIPES[f"plain:{epochs}"](begin("ViT-S/16"))
    expected = "ViT-S/16,pool=gap,position=sincos-2d,representation=384"
    assert parse(config.model) == parse(expected)
    assert config.length == Duration(epochs, "epochs")
    assert (config.batch, config.optim.lr, config.optim.weight_decay) == (1024, 1e-3, 0.1)
    assert (config.schedule.kind, config.optim.clip, config.loss.smoothing) == ("cosine", 1, 0)
    augment = config.augment
    assert augment.randaugment is not None
    assert (augment.randaugment.layers, augment.randaugment.magnitude) == (2, 10)
    assert (augment.mixup, augment.cutmix, augment.crop) == (0.2, 0, "inception")


def test_deit_is_its_table_9() -> None:
    config = recipes.deit(begin("ViT-S/16"))
    assert (config.length, config.batch) == (Duration(300, "epochs"), 1024)
    assert (config.optim.lr, config.optim.weight_decay) == (0.0005 * 1024 / 512, 0.05)
    assert (config.optim.kind, config.optim.clip) == ("adamw", None)
    assert (config.schedule.kind, config.schedule.warmup) == ("cosine", Duration(5, "epochs"))
    assert (config.loss.smoothing, config.augment.erase) == (0.1, 0.25)
    assert (config.augment.mixup, config.augment.cutmix) == (0.8, 1.0)
    assert config.repeats == 3
    assert parse(config.model) == parse("ViT-S/16,stochastic_depth=0.1,activation=gelu")
    policy = config.augment.randaugment
    assert policy is not None
    assert (policy.operations, policy.layers, policy.magnitude) == ("timm", 2, 9)
    assert (policy.probability, policy.magnitude_std) == (0.5, 0.5)  # rand-m9-mstd0.5-inc1


def test_deits_rates_are_timms() -> None:
    """create_scheduler's cosine: a warm-up from 1e-6 within it, 1e-5 at last."""
    peer = peers.load("timm.scheduler.cosine_lr")
    config = recipes.deit(begin())
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=config.optim.lr)
    theirs = peer.CosineLRScheduler(
        optimizer, t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    plan = config.schedule.plan(total=300, images=1024, batch=1024)  # one step an epoch
    for step in range(300):
        theirs.step(step)
        expected = optimizer.param_groups[0]["lr"]
        assert config.optim.lr * rate_at(step, plan) == pytest.approx(expected, rel=1e-9)
    after = replace(config.schedule, decay_from="warmup")
    other = after.plan(total=300, images=1024, batch=1024)
    assert rate_at(285, other) / rate_at(285, plan) > 1.01, "without, it is another"


def test_simmims_model_is_its_config_for_vit_b() -> None:
    config = RECIPES["simmim"](begin())
    assert parse(config.model) == parse(
        "ViT-B/16,stochastic_depth=0.1,layer_scale=0.1,position=relative-2d,position_at=shared,"
        "key_bias=false,activation=gelu"
    )
    own = RECIPES["simmim"](begin("ViT-B/16,position=learned-1d"))
    assert (field(own, "position"), field(own, "position_at")) == ("learned-1d", "input")
    assert count_chosen((14, 14), config.mim.mask) == 30 * 4  # of 49 squares: data_simmim.py
    mim = config.mim
    assert (mim.pixels, mim.target, mim.distance) == ("input", "pixels", "absolute")


def test_mae_is_its_code() -> None:
    config = RECIPES["mae"](begin())
    assert parse(config.model) == parse("ViT-B/16,position=sincos-2d-mae,activation=gelu")
    assert (config.mim.pixels, config.mim.target) == ("input", "normalized-pixels")
    assert count_chosen((14, 14), config.mim.mask) == 147


@pytest.mark.parametrize("name", ["plain", "augreg", "deit", "mae", "simmim"])
def test_evaluation_and_normalization_are_the_sources(name: str) -> None:
    """256 for 224: resize_small and central_crop of big_vision; Resize and CenterCrop of DeiT."""
    config = RECIPES[name](begin("ViT/16,depth=1,width=8,heads=1,mlp=8"))
    found = start_weights(config, ()).preprocess
    assert found is not None
    assert (found.crop, found.size) == (0.875, (224, 224))
    google = name in ("plain", "augreg")
    assert found.fit == ("small" if google else "crop")
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (found.mean, found.std) == (((0.5,) * 3,) * 2 if google else imagenet)
    bicubic = name in ("deit", "mae")
    assert found.interpolation == ("bicubic" if bicubic else "bilinear")
    if bicubic:
        pixels = np.random.default_rng(0).integers(0, 256, (300, 401, 3), np.uint8)
        transforms = peers.load("torchvision.transforms")
        mode = transforms.InterpolationMode.BICUBIC
        peer = transforms.Compose([transforms.Resize(256, mode), transforms.CenterCrop(224)])
        theirs = np.array(peer(Image.fromarray(pixels)))
        assert np.array_equal(eval_image(pixels, found), theirs)


def test_weights_bring_their_own_preprocessing() -> None:
    config = replace(begin(), weights="run:some")
    for name in ("plain", "augreg", "deit", "mae", "simmim", "mae-finetune", "simmim-finetune"):
        found = RECIPES[name](config)
        assert found.preprocess == config.preprocess
        assert replace(parse(found.model), stochastic_depth=0.0) == parse(config.model)
        assert apply_recipe(begin(), name, {"weights": "run:some"}).preprocess == config.preprocess
    gray = begin("ViT-S/16,channels=1")
    assert RECIPES["deit"](gray).preprocess.mean is None


def test_augreg_with_sigmoid_is_big_visions_since_december_2022() -> None:
    config = RECIPES["augreg:sigmoid"](begin("ViT-S/32"))
    assert config.augment == AUGMENTS["medium1"]
    assert (config.loss.kind, config.loss.head_bias) == ("sigmoid", -6.9)
    assert RECIPES["augreg"](begin("ViT-S/32")).augment == AUGMENTS["light2"]
    for name in ("augreg", "augreg:sigmoid", "augreg:strong1"):
        assert field(RECIPES[name](begin("ViT-S/32")), "representation") == 384  # rep_size


@pytest.mark.parametrize(
    ("model", "epochs", "rate", "layer_decay", "depth"),
    [("ViT-B/16", 100, 5e-4, 0.65, 0.1), ("ViT-L/16", 50, 1e-3, 0.75, 0.2),
     ("ViT-H/14", 50, 1e-3, 0.75, 0.3)],
)  # fmt: skip
def test_mae_finetuning_is_its_finetune_md(
    model: str, epochs: int, rate: float, layer_decay: float, depth: float
) -> None:
    config = RECIPES["mae-finetune"](begin(model))
    assert config.length == Duration(epochs, "epochs")
    assert config.optim.lr == pytest.approx(rate * config.batch / 256)
    assert (config.optim.layer_decay, config.batch) == (layer_decay, 1024)
    assert field(config, "stochastic_depth") == depth
    assert config.augment == recipes.deit(begin()).augment
    with pytest.raises(InputError, match=r"has no row for ViT-S/16; it has ViT-B, ViT-L, ViT-H"):
        RECIPES["mae-finetune"](begin("ViT-S/16"))


def test_simmims_rates_are_its_config_for_vit_b() -> None:
    config = RECIPES["simmim"](TrainConfig(data="d", model="ViT-B/16", out=Path("o")))
    plan = config.schedule.plan(total=800, images=2048, batch=2048)  # one step an epoch
    assert [rate_at(step, plan) for step in (10, 699, 700, 799)] == pytest.approx([1, 1, 0.1, 0.1])


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_is_a_valid_plan(name: str) -> None:
    sets = {"small-data": 50_000, "pretrain:imagenet21k": IMAGENET21K, "pretrain:jft": JFT}
    images = sets.get(name, IMAGENET)
    config = apply_recipe(begin(), name)
    total = config.length.steps(images=images, batch=config.batch)
    plan = config.schedule.plan(total=total, images=images, batch=config.batch)
    assert 0 < plan.warmup <= total / 3
    assert field(config, "depth") == 12
    assert (config.data, config.out, config.seed) == ("digits", Path("run"), 0)


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("finetun:pets", "ViT-B/16", "unknown recipe 'finetun:pets'; did you mean 'finetune:pets'"),
        ("xyz", "ViT-B/16", "there are: finetune-default, small-data, small-data:short, pretrain"),
        ("pretrain:jft", "ViT-Ti/16", "no row for ViT-Ti/16 on jft; it has ViT-B/32, ViT-B/16"),
        ("pretrain:imagenet21k", "ViT-H/14@392", "no row for ViT-H/14 on imagenet21k"),
        ("pretrain", "BiT-R50x1", "no row for BiT-R50x1 on imagenet"),
        ("deit", "ViT-X/16", "unknown model 'ViT-X/16'"),
    ],
)
def test_what_no_recipe_has(name: str, model: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_recipe(begin(model), name)


@pytest.mark.parametrize(
    ("length", "kept"),
    [("30_000 steps", True), ("29_999 steps", False), ("100 epochs", True), ("90 epochs", False)],
)
def test_a_long_warmup_is_shortened(
    length: str, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A third of the run is the limit: 100 epochs of 307,200 images are 30,000 steps of 1024."""
    config = replace(recipes.plain(begin()), length=Duration.parse(length))
    with caplog.at_level(logging.WARNING, logger="vitrail"):
        found = shorten_warmup(config, images=307_200)
    assert found.schedule.warmup == (Duration(10_000, "steps") if kept else Duration(5, "%"))
    assert found.length == config.length
    assert len(caplog.messages) == (0 if kept else 1)


def test_a_warmup_in_parts_stays() -> None:
    config = recipes.small_data(begin())
    schedule = replace(config.schedule, warmup=Duration(60, "%"))
    assert shorten_warmup(replace(config, schedule=schedule), images=10).schedule == schedule


def test_small_data_crops_by_size_and_spares_a_short_run_what_slows_it() -> None:
    tiny, photos = recipes.small_data(begin("ViT-Ti/4@32")), recipes.small_data(begin())
    assert (tiny.augment.crop, photos.augment.crop) == ("pad", "inception")
    assert photos.augment.randaugment is not None
    assert photos.augment.mixes
    short = RECIPES["small-data:short"](begin())
    assert short.augment == replace(photos.augment, randaugment=None, mixup=0.0)
    assert (photos.batch, short.batch) == (128, 256)
    assert short.optim == replace(photos.optim, lr=1e-2)
