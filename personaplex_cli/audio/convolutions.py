"""Causal convolutions over long stretches of one recording, with the weights of moshi's modules.

Time comes first, [T, C]: then a convolution is a few matrix products on samples as they lie in memory, where
moshi's own modules, channels first, spend most of their time on copies. Between stretches a layer keeps what
it needs of the past in a `Memory`; it never changes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Memory: TypeAlias = dict[object, Any]
"""What a recording's layers keep, by layer. Empty at its beginning."""
Layer: TypeAlias = Callable[[Tensor, Memory], Tensor]
"""A stretch in, a stretch out, [T, C] -> [T', D]. The one that came in stays as it is."""
Activation: TypeAlias = Callable[[Tensor], Tensor]


def through(layers: Iterable[Layer], x: Tensor, memory: Memory) -> Tensor:
    """One layer after another."""
    for layer in layers:
        x = layer(x, memory)
    return x


def layers_of(modules: Iterable[Any], dtype: torch.dtype) -> list[Layer]:
    """moshi's sequence of convolutions, residual blocks and activations; these join what follows them."""
    layers: list[Layer] = []
    activation: Activation | None = None
    for module in modules:
        if hasattr(module, "block"):
            layers.append(Residual(module, dtype))
        elif hasattr(module, "convtr"):
            layers.append(transposed(module, dtype, activation))
        elif hasattr(module, "conv"):
            layers.append(convolution(module, dtype, activation))
        else:
            activation = module
            continue
        activation = None
    return layers


def activated(x: Tensor, activation: Activation | None, *, in_place: bool) -> Tensor:
    """In place where that is allowed and the activation can."""
    if activation is None:
        return x
    if in_place and isinstance(activation, nn.ELU):
        return F.elu_(x, activation.alpha)
    return activation(x)


class Residual:
    """A residual block."""

    def __init__(self, module: Any, dtype: torch.dtype) -> None:
        self.block = layers_of(module.block, dtype)
        self.shortcut = layers_of([module.shortcut], dtype) if hasattr(module.shortcut, "conv") else []

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        """[T, C] -> [T, C]"""
        return through(self.block, x, memory).add_(through(self.shortcut, x, memory))


class Convolution:
    """A causal convolution after its activation, as products of taps with the inputs that they reach.

    taps [k, C, D], bias [D]. Of a transposed convolution, `n_outputs` follow each other in a product's row.
    """

    def __init__(
        self,
        taps: Tensor,
        bias: Tensor | None,
        *,
        stride: int = 1,
        dilation: int = 1,
        n_outputs: int = 1,
        begins_with_first: bool = False,
        activation: Activation | None = None,
    ) -> None:
        self.stride, self.n_outputs, self.activation = stride, n_outputs, activation
        self.begins_with_first = begins_with_first
        self.n_past = (len(taps) - 1) * dilation + 1 - stride
        n_joined = taps_of_one_product(taps, stride) if dilation == 1 else 1
        self.matrices = [joined.flatten(0, 1).contiguous() for joined in torch.split(taps, n_joined)]
        self.step = dilation * n_joined
        self.bias = bias

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        """[T, C] -> [T * n_outputs / stride, D / n_outputs]"""
        n_inputs, n_channels = x.shape
        x = activated(self.with_past(x, memory), self.activation, in_place=self.n_past > 0)

        def reached(n: int) -> Tensor:
            """The inputs of the n-th matrix; rows may overlap. [T / stride, taps * C]"""
            size, strides = (n_inputs // self.stride, len(self.matrices[n])), (self.stride * n_channels, 1)
            return x.as_strided(size, strides, x.storage_offset() + n * self.step * n_channels)

        out = product(reached(0), self.matrices[0], self.bias)
        for n in range(1, len(self.matrices)):
            out.addmm_(reached(n), self.matrices[n])
        return out.view(len(out) * self.n_outputs, -1)

    def with_past(self, x: Tensor, memory: Memory) -> Tensor:
        """What the taps reach: a copy, unless they reach nothing of the past. [T, C] -> [n_past + T, C]"""
        if not self.n_past:
            return x
        beginning = x[:1] if self.begins_with_first else torch.zeros_like(x[:1])
        past = memory.get(self, beginning.expand(self.n_past, -1))
        x = torch.cat([past, x])
        memory[self] = x[-self.n_past :].clone()
        return x


def taps_of_one_product(taps: Tensor, stride: int) -> int:
    """How many taps to join: as many as a step is wide need no copies, since their rows do not overlap.

    All where sums would be rounded in between, and of a single channel, whose products are thin.
    """
    is_coarse = taps.dtype != torch.float32
    return len(taps) if is_coarse or taps.shape[1] == 1 else stride


def product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """[T, C] -> [T, D]"""
    return x @ matrix if bias is None else torch.addmm(bias, x, matrix)


def convolution(module: Any, dtype: torch.dtype, activation: Activation | None = None) -> Convolution:
    """Of moshi's StreamingConv1d."""
    conv = module.conv.conv
    return Convolution(
        conv.weight.permute(2, 1, 0).to(dtype),
        None if conv.bias is None else conv.bias.to(dtype),
        stride=conv.stride[0],
        dilation=conv.dilation[0],
        begins_with_first=module.pad_mode == "replicate",
        activation=activation,
    )


def transposed(module: Any, dtype: torch.dtype, activation: Activation | None = None) -> Convolution:
    """Of moshi's StreamingConvTranspose1d: an input's `stride` outputs are one row."""
    conv = module.convtr.convtr
    (stride,), n_channels = conv.stride, conv.in_channels
    weight = dense(conv.weight, conv.groups)
    weight = F.pad(weight, (0, -weight.shape[2] % stride)).view(n_channels, conv.out_channels, -1, stride)
    # The last tap meets the newest input, whose outputs are the kernel's first.
    taps = weight.permute(2, 0, 3, 1).flip(0).reshape(-1, n_channels, stride * conv.out_channels)
    bias = None if conv.bias is None else conv.bias.repeat(stride).to(dtype)
    return Convolution(taps.to(dtype), bias, n_outputs=stride, activation=activation)


def dense(weight: Tensor, groups: int) -> Tensor:
    """A grouped transposed convolution's weight as one of a single group. [C, D / groups, k] -> [C, D, k]"""
    n_channels, n_outputs, kernel = weight.shape
    channels = torch.arange(n_channels, device=weight.device)
    full = weight.new_zeros(n_channels, groups, n_outputs, kernel)
    full[channels, channels // (n_channels // groups)] = weight
    return full.flatten(1, 2)
