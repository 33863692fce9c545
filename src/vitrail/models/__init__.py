"""Every model of the paper, from a name: torch only, no files, no data, no training.

Names, specs and costs answer without importing torch; the models import it when first asked for.
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
    from vitrail.models.positions import resize_patches as resize_patches
    from vitrail.models.positions import resize_positions as resize_positions
    from vitrail.models.vit import ViT as ViT

_LAZY = {
    "BiT": "bit",
    "build": "factory",
    "Model": "model",
    "resize_patches": "positions",
    "resize_positions": "positions",
    "ViT": "vit",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
