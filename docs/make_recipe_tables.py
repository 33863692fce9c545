"""Write the tables of docs/exactness.md that compare each recipe with its source, value by value.

python docs/make_recipe_tables.py     writes them anew, from the recipes and from what stands here
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vitrail.config import flatten, to_dict
from vitrail.models import parse
from vitrail.recipes import RECIPES
from vitrail.training.train_config import TrainConfig

PAGE = Path(__file__).parent / "exactness.md"
BEGIN = "<!-- made by docs/make_recipe_tables.py -->\n"
SHOWN = ("length", "batch")
"""Settings that are shown even where a recipe's value is that of a run without any."""
Rows = dict[str, tuple[str, str]]
"""Where a setting's value stands, and why ours is another; empty where it is equal."""

BIG_VISION = "[big_vision](https://github.com/google-research/big_vision)"
MAE = "[mae](https://github.com/facebookresearch/mae)"
SIMMIM = "[SimMIM](https://github.com/microsoft/SimMIM), commit 0e71746"


@dataclass(frozen=True)
class Source:
    """What a recipe was taken from."""

    recipes: tuple[str, ...]
    """Names of recipes; the first is shown."""
    where: str
    rows: Rows
    others: tuple[str, ...] = field(default=())
    """What the source has and the recipe has not, and why."""
    model: str = "ViT-B/16"


def _operations(where: str) -> Rows:
    """Say where big_vision's RandAugment stands, which is always applied."""
    return {
        "augment.randaugment.layers": (where, ""),
        "augment.randaugment.magnitude": (where, ""),
        "augment.randaugment.operations": ("pp/autoaugment.py", ""),
        "augment.randaugment.probability": ("pp/autoaugment.py: each is applied", ""),
        "augment.randaugment.magnitude_std": ("pp/autoaugment.py: one magnitude", ""),
    }


def _timm_augment(aa: str, erase: str, mixup: str, cutmix: str) -> Rows:
    """Say where the parts of DeiT's augmentation stand, which timm's create_transform makes."""
    policy = f"{aa}: rand-m9-mstd0.5-inc1"
    return {
        "augment.crop": ("timm data/transforms_factory.py: RandomResizedCropAndInterpolation", ""),
        "augment.area": ("timm data/transforms_factory.py: scale", ""),
        "augment.ratio": ("timm data/transforms_factory.py: ratio", ""),
        "augment.randaugment.layers": ("timm data/auto_augment.py: num_layers", ""),
        "augment.randaugment.magnitude": (policy, ""),
        "augment.randaugment.operations": (f"{policy}, the 15 increasing ones", ""),
        "augment.randaugment.probability": ("timm data/auto_augment.py: prob", ""),
        "augment.randaugment.magnitude_std": (policy, ""),
        "augment.erase": (erase, "uniform bytes; timm's `pixel` is normal after normalizing"),
        "augment.mixup": (mixup, "with the image before it; timm's with the mirrored batch"),
        "augment.cutmix": (cutmix, "with the image before it; timm's with the mirrored batch"),
    }


def _evaluation(fit: str, normalize: str, interpolation: str) -> Rows:
    return {
        "preprocess.fit": (fit, ""),
        "preprocess.crop": (fit, ""),
        "preprocess.interpolation": (interpolation, ""),
        "preprocess.mean": (normalize, ""),
        "preprocess.std": (normalize, ""),
    }


_GOOGLES = "bilinear, averaged; big_vision's TensorFlow takes the nearest pixels, then their area"
_WD = "big_vision's 1e-4 is not multiplied by the rate of 1e-3, AdamW's is: the same step"
_MU = "`optax.mu_dtype` bfloat16: the first moment is float32 here"


def _augreg(line: dict[str, int], *, sigmoid: bool) -> Rows:
    config = "vit_i1k.py"
    return {
        "model.representation": (f"{config}:{line['rep_size']} `rep_size`", ""),
        "length": (f"{config}:{line['epochs']} `total_epochs`", ""),
        "batch": (f"{config}:{line['batch']} `batch_size`", ""),
        **_operations(f"{config}:{line['randaug']} `RANDAUG_DEF`"),
        "augment.mixup": (f"{config}:{line['mixup']} `MIXUP_DEF`", ""),
        "preprocess.fit": (f"{config}:{line['eval']} `resize_small(256)`", ""),
        "preprocess.crop": (f"{config}:{line['eval']} `central_crop(224)`", _GOOGLES),
        "optim.weight_decay": (f"{config}:{line['wd']} `wd`", _WD),
        "schedule.warmup": (f"{config}:{line['wd'] + 1} `warmup_steps`", ""),
        **(
            {
                "loss.kind": (f"{config}:71 `loss`", ""),
                "loss.head_bias": (f"{config}:72 `init_head_bias`", ""),
            }
            if sigmoid
            else {}
        ),
    }


