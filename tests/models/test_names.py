"""The grammar of names: parsed to a frozen spec, printed back the same; wrong ones refused."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.config import InputError
from vitrail.models import (
    NAMES,
    BiTSpec,
    HybridSpec,
    Spec,
    ViTSpec,
    parse,
    spec_from_dict,
    spec_to_dict,
)
from vitrail.models.names import SIZES, parse_size

WRITTEN = [
    "ViT-B/16@384",
    "ViT-L/16@512",
    "ViT-H/14@518",
    "ViT-B/16@384x512",
    "ViT-B/14x7@224",
    "ViT-Ti/4@32,classes=10",
    "ViT-B/16,pool=gap,position=sincos-2d",
    "ViT-g/14,registers=4,activation=swiglu,layer_scale=1e-05",
    "ViT-B/16,position=relative,position_at=shared",
    "ViT-B/16,position_resize=huggingface,activation=gelu,norm_eps=1e-12",
    "ViT/32,depth=8,width=1024,heads=16,mlp=2048",
    "R50+ViT-L/16@384",
    "R101+ViT-B/32",
    "R+ViT-S/16@256",
    "Hybrid-B/2,stages=1-2-1,stem_width=32",
    "Hybrid/1@64,depth=2,width=48,heads=3,mlp=96,stages=1-2-1,stem_width=32",
    "Hybrid/1@32,depth=2,width=48,heads=3,mlp=96,stem=conv,stages=2-2-2,stem_width=32",
    "Hybrid-B/1,stem=conv,stages=3-4-9",
    "BiT-R50x1@448",
    "BiT,stages=1-2-1-1,width=32",
    "AxialViT-B/32@384,pool=map",
    "AxialViT/8@64,depth=2,width=48,heads=3,mlp=96",
    "AxialResNet-50@512",
]


@pytest.mark.parametrize("name", [*NAMES, *WRITTEN])
def test_a_name_is_printed_back_the_same(name: str) -> None:
    spec = parse(name)
    assert str(spec) == name.replace("@224", "")
    assert parse(str(spec)) == spec
    assert dataclasses.replace(spec, classes=1000) == parse(spec.name)


def test_sizes_are_table_1() -> None:
    assert SIZES["B"] == {"depth": 12, "width": 768, "heads": 12, "mlp": 3072}  # Table 1
    assert SIZES["L"] == {"depth": 24, "width": 1024, "heads": 16, "mlp": 4096}  # Table 1
    assert SIZES["H"] == {"depth": 32, "width": 1280, "heads": 16, "mlp": 5120}  # Table 1


def test_half_size_b_halves_every_hidden_size_of_base() -> None:
    half, base = SIZES["b"], SIZES["B"]
    assert (half["width"], half["mlp"]) == (base["width"] // 2, base["mlp"] // 2)
    assert (half["depth"], half["heads"]) == (base["depth"], base["heads"])


def test_hybrids_are_cut_in_the_papers_two_ways() -> None:
    cut = {name: parse(name) for name in NAMES if name.startswith("R")}
    specs = {name: spec for name, spec in cut.items() if isinstance(spec, HybridSpec)}
    assert {n: (s.stages, s.patch, s.stride[0], s.tokens) for n, s in specs.items()} == {
        "R+ViT-Ti/16": ((), (8, 8), 32, 50),
        "R26+ViT-S/32": ((2, 2, 2, 2), (1, 1), 32, 50),
        "R26+ViT-B/32": ((2, 2, 2, 2), (1, 1), 32, 50),
        "R50+ViT-B/32": ((3, 4, 6, 3), (1, 1), 32, 50),
        "R50+ViT-B/16": ((3, 4, 9), (1, 1), 16, 197),
        "R50+ViT-L/32": ((3, 4, 6, 3), (1, 1), 32, 50),
        "R50+ViT-L/16": ((3, 4, 9), (1, 1), 16, 197),
    }


def test_axial_models_are_written_with_their_options() -> None:
    axial = parse("AxialViT-B/32")
    assert isinstance(axial, ViTSpec)
    assert (axial.attention, axial.pool) == ("axial", "gap")
    assert parse("ViT-B/32,attention=axial,pool=gap") == axial
    resnet = parse("AxialResNet-50")
    assert isinstance(resnet, BiTSpec)
    assert (resnet.stages, resnet.width, resnet.heads) == ((3, 4, 6, 3), 64, 8)
    assert str(parse("BiT-R50x1,heads=8")) == "AxialResNet-50"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-Q/16", "unknown model 'ViT-Q/16'; did you mean 'ViT-"),
        ("ViT-B16", "did you mean 'ViT-B/16'"),
        ("ViT-B_16", "did you mean 'ViT-B/16'"),
        ("vit_base_patch16_224", "did you mean 'ViT-B/16'"),
        ("vit_tiny_patch16_224.augreg_in21k", "did you mean 'ViT-Ti/16'"),
        ("vit_b_16", "did you mean 'ViT-B/16'"),
        ("resnetv2_50x1_bit", "'vitrail models' lists them"),
        ("BiT-R51x1", "did you mean 'BiT-R50x1'"),
        ("BiT-R26x1", "did you mean 'BiT-R"),
        ("BiT-R50x0", "'BiT-R50x0': "),
        ("AxialResNet-101", "did you mean 'AxialResNet-50'"),
        ("R50+ViT-B/8", "did you mean 'R50+ViT-B/"),
        ("R34+ViT-B/16", "did you mean 'R50+ViT-B/16'"),
        ("", "unknown model ''"),
        ("ViT-B/16@", "'' is not a size"),
        ("ViT-B/16@abc", "'abc' is not a size; write 384, or 384x512"),
        ("ViT-B/16@0", "'0' is not a size"),
        ("ViT-B/0", "'0' is not a size"),
        pytest.param(f"ViT-B/16@{'9' * 5000}", "is not a size", id="a size of 5000 digits"),
        pytest.param(f"BiT-R50x{'9' * 5000}", "unknown model", id="a width of 5000 digits"),
        ("BiT,stages=²-1", "stages[0]: expected a whole number, got '²'"),
        ("ViT-B/15", "a 224x224 image does not split into 15x15 patches; the nearest size"),
        ("ViT-B/16@390", "the nearest size that does is 384x384"),
        ("ViT-B/16,gap", "'gap' is not of the form field=value"),
        ("ViT-B/16,pol=gap", "unknown key 'pol'; did you mean 'pool'?"),
        (
            "ViT-B/16,pool=max",
            "pool: expected 'token', 'gap', 'map', 'probe' or 'token-gap', got 'max'",
        ),
        ("ViT-B/16,depth=x", "depth: expected a whole number, got 'x'"),
        ("ViT-B/16,depth=0", "depth must be at least 1, got 0"),
        ("ViT-B/16,depth=1000000000", "depth must be at most 10_000, got 1000000000"),
        ("ViT-B/16,depth=10000,branches=10000", "depth x branches must be at most 10_000"),
        ("ViT-B/16,mlp=1e308", "mlp must be at most 16_777_216, got 1000"),
        pytest.param(f"ViT-B/16,mlp=1{'0' * 4000}", "mlp must be at most", id="4001 digits"),
        ("ViT-B/16@999999999", "image must be at most 16_777_216"),
        ("ViT-B/16,norm_eps=1e9", "norm_eps must be at most"),
        ("BiT-R50x999999999", "width must be at most 16_777_216, got 63999999936"),
        ("BiT,stages=999999999-3", "stages must be at most 10_000"),
        ("ViT-B/16,heads=7", "width 768 is not a multiple of 7 heads"),
        ("ViT-B/16,dropout=1", "dropout must be in [0, 1), got 1.0"),
        ("ViT-B/16,position=relative", "choose position_at=every-layer"),
        ("ViT/16", "missing key 'depth'"),
        ("ViT/16@32,depth=1,width=15,heads=3,mlp=8,position=learned-2d", "2 does not divide"),
        ("ViT/16@32,depth=1,width=4,heads=2,mlp=8,position=sincos-2d", "at least 8, got 4"),
        (
            "ViT-B/16,pool=gap,distilled=true",
            "distilled requires pool=token and last_norm=tokens, got pool=gap",
        ),
        ("AxialViT-B/16,pool=token", "without class or register tokens"),
        ("AxialViT-B/16,registers=2", "without class or register tokens"),
        ("Hybrid-B/1,stages=3-0", "every stage needs at least one block"),
        ("Hybrid-B/1,stages=3-x", "stages[1]: expected a whole number, got 'x'"),
        ("Hybrid-B/1,stages=3,stem_width=48", "multiple of 32 (GroupNorm), got 48"),
        ("Hybrid-B/1,stem=conv", "stem=conv needs at least one stage, for example stages=2-2"),
        ("Hybrid-B/2,stem=mobileclip,stages=2", "stages requires stem=resnet or stem=conv"),
        ("BiT,stages=", "at least one stage"),
        ("BiT", "missing key 'stages'"),
    ],
)
def test_a_wrong_name_gets_one_line_that_helps(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_direct_specs_are_checked_too() -> None:
    shape: dict[str, Any] = {"depth": 1, "width": 8, "heads": 2, "mlp": 8}
    with pytest.raises(InputError, match="unknown pool 'max'; there are: token, gap, map"):
        ViTSpec(**shape, pool="max")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="image must be at least 1"):
        ViTSpec(**shape, image=(0, 16))
    with pytest.raises(dataclasses.FrozenInstanceError):
        ViTSpec(**shape).depth = 3  # pyright: ignore[reportAttributeAccessIssue]


@given(st.sampled_from([*NAMES, *WRITTEN]))
def test_specs_travel_as_plain_data(name: str) -> None:
    spec = parse(name)
    data = json.loads(json.dumps(spec_to_dict(spec)))
    assert spec_from_dict(data) == spec


def test_plain_data_is_read_strictly() -> None:
    data = spec_to_dict(parse("ViT-B/16"))
    with pytest.raises(InputError, match=r"unknown model family 'vot'; .*did you mean 'vit'"):
        spec_from_dict({**data, "family": "vot"})
    with pytest.raises(InputError, match="unknown key 'dept'; did you mean 'depth'"):
        spec_from_dict({**data, "dept": 3})


sizes = st.integers(1, 40)
shapes = st.fixed_dictionaries(
    {
        "depth": st.integers(1, 60),
        "heads": (heads := st.integers(1, 16)),
        "mlp": st.integers(1, 9000),
        "patch": (patch := st.tuples(sizes, sizes)),
        "grid": st.tuples(sizes, sizes),
        "size": st.integers(2, 32),
        "classes": st.integers(0, 30_000),
        "channels": st.integers(1, 12),
        "pool": st.sampled_from(["token", "gap", "map"]),
        "position": st.sampled_from(["none", "learned-1d", "learned-2d", "sincos-2d", "relative"]),
        "position_at": st.sampled_from(["every-layer", "shared"]),
        "dropout": st.floats(0, 0.99),
        "norm_eps": st.floats(0, 1, allow_subnormal=False),
        "qkv_bias": st.booleans(),
        "registers": st.integers(0, 8),
        "stages": st.none() | st.lists(st.integers(1, 9), max_size=4).map(tuple),
    }
)


@given(shapes)
def test_every_spec_has_a_name(shape: dict[str, Any]) -> None:
    """Any spec is printed to a name that gives the same spec."""
    grid, stages = shape.pop("grid"), shape.pop("stages")
    shape["width"] = shape["heads"] * 4 * shape.pop("size")
    spec: Spec
    if stages is None:
        image = (grid[0] * shape["patch"][0], grid[1] * shape["patch"][1])
        spec = ViTSpec(**shape, image=image)
    else:
        stride = 4 * 2 ** max(len(stages) - 1, 0)
        image = (grid[0] * shape["patch"][0] * stride, grid[1] * shape["patch"][1] * stride)
        spec = HybridSpec(**shape, image=image, stages=stages)
    assert parse(str(spec)) == spec


def test_sizes_of_images() -> None:
    assert parse_size("384") == (384, 384)
    assert parse_size("384x512") == (384, 512)
    with pytest.raises(InputError, match="'384,512' is not a size"):
        parse_size("384,512")
