"""What a number type costs in quality, measured against float32: `python -m tests.quality` prints the table.

Under teacher forcing all types read the tokens that float32 has drawn; in free runs each reads its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import soundfile
import torch
from safetensors.torch import load_file
from torch import Tensor

from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import Prompt, Reply, Turn, lay_out
from personaplex_cli.model.checkpoint import EMBEDDED, open_checkpoint
from personaplex_cli.model.depformer import InnerMemory
from personaplex_cli.model.device import DTYPES
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.ring import KeysAndValues
from personaplex_cli.model.weights import load_lm
from personaplex_cli.prompt import Voice, make_prompt
from personaplex_cli.settings import Device, Persona, Sampling
from personaplex_cli.studio import Studio
from tests.conftest import CPU, GOLDEN

MODELS = {name: GOLDEN / name for name in ("lm_eight_sets", "lm_sixteen_sets")} | {"embedded": EMBEDDED}
REDUCED = ("bfloat16", "int8")
SAMPLE = Path(__file__).parents[1] / "sample_audio" / "question.wav"


@dataclass(frozen=True)
class Quality:
    """One number type against float32: errors are relative (RMS), the rest are shares of equal tokens."""

    model: str
    dtype: str
    text_error: float
    code_error: float
    text_top1: float
    code_top1: float
    free_text: float
    free_codes: float


def rows(model: str) -> Iterator[Quality]:
    """The rows of one of `MODELS`."""
    folder = MODELS[model]
    config = load_config(folder).config
    turn = embedded_turn() if model == "embedded" else golden_turn(folder, config)
    exact = load(folder, config, "float32")
    said = greedy(exact, turn)
    columns = columns_of(turn, said, config)
    text, codes = logits(exact, columns, turn.prompt.n_frames - 1)
    for dtype in REDUCED:
        lm = load(folder, config, dtype)
        other_text, other_codes = logits(lm, columns, turn.prompt.n_frames - 1)
        free = greedy(lm, turn)
        yield Quality(
            model,
            dtype,
            error(other_text, text),
            error(other_codes, codes),
            alike(other_text.argmax(-1), text.argmax(-1)),
            alike(other_codes.argmax(-1), codes.argmax(-1)),
            alike(free[0], said[0]),
            alike(free[1:], said[1:]),
        )


def load(folder: Path, config: PersonaPlexConfig, dtype: str) -> Lm:
    return load_lm([folder / "model.safetensors"], config, dtype=DTYPES[dtype], device=CPU)


def golden_turn(folder: Path, config: PersonaPlexConfig) -> Turn:
    """The golden folder's own persona and user."""
    given = load_file(folder / "inputs.safetensors")
    voice = Voice(given["voice_codes"].shape[1], codes=given["voice_codes"])
    prompt = make_prompt(voice, given["text_prompt_tokens"].tolist(), config)
    return lay_out(prompt, given["user_codes"], config)


def embedded_turn() -> Turn:
    """The sample question, put to the default persona."""
    studio = Studio(open_checkpoint("embedded"), Device("cpu", "float32"))
    pcm, _ = soundfile.read(SAMPLE, dtype="float32")
    prompt: Prompt = studio.prompts.prompt_of(Persona())
    return lay_out(prompt, studio.codec.encode([[pcm]])[0], studio.config)


def greedy(lm: Lm, turn: Turn) -> Tensor:
    """A greedy reply. -> [9, F]"""
    (reply,) = generate(lm, [turn], n_slots=1, sampling=Sampling(greedy=True))
    assert isinstance(reply, Reply)
    return reply.tokens


def columns_of(turn: Turn, said: Tensor, config: PersonaPlexConfig) -> Tensor:
    """The table that a turn becomes with what was said in it, as far as every token is known. -> [T, 17]"""
    live = turn.live.clone()
    for stream, tokens in enumerate(said):
        begin = 1 + config.delays[stream]
        live[stream, begin : begin + len(tokens)] = tokens
    # Codes that the prompt's last frame brings late stand where the reply's begin.
    live = torch.where(turn.live >= -1, turn.live, live)
    columns = torch.cat([turn.prompt.forced[:, : turn.prompt.n_frames - 1], live], dim=1).T
    return columns[: turn.prompt.n_frames + said.shape[1]]


@torch.inference_mode()
def logits(lm: Lm, columns: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    """What is said after each column from `begin` on, given all of them. [T, 17] -> [F, V], [F, 8, V]"""
    read = columns[:-1]
    past = KeysAndValues(lm.config.ring_columns)
    hidden = lm.hear(lm.embed(read)[None], torch.arange(len(read))[None], past)[0, begin:]
    inner = InnerMemory(lm.depformer, hidden)
    codes = [
        lm.code_logits(step, hidden, columns[begin + 1 :, step], inner)
        for step in range(lm.depformer.n_steps)
    ]
    return lm.text_logits(hidden).float(), torch.stack(codes, dim=1).float()


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def alike(found: Tensor, exact: Tensor) -> float:
    return float((found == exact).float().mean())


def table(lines: list[Quality]) -> str:
    """Columns under their names."""
    cells = [[field.name for field in fields(Quality)]]
    cells += [[cell if isinstance(cell, str) else f"{cell:.4f}" for cell in astuple(line)] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


if __name__ == "__main__":
    sys.stdout.write(table([row for model in MODELS for row in rows(model)]) + "\n")
