"""safetensors -> modules, strictly: every tensor is there, none is left over, all have their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from personaplex_cli.config.facts import Shape, expected_tensors, is_linear
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.errors import WeightsError
from personaplex_cli.model.lm import Lm

_open: Any = safe_open  # It comes without types.
BESIDE_INT8 = torch.bfloat16


def load_lm(
    shards: Sequence[Path],
    config: PersonaPlexConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    n_steps: int | None = None,
) -> Lm:
    """Build the LM of the checkpoint's tensors, strictly.

    Tensors that already have the dtype stay memory-mapped on a CPU: there is no second copy.
    `n_steps` depformer step sets are read (default: the active ones); the file may hold more.
    """
    with ExitStack() as stack:
        files = {shard: stack.enter_context(open_shard(shard)) for shard in shards}
        where = {name: shard for shard, file in files.items() for name in file.keys()}  # noqa: SIM118 (not a dict)
        if (n_named := sum(len(file.keys()) for file in files.values())) > len(where):
            raise WeightsError(
                f"{shards[0].parent}: {n_named - len(where)} tensors stand in two of its files"
            )
        check_layout(
            {name: tuple(files[shard].get_slice(name).get_shape()) for name, shard in where.items()},
            config,
            shards,
        )

        def read(name: str, shape: Shape) -> Tensor:
            # What a mapping has shown counts as memory until it is closed: what is copied gets its own.
            copied = is_held_in_int8(name, dtype)
            file = open_shard(where[name]) if copied else files[where[name]]
            return read_rows(file, name, shape[0])

        return build_lm(config, read, dtype=dtype, device=device, n_steps=n_steps)


def build_lm(
    config: PersonaPlexConfig,
    tensor_of: Callable[[str, Shape], Tensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
    n_steps: int | None = None,
) -> Lm:
    """Build the LM on the meta device and give it its tensors, one at a time, by name and shape.

    dtype int8: the weights of products are held in it, all else is bfloat16.
    """
    with torch.device("meta"):
        lm = Lm(config, n_steps)
    state = {}
    for name, like in lm.state_dict().items():
        tensor = tensor_of(name, tuple(like.shape)).to(device)
        if is_held_in_int8(name, dtype):
            lm.hold_in_int8(name, tensor)
        else:
            state[name] = tensor.to(BESIDE_INT8 if dtype == torch.int8 else dtype)
    lm.load_state_dict(state, strict=True, assign=True)
    return lm.eval().requires_grad_(False)


def is_held_in_int8(name: str, dtype: torch.dtype) -> bool:
    """Whether a tensor becomes an `Int8Weight` in a model of this dtype."""
    return dtype == torch.int8 and is_linear(name)


def open_shard(shard: Path) -> Any:
    """safetensors' own handle, with an error for people."""
    try:
        return _open(shard, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{shard}: not a readable safetensors file ({error}); download it again"
        ) from error


def read_rows(file: Any, name: str, n_rows: int) -> Tensor:
    """The first rows of a tensor. It is mapped, not read: step sets stacked behind them stay on the disk."""
    tensor: Tensor = file.get_tensor(name)
    return tensor[:n_rows]


def check_layout(
    found: Mapping[str, tuple[int, ...]], config: PersonaPlexConfig, shards: Sequence[Path]
) -> None:
    """Compare the checkpoint's names and shapes with the config tree's; refuse all differences at once."""
    faults = sorted(differences(found, expected_tensors(config)))
    if faults:
        names = ", ".join(shard.name for shard in shards)
        headline = (
            f"{shards[0].parent}: {names}: does not fit the config tree ({len(faults)} tensors differ); "
            "give the tree that belongs to these weights (--config, --set), or download the model again:"
        )
        raise WeightsError.listing(headline, faults)


def differences(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    """Every name that is missing, unexpected or mis-shaped, a line each."""
    for name in expected.keys() - found.keys():
        yield f"missing: {name} {list(expected[name])}"
    for name in found.keys() - expected.keys():
        yield f"unexpected: {name} {list(found[name])}"
    for name in expected.keys() & found.keys():
        if found[name] != expected[name]:
            yield f"shape: {name} is {list(found[name])}, must be {list(expected[name])}"
