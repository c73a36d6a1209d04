"""The codec against the reference's vectors and PyPI moshi's own frame-by-frame encoder."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from moshi.models import loaders
from moshi.utils.compile import no_compile
from safetensors.torch import load_file
from torch import Tensor

from personaplex_cli.audio import codec as codec_room
from personaplex_cli.audio.codec import Codec, exact_float32, mimi_kwargs
from personaplex_cli.audio.pcm import Pcm
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.errors import WeightsError
from tests.conftest import CPU, GOLDEN

MIMI = GOLDEN / "mimi"


@pytest.fixture(scope="module")
def inputs() -> Pcm:
    pcm: Pcm = load_file(MIMI / "inputs.safetensors")["pcm"].numpy()
    return pcm


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(MIMI / "expected.safetensors")


def decoded(codec: Codec, codes: list[Tensor]) -> list[Pcm]:
    chunks = list(codec.decode(codes))
    return [np.concatenate([chunk[row] for chunk in chunks]) for row in range(len(codes))]


@pytest.mark.parametrize("chunk_frames", [1, 2, 7, 25, 1000])
def test_codes_and_pcm_are_the_references_in_chunks_of_any_length(
    golden_codec: Codec,
    inputs: Pcm,
    expected: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    chunk_frames: int,
) -> None:
    monkeypatch.setattr(codec_room, "CHUNK_FRAMES", chunk_frames)
    (codes,) = golden_codec.encode([[inputs]])
    assert torch.equal(codes, expected["codes"])
    (pcm,) = decoded(golden_codec, [expected["codes"]])
    assert np.abs(pcm - expected["pcm"].numpy()).max() < 1e-4


def moshi_frame_by_frame(config: PersonaPlexConfig, pcm: Pcm) -> tuple[Tensor, Pcm]:
    """PyPI moshi's own streaming: its context must be one less to be the reference's."""
    kwargs = mimi_kwargs(config.mimi_config)
    assert kwargs is not None
    kwargs["transformer"] = {**kwargs["transformer"], "context": kwargs["transformer"]["context"] - 1}
    mimi = loaders.get_mimi(MIMI / "mimi.safetensors", kwargs, num_codebooks=8)
    frames = torch.from_numpy(np.pad(pcm, (0, -len(pcm) % 1920))).view(-1, 1, 1, 1920)
    with torch.no_grad(), no_compile(), mimi.streaming(1):
        codes = torch.cat([mimi.encode(frame) for frame in frames], dim=-1)
        sound = torch.cat([mimi.decode(codes[..., i : i + 1]) for i in range(codes.shape[-1])], dim=-1)
    return codes[0], sound[0, 0].numpy()


def test_a_long_recording_in_chunks_is_moshis_frame_by_frame(
    golden_config: PersonaPlexConfig, golden_codec: Codec
) -> None:
    """30 s: far past the window of 20 frames, alone and beside a shorter one."""
    noise = np.random.default_rng(0).normal(0, 0.1, 720_123).astype(np.float32)
    codes, sound = moshi_frame_by_frame(golden_config, noise)
    alone = golden_codec.encode([[noise]])[0]
    beside = golden_codec.encode([[noise[:5000]], [noise], [noise[7:300_000]]])[1]
    # Among 3,000 codes of noise a near tie may fall either way.
    assert (alone != codes).float().mean() < 1e-3
    assert (beside != codes).float().mean() < 1e-3
    assert np.abs(decoded(golden_codec, [codes])[0] - sound).max() < 1e-5
    pair = decoded(golden_codec, [codes, codes[:, :10]])
    assert np.abs(pair[0] - sound).max() < 1e-5
    assert np.abs(pair[1] - sound[: 10 * 1920]).max() < 1e-5


def test_rows_side_by_side_are_each_alone(golden_codec: Codec, inputs: Pcm) -> None:
    recordings = [inputs[:n] for n in (1, 1919, 1920, 1921, 40_000, 149_520)]
    together = golden_codec.encode([[pcm] for pcm in recordings])
    for pcm, codes in zip(recordings, together, strict=True):
        assert codes.shape == (8, -(-len(pcm) // 1920))
        assert torch.equal(codes, golden_codec.encode([[pcm]])[0])


def test_a_row_that_yields_nothing_has_no_codes(golden_codec: Codec, inputs: Pcm) -> None:
    nothing, something = golden_codec.encode([[], [inputs[:4000]]])
    assert nothing.shape == (8, 0)
    assert something.shape == (8, 3)


def test_how_the_pcm_is_cut_does_not_matter(golden_codec: Codec, inputs: Pcm) -> None:
    def blocks() -> Iterator[Pcm]:
        yield from np.array_split(inputs, [1, 2, 5000, 5001, 60_000])

    assert torch.equal(golden_codec.encode([blocks()])[0], golden_codec.encode([[inputs]])[0])


def test_memory_does_not_grow_with_the_recording(golden_codec: Codec) -> None:
    """What a pass keeps between chunks: as much after 20 chunks as after 4."""
    kept = []
    rng = np.random.default_rng(0)
    with exact_float32(), codec_room.Encoder(golden_codec.mimi, 1) as encoder:
        for _ in range(20):
            encoder(torch.from_numpy(rng.normal(0, 0.1, (1, 1, 25 * 1920)).astype(np.float32)))
            kept.append(sum(k.nbytes + v.nbytes for k, v in encoder.transformer.past))
    assert kept[3] == kept[-1] > 0


def test_an_interrupted_pass_leaves_the_codec_ready(
    golden_codec: Codec, inputs: Pcm, expected: dict[str, Tensor]
) -> None:
    def failing() -> Iterator[Pcm]:
        yield inputs[:100_000]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        golden_codec.encode([failing()])
    unfinished = golden_codec.decode([expected["codes"]])
    next(unfinished)
    unfinished.close()  # type: ignore[attr-defined]
    assert torch.equal(golden_codec.encode([[inputs]])[0], expected["codes"])
    assert np.abs(decoded(golden_codec, [expected["codes"]])[0] - expected["pcm"].numpy()).max() < 1e-4


def test_a_file_that_is_not_this_codec_is_refused(golden_config: PersonaPlexConfig) -> None:
    with pytest.raises(WeightsError, match=r"does not fit mimi_config\.codec") as refusal:
        Codec(GOLDEN / "lm_eight_sets" / "model.safetensors", golden_config.mimi_config, CPU)
    assert "encoder.model.0.conv.conv.weight" in refusal.value.message


def test_the_published_codec_is_moshis_default() -> None:
    assert mimi_kwargs(PersonaPlexConfig().mimi_config) is None


@pytest.mark.gpu
def test_a_gpu_gives_the_references_codes(
    golden_config: PersonaPlexConfig, inputs: Pcm, expected: dict[str, Tensor]
) -> None:
    codec = Codec(MIMI / "mimi.safetensors", golden_config.mimi_config, torch.device("cuda"))
    assert torch.equal(codec.encode([[inputs]])[0], expected["codes"])
    assert np.abs(decoded(codec, [expected["codes"]])[0] - expected["pcm"].numpy()).max() < 1e-4
