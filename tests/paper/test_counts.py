"""Numbers that the paper and its successors published.

Covers: exact parameter counts of every named model (none missing), GMACs, Table 6's exaFLOPs.
"""

import pytest

from vitrail.models import NAMES, parse
from vitrail.models.cost.total import cost_of, training_exaflops

# With 1000 classes at 224 px. Published: B/16 and B/16@384 by torchvision; Ti, S, B/32, L/16 and
# the hybrids by timm (in millions); BiT by timm. The others follow from the same closed forms.
PARAMETERS = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/32": 22_878_952,
    "ViT-S/16": 22_050_664,
    "ViT-b/32": 22_878_952,
    "ViT-b/16": 22_050_664,
    "ViT-B/32": 88_224_232,
    "ViT-B/16": 86_567_656,
    "ViT-B/8": 86_576_872,
    "ViT-L/32": 306_535_400,
    "ViT-L/16": 304_326_632,
    "ViT-So400m/14": 413_597_656,
    "ViT-H/14": 632_045_800,
    "ViT-g/14": 1_012_611_432,
    "ViT-G/14": 1_844_440_680,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/32": 110_945_832,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    "R50+ViT-L/16": 316_483_624,
    "BiT-R50x1": 25_549_352,
    "BiT-R50x2": 97_988_712,
    "BiT-R50x3": 217_319_080,
    "BiT-R50x4": 383_540_456,
    "BiT-R101x1": 44_541_480,
    "BiT-R101x2": 173_852_776,
    "BiT-R101x3": 387_934_888,
    "BiT-R101x4": 686_787_816,
    "BiT-R152x1": 60_185_128,
    "BiT-R152x2": 236_335_208,
    "BiT-R152x3": 528_451_240,
    "BiT-R152x4": 936_533_224,
    "BiT-R200x1": 64_666_152,
    "BiT-R200x2": 254_210_152,
    "BiT-R200x3": 568_633_000,
    "BiT-R200x4": 1_007_934_696,
    "AxialViT-B/32": 173_277_160,
    "AxialViT-B/16": 171_620_584,
    "AxialResNet-50": 24_586_920,
}


def test_no_named_model_is_missing() -> None:
    assert list(PARAMETERS) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name: str) -> None:
    assert cost_of(parse(name)).parameters == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("ViT-Ti/16", 5.72),  # timm's results table, to its last digit
        ("ViT-S/16", 22.05),
        ("ViT-B/32", 88.22),
        ("ViT-L/16", 304.33),
        ("R50+ViT-B/16@384", 98.95),
        ("R26+ViT-S/32", 36.43),
        ("R50+ViT-L/32", 328.99),
        ("R+ViT-Ti/16", 6.34),
        ("ViT-B/16", 86.567656),  # torchvision, exact
        ("ViT-B/16@384", 86.859496),  # torchvision, exact
        ("ViT-B/16,classes=0", 85.798656),  # keras-hub's backbone, exact
        ("ViT-B/16@384,classes=0", 86.090496),  # keras-hub's backbone, exact
        ("ViT-S/16,pool=gap,position=sincos-2d", 21.974632),  # "better plain ViT", linear head
        ("BiT-R50x1", 25.55),
        ("BiT-R152x4", 936.53),
    ],
)
def test_published_parameters(name: str, millions: float) -> None:
    digits = len(str(millions).partition(".")[2])
    assert round(cost_of(parse(name)).parameters / 1e6, digits) == millions


@pytest.mark.parametrize(
    ("name", "gmacs"),
    [
        ("ViT-B/16", 17.564),  # torchvision's `_ops`, to its last digit
        ("ViT-B/32", 4.409),
        ("ViT-L/16", 61.555),
        ("ViT-L/32", 15.378),
        ("ViT-H/14", 167.295),
        ("ViT-B/16@384", 55.484),
        ("ViT-L/16@512", 361.986),
        ("ViT-H/14@518", 1016.717),
    ],
)
def test_published_gmacs(name: str, gmacs: float) -> None:
    assert round(cost_of(parse(name)).macs / 1e9, 3) == gmacs


JFT = 303_000_000  # images (section 4.1)


@pytest.mark.parametrize(
    ("name", "epochs", "exaflops", "tolerance"),
    [
        ("ViT-B/32", 7, 55, 0.025),  # Table 6
        ("ViT-B/16", 7, 224, 0.025),  # Table 6
        ("ViT-L/32", 7, 196, 0.025),  # Table 6
        ("ViT-L/16", 7, 783, 0.025),  # Table 6
        ("ViT-L/16", 14, 1567, 0.025),  # Table 6
        ("ViT-H/14", 14, 4262, 0.025),  # Table 6
        ("R50+ViT-B/32", 7, 106, 0.025),  # Table 6
        ("R50+ViT-B/16", 7, 274, 0.025),  # Table 6
        ("R50+ViT-L/32", 7, 246, 0.025),  # Table 6
        ("R50+ViT-L/16", 7, 859, 0.03),  # Table 6
        ("R50+ViT-L/16", 14, 1668, 0.025),  # Table 6
        ("BiT-R50x1", 7, 50, 0.05),  # Table 6
        ("BiT-R50x2", 7, 199, 0.05),  # Table 6
        ("BiT-R101x1", 7, 96, 0.05),  # Table 6
        ("BiT-R152x1", 7, 141, 0.05),  # Table 6
        ("BiT-R152x2", 7, 563, 0.05),  # Table 6
        ("BiT-R152x2", 14, 1126, 0.05),  # Table 6
        ("BiT-R200x3", 14, 3306, 0.05),  # Table 6
    ],
)
def test_training_compute_is_table_6(
    name: str, epochs: int, exaflops: float, tolerance: float
) -> None:
    ours = training_exaflops(parse(name), images=JFT, epochs=epochs)
    assert ours == pytest.approx(exaflops, rel=tolerance)
