"""Write a model folder of any size with random weights, to time `personaplex convert` as a whole.

    python recipes/random_checkpoint.py OUT [--set temporal_config.num_hidden_layers=2]

Without --set it is the published layout: 17.1 GB on the disk, written shard by shard in little memory.
Tokenizer and voices are the embedded model's. Its replies are noise.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from moshi.models import loaders
from safetensors.torch import save_file
from torch import Tensor

from personaplex_cli.audio.codec import mimi_kwargs
from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.load import load_config, render_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.estimate import N_NOISE, random_tensor
from personaplex_cli.model.checkpoint import EMBEDDED, INDEX, TOKENIZER
from personaplex_cli.model.voices import FOLDER

SHARD_BYTES = 2_000_000_000


def main() -> None:
    """Build into a new folder."""
    parser = argparse.ArgumentParser(description="Write a model folder with random weights.")
    parser.add_argument("out", type=Path, help="a folder that is not there yet")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the config")
    arguments = parser.parse_args()
    build(arguments.out, load_config(None, arguments.set).config)


def build(out: Path, config: PersonaPlexConfig) -> None:
    """Write all files of the model."""
    out.mkdir(parents=True)
    (out / "config.json").write_text(render_config(config, "json"), encoding="utf-8")
    shutil.copyfile(EMBEDDED / TOKENIZER, out / TOKENIZER)
    # The `.pt` beside each recording holds embeddings of the embedded model alone.
    shutil.copytree(EMBEDDED / FOLDER, out / FOLDER, ignore=shutil.ignore_patterns("*.pt"))
    save_file(mimi_tensors(config), out / config.resolved_mimi_name)
    shard_of = {}
    for number, tensors in enumerate(shards(config)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, out / name)
        shard_of.update(dict.fromkeys(tensors, name))
    (out / INDEX).write_text(json.dumps({"weight_map": shard_of}), encoding="utf-8")


def shards(config: PersonaPlexConfig) -> Iterator[dict[str, Tensor]]:
    """The language model's tensors in bfloat16, some at a time."""
    noise = torch.randn(N_NOISE, generator=torch.Generator().manual_seed(0)).bfloat16()
    shard: dict[str, Tensor] = {}
    for name, shape in expected_tensors(config).items():
        shard[name] = random_tensor(name, shape, noise)
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def mimi_tensors(config: PersonaPlexConfig) -> dict[str, Tensor]:
    """The codec's tensors as moshi draws them, with codebooks that have something to choose from."""
    torch.manual_seed(0)
    mimi: Any = loaders.get_mimi(None, mimi_kwargs(config.mimi_config))
    tensors: dict[str, Tensor] = {name: tensor.contiguous() for name, tensor in mimi.state_dict().items()}
    for name, tensor in tensors.items():
        if name.endswith("embedding_sum"):
            tensor.normal_()
        elif name.endswith(("cluster_usage", "_initialized")):
            tensor.fill_(1.0)
    return tensors


if __name__ == "__main__":
    main()
