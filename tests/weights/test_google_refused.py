"""Google's, big_vision's and BiT's npz files that are wrong, and models that they can't hold."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.golden.reader import spec as golden_spec
from tests.weights.google_files import (
    golden,
    home,
    identify,
    numbered,
    read,
    scanned,
    tensorflow,
    written,
)
from vitrail.config import InputError
from vitrail.models import BiTSpec, Spec
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.google import GOOGLE


@pytest.mark.parametrize("name", ["google-vit", "google-hybrid", "bigvision-vit-map"])
def test_all_that_does_not_fit_is_reported_at_once(name: str) -> None:
    file = written(name)
    del file["Transformer/encoder_norm/bias"]
    file["embedding/bias"] = torch.zeros(5)
    file["head/kernel"] = file["head/kernel"].T.contiguous()
    file["extra"] = torch.zeros(1)
    with pytest.raises(InputError) as raised:
        read(home(name), golden_spec(name), file)
    assert sorted(raised.value.args) == [
        "'embedding/bias' has shape (5,), expected (48,)",
        "'head/kernel' has shape (7, 48), expected (48, 7)",
        "missing 'Transformer/encoder_norm/bias' (48,)",
        "unknown 'extra'",
    ]


def test_what_the_spec_is_read_from_is_reported_at_once() -> None:
    file = written("google-vit")
    del file["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"]
    file["embedding/kernel"] = file["embedding/kernel"].flatten(0, 2)
    with pytest.raises(InputError) as raised:
        identify(file)
    assert raised.value.args == (
        "missing 'Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel'",
        "'embedding/kernel' has shape (192, 48), expected 4 axes",
    )


@pytest.mark.parametrize(
    ("old", "twin"),
    [
        pytest.param("LayerNorm_2", "LayerNorm_1", id="spelling"),
        pytest.param("Transformer", "params/Transformer", id="prefix"),
    ],
)
def test_a_tensor_given_twice_is_not_dropped(old: str, twin: str) -> None:
    file = written("google-vit")
    key = "Transformer/encoderblock_1/LayerNorm_2/bias"
    for first in (False, True):
        again = {key.replace(old, twin): torch.zeros(48)}
        with pytest.raises(InputError) as raised:
            read(GOOGLE, golden_spec("google-vit"), again | file if first else file | again)
        assert raised.value.args == (f"unknown {key.replace(old, twin)!r}",)


def test_a_tensorflow_tensor_given_twice_is_not_dropped() -> None:
    spec = golden_spec("bigvision-bit")
    file = numbered(tensorflow(golden("bigvision-bit")))
    key = next(key for key in file if "root_block" in key)
    again = key.replace("conv2d_", "conv2d_9")
    with pytest.raises(InputError, match=f"unknown '{again}'"):
        read(BIT_TF, spec, {**file, again: file[key]})


def test_stacks_of_unequal_height_are_reported() -> None:
    file = scanned(golden("bigvision-vit-map"))
    key = "Transformer/encoderblock/LayerNorm_1/bias"
    file[key] = torch.zeros(3, 48)
    with pytest.raises(InputError) as raised:
        read(BIGVISION, golden_spec("bigvision-vit-map"), file)
    layers = [f"missing {key.replace('block/', f'block_{i}/')!r} (48,)" for i in range(2)]
    assert raised.value.args == (*layers, f"unknown {key!r}")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"Transformer/encoderblock_99999999/x": (1,)}, id="layers"),
        pytest.param({"Transformer/encoderblock/LayerNorm_0/scale": (10**9, 0)}, id="stack"),
        pytest.param({"Transformer/encoderblock/LayerNorm_0/scale": ()}, id="scalar"),
        pytest.param({"block1/unit99999999/conv1/kernel": (1,)}, id="units"),
    ],
)
def test_hostile_names_promise_no_large_model(more: dict[str, tuple[int, ...]]) -> None:
    file: dict[str, Tensor] = written("google-hybrid")
    file |= {key: torch.empty(shape) for key, shape in more.items()}
    format, spec = identify(file)
    assert spec == golden_spec("google-hybrid")
    with pytest.raises(InputError, match=f"unknown '{next(iter(more))}'"):
        read(format, spec, file)


def test_a_grid_that_is_no_square_asks_for_the_name() -> None:
    file = written("google-vit")
    key = "Transformer/posembed_input/pos_embedding"
    file[key] = file[key][:, :13]
    with pytest.raises(InputError, match="12 patches fill no square grid: name the model"):
        identify(file)
    assert identify(file, (24, 32))[1].image == (24, 32)
    file[key] = file[key][:, :0]
    with pytest.raises(InputError, match="image must be at least 1"):
        identify(file)


VIT = golden_spec("google-vit")
HYBRID = golden_spec("google-hybrid")
NARROW = BiTSpec(stages=(1, 1), width=32, heads=2)


@pytest.mark.parametrize(
    ("format", "spec", "changes", "problem"),
    [
        (GOOGLE, VIT, {"class_position": False}, "class_position=False"),
        (GOOGLE, VIT, {"pool": "map"}, "pooling.probe"),
        (GOOGLE, VIT, {"position": "sincos-2d"}, "position=sincos-2d"),
        (GOOGLE, VIT, {"position": "none"}, "position=none"),
        (GOOGLE, VIT, {"position_at": "shared"}, "position_at=shared"),
        (GOOGLE, VIT, {"pool": "gap", "attention": "axial"}, "attention=axial"),
        (GOOGLE, VIT, {"activation": "swiglu"}, "activation=swiglu"),
        (GOOGLE, VIT, {"qkv_bias": False}, "qkv_bias=False"),
        (GOOGLE, VIT, {"head_bias": False}, "head_bias=False"),
        (GOOGLE, VIT, {"patch_bias": False}, "patch_bias=False"),
        (GOOGLE, VIT, {"registers": 2}, "registers"),
        (GOOGLE, VIT, {"distilled": True}, "distillation_token"),
        (GOOGLE, VIT, {"layer_scale": 0.1}, "after1.scale.factor"),
        (GOOGLE, VIT, {"qk_norm": True}, "query_norm"),
        (GOOGLE, NARROW, {}, "blocks.0.conv2.row"),
        (BIGVISION, VIT, {"pool": "gap", "position": "none"}, "position=none"),
        (BIGVISION, HYBRID, {"class_position": False}, "stem.conv.weight"),
        (BIT_TF, VIT, {}, "hold ResNets"),
    ],
)
def test_specs_without_a_place_are_refused(
    format: Format, spec: Spec, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=re.escape(problem)):
        format.table(replace(spec, **changes))
