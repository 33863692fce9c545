"""Which published weights are on this machine already, without asking the network."""

from __future__ import annotations

from vitrail.download import cache_folder
from vitrail.weights.published.catalog import CATALOG, PublishedWeights
from vitrail.weights.sources.remote_sources import cached_path


def weights_at_hand() -> list[PublishedWeights]:
    """List the checkpoints of the catalog that are in the caches and free for any use."""
    return [each for each in cached_weights() if is_free(each)]


def cached_weights() -> list[PublishedWeights]:
    """List the checkpoints of the catalog that are in the caches, whatever their license."""
    return [each for each in CATALOG if _is_cached(each.source)]


def is_free(published: PublishedWeights) -> bool:
    """Tell whether a license allows any use."""
    return published.license in ("Apache-2.0", "MIT")


def _is_cached(source: str) -> bool:
    scheme, _, rest = source.partition(":")
    if scheme in ("timm", "hf"):
        try:
            from huggingface_hub import try_to_load_from_cache
        except ImportError:
            return False
        repository = f"timm/{rest}" if scheme == "timm" else rest
        names = ("model.safetensors", "pytorch_model.bin")
        return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)
    path = cached_path(source)
    return path is not None and (cache_folder() / path).is_file()
