"""Instead of the first stages' results: those of a model that is there, to go on from.

Its vocabulary and codec stay as they are; the language model is trained on, as in a training's last third.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from moshi.models.loaders import get_mimi, get_moshi_lm

from personaplex_cli.audio.codec import mimi_kwargs
from personaplex_cli.config.tree import MIMI_NAME
from personaplex_cli.model.checkpoint import TOKENIZER, WEIGHTS, open_checkpoint
from recipes.embedded.export import sharpness
from recipes.embedded.lm import START, lm_kwargs


def lay_out(model: Path, work: Path) -> None:
    """Write a packaged model's parts as the stages would have left them."""
    if (work / START).exists():
        return
    config = open_checkpoint(str(model)).config
    shutil.copyfile(model / TOKENIZER, work / "tokenizer.model")
    mimi = get_mimi(model / MIMI_NAME, mimi_kwargs(config.mimi_config), num_codebooks=8)
    for name in ("mimi.pt", "mimi-refined.pt"):
        torch.save(mimi.state_dict(), work / name)
    lm = get_moshi_lm(model / WEIGHTS, lm_kwargs(config), dtype=torch.float32)
    state = {name: tensor / sharpness(name) for name, tensor in lm.state_dict().items()}
    torch.save(state, work / START)
