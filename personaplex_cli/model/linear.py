"""Products of activations with the checkpoint's weights, in whatever numbers the weights are held.

In int8 every row of a weight has a scale, found when it is loaded, and every row of activations has its own,
found when it is used. Whole numbers are summed without rounding: a row never feels how many others there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personaplex_cli.model.device import has_bfloat16_products

ZERO = 128
"""Stands for 0 among the activations' numbers: oneDNN is only fast where these have no sign."""
LARGEST = 127
SMALLEST_SCALE = 1e-30
"""A row of zeros stays one."""
FEWEST_ROWS = 32
"""cuBLAS refuses int8 products of 16 rows and fewer."""
QUANTISED_AT_ONCE = WIDENED_AT_ONCE = 1 << 18
"""Numbers of a weight that are in float32 at one time: they fit in the cache."""
EXACT_COLUMNS = 1024
"""So many products of two numbers of 7 bits and their signs have a sum below 2 ** 24, which float32 holds."""
MANY_ROWS = 4
"""Products of fewer rows wait for memory: their numbers need no faster way."""


class Linear(nn.Module):
    """A product with a weight [N, K], or with one of several that are stacked along its rows."""

    def __init__(self, n_in: int, n_out: int, n_sets: int = 1) -> None:
        super().__init__()
        self.n_sets = n_sets
        self.weight: Weight = nn.Parameter(torch.empty(n_sets * n_out, n_in))

    def forward(self, x: Tensor, step: int = 0) -> Tensor:
        """[..., K] -> [..., N]"""
        return linear(x, self.weight, step, self.n_sets)


def linear(x: Tensor, weight: Weight, step: int = 0, n_sets: int = 1) -> Tensor:
    """The product with step set `step` of those stacked in a weight. x [..., K], [n * N, K] -> [..., N]"""
    if isinstance(weight, Int8Weight):
        return weight.product(x, step)
    rows = weight if n_sets == 1 else weight.view(n_sets, -1, weight.shape[-1])[step]
    n_rows = x.shape[:-1].numel()
    if x.dtype == torch.bfloat16 and x.device.type == "cpu" and n_rows >= MANY_ROWS and is_slow_in_bfloat16():
        return linear_in_float32(x, rows)
    return F.linear(x, rows)


def linear_in_float32(x: Tensor, weight: Tensor) -> Tensor:
    """The product, rounded once, with a few of the weight's rows in float32 at a time. -> of x's dtype"""
    wide = x.float()
    n_rows = -(-WIDENED_AT_ONCE // weight.shape[1])
    return torch.cat(
        [F.linear(wide, rows.float()).to(x.dtype) for rows in torch.split(weight, n_rows)], dim=-1
    )


@cache
def is_slow_in_bfloat16() -> bool:
    """Whether this CPU has no products in bfloat16: torch's stand-in multiplies number by number."""
    return not has_bfloat16_products()


class Int8Weight:
    """What stands in a weight's place where it is held in int8; the step sets stacked in it are apart."""

    def __init__(self, weight: Tensor, n_sets: int = 1) -> None:
        """weight [n * N, K], on the device where it is to be used."""
        self.shape = weight.shape
        self.multiply = [exact_product(*quantise(rows)) for rows in weight.chunk(n_sets)]

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads: a number is one, and a row's scale four."""
        return self.shape.numel() + 4 * self.shape[0]

    def product(self, x: Tensor, step: int = 0) -> Tensor:
        """[..., K] -> [..., N], of x's dtype"""
        numbers, scales = quantise_activations(x.reshape(-1, x.shape[-1]))
        out = self.multiply[step](numbers).mul_(scales).to(x.dtype)
        return out.view(*x.shape[:-1], -1)


Weight = Tensor | Int8Weight
Product = Callable[[Tensor], Tensor]
"""uint8 [B, K] around `ZERO` -> float32 [B, N], to be multiplied by the activations' scales."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> int8 [N, K] and scales [N], so that number * scale is the weight."""
    numbers = torch.empty_like(weight, dtype=torch.int8)
    scales = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    n_rows = -(-QUANTISED_AT_ONCE // weight.shape[1])
    for begin in range(0, len(weight), n_rows):
        rows = slice(begin, begin + n_rows)
        values = weight[rows].float()
        scales[rows] = (values.abs().amax(dim=1) / LARGEST).clamp_(min=SMALLEST_SCALE)
        numbers[rows] = values.div_(scales[rows, None]).round_()
    return numbers, scales


def quantise_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """[B, K] -> uint8 [B, K] around `ZERO` and scales [B, 1]; every row by its own largest number."""
    x = x.float()
    scales = x.abs().amax(dim=1, keepdim=True).div_(LARGEST).clamp_(min=SMALLEST_SCALE)
    # The conversion drops what stands behind the point: with a half added it rounds.
    return (x / scales).add_(ZERO + 0.5).to(torch.uint8), scales


def exact_product(numbers: Tensor, scales: Tensor) -> Product:
    """The fastest product with int8 [N, K] and scales [N] that is to be had where they are."""
    if numbers.device.type != "cpu":
        return plain_product(numbers, scales)
    return packed_product(numbers, scales) if onednn_is_exact() else widened_product(numbers, scales)


def onednn_is_exact() -> bool:
    """Whether there is VNNI: without it, sums of unsigned by signed products saturate in 16 bits."""
    has_vnni: Callable[[], bool] = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return hasattr(torch.ops.onednn, "qlinear_pointwise") and has_vnni()


def packed_product(numbers: Tensor, scales: Tensor) -> Product:
    """oneDNN, with the weight laid out as it likes it."""
    packed = torch.ops.onednn.qlinear_prepack(numbers, None)
    zeros = torch.zeros(len(scales), dtype=torch.long)

    def multiply(activations: Tensor) -> Tensor:
        # No bias, an output that stays in float32, and nothing done to it afterwards.
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            activations, 1.0, ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out

    return multiply


def widened_product(numbers: Tensor, scales: Tensor) -> Product:
    """In float32, a few of the weight's numbers at a time; sums of so few columns are exact there, too."""
    n_rows = -(-WIDENED_AT_ONCE // EXACT_COLUMNS)

    def multiply(activations: Tensor) -> Tensor:
        columns = torch.split(activations.float().sub_(ZERO), EXACT_COLUMNS, dim=1)
        sums = []
        for rows in torch.split(numbers, n_rows):
            total = torch.zeros(len(activations), len(rows), dtype=torch.int32)
            for one, other in zip(columns, torch.split(rows, EXACT_COLUMNS, dim=1), strict=True):
                total += F.linear(one, other.float()).to(torch.int32)
            sums.append(total)
        return torch.cat(sums, dim=1).float().mul_(scales)

    return multiply


def plain_product(numbers: Tensor, scales: Tensor) -> Product:
    """torch's own product of whole numbers: fast on CUDA; without VNNI, CPUs take thirty times longer."""
    columns = numbers.t()

    def multiply(activations: Tensor) -> Tensor:
        n_rows = len(activations)
        # With the topmost bit flipped, the unsigned numbers around 128 are signed ones around 0.
        signed = activations.bitwise_xor(ZERO).view(torch.int8)
        padded = F.pad(signed, (0, 0, 0, max(0, FEWEST_ROWS - n_rows)))
        return torch._int_mm(padded, columns)[:n_rows].float().mul_(scales)

    return multiply
