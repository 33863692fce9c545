"""timm's parallel blocks, by the names of its usual ones, so that they share a table.

One layer there makes queries, keys, values and the MLP's hidden units; here there are two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.models import ViTSpec

_SCALING = {  # ParallelScalingBlock and DiffParallelScalingBlock
    r"in_norm\.": "norm1.",
    r"ls\.gamma": "ls1.gamma",
    r"(q_norm|k_norm|sub_norm|lambda_\w+)": r"attn.\1",
    r"attn_out_proj\.": "attn.proj.",
    r"mlp_out_proj\.": "mlp.fc2.",
    r"mlp_bias": "mlp.fc1.bias",
    r"out_proj\.bias": "mlp.fc2.bias",
    r"attns\.(\d+)\.norm": r"branches.\1.norm1",  # and ParallelThingsBlock
    r"attns\.(\d+)\.ls": r"branches.\1.ls1",
    r"attns\.(\d+)\.attn": r"branches.\1.attn",
    r"ffns\.(\d+)\.norm": r"branches.\1.norm2",
    r"ffns\.(\d+)\.ls": r"branches.\1.ls2",
    r"ffns\.(\d+)\.mlp": r"branches.\1.mlp",
}


def read_parallel(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split what a parallel block's layers stack, and rename the rest."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in theirs.items():
        match = re.fullmatch(r"(blocks\.\d+\.)(.+)", key)
        if match is None:
            tensors[key] = tensor
            continue
        block, name = match.groups()
        width = (
            theirs[f"{block}in_norm.weight"].shape[0] if f"{block}in_norm.weight" in theirs else 0
        )
        if name.startswith("in_proj."):
            kind, hidden = name.removeprefix("in_proj."), tensor.shape[0] - 3 * width
            tensors[f"{block}mlp.fc1.{kind}"] = tensor[:hidden]
            tensors[f"{block}attn.qkv.{kind}"] = tensor[hidden:]
        elif name == "out_proj.weight":
            tensors[f"{block}attn.proj.weight"] = tensor[:, :width]
            tensors[f"{block}mlp.fc2.weight"] = tensor[:, width:]
        else:
            tensors[block + _rename(name)] = tensor
    return tensors


def _rename(name: str) -> str:
    for pattern, ours in _SCALING.items():
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", ours, name)
    return name


def write_parallel(ours: Mapping[str, Tensor], spec: ViTSpec) -> dict[str, Tensor]:
    """Do what `read_parallel` does, backwards."""
    if spec.branches > 1:
        return {_rename_branch(key): tensor for key, tensor in ours.items()}
    back = {"norm1": "in_norm", "ls1": "ls", "attn.q_norm": "q_norm", "attn.k_norm": "k_norm"}
    back |= {"attn.sub_norm": "sub_norm", "attn.proj": "attn_out_proj", "mlp.fc2": "mlp_out_proj"}
    tensors = dict(ours)
    for block in (f"blocks.{layer}." for layer in range(spec.depth)):
        for kind in ("weight", *(["bias"] if spec.qkv_bias else [])):
            parts = (tensors.pop(f"{block}{name}.{kind}") for name in ("mlp.fc1", "attn.qkv"))
            tensors[f"{block}in_proj.{kind}"] = torch.cat(list(parts))
        if not spec.qkv_bias:
            tensors[f"{block}mlp_bias"] = tensors.pop(f"{block}mlp.fc1.bias")
        if spec.attention == "differential":
            parts = (tensors.pop(f"{block}{name}.weight") for name in ("attn.proj", "mlp.fc2"))
            tensors[f"{block}out_proj.weight"] = torch.cat(list(parts), dim=1)
            tensors[f"{block}out_proj.bias"] = tensors.pop(f"{block}mlp.fc2.bias")
        for key in [key for key in tensors if key.startswith(block)]:
            name = key.removeprefix(block)
            new = next(
                (b + name[len(a) :] for a, b in back.items() if name.startswith(f"{a}.")), name
            )
            tensors[block + new.replace("attn.lambda_", "lambda_")] = tensors.pop(key)
    return tensors


def _rename_branch(key: str) -> str:
    rules = {r"norm1": "attns.{}.norm", r"ls1": "attns.{}.ls", r"attn": "attns.{}.attn"}
    rules |= {r"norm2": "ffns.{}.norm", r"ls2": "ffns.{}.ls", r"mlp": "ffns.{}.mlp"}
    match = re.fullmatch(r"(blocks\.\d+\.)branches\.(\d+)\.(\w+)\.(.+)", key)
    if match is None:
        return key
    return f"{match[1]}{rules[match[3]].format(match[2])}.{match[4]}"