_2022 = {"rep_size": 111, "epochs": 84, "batch": 83, "randaug": 49, "mixup": 39, "eval": 96}
_2022 |= {"wd": 128}
_2024 = {"rep_size": 123, "epochs": 69, "batch": 91, "randaug": 52, "mixup": 42, "eval": 105}
_2024 |= {"wd": 140}
_TABLE_3, _TABLE_4 = "Table 3", "Table 4"
_PRETRAIN: Rows = {
    "model.representation": ("section 3.1: one hidden layer; the official code's tanh", ""),
    "model.dropout": (_TABLE_3, ""),
    "length": (_TABLE_3, ""),
    "batch": ("section 4.1", ""),
    "loss.kind": ("vision_transformer, issue 34: sigmoid on ImageNet-21k and JFT", ""),
    "optim.lr": (_TABLE_3, ""),
    "optim.weight_decay": (_TABLE_3, "decoupled and times the rate, as in the official code"),
    "optim.clip": ("section 4.1: 1 on ImageNet; the paper names none elsewhere", ""),
    "schedule.kind": (_TABLE_3, ""),
    "schedule.warmup": (f"{_TABLE_3}: 10k steps", ""),
}
_FINETUNE: Rows = {
    "model.image": ("section 4.1: 384; 512 and 518 in Table 2", ""),
    "length": (_TABLE_4, ""),
    "batch": ("section 4.1: 512", ""),
    "ema": ("section 4.1: 0.9999 of ViT-L/16 and H/14 on ImageNet", ""),
    "optim.kind": ("section 4.1: SGD with momentum 0.9", ""),
    "optim.lr": (f"{_TABLE_4} has several; transfer.py:22-26 this one", ""),
    "schedule.warmup": (
        "transfer.py:59-69 `warmup`; vit_jax configs/augreg.py `warmup_steps`",
        "nobody names VTAB's: 5 %",
    ),
}
_PLAIN: Rows = {
    "model.representation": ("vit_s16_i1k.py:63 `rep_size`", ""),
    "model.pool": ("vit_s16_i1k.py:64 `pool_type`", ""),
    "model.position": ("vit_s16_i1k.py:65 `posemb`", ""),
    "length": ("vit_s16_i1k.py:43 `num_epochs`", ""),
    "batch": ("vit_s16_i1k.py:42 `batch_size`", ""),
    **_operations("vit_s16_i1k.py:51 `randaug(2,10)`"),
    "augment.mixup": ("vit_s16_i1k.py:77 `mixup`", ""),
    "preprocess.fit": ("vit_s16_i1k.py:54 `resize_small(256)`", ""),
    "preprocess.crop": ("vit_s16_i1k.py:54 `central_crop(224)`", _GOOGLES),
    "optim.weight_decay": ("vit_s16_i1k.py:74 `wd`", _WD),
    "schedule.warmup": ("vit_s16_i1k.py:75 `warmup_steps`", ""),
}
_DEIT: Rows = {
    "model.stochastic_depth": ("main.py:43 `--drop-path`", ""),
    "model.activation": ("timm models/vision_transformer.py: nn.GELU", ""),
    "length": ("main.py:34 `--epochs`", ""),
    "batch": ("Table 9", ""),
    "repeats": ("main.py:102 `--repeated-aug`, samplers.py: 3", ""),
    **_timm_augment("main.py:95 `--aa`", "main.py:107 `--reprob`", "main.py:117 `--mixup`",
                    "main.py:119 `--cutmix`"),
    **_evaluation("datasets.py: Resize, CenterCrop", "datasets.py: IMAGENET_DEFAULT_MEAN, _STD",
                  "main.py:99 `--train-interpolation`; datasets.py: interpolation 3"),
    "loss.smoothing": ("main.py:98 `--smoothing`", ""),
    "optim.weight_decay": ("main.py:63 `--weight-decay`", ""),
    "optim.clip": ("main.py:59 `--clip-grad`", ""),
    "schedule.warmup": ("main.py:83 `--warmup-epochs`", "by step; timm's by epoch, one late"),
    "schedule.start": ("main.py:76 `--warmup-lr` 1e-6, of a rate of 1e-3", ""),
    "schedule.decay_from": ("timm scheduler/cosine_lr.py: no `warmup_prefix`", ""),
    "schedule.final": ("main.py:78 `--min-lr` 1e-5, of a rate of 1e-3", ""),
}  # fmt: skip
_MASKED: Rows = {
    "task": ("Appendix B.1.2", ""),
    "length": ("Appendix B.1.2: 1M steps", ""),
    "batch": ("Appendix B.1.2: 4096", ""),
    "optim.lr": ("Appendix B.1.2: 2e-4", ""),
    "optim.clip": ("Appendix B.1.2 names none", ""),
    "schedule.warmup": ("Appendix B.1.2: 10k", ""),
}
_MAE: Rows = {
    "task": ("models_mae.py: forward", ""),
    "model.position": ("models_mae.py: get_2d_sincos_pos_embed, not trained", ""),
    "model.activation": ("timm models/vision_transformer.py: nn.GELU", ""),
    "mim.mask.ratio": ("PRETRAIN.md:12 `--mask_ratio`", ""),
    "mim.mask.rounding": ("models_mae.py: len_keep = int(L * (1 - mask_ratio))", ""),
    "mim.target": ("PRETRAIN.md:11 `--norm_pix_loss`", ""),
    "mim.pixels": ("main_pretrain.py:130 Normalize; models_mae.py: forward_loss(imgs)", ""),
    "length": ("PRETRAIN.md:13 `--epochs`", ""),
    "batch": ("PRETRAIN.md: 64 of 64 GPUs", ""),
    "augment.crop": ("main_pretrain.py:127 RandomResizedCrop", ""),
    "augment.area": ("main_pretrain.py:127 `scale`", ""),
    "augment.ratio": ("torchvision's default", ""),
    **_evaluation("util/datasets.py: Resize, CenterCrop", "main_pretrain.py:130 Normalize",
                  "main_pretrain.py:127 `interpolation`"),
    "optim.lr": ("PRETRAIN.md:15 `--blr` for 256 images", ""),
    "optim.betas": ("main_pretrain.py:183", ""),
    "optim.weight_decay": ("PRETRAIN.md:15 `--weight_decay`", "class token and mask token, of "
                           "three dimensions, decay there too"),
    "optim.clip": ("engine_pretrain.py: none", ""),
    "schedule.warmup": ("PRETRAIN.md:14 `--warmup_epochs`", ""),
}  # fmt: skip
_YAML = "simmim_pretrain__vit_base__img224__800ep.yaml"
_SIMMIM: Rows = {
    "task": ("models/simmim.py: VisionTransformerForSimMIM", ""),
    "model.stochastic_depth": (f"{_YAML}:4 `DROP_PATH_RATE`", ""),
    "model.layer_scale": ("config.py:84 `INIT_VALUES`", ""),
    "model.position": (f"{_YAML}:11 `USE_SHARED_RPB`, :9 `USE_APE`", ""),
    "model.position_at": (f"{_YAML}:11 `USE_SHARED_RPB`", ""),
    "model.key_bias": ("models/vision_transformer.py: q_bias and v_bias alone", ""),
    "model.activation": ("models/vision_transformer.py: nn.GELU", ""),
    "mim.mask.ratio": (f"{_YAML}:16 `MASK_RATIO`", ""),
    "mim.mask.masked": ("models/simmim.py:76-77", ""),
    "mim.mask.replaced": ("models/simmim.py:76-77", ""),
    "mim.mask.unit": (f"{_YAML}:15 `MASK_PATCH_SIZE` of 32 pixels", ""),
    "mim.mask.rounding": ("data/data_simmim.py:35 np.ceil", ""),
    "mim.target": ("models/simmim.py:119", ""),
    "mim.distance": ("models/simmim.py:119 l1_loss", ""),
    "mim.pixels": ("data/data_simmim.py:55 Normalize", ""),
    "length": (f"{_YAML}:18 `EPOCHS`", ""),
    "batch": ("section 4.1 of the paper: 2048", ""),
    "augment.crop": ("data/data_simmim.py:52 RandomResizedCrop", ""),
    "augment.area": ("data/data_simmim.py:52 `scale`", ""),
    "augment.ratio": ("data/data_simmim.py:52 `ratio`", ""),
    **_evaluation("data/data_finetune.py: Resize, CenterCrop", "data/data_simmim.py:55 Normalize",
                  "torchvision's default of RandomResizedCrop"),
    "optim.lr": (f"{_YAML}:20 `BASE_LR` for 512 images", ""),
    "optim.weight_decay": (f"{_YAML}:22 `WEIGHT_DECAY`", "tables of relative positions decay "
                           "there too"),
    "optim.clip": ("config.py:102 `CLIP_GRAD`", ""),
    "schedule.kind": (f"{_YAML}:24 `NAME`", ""),
    "schedule.milestones": (f"{_YAML}:26 `MULTISTEPS`: epoch 700 of 800", ""),
    "schedule.warmup": (f"{_YAML}:19 `WARMUP_EPOCHS`", ""),
    "schedule.start": (f"{_YAML}:21 `WARMUP_LR`, of `BASE_LR`", ""),
}  # fmt: skip
_MAE_FINETUNE: Rows = {
    "model.stochastic_depth": ("FINETUNE.md:73, 92, 108 `--drop_path`", ""),
    "length": ("FINETUNE.md:71, 90, 106 `--epochs`", ""),
    "batch": ("FINETUNE.md: 1024", ""),
    **_timm_augment("main_finetune.py `--aa`", "FINETUNE.md:73 `--reprob`",
                    "FINETUNE.md:73 `--mixup`", "FINETUNE.md:73 `--cutmix`"),
    **_evaluation("util/datasets.py: Resize, CenterCrop", "util/datasets.py: mean, std",
                  "util/datasets.py: bicubic"),
    "loss.smoothing": ("main_finetune.py `--smoothing`", ""),
    "optim.lr": ("FINETUNE.md:72, 91, 107 `--blr` for 256 images", ""),
    "optim.weight_decay": ("FINETUNE.md:73 `--weight_decay`", ""),
    "optim.layer_decay": ("FINETUNE.md:72, 91, 107 `--layer_decay`", ""),
    "optim.clip": ("main_finetune.py `--clip_grad`", ""),
    "schedule.warmup": ("main_finetune.py `--warmup_epochs`", ""),
    "schedule.final": ("main_finetune.py `--min_lr` 1e-6", ""),
}  # fmt: skip
_YAML_FT = "simmim_finetune__vit_base__img224__800ep.yaml"
_SIMMIM_FINETUNE: Rows = {
    "model.stochastic_depth": (f"{_YAML_FT}:4 `DROP_PATH_RATE`", ""),
    "batch": ("section 4.1 of the paper: 2048", ""),
    **_timm_augment("config.py `AUTO_AUGMENT`", "config.py `REPROB`", "config.py `MIXUP`",
                    "config.py `CUTMIX`"),
    **_evaluation("data/data_finetune.py: Resize, CenterCrop", "data/data_finetune.py: Normalize",
                  "config.py:31 `INTERPOLATION`"),
    "loss.smoothing": ("config.py:59 `LABEL_SMOOTHING`", ""),
    "optim.lr": (f"{_YAML_FT}:18 `BASE_LR` for 512 images", ""),
    "optim.weight_decay": (f"{_YAML_FT}:21 `WEIGHT_DECAY`", ""),
    "optim.layer_decay": (f"{_YAML_FT}:22 `LAYER_DECAY`", ""),
    "optim.clip": ("config.py:102 `CLIP_GRAD`", ""),
    "schedule.warmup": (f"{_YAML_FT}:17 `WARMUP_EPOCHS`", ""),
    "schedule.start": (f"{_YAML_FT}:19 `WARMUP_LR`, of `BASE_LR`", ""),
    "schedule.decay_from": ("lr_scheduler.py: timm's CosineLRScheduler", ""),
    "schedule.final": (f"{_YAML_FT}:20 `MIN_LR`, of `BASE_LR`", ""),
}  # fmt: skip
_LEVELS = tuple(f"augreg:{level}" for level in ("none", "light1", "light2", "medium1", "medium2",
                                               "strong1", "strong2"))  # fmt: skip

