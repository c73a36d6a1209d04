"""Stage 6: the package's files, in the published layout: two weights, a vocabulary, voices, a config tree."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from safetensors.torch import save_file
from torch import Tensor

from personaplex_cli.audio.codec import Codec
from personaplex_cli.audio.pcm import Pcm
from personaplex_cli.config.load import render_config
from personaplex_cli.config.tree import (
    MIMI_NAME,
    HeliumConfig,
    MimiCodecConfig,
    PersonaPlexConfig,
    PersonaPlexDepformerConfig,
    PersonaPlexMimiConfig,
)
from personaplex_cli.model.checkpoint import NOTICE, TOKENIZER, WEIGHTS, open_checkpoint
from personaplex_cli.model.voices import FOLDER
from personaplex_cli.prompt import make_prompt
from personaplex_cli.settings import Device, Persona
from personaplex_cli.studio import Studio
from recipes.embedded.codec import CARD, codec_kwargs
from recipes.embedded.corpus import Speech
from recipes.embedded.speech import FRAME, RATE
from recipes.embedded.vocabulary import N_PIECES

ROOT = Path(__file__).resolve().parents[2]

STEADY_FRAMES = 200


def config_tree(mimi: PersonaPlexMimiConfig) -> PersonaPlexConfig:
    """The tree, with the published context and delays and a small everything else."""
    return PersonaPlexConfig(
        temporal_config=HeliumConfig(
            hidden_size=256,
            num_hidden_layers=6,
            num_attention_heads=4,
            head_dim=64,
            num_key_value_heads=4,
            intermediate_size=512,
            vocab_size=N_PIECES,
        ),
        depformer_config=PersonaPlexDepformerConfig(
            hidden_size=80,
            num_hidden_layers=2,
            num_attention_heads=2,
            head_dim=40,
            num_key_value_heads=2,
            intermediate_size=112,
            dep_q=8,
            card=CARD,
        ),
        mimi_config=mimi,
        text_vocab_size=N_PIECES,
        text_embedding_rows=N_PIECES + 1,
        audio_vocab_size=CARD,
    )


# ---- the codec ----


def write_codec(mimi: Any, path: Path) -> PersonaPlexMimiConfig:
    """Write a trained codec in float16; -> its section of the config tree, silence and sine measured."""
    save_file(codec_tensors(mimi), path)
    section = PersonaPlexMimiConfig(card=CARD, codec=MimiCodecConfig(**codec_kwargs()))
    codec = Codec(path, section, torch.device("cpu"))
    seconds = np.arange(FRAME) / RATE
    frames: dict[str, Pcm] = {
        "silence_codes": np.zeros(FRAME, np.float32),
        # As the reference's: it begins anew in every frame, where a whole number of periods does not fit.
        "sine_codes": (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32),
    }
    return section.model_copy(update={name: steady_codes(codec, frame) for name, frame in frames.items()})


def codec_tensors(mimi: Any) -> dict[str, Tensor]:
    """The published names. A codebook is written as it is, used once each."""
    state = mimi.state_dict()
    tensors = {}
    for name, tensor in state.items():
        told = name.replace("in_projs.0.weight", "in_proj_weight").replace(
            "out_projs.0.weight", "out_proj.weight"
        )
        if name.endswith("embedding_sum"):
            usage = state[name.replace("embedding_sum", "cluster_usage")]
            tensors[told] = tensor / usage.clamp(min=1e-5)[:, None]
        elif name.endswith(("cluster_usage", "_initialized")):
            tensors[told] = torch.ones_like(tensor)
        else:
            tensors[told] = tensor
    return {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}


def steady_codes(codec: Codec, frame: Pcm) -> tuple[int, ...]:
    """What the codec says most often when a frame is said again and again."""
    codes = codec.encode([[np.tile(frame, STEADY_FRAMES)]])[0][:, STEADY_FRAMES // 2 :]
    return tuple(codes.mode(dim=1).values.tolist())


# ---- the language model ----


TEXT_SHARPNESS, CODE_SHARPNESS = 4.0, 2.5
"""Logits are multiplied by these. The default temperatures are those of a model of 7 billion parameters, far
surer of itself: at them, a small one would say what it merely thinks possible."""


def sharpness(name: str, text: float = TEXT_SHARPNESS, codes: float = CODE_SHARPNESS) -> float:
    """What a tensor is multiplied by."""
    if name == "text_linear.weight":
        return text
    return codes if name.startswith("linears.") else 1.0


def lm_tensors(state: dict[str, Tensor], text: float, codes: float) -> dict[str, Tensor]:
    """moshi's training names -> the published ones:

    the step sets of an attention stand stacked in one tensor.
    """
    tensors: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in state.items():
        part = re.fullmatch(r"(.*self_attn)\.(in|out)_projs\.(\d+)\.weight", name)
        if part:
            told = part[1] + (".in_proj_weight" if part[2] == "in" else ".out_proj.weight")
            stacks.setdefault(told, {})[int(part[3])] = tensor
        else:
            tensors[name] = sharpness(name, text, codes) * tensor
    tensors.update(
        {name: torch.cat([sets[index] for index in sorted(sets)]) for name, sets in stacks.items()}
    )
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}


# ---- everything ----


def write(
    out: Path,
    state: dict[str, Tensor],
    codec: Path,
    section: PersonaPlexMimiConfig,
    work: Path,
    notice: str,
    text_sharpness: float = TEXT_SHARPNESS,
    code_sharpness: float = CODE_SHARPNESS,
) -> None:
    """Write all files of the model."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(codec, out / MIMI_NAME)
    shutil.copyfile(work / "tokenizer.model", out / TOKENIZER)
    shutil.copyfile(ROOT / "LICENSE", out / "LICENSE")
    save_file(lm_tensors(state, text_sharpness, code_sharpness), out / WEIGHTS)
    (out / "config.json").write_bytes(render_config(config_tree(section), "json").encode())
    (out / NOTICE).write_bytes(notice.encode())
    voices = Speech(work / "corpus", "voices")
    for index, entry in reversed(list(enumerate(voices.entries))):
        soundfile.write(out / FOLDER / f"{entry['about']['name']}.wav", voices[index], RATE, subtype="PCM_16")
    write_ready_voices(out)


def write_ready_voices(model: Path) -> None:
    """Beside each recorded voice of a model its `.pt`, which takes no time to prepare; float32 is exact."""
    studio = Studio(open_checkpoint(str(model)), Device("cpu", "float32"))
    for path in sorted((model / FOLDER).glob("*.wav")):
        voice = studio.prompts.voice_of(Persona(str(path), role=""))
        forced = make_prompt(voice, [], studio.config).forced
        n_columns = max(studio.config.delays) + 3
        cache = torch.stack([forced[:, at] for at in ring_positions(voice.n_frames, n_columns)], dim=1)
        with torch.inference_mode():
            embeddings = studio.lm.embed(forced[:, : voice.n_frames - 1].T)
        held = {"embeddings": embeddings.clone()[:, None, None], "cache": cache[None]}
        torch.save(held, path.with_suffix(".pt"))


def ring_positions(n_frames: int, n_columns: int) -> list[int]:
    """The last positions that a voice reaches into, as a ring holds them: position p is column p % n."""
    last = range(n_frames + 1 - n_columns, n_frames + 1)
    return sorted(last, key=lambda position: position % n_columns)
