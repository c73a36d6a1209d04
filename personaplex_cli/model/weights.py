"""safetensors -> modules, strictly: every tensor is there, none is left over, all have their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.errors import WeightsError
from personaplex_cli.model.lm import Lm

_open: Any = safe_open  # It comes without types.


def load_lm(
    shards: Sequence[Path],
    config: PersonaPlexConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    n_steps: int | None = None,
) -> Lm:
    """Build the LM on the meta device and give it the checkpoint's tensors, one at a time.

    Tensors that already have the dtype stay memory-mapped on a CPU: there is no second copy.
    `n_steps` depformer step sets are read (default: the active ones); the file may hold more.
    """
    with torch.device("meta"):
        lm = Lm(config, n_steps)
    with ExitStack() as stack:
        files = [stack.enter_context(open_shard(shard)) for shard in shards]
        where = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (not a dict)
        if (n_named := sum(len(file.keys()) for file in files)) > len(where):
            raise WeightsError(
                f"{shards[0].parent}: {n_named - len(where)} tensors stand in two of its files"
            )
        check_layout(
            {name: tuple(file.get_slice(name).get_shape()) for name, file in where.items()}, config, shards
        )
        state = {
            name: read_rows(where[name], name, like.shape[0], dtype=dtype, device=device)
            for name, like in lm.state_dict().items()
        }
    lm.load_state_dict(state, strict=True, assign=True)
    return lm.eval().requires_grad_(False)


def open_shard(shard: Path) -> Any:
    """safetensors' own handle, with an error for people."""
    try:
        return _open(shard, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{shard}: not a readable safetensors file ({error}); download it again"
        ) from error


def read_rows(file: Any, name: str, n_rows: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The first rows of a tensor. It is mapped, not read: step sets stacked behind them stay on the disk."""
    tensor: Tensor = file.get_tensor(name)
    return tensor[:n_rows].to(device=device, dtype=dtype)


def check_layout(
    found: Mapping[str, tuple[int, ...]], config: PersonaPlexConfig, shards: Sequence[Path]
) -> None:
    """Compare the checkpoint's names and shapes with the config tree's; refuse all differences at once."""
    faults = sorted(differences(found, expected_tensors(config)))
    if faults:
        names = ", ".join(shard.name for shard in shards)
        headline = (
            f"{shards[0].parent}: {names}: does not fit the config tree ({len(faults)} tensors differ):"
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
