"""Features of every kind against the model's own parts; what is kept, gone on with, and refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.sets import HALF, Listed, encode, images, photo
from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.open import open_data
from vitrail.data.transforms.apply import eval_image, normalize
from vitrail.evaluation.features import extract as room
from vitrail.evaluation.features.extract import extract, hash_data
from vitrail.evaluation.features.feature_kinds import FeatureKind, parse_feature_kind
from vitrail.evaluation.features.feature_kinds import encode as encode_kind
from vitrail.evaluation.features.feature_store import CacheEntry
from vitrail.evaluation.features.image_features import Features, check_pair
from vitrail.models import BiT, BiTSpec, ViT, build
from vitrail.models.weight_hash import hash_weights

TINY = "ViT/8@16,depth=3,width=8,heads=2,mlp=16"


def vit(more: str = "") -> ViT:
    model = build(TINY + more, classes=3).eval()
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model


def batch_of(source: ImageDataset, rows: list[int]) -> Tensor:
    made = [eval_image(source.read(row), HALF) for row in rows]
    return normalize(torch.from_numpy(np.stack(made)), HALF)


@pytest.mark.parametrize(
    "more", ["", ",registers=2", ",position=learned-1d,position_at=every-layer"]
)
def test_each_kind_is_what_the_model_computes(more: str) -> None:
    model, x = vit(more), torch.randn(2, 3, 16, 16)
    first = model.spec.prefix
    with torch.no_grad():
        tokens = [model.embed(x)[0]]
        for layer, block in enumerate(model.blocks):
            before = model.add_positions(tokens[-1], (2, 2), layer) if layer else tokens[-1]
            tokens.append(block(before, None))
        expected = {
            "pre-logits": model.features(x),
            "class-token": model.tokens(x)[:, 0],
            "patch-mean": model.tokens(x)[:, first:].mean(1),
        }
        for layer in range(4):
            expected[f"class-token@{layer}"] = tokens[layer][:, 0]
            expected[f"patch-mean@{layer}"] = tokens[layer][:, first:].mean(1)
        for kind, value in expected.items():
            found = encode_kind(model, x, parse_feature_kind(kind))
            torch.testing.assert_close(found, value, rtol=0, atol=0)
        assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)


def test_a_grid_of_tokens_is_flattened() -> None:
    """Axial attention keeps its tokens in a grid, a ResNet its cells."""
    torch.manual_seed(0)
    axial = build("AxialViT-B/32@64,depth=2,width=8,heads=2,mlp=16", classes=3).eval()
    resnet = build(BiTSpec(stages=(1, 1), width=64, image=(32, 32)), classes=3).eval()
    assert isinstance(resnet, BiT)
    maps: list[Tensor] = []
    for model, size, width in ((axial, 64, 8), (resnet, 32, 256)):
        maps.clear()
        hook = model.blocks[0].register_forward_hook(lambda *parts: maps.append(parts[2]))
        x = torch.randn(2, 3, size, size)
        with torch.no_grad():
            found = encode_kind(model, x, FeatureKind("patch-mean", 1))
            hook.remove()
            mean = maps[0].mean((2, 3)) if model is resnet else maps[0].mean((1, 2))
            torch.testing.assert_close(found, mean)
            assert found.shape == (2, width)
            last = encode_kind(model, x, FeatureKind("patch-mean"))
            torch.testing.assert_close(last, model.tokens(x).mean(1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prelogits", "unknown features 'prelogits': expected pre-logits, .* did you mean"),
        ("pre-logits@3", "pre-logits have no layer; write class-token@3"),
        ("class-token@", "expected the number of a block after @, for example class-token@6"),
        ("patch-mean@-1", "expected the number of a block"),
        ("patch-mean@4", r"patch-mean@4: ViT.* has 3 blocks, the last is @3"),
    ],
)
def test_unknown_kinds_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        extract(vit(), images(2), HALF, text)


def test_a_model_without_a_class_token_says_so() -> None:
    with pytest.raises(InputError, match="has no class token; use patch-mean or pre-logits"):
        extract(vit(",pool=gap"), images(2), HALF, "class-token@1")


def test_features_come_in_order_and_bad_images_are_named() -> None:
    contents = [*images(7).contents, b"no image", OSError(5, "Input/output error")]
    source, model = Listed(contents), vit().train()
    seen: list[int] = []
    found = extract(model, source, HALF, batch=4, report=seen.append)
    assert model.training
    assert found.names.tolist() == [f"p{n}.png" for n in range(7)]
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert [(bad.where, bad.kind) for bad in found.bad] == [
        ("p7.png", "not an image"),
        ("p8.png", "unreadable"),
    ]
    assert seen == sorted(seen)
    assert seen[-1] == 9
    with torch.no_grad():
        expected = model.eval().features(batch_of(source, list(range(7))))
    np.testing.assert_allclose(found.values, expected.numpy(), rtol=0, atol=1e-5)


def test_nothing_is_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill keeps finished parts; the next call computes the others, and gives the same bytes."""
    monkeypatch.setattr(room, "_PER_PART", 2)
    source, model = Listed([*images(9).contents, b"bad"]), vit()
    whole = extract(model, source, HALF, batch=2, cache=tmp_path / "whole")
    calls: list[int] = []
    encode_batch = room.encode_batch

    def count(*args: object, limit: int = 3) -> object:
        if len(calls) == limit:
            raise KeyboardInterrupt
        calls.append(1)
        return encode_batch(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "encode_batch", count)
    with pytest.raises(KeyboardInterrupt):
        extract(model, source, HALF, batch=2, cache=tmp_path / "cut")
    assert [path.name for path in (tmp_path / "cut").rglob("*.npz")] == ["000000.npz"]
    calls.clear()
    monkeypatch.setattr(room, "encode_batch", lambda *args: count(*args, limit=99))
    again = extract(model, source, HALF, batch=2, cache=tmp_path / "cut")
    assert len(calls) == 3  # of five batches
    assert again.values.tobytes() == whole.values.tobytes()
    assert (again.names == whole.names).all()
    assert again.bad == whole.bad
    assert len(again.bad) == 1
    calls.clear()
    extract(model, source, HALF, batch=2, cache=tmp_path / "cut")
    assert not calls


