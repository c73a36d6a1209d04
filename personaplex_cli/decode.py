"""Token dumps -> WAVs, the same bytes as convert's mono aligned ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from personaplex_cli.audio.pcm import fit, write_wav
from personaplex_cli.errors import JobError, SettingsError
from personaplex_cli.files.atomic import finished_file
from personaplex_cli.files.dump import TokenDump, read_dump
from personaplex_cli.files.targets import folder_faults
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.model.device import DTYPES
from personaplex_cli.studio import Studio

DECODE_DTYPES = ("float32", "bfloat16")


def decode_dumps(dumps: Sequence[Path], out: Path, studio: Studio, *, overwrite: bool) -> list[Path]:
    """Make the WAVs of token dumps again, on the aligned timeline. -> what was written

    All dumps are checked before anything is written.
    """
    targets = {dump: out / f"{stem_of_dump(dump)}.wav" for dump in dumps}
    faults = list(folder_faults(out))
    for dump, target in targets.items():
        faults += dump_faults(dump, studio.checkpoint)
        if target.exists() and not overwrite:
            faults.append(f"{target}: exists already; pass --overwrite, or choose another folder")
    if len(set(targets.values())) < len(targets):
        faults.append("two dumps would write the same WAV; decode them into different folders")
    if faults:
        raise SettingsError.listing("nothing was decoded, because", faults)
    return [decode_dump(read_dump(dump), target, studio) for dump, target in targets.items()]


def stem_of_dump(dump: Path) -> str:
    """The name that the reply's files have in common."""
    return dump.name.removesuffix(".safetensors").removesuffix(".tokens")


def dump_faults(path: Path, checkpoint: Checkpoint) -> list[str]:
    """What keeps a dump from being decoded with this model."""
    try:
        dump = read_dump(path)
    except JobError as error:
        return [error.message]
    if dump.metadata.get("model_fingerprint") != checkpoint.fingerprint:
        return [f"{path}: was made by another model than {checkpoint.name}; name it with --model"]
    mimi, n_frames = checkpoint.config.mimi_config, dump.agent.shape[1]
    written = dump.metadata.get("n_samples", "")
    n_samples = int(written) if written.isascii() and written.isdigit() else 0
    if not n_samples or not 0 <= n_frames * mimi.samples_per_frame - n_samples < mimi.samples_per_frame:
        return [f"{path}: its n_samples, {written or 'absent'}, do not fit its {n_frames} frames"]
    if dump.agent.max() >= mimi.card:
        return [f"{path}: holds code {dump.agent.max()}, and the codec has {mimi.card}"]
    if decode_dtype_of(dump) not in DECODE_DTYPES:
        return [f"{path}: its decode_dtype is {decode_dtype_of(dump)}, not {' or '.join(DECODE_DTYPES)}"]
    return []


def decode_dtype_of(dump: TokenDump) -> str:
    """The numbers in which its WAV was made."""
    return dump.metadata.get("decode_dtype", "float32")


def decode_dump(dump: TokenDump, target: Path, studio: Studio) -> Path:
    """One dump's WAV."""
    codes = torch.from_numpy(dump.agent.astype(np.int64))
    with finished_file(target) as partial:
        blocks = fit(
            studio.codec.decode_one(codes, DTYPES[decode_dtype_of(dump)]), int(dump.metadata["n_samples"])
        )
        write_wav(partial, blocks, studio.config.sample_rate)
    return target
