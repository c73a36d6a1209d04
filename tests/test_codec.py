"""The codec against the reference's vectors and PyPI moshi's own frame-by-frame encoder."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moshi.models import loaders
from moshi.modules.conv import StreamingConv1d, StreamingConvTranspose1d
from moshi.utils.compile import no_compile
from safetensors.torch import load_file, save_file
from torch import Tensor

from personaplex_cli.audio import codec as codec_room
from personaplex_cli.audio import mimi as mimi_room
from personaplex_cli.audio.codec import Codec, exact_float32, mimi_kwargs
from personaplex_cli.audio.convolutions import Layer, Memory, convolution, transposed
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


def decoded(codec: Codec, codes: list[Tensor], dtype: torch.dtype = torch.float32) -> list[Pcm]:
    chunks = list(codec.decode(codes, dtype))
    return [np.concatenate([chunk[row] for chunk in chunks]) for row in range(len(codes))]


@pytest.mark.parametrize(
    ("chunk_frames", "stretch_frames"), [(1, 1), (2, 10), (7, 3), (100, 10), (1000, 1000)]
)
def test_codes_and_pcm_are_the_references_in_chunks_of_any_length(
    golden_codec: Codec,
    inputs: Pcm,
    expected: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    chunk_frames: int,
    stretch_frames: int,
) -> None:
    monkeypatch.setattr(codec_room, "CHUNK_FRAMES", chunk_frames)
    monkeypatch.setattr(mimi_room, "STRETCH_FRAMES", stretch_frames)
    (codes,) = golden_codec.encode([[inputs]])
    assert torch.equal(codes, expected["codes"])
    (pcm,) = decoded(golden_codec, [expected["codes"]])
    assert np.abs(pcm - expected["pcm"].numpy()).max() < 1e-4


def moshi_frame_by_frame(
    config: PersonaPlexConfig, pcm: Pcm, weights: Path = MIMI / "mimi.safetensors"
) -> tuple[Tensor, Pcm]:
    """PyPI moshi's own streaming: its context must be one less to be the reference's."""
    kwargs = mimi_kwargs(config.mimi_config)
    assert kwargs is not None
    kwargs["transformer"] = {**kwargs["transformer"], "context": kwargs["transformer"]["context"] - 1}
    mimi = loaders.get_mimi(weights, kwargs, num_codebooks=8)
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
    memory: Memory = {}
    with exact_float32():
        for _ in range(20):
            golden_codec.encoder(torch.from_numpy(rng.normal(0, 0.1, 25 * 1920).astype(np.float32)), memory)
            tensors = [tensor for tensor in leaves(memory.values()) if isinstance(tensor, Tensor)]
            # No view that keeps more alive than it shows.
            assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)
            kept.append((len(tensors), sum(tensor.nbytes for tensor in tensors)))
    assert kept[3] == kept[-1] > (10, 0)


def leaves(kept: Iterable[object]) -> Iterator[object]:
    for value in kept:
        if isinstance(value, tuple):
            yield from leaves(value)
        else:
            yield value


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
    headline, *faults = refusal.value.message.splitlines()
    assert headline.endswith(
        "give the tree that belongs to this codec (--config, --set), or download the model again:"
    )
    assert any("encoder.model.0.conv.conv.weight" in fault for fault in faults)
    assert all(fault.startswith("  - ") for fault in faults)


def test_the_published_codec_is_moshis_default() -> None:
    assert mimi_kwargs(PersonaPlexConfig().mimi_config) is None


ODD = {
    "two residual layers, dilated": {"n_residual_layers": 2, "dilation_base": 3},
    "a shortcut with weights": {"true_skip": False},
    "other kernels and widths": {"kernel_size": 8, "last_kernel_size": 1, "compress": 1},
    "another activation": {"activation": "LeakyReLU", "activation_params": {"negative_slope": 0.3}},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD.keys())
def test_a_codec_of_another_make_is_moshis_too(
    golden_config: PersonaPlexConfig, inputs: Pcm, changes: dict[str, Any], tmp_path: Path
) -> None:
    codec = golden_config.mimi_config.codec
    assert codec is not None
    odd = codec.model_copy(update={"seanet": {**codec.seanet, **changes}})
    mimi_config = golden_config.mimi_config.model_copy(update={"codec": odd})
    torch.manual_seed(0)
    mimi = loaders.get_mimi(None, mimi_kwargs(mimi_config))
    enliven(mimi)
    save_file(mimi.state_dict(), tmp_path / "mimi.safetensors")
    config = golden_config.model_copy(update={"mimi_config": mimi_config})
    codes, sound = moshi_frame_by_frame(config, inputs, tmp_path / "mimi.safetensors")
    ours = Codec(tmp_path / "mimi.safetensors", mimi_config, CPU)
    assert (ours.encode([[inputs]])[0] != codes).float().mean() < 1e-2
    assert len(codes.unique()) > 40
    assert np.abs(decoded(ours, [codes])[0] - sound).max() < 1e-5 * np.abs(sound).max()


def enliven(mimi: Any) -> None:
    """Random entries in place of none, and convolutions that do not drown the sound."""
    for module in mimi.modules():
        if hasattr(module, "embedding_sum"):
            module.embedding_sum.normal_(0.0, 0.1)
        if isinstance(module, torch.nn.Conv1d):
            module.weight.data.mul_(2.0)


def test_weight_norm_is_folded_in(golden_config: PersonaPlexConfig, inputs: Pcm, tmp_path: Path) -> None:
    """Weights in two parts, length and direction, give what the whole ones give."""
    codec = golden_config.mimi_config.codec
    assert codec is not None
    parts = codec.model_copy(update={"seanet": {**codec.seanet, "norm": "weight_norm"}})
    mimi_config = golden_config.mimi_config.model_copy(update={"codec": parts})
    split = {}
    for name, tensor in load_file(MIMI / "mimi.safetensors").items():
        if name.startswith(("encoder.", "decoder.")) and name.endswith((".conv.weight", ".convtr.weight")):
            split[f"{name}_g"] = tensor.flatten(1).norm(dim=1).view(-1, 1, 1)
            split[f"{name}_v"] = 3 * tensor
        else:
            split[name] = tensor
    save_file(split, tmp_path / "mimi.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ours = Codec(tmp_path / "mimi.safetensors", mimi_config, CPU)
    whole = Codec(MIMI / "mimi.safetensors", golden_config.mimi_config, CPU)
    codes = whole.encode([[inputs]])[0]
    assert (ours.encode([[inputs]])[0] != codes).float().mean() < 1e-2
    assert np.abs(decoded(ours, [codes])[0] - decoded(whole, [codes])[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(7, 1, 1), (3, 1, 3), (9, 4, 1), (5, 2, 2), (1, 1, 1)]
)
@pytest.mark.parametrize("n_channels", [1, 6])
def test_a_convolution_in_stretches_is_moshis_at_once(
    kernel: int, stride: int, dilation: int, n_channels: int
) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        module = StreamingConv1d(n_channels, 5, kernel, stride, dilation, causal=True)
    check_in_stretches(
        convolution(module, torch.float32), module, torch.randn(24 * stride, n_channels), stride
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "groups"), [(8, 4, 1), (9, 4, 1), (4, 2, 6), (6, 2, 3), (4, 4, 1)]
)
def test_a_transposed_convolution_in_stretches_is_moshis_at_once(
    kernel: int, stride: int, groups: int
) -> None:
    torch.manual_seed(0)
    module = StreamingConvTranspose1d(6, 12, kernel, stride, groups=groups, causal=True)
    check_in_stretches(transposed(module, torch.float32), module, torch.randn(24, 6), 1)


def check_in_stretches(ours: Layer, module: Any, x: Tensor, n_least: int) -> None:
    memory: Memory = {}
    with torch.inference_mode():
        stretches = torch.split(x, [n * n_least for n in (1, 2, 15, 1, 5)])
        joined = torch.cat([ours(stretch, memory) for stretch in stretches])
        assert torch.allclose(joined, module(x.t()[None])[0].t(), atol=1e-6)


def decibels(true: Pcm, other: Pcm) -> float:
    """How far the difference lies below the sound."""
    power = true.astype(np.float64)
    return float(10 * np.log10((power**2).sum() / ((power - other) ** 2).sum()))


def test_decoding_in_bfloat16_stays_40_db_above_its_error(
    golden_codec: Codec, expected: dict[str, Tensor]
) -> None:
    """Of codes of speech on the golden codec, and of any codes at the published size."""
    published = Codec(None, PersonaPlexConfig().mimi_config, CPU)
    enliven(published.mimi)
    any_codes = torch.randint(2048, (8, 30), generator=torch.Generator().manual_seed(0))
    for codec, codes in ((golden_codec, expected["codes"]), (published, any_codes)):
        (true,) = decoded(codec, [codes])
        (quick,) = decoded(codec, [codes], torch.bfloat16)
        assert 40.0 < decibels(true, quick) < 80.0


def test_in_bfloat16_a_row_does_not_depend_on_its_neighbours(golden_codec: Codec, inputs: Pcm) -> None:
    recordings = [golden_codec.encode([[inputs[:n]]])[0] for n in (149_520, 1, 40_000)]
    together = decoded(golden_codec, recordings, torch.bfloat16)
    for codes, pcm in zip(recordings, together, strict=True):
        assert np.array_equal(decoded(golden_codec, [codes], torch.bfloat16)[0], pcm)


def test_nothing_to_decode_gives_nothing(golden_codec: Codec) -> None:
    assert list(golden_codec.decode_one(torch.zeros(8, 0, dtype=torch.long))) == []


@pytest.mark.gpu
def test_a_gpu_gives_the_references_codes(
    golden_config: PersonaPlexConfig, inputs: Pcm, expected: dict[str, Tensor]
) -> None:
    codec = Codec(MIMI / "mimi.safetensors", golden_config.mimi_config, torch.device("cuda"))
    assert torch.equal(codec.encode([[inputs]])[0], expected["codes"])
    assert np.abs(decoded(codec, [expected["codes"]])[0] - expected["pcm"].numpy()).max() < 1e-4