def test_another_model_kind_or_set_is_another_entry(tmp_path: Path) -> None:
    source, model = images(4), vit()

    def entries() -> int:
        return len(list(tmp_path.iterdir()))

    extract(model, source, HALF, cache=tmp_path)
    extract(model, source, HALF, "patch-mean", cache=tmp_path)
    assert entries() == 2
    extract(model, select(source, np.array([0, 1])), HALF, cache=tmp_path)
    assert entries() == 3
    with torch.no_grad():
        next(model.blocks[0].parameters())[0] += 1e-3
    changed = extract(model, source, HALF, cache=tmp_path)
    assert entries() == 4
    fresh = extract(model, source, HALF)
    assert changed.values.tobytes() == fresh.values.tobytes()
    extract(vit(",activation=gelu"), source, HALF, cache=tmp_path)
    assert entries() == 5
    assert hash_weights(model) == hash_weights(model)


def test_a_changed_image_is_noticed_behind_a_list_of_bad_ones(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encode(photo(1)))
    (tmp_path / "vitrail-unreadable.tsv").write_text("path\treason\na/1.png\ttorn\n")

    def current() -> ImageDataset:
        source = open_data(str(tmp_path), split="all")
        assert isinstance(source, ImageDataset)
        return source

    first = hash_data(current())
    assert len(current()) == 3
    assert hash_data(current()) == first
    part = hash_data(select(current(), np.array([2])))
    (tmp_path / "b/2.png").write_bytes(encode(photo(2)))
    os.utime(tmp_path / "b/2.png", (1, 1))
    assert hash_data(current()) != first
    assert hash_data(select(current(), np.array([2]))) != part


def test_a_damaged_part_is_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, model = images(4), vit()
    whole = extract(model, source, HALF, cache=tmp_path)
    (path,) = tmp_path.rglob("*.npz")
    content = path.read_bytes()
    for damage in (content[:-20], content[:300] + b"\xff" + content[301:], b"", b"PK"):
        caplog.clear()
        path.write_bytes(damage)
        assert (
            extract(model, source, HALF, cache=tmp_path).values.tobytes() == whole.values.tobytes()
        )
        assert "is damaged; its features are computed again" in caplog.text
        assert path.stat().st_size == len(content)


