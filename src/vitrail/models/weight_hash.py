"""A hash of a model's weights, independent of the file they came from."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def hash_weights(model: nn.Module) -> str:
    """Hash all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
