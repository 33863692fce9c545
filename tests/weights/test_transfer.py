"""From pre-trained weights to a new task: what is kept, resized, adapted, replaced, dropped."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import BiT, Spec, ViT, build, parse, resize_patches, resize_positions
from vitrail.weights.transfer import adapt_channels, transfer

TINY = "ViT/8@32,depth=2,width=24,heads=2,mlp=32,classes=5"


def weights(name: str) -> tuple[Spec, dict[str, Tensor]]:
    model = build(name)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.spec, {key: value.clone() for key, value in model.state_dict().items()}


def rebuild(spec: Spec, tensors: dict[str, Tensor]) -> ViT | BiT:
    model = build(spec).eval()
    model.load_state_dict(tensors)
    return model


def test_a_new_task_gets_a_zero_head_and_keeps_the_rest() -> None:
    spec, old = weights(f"{TINY},representation=12")
    moved = transfer(spec, old, classes=9)
    assert moved.spec == parse(TINY.replace("classes=5", "classes=9"))
    model, before = rebuild(moved.spec, moved.tensors), rebuild(spec, old)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(x), torch.zeros(2, 9))
    assert torch.equal(model.tokens(x), before.tokens(x))
    assert [str(change) for change in moved.changes] == [
        "dropped head.hidden: the pre-training head's tanh layer",
        "replaced head.output: 5 classes -> 9 classes, zeros",
    ]


def test_the_hidden_layer_can_be_kept() -> None:
    spec, old = weights(f"{TINY},representation=12")
    moved = transfer(spec, old, classes=9, head="keep-hidden")
    model, before = rebuild(moved.spec, moved.tensors), rebuild(spec, old)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model.features(x), before.features(x))
    assert torch.equal(model(x), torch.zeros(2, 9))


def test_a_kept_head_keeps_its_classes() -> None:
    spec, old = weights(TINY)
    assert transfer(spec, old, classes=5, head="keep").tensors.keys() == old.keys()
    with pytest.raises(InputError, match="the head has 5 classes and can't be kept for 9"):
        transfer(spec, old, classes=9, head="keep")


def test_without_a_task_nothing_changes() -> None:
    spec, old = weights(TINY)
    moved = transfer(spec, old)
    assert moved.spec == spec
    assert moved.changes == ()
    assert all(torch.equal(moved.tensors[key], value) for key, value in old.items())


def test_a_published_head_of_zeros_is_said() -> None:
    spec, old = weights(TINY)
    old["head.output.weight"].zero_()
    (change,) = transfer(spec, old).changes
    assert change.parameter == "head.output.weight"
    assert "all zeros" in change.detail
    assert "all zeros" in transfer(spec, old, classes=3).changes[0].detail


def test_both_heads_of_a_distilled_model_are_replaced() -> None:
    spec, old = weights(f"{TINY},distilled=true")
    moved = transfer(spec, old, classes=3)
    assert torch.equal(
        rebuild(moved.spec, moved.tensors)(torch.randn(1, 3, 32, 32)), torch.zeros(1, 3)
    )
    assert len(moved.changes) == 2


@pytest.mark.parametrize(
    "options",
    [
        "position_resize=google",
        "position_resize=timm,registers=2",
        "class_position=false",
        "pool=gap",
        "position=learned-2d,position_at=every-layer",
        "position=relative,position_at=shared",
        "position=factorized",
        "position=factorized,position_resize=timm-square",
        "position_resize=timm-square",
        "position=sincos-2d",
        "position=none",
    ],
)
def test_positions_are_resized_as_the_model_itself_would(options: str) -> None:
    spec, old = weights(f"{TINY},{options}")
    moved = transfer(spec, old, image=(48, 64))
    model, before = rebuild(moved.spec, moved.tensors), rebuild(spec, old)
    x = torch.randn(2, 3, 48, 64)
    torch.testing.assert_close(model(x), before(x))
    tables = [key for key in old if key.startswith("positions.") and not key.endswith("token")]
    assert [change.parameter for change in moved.changes] == tables
    assert all("grid 4x4 -> 6x8" in change.detail for change in moved.changes)


def test_the_official_rule_resizes() -> None:
    spec, old = weights(TINY)
    table = transfer(spec, old, image=(48, 64)).tensors["positions.0.table"]
    assert torch.equal(table, resize_positions(old["positions.0.table"], (4, 4), (6, 8), prefix=1))


def test_another_patch_size() -> None:
    spec, old = weights(TINY)
    moved = transfer(spec, old, patch=(16, 16))
    assert torch.equal(
        moved.tensors["embedding.weight"], resize_patches(old["embedding.weight"], (16, 16))
    )
    assert len(moved.tensors["positions.0.table"]) == 1 + 4
    assert rebuild(moved.spec, moved.tensors)(torch.randn(1, 3, 32, 32)).shape == (1, 5)
    with pytest.raises(InputError, match="has no patches of pixels"):
        transfer(*weights("BiT@32,stages=1,width=32,classes=3"), patch=(4, 4))


@pytest.mark.parametrize(
    "name",
    [TINY, "BiT@32,stages=1,width=32,classes=3",
     "Hybrid/2@32,stages=1-1,stem_width=32,depth=1,width=24,heads=2,mlp=32"],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_equal_channels_give_the_same_features(name: str, channels: int) -> None:
    """A gray image gives what it gave as three equal channels, however many there are now."""
    spec, old = weights(name)
    moved = transfer(spec, old, channels=channels)
    gray = torch.randn(2, 1, 32, 32)
    if name.startswith("ViT"):
        before = rebuild(spec, old)(gray.expand(-1, 3, -1, -1))
        after = rebuild(moved.spec, moved.tensors)(gray.expand(-1, channels, -1, -1))
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert rebuild(moved.spec, moved.tensors)(torch.randn(1, channels, 32, 32)).isfinite().all()
    assert moved.changes[0].action == "adapted"


def test_channels_are_taken_in_turn() -> None:
    weight = torch.arange(6.0).view(2, 3, 1, 1)
    four = adapt_channels(weight, 4)
    assert four[0].flatten().tolist() == [0.0, 1.0, 2.0, 0.0]
    assert four[1].flatten().tolist() == [1.5, 4.0, 5.0, 1.5]
    assert adapt_channels(weight, 1).flatten().tolist() == [3.0, 12.0]
    assert adapt_channels(weight, 2).flatten().tolist() == [1.0, 2.0, 5.5, 6.5]


def test_all_at_once() -> None:
    spec, old = weights(TINY)
    options: dict[str, Any] = {"classes": 2, "image": (48, 96), "channels": 1, "patch": (16, 8)}
    moved = transfer(spec, old, **options)
    assert rebuild(moved.spec, moved.tensors)(torch.randn(1, 1, 48, 96)).shape == (1, 2)
