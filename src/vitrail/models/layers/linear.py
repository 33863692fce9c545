"""The dense layer: torch's, with float32 products by oneDNN where torch's own are slow.

torch multiplies float32 matrices by MKL, which runs at half speed on AMD's processors with AVX-512;
oneDNN, also a part of torch, does not. Which one multiplies depends on the processor and on sizes
alone, never on a timing, so that a resumed run computes the same bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from vitrail.machine import prefers_onednn

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_LEAST_ROWS, _LEAST_PRODUCTS = 8, 2**21  # smaller ones take MKL no longer (measured on Zen 5)
_PLAIN = (Tensor, nn.Parameter)  # a subclass, such as DTensor, brings operators of its own


class Linear(nn.Linear):
    """torch's dense layer, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map the last axis of the input (…, inputs)."""
        return linear(input, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear` by the faster library; float32 on a CPU may round otherwise.

    Everything that reads graphs or operators (compilers, exporters, tracers, functorch, dispatch
    modes) sees `F.linear`.
    """
    if not _ONEDNN or is_traced() or not (prefers_onednn() and suits_onednn(x, weight)):
        return F.linear(x, weight, bias)
    rows = x.flatten(0, -2)  # out here, so that the result may be changed in place
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    ):
        product = _OneDNNLinear.apply(rows, weight, bias)
    else:
        product = _multiply(rows, weight, bias)
    return product.view(*x.shape[:-1], len(weight))


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Tell whether x (…, inputs) and weight (outputs, inputs) are what oneDNN is faster for."""
    products = x.shape[:-1].numel() * weight.numel()
    return (
        products >= _LEAST_PRODUCTS
        and products >= _LEAST_ROWS * weight.numel()
        and _is_plain(x)
        and _is_plain(weight)
        and not torch.is_autocast_enabled("cpu")
        and torch._C._get_mkldnn_enabled()  # as torch.backends.mkldnn.flags sets it
        and torch.autograd.forward_ad._current_level < 0
    )


def _is_plain(t: Tensor) -> bool:
    """Tell whether a tensor is a dense float32 one in this processor's memory."""
    usual = type(t) in _PLAIN and t.layout is torch.strided
    return usual and t.is_cpu and t.dtype == torch.float32


def is_traced() -> bool:
    """Tell whether operators are compiled, exported, counted or transformed, not just run."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return True
    transformed = _functorch.peek_interpreter_stack() is not None
    return transformed or torch._C._len_torch_dispatch_stack() > 0


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Run oneDNN's inner product of rows; the weight may have any strides."""
    operators: Any = torch.ops.mkldnn
    return operators._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    """A dense layer whose three products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        input_needed, weight_needed, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if weight_needed else None, weight if input_needed else None)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        again = torch.is_grad_enabled()  # the gradient's own gradient is wanted: torch's products
        of_input = of_weight = None
        if weight is not None:
            of_input = grad @ weight if again else _multiply(grad, weight.t())
        if x is not None:
            of_weight = _transposed_product(grad, x, plain=again)
        return of_input, of_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


def _transposed_product(grad: Tensor, x: Tensor, *, plain: bool) -> Tensor:
    """Compute grad.T @ x, with a copy of the narrower of the two."""
    if plain:
        return grad.t() @ x
    if x.shape[1] < grad.shape[1]:
        return _multiply(x.t(), grad.t()).t()
    return _multiply(grad.t(), x.t())
