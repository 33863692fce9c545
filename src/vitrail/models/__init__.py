"""Every model of the paper, by name: torch only, no files, no data, no training.

Names, specs and costs don't import torch; the models do when first used.
"""

from typing import TYPE_CHECKING, Any

from vitrail.models.names import NAMES as NAMES
from vitrail.models.names import parse as parse
from vitrail.models.spec import BiTSpec as BiTSpec
from vitrail.models.spec import HybridSpec as HybridSpec
from vitrail.models.spec import Spec as Spec
from vitrail.models.spec import ViTSpec as ViTSpec
from vitrail.models.spec import spec_from_dict as spec_from_dict
from vitrail.models.spec import spec_to_dict as spec_to_dict

if TYPE_CHECKING:
    from vitrail.models.bit import BiT as BiT
    from vitrail.models.factory import build as build
    from vitrail.models.model import Model as Model
    from vitrail.models.positions.grid_resizing import resize_patches as resize_patches
    from vitrail.models.positions.grid_resizing import resize_positions as resize_positions
    from vitrail.models.positions.mixed_grids import PatchBatch as PatchBatch
    from vitrail.models.positions.mixed_grids import pack_images as pack_images
    from vitrail.models.vit import ViT as ViT

_LAZY = {
    "BiT": "bit",
    "build": "factory",
    "Model": "model",
    "pack_images": "positions.mixed_grids",
    "PatchBatch": "positions.mixed_grids",
    "resize_patches": "positions.grid_resizing",
    "resize_positions": "positions.grid_resizing",
    "ViT": "vit",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