SOURCES = (
    Source(("pretrain", "pretrain:imagenet21k", "pretrain:jft"), "the paper", _PRETRAIN),
    Source(
        (
            "finetune:pets",
            "finetune",
            *(
                f"finetune:{name}"
                for name in ("vtab", "imagenet", "cifar10", "cifar100", "flowers")
            ),
        ),
        f"the paper; {BIG_VISION}, commit 2f3f493, configs/",
        _FINETUNE,
        ("transfer.py evaluates with 448 for 384; the paper's own code stretches, as here.",),
    ),
    Source(
        ("augreg", *_LEVELS),
        f"{BIG_VISION}, commit 21bd6eb (2022), configs/",
        _augreg(_2022, sigmoid=False),
        (f"{_MU}.", "`train_split` holds out 1 %: `--hold-out 0.01`."),
    ),
    Source(
        ("augreg:sigmoid",),
        f"{BIG_VISION}, commit 5f95305 (2024), configs/",
        _augreg(_2024, sigmoid=True),
        (f"{_MU}.",),
    ),
    Source(
        ("plain:90", "plain", "plain:150", "plain:300"),
        f"{BIG_VISION}, commit 2f3f493, configs/",
        _PLAIN,
        (f"{_MU}.",),
        model="ViT-S/16",
    ),
    Source(
        ("deit",),
        "[deit](https://github.com/facebookresearch/deit), commit 0282d2a; Table 9",
        _DEIT,
        (
            "`--model-ema` keeps an EMA of 0.99996 beside the model; its published accuracies are "
            "of the model itself.",
            "Weights begin normal with a std of 0.02 in timm, and as in the official code here.",
        ),
    ),
    Source(("masked-patches",), "the paper", _MASKED),
    Source(
        ("mae",),
        f"{MAE}, commits 3c8c715 (main_pretrain.py), 3d650de (PRETRAIN.md)",
        _MAE,
        ("Above 224 pixels its evaluation resizes to the size itself: `--preprocess.crop 1`.",),
    ),
    Source(("simmim",), SIMMIM, _SIMMIM),
    Source(
        ("mae-finetune",),
        f"{MAE}, commit 2f170f2 (FINETUNE.md)",
        _MAE_FINETUNE,
        (
            "`--global_pool` averages the patches; weights keep their class token here, which "
            "FINETUNE.md says performs similarly.",
        ),
    ),
    Source(
        ("simmim-finetune",),
        SIMMIM,
        _SIMMIM_FINETUNE,
        (
            "Its fine-tuning copies the shared relative positions to each layer and averages the "
            "patches; weights keep theirs here.",
        ),
    ),
)
MISSING = """\
Not offered, since each needs more than a row of settings: DeiT III (LAMB, 3-Augment), MAE's linear
probe (LARS, a BatchNorm before the head), DINOv2's linear evaluation (a grid of heads on several
blocks, trained side by side), Adafactor and optimizer states in bfloat16.
"""


