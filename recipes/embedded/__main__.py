"""From nothing to the packaged model, by one command, in stages that can be interrupted and go on:

    python -m recipes.embedded --work FOLDER [--out personaplex_cli/embedded] [--scale full|more|small]
        [--start MODEL]

corpus (speech), vocabulary, codec, codes, decoder, lm, export, evaluation. Each stage is skipped where its
result is in the folder, and a training goes on from its last checkpoint; figures are in *.log.jsonl and
evaluation-*.json.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from personaplex_cli.config.tree import MIMI_NAME, PersonaPlexMimiConfig
from personaplex_cli.model.checkpoint import WEIGHTS
from recipes.embedded import card, codec, codes, corpus, decoder, evaluate, export, lm, start, vocabulary
from recipes.embedded.domain import Part

PARTS: tuple[Part, ...] = ("dev", "test")


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    n_roles: int
    n_questions: int
    n_heard: int
    n_words: int
    codec_steps: int
    decoder_steps: int
    n_calls: int
    lm_steps: int
    evaluated_calls: int
    n_workers: int


SCALES = {
    "full": Scale(
        n_roles=600,
        n_questions=48_000,
        n_heard=600,
        n_words=1_200,
        codec_steps=6_000,
        decoder_steps=3_000,
        n_calls=14_500,
        lm_steps=15_700,
        evaluated_calls=72,
        n_workers=2,
    ),
    # For `--start`: the codec needs nothing, and of the steps the last third is made.
    "more": Scale(
        n_roles=400,
        n_questions=20_000,
        n_heard=600,
        n_words=1,
        codec_steps=0,
        decoder_steps=0,
        n_calls=5_000,
        lm_steps=10_000,
        evaluated_calls=72,
        n_workers=2,
    ),
    # Every stage for real, in a minute or two; what comes of it speaks no word.
    "small": Scale(
        n_roles=2,
        n_questions=96,
        n_heard=96,
        n_words=4,
        codec_steps=4,
        decoder_steps=2,
        n_calls=4,
        lm_steps=3,
        evaluated_calls=2,
        n_workers=1,
    ),
}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for everything between the stages")
    parser.add_argument("--out", type=Path, help="folder for the model's files; left out: WORK/model")
    parser.add_argument("--scale", choices=list(SCALES), default="full")
    parser.add_argument(
        "--start", type=Path, help="a model's folder: its codec is kept, its language model trained on"
    )
    parser.add_argument("--until", choices=list(STAGES), default="evaluation", help="the last stage to run")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    scale = SCALES[options.scale]
    if options.start:
        start.lay_out(options.start, work)
    for name, stage in STAGES.items():
        print(f"--- {name} ---", flush=True)
        stage(work, scale)
        if name == options.until:
            break
    if options.out and (work / "model").exists():
        shutil.copytree(work / "model", options.out, dirs_exist_ok=True)


def speech(work: Path, scale: Scale) -> None:
    """What is said, by synthesisers."""
    corpus.make(
        work / "corpus",
        n_agent=scale.n_roles,
        n_user=scale.n_questions,
        n_heard=scale.n_heard,
        n_words=scale.n_words,
    )


def pieces(work: Path, _: Scale) -> None:
    """The text vocabulary."""
    if not (work / "tokenizer.model").exists():
        vocabulary.train(work)


def exported(work: Path, _: Scale) -> None:
    """The model's files."""
    section = PersonaPlexMimiConfig.model_validate_json((work / "mimi.json").read_text())
    refined = work / "mimi-refined.safetensors"
    export.write_codec(codec.load(work, "mimi-refined.pt"), refined)
    state = torch.load(work / "lm.pt", weights_only=True)
    export.write(work / "model", state, refined, section, work, card.NOTICE)


def evaluated(work: Path, scale: Scale) -> None:
    """The figures: of the part for tuning, and of the part for the report, which the model card tells."""
    model = work / "model"
    for part in PARTS:
        evaluate.show(evaluate.evaluate(work, model, part, scale.evaluated_calls))
    sizes = [sum(math.prod(shape) for shape in shapes_in(model / name)) for name in (WEIGHTS, MIMI_NAME)]
    card.write(work, model, *sizes)


def shapes_in(path: Path) -> list[tuple[int, ...]]:
    """Of all tensors in a file."""
    with safe_open(path, framework="pt") as file:
        return [tuple(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


STAGES: dict[str, Callable[[Path, Scale], None]] = {
    "corpus": speech,
    "vocabulary": pieces,
    "codec": lambda work, scale: codec.train(work / "corpus", work, scale.codec_steps, scale.n_workers),
    "codes": lambda work, scale: codes.make(work / "corpus", work, codec.load(work), scale.n_calls),
    "decoder": lambda work, scale: decoder.train(work, scale.decoder_steps, scale.n_workers),
    "lm": lambda work, scale: lm.train(work, scale.lm_steps, scale.n_workers),
    "export": exported,
    "evaluation": evaluated,
}


if __name__ == "__main__":
    main()