def test_the_entries_not_used_for_longest_go(tmp_path: Path) -> None:
    source, model = images(4), vit()
    for number, kind in enumerate(("pre-logits", "patch-mean", "class-token")):
        extract(model, source, HALF, kind, cache=tmp_path)
        new = max(tmp_path.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
        os.utime(new, (number, number))
    entries = sorted(tmp_path.iterdir(), key=lambda entry: entry.stat().st_mtime)
    (entries[0] / ".3-1.npz").write_bytes(b"what a killed process leaves")
    os.utime(entries[0] / ".3-1.npz", (0, 0))
    (entries[0] / ".3-2.npz").write_bytes(b"what another process is just writing")
    size = (entries[0] / "000000.npz").stat().st_size
    CacheEntry(entries[0]).finish(limit=2 * size + 100)  # used just now, so the second goes
    assert {entry.name for entry in tmp_path.iterdir()} == {entries[0].name, entries[2].name}
    assert {file.name for file in entries[0].iterdir()} == {"000000.npz", ".3-2.npz"}


def features(**changes: object) -> Features:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    facts = {"name": "set", "classes": ("a", "b"), "values": values}
    facts |= {"labels": np.array([0, 1] * 3), "names": np.array([f"p{n}" for n in range(6)])}
    return Features(**{**facts, **changes})


def test_what_can_not_be_measured_is_refused() -> None:
    bad = features().values.copy()
    bad[4, 1] = np.nan
    with pytest.raises(InputError, match=r"features of 1 of 6 images are NaN .* the first is p4"):
        features(values=bad)
    with pytest.raises(InputError, match=r"label 2 is outside the 2 classes \(0 to 1\)"):
        features(labels=np.array([0, 1, 0, 2, 0, 1]))
    with pytest.raises(InputError, match="label -1 is outside"):
        features(labels=np.array([0, 1, 0, -1, 0, 1]))
    nothing = {"values": np.empty((0, 2)), "labels": np.empty(0, np.int64), "names": np.empty(0)}
    with pytest.raises(InputError, match="set has no images to evaluate on"):
        features(**nothing)
    with pytest.raises(InputError, match="2 can be read"):
        extract(vit(), Listed([b"1", b"2"]), HALF)
    with pytest.raises(InputError, match="listed has no images to evaluate on"):
        extract(vit(), Listed([]), HALF)


def test_sets_with_other_classes_are_not_renumbered() -> None:
    train = features()
    check_pair(train, features(name="test"))
    with pytest.raises(InputError, match="'b' only in set; 'c' only in test"):
        check_pair(train, features(name="test", classes=("a", "c")))
    with pytest.raises(InputError, match="the same names in another order"):
        check_pair(train, features(name="test", classes=("b", "a")))
    several = features(labels=np.zeros((6, 2), np.uint8))
    with pytest.raises(InputError, match="set has several labels per image"):
        check_pair(several, several)
    with pytest.raises(InputError, match="features of widths 2 and 3"):
        check_pair(train, features(values=np.zeros((6, 3), np.float32)))


def test_one_more_class_computes_only_its_own_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, cache, model = tmp_path / "photos", tmp_path / "cache", vit()
    for name in ("cat", "hen"):
        for number in range(3):
            (photos / name).mkdir(parents=True, exist_ok=True)
            (photos / name / f"{number}.jpg").write_bytes(encode(photo(number)))
    before = extract(model, open_set(photos), HALF, cache=cache)
    for number in range(2):  # stands between the two in the dataset's order
        (photos / "dog").mkdir(exist_ok=True)
        (photos / "dog" / f"{number}.jpg").write_bytes(encode(photo(5 + number)))
    (photos / "dog" / "broken.jpg").write_bytes(b"no image")
    computed: list[str] = []
    real = room.encode_batch

    def spy(model, batch, batches, kind, device):  # noqa: ANN001, ANN202
        computed.extend(batches.dataset.where(index) for index in batch.indices.tolist())
        return real(model, batch, batches, kind, device)

    monkeypatch.setattr(room, "encode_batch", spy)
    both = extract(model, open_set(photos), HALF, cache=cache)
    assert sorted(computed) == ["dog/0.jpg", "dog/1.jpg", "dog/broken.jpg"]
    fresh = extract(model, open_set(photos), HALF)
    assert both.names.tolist() == fresh.names.tolist()
    assert both.classes == fresh.classes
    assert both.labels.tolist() == fresh.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [bad.where for bad in both.bad] == ["dog/broken.jpg"]
    np.testing.assert_allclose(both.values, fresh.values, atol=1e-6)
    assert (both.values[:3] == before.values[:3]).all()
    computed.clear()
    again = extract(model, open_set(photos), HALF, cache=cache)
    assert computed == []
    assert (again.values == both.values).all()
    (photos / "cat" / "0.jpg").write_bytes(encode(photo(9)))  # another image of that name
    extract(model, open_set(photos), HALF, cache=cache)
    assert computed == ["cat/0.jpg", "dog/broken.jpg"]


def open_set(path: Path) -> ImageDataset:
    dataset = open_data(str(path), split="all")
    assert isinstance(dataset, ImageDataset)
    return dataset