def settings(recipe: str, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a recipe sets, by path, with each option that it adds to the model; and all."""
    before = TrainConfig(data="d", model=model, out=Path("o"))
    after = RECIPES[recipe](before)
    was, now = _flat(before), _flat(after)
    return {key: now[key] for key in now if key != "model" and was.get(key) != now[key]}, now


def _flat(config: TrainConfig) -> dict[str, Any]:
    spec = parse(config.model)
    options = {f"model.{each.name}": getattr(spec, each.name) for each in fields(spec)}
    return options | flatten(to_dict(config))


def render() -> str:
    """Return the tables, one for each recipe."""
    parts = [
        "Made from the recipes by `docs/make_recipe_tables.py`; a value without a source fails a "
        "test. Lines are those of the commit that is named.\n"
    ]
    for source in SOURCES:
        name = source.recipes[0]
        parts.append(f"\n### {name}\n\nOf {source.where}, for {source.model}.\n")
        lines = ["", "| setting | ours | source | |", "|---|---|---|---|"]
        changed, every = settings(name, source.model)
        as_usual = [path for path in SHOWN if path in source.rows and path not in changed]
        for path in (*changed, *as_usual):
            where, why = source.rows[path]
            lines.append(f"| `{path}` | {_show(every[path])} | {where} | {why or 'equal'} |")
        parts.append("\n".join(lines) + "\n")
        if source.others:
            parts.append("\n" + "\n".join(f"- {each}" for each in source.others) + "\n")
    return "".join([*parts, "\n", MISSING])


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_show, value))
    return "none" if value is None else str(value)


def put_in(page: str) -> str:
    """Return the page with its tables made anew."""
    return page[: page.index(BEGIN) + len(BEGIN)] + render()


if __name__ == "__main__":
    PAGE.write_text(put_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
