"""Build the untrained model of most tests: random weights in the published layout, so every token varies.

    python -m tests.untrained [--out tests/golden/untrained]

It has learnt nothing; a trained model is silent where nobody speaks, and shows no fault there. Built
twice on one machine, all files have the same bytes. Machines may differ in the last bits of a codebook.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from moshi.models import loaders
from safetensors.torch import save_file
from torch import Tensor

from personaplex_cli.audio.codec import Codec, mimi_kwargs
from personaplex_cli.audio.pcm import Pcm, read_voice
from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.load import render_config
from personaplex_cli.config.tree import (
    MIMI_NAME,
    PAD,
    HeliumConfig,
    MimiCodecConfig,
    PersonaPlexConfig,
    PersonaPlexDepformerConfig,
    PersonaPlexMimiConfig,
)
from personaplex_cli.model.checkpoint import NOTICE, TOKENIZER, WEIGHTS
from personaplex_cli.model.voices import FOLDER

UNTRAINED = Path(__file__).resolve().parent / "golden" / "untrained"
VOICES = UNTRAINED / "voices"

SEED = 1
N_PIECES = 512
CARD = 256
LATENT_WIDTH = 32

TONE_HZ = 440
TONE_PEAK = 0.5
SOUND_FRAMES = 25
REPLY_RMS = 0.1
"""Of random codes: as loud as speech, and far from full scale."""

CONSTANT_DIM = 0
CONSTANT = 4.0
"""The text's embeddings put it into one dimension, and no layer writes there: a bias for the text head."""
PAD_LEANING = 2.6
"""In that dimension: speech pads most frames, so that words come one by one."""
BYTE_LEANING = -3.0
"""In that dimension: single bytes would seldom be text."""

NOTICE_TEXT = """\
The model is untrained: its weights are random, and its replies are noise.
"""

SENTENCES = """\
<system> You are a wise and friendly teacher. Answer questions or provide advice in a clear way. <system>
<system> You enjoy having a good conversation. <system>
<system> You work for a small bakery and your name is Anna. You answer the telephone. <system>
<system> You are the receptionist of a dentist. Information: the practice is open from nine to five. <system>
Hello, how can I help you? Good morning, what can I do for you today?
Hello, what time do you open tomorrow? When do you close on Sunday?
We are open from eight in the morning until six in the evening, Monday to Friday.
On Saturday we open at nine, and on Sunday we are closed.
Do you have a table for two tonight? I would like to book a table for four people at seven.
Is my order ready to be picked up? It will be ready in about twenty minutes.
How much does it cost? That would be fifteen dollars and fifty cents, please.
Could you tell me your name and your phone number? Thank you, I have written that down.
I am sorry, we do not have that right now, but we can order it for you.
Can I pay by card, or do you only take cash? You can pay by card, of course.
Where are you? We are next to the station, just behind the old post office.
Which bus goes there? Take number twelve and get off at the market.
My car makes a strange noise when I turn left. Could you have a look at it this week?
Our next free appointment is on Thursday at half past ten. Does that suit you?
No, I can only come after work. What about Wednesday afternoon at a quarter to five?
Yes, that is fine. We will see you then. Is there anything else that I can do for you?
No, thank you, that is all. Have a nice day! Goodbye, and thanks for calling.
What is the weather like? It is sunny and warm, with a little wind from the west.
Why is the sky blue? Because the air scatters blue light more than red light.
How do I learn a language? Listen every day, speak a lot, and do not be afraid of mistakes.
Please hold the line, I will ask my colleague. Are you still there? She says that it is possible.
I think so, but let me check. Well, it depends on how many of them you would want to have.
One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, twenty, hundred.
The quick brown fox jumps over the lazy dog; pack my "big" box with five dozen jugs of juice.
January, February, March, April, May, June, July, August, September, October, November, December.
It's 10:30 (or 11:45?) on 26/7 & we're 98% sure: they'll, you've, don't, can't, I'd - won't it?
""".splitlines()


def main() -> None:
    """Build into a folder."""
    parser = argparse.ArgumentParser(description="Build the untrained model.")
    parser.add_argument("--out", type=Path, default=UNTRAINED, help="folder for the model's files")
    out: Path = parser.parse_args().out
    build(out)


def build(out: Path) -> None:
    """Write all files of the model."""
    voices = out / FOLDER
    voices.mkdir(parents=True, exist_ok=True)
    for recording in sorted(VOICES.glob("*.wav")):
        (voices / recording.name).write_bytes(recording.read_bytes())
    write_text(out / NOTICE, NOTICE_TEXT)
    spm = tokenizer_model()
    (out / TOKENIZER).write_bytes(spm)
    # Nothing goes into the files' metadata: the library writes it in random order.
    mimi = mimi_config()
    save_file(mimi_tensors(mimi), out / MIMI_NAME)
    config = whole_config(measured(mimi, out / MIMI_NAME))
    write_text(out / "config.json", render_config(config, "json"))
    pieces = sentencepiece.SentencePieceProcessor(model_proto=spm)
    save_file(lm_tensors(config, pieces), out / WEIGHTS)


def write_text(path: Path, text: str) -> None:
    """The same bytes on every system."""
    path.write_bytes(text.encode())


# ---- the config tree ----


def whole_config(mimi: PersonaPlexMimiConfig) -> PersonaPlexConfig:
    """The tree, with the published context and a small everything else."""
    return PersonaPlexConfig(
        temporal_config=HeliumConfig(
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            head_dim=32,
            num_key_value_heads=4,
            intermediate_size=224,
            vocab_size=N_PIECES,
        ),
        depformer_config=PersonaPlexDepformerConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            head_dim=16,
            num_key_value_heads=2,
            intermediate_size=64,
            dep_q=8,
            card=CARD,
        ),
        mimi_config=mimi,
        text_vocab_size=N_PIECES,
        text_embedding_rows=N_PIECES + 1,
        audio_vocab_size=CARD,
    )


def mimi_config() -> PersonaPlexMimiConfig:
    """The codec's section, before its silence and its sine are measured."""
    seanet: dict[str, Any] = {
        "channels": 1,
        "dimension": LATENT_WIDTH,
        "causal": True,
        "n_filters": 4,
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": 2,
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "norm": "none",
        "pad_mode": "constant",
        "ratios": [8, 6, 5, 4],
        "true_skip": True,
    }
    quantizer: dict[str, Any] = {
        "dimension": 16,
        "n_q": 8,
        "bins": CARD,
        "input_dimension": LATENT_WIDTH,
        "output_dimension": LATENT_WIDTH,
    }
    transformer: dict[str, Any] = {
        "d_model": LATENT_WIDTH,
        "num_heads": 2,
        "num_layers": 2,
        "causal": True,
        "layer_scale": 0.01,
        "context": 250,
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": 64,
        "input_dimension": LATENT_WIDTH,
        "output_dimensions": [LATENT_WIDTH],
    }
    codec = MimiCodecConfig(seanet=seanet, quantizer=quantizer, transformer=transformer)
    return PersonaPlexMimiConfig(card=CARD, codec=codec)


def measured(mimi: PersonaPlexMimiConfig, weights: Path) -> PersonaPlexMimiConfig:
    """The same section with what this codec says to silence and to the reference's sine."""
    codec = Codec(weights, mimi, torch.device("cpu"))
    silence = np.zeros(mimi.samples_per_frame, np.float32)
    codes = {"silence_codes": steady_codes(codec, silence), "sine_codes": steady_codes(codec, tone(mimi))}
    return mimi.model_copy(update=codes)


def tone(mimi: PersonaPlexMimiConfig) -> Pcm:
    """One frame of the reference's sine; no whole number of periods, since it begins anew in every frame."""
    seconds = np.arange(mimi.samples_per_frame) / mimi.sample_rate
    return (TONE_PEAK * np.sin(2 * np.pi * TONE_HZ * seconds)).astype(np.float32)


def steady_codes(codec: Codec, frame: Pcm) -> tuple[int, ...]:
    """The codes that a frame settles to when it is said again and again."""
    context_frames = codec.mimi.encoder_transformer.transformer.layers[0].self_attn.context // 2
    codes = codec.encode([[np.tile(frame, 2 * context_frames)]])[0]
    return tuple(codes[:, -1].tolist())


# ---- weights ----


def generator(name: str) -> np.random.Generator:
    """What draws a tensor's numbers: they depend on its name and the seed, not on the order of building."""
    key = hashlib.blake2b(f"{SEED}:{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def normal(name: str, shape: tuple[int, ...], n_summed: int) -> Tensor:
    """Random weights for sums of so many products: the sums have the size of what is summed. float64"""
    return torch.from_numpy(generator(name).standard_normal(shape) / math.sqrt(n_summed))


def lm_tensors(config: PersonaPlexConfig, pieces: sentencepiece.SentencePieceProcessor) -> dict[str, Tensor]:
    """The language model's tensors in float16."""
    tensors = {name: lm_tensor(name, shape, config) for name, shape in expected_tensors(config).items()}
    lean_to_padding(tensors, pieces)
    return {name: tensor.half() for name, tensor in tensors.items()}


def lm_tensor(name: str, shape: tuple[int, ...], config: PersonaPlexConfig) -> Tensor:
    """One tensor of the language model."""
    if name.endswith("alpha"):
        return torch.ones(shape, dtype=torch.float64)
    if name.startswith(("emb.", "text_emb.")):
        return normal(name, shape, config.n_streams)
    if name.startswith(("depformer_emb.", "depformer_text_emb.")):
        return normal(name, shape, 1)
    return normal(name, shape, shape[-1])


def lean_to_padding(tensors: dict[str, Tensor], pieces: sentencepiece.SentencePieceProcessor) -> None:
    """Give the text head a bias, which the layout does not have, through a dimension that never changes."""
    for name, tensor in tensors.items():
        if name.startswith("transformer.") and name.endswith(("out_proj.weight", "linear_out.weight")):
            tensor[CONSTANT_DIM] = 0.0
        elif name.startswith("emb."):
            tensor[:, CONSTANT_DIM] = 0.0
    tensors["text_emb.weight"][:, CONSTANT_DIM] = CONSTANT
    leaning = [BYTE_LEANING if pieces.is_byte(piece) else 0.0 for piece in range(N_PIECES)]
    leaning[PAD] = PAD_LEANING
    tensors["text_linear.weight"][:, CONSTANT_DIM] = torch.tensor(leaning, dtype=torch.float64)


def tokenizer_model() -> bytes:
    """A SentencePiece vocabulary of the sentences above, with the published special ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=N_PIECES,
        # Its scores are whole numbers, so they are the same on every machine.
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        # The usual normalisation brings a table of 240 KB.
        normalization_rule_name="identity",
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=PAD,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


# ---- the codec ----


def mimi_tensors(mimi: PersonaPlexMimiConfig) -> dict[str, Tensor]:
    """The codec's tensors in float32, as published.

    Codebooks and level are measured in float64 and then rounded, so that they seldom differ by machine.
    """
    model: Any = loaders.get_mimi(None, mimi_kwargs(mimi), num_codebooks=mimi.num_codebooks).double()
    with torch.inference_mode():
        for name, tensor in model.state_dict().items():
            tensor.copy_(mimi_tensor(name, tuple(tensor.shape)))
        latents = model.encode_to_latent(training_sounds(mimi), quantize=False)
        for quantizer in (model.quantizer.rvq_first, model.quantizer.rvq_rest):
            fill_codebooks(quantizer, latents)
        set_level(model, mimi)
    return {name: tensor.float().contiguous() for name, tensor in model.state_dict().items()}


def mimi_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """One tensor of the codec; codebooks are filled later."""
    if name.endswith(("bias", "embedding_sum")):
        return torch.zeros(shape)
    if ".norm" in name or name.endswith(("cluster_usage", "_initialized")):
        return torch.ones(shape)
    if "layer_scale" in name:
        return torch.full(shape, 0.01)
    if not name.endswith("convtr.weight"):
        return normal(name, shape, math.prod(shape[1:])).float()
    # [in, out / groups, kernel], and strides are half a kernel; the upsampling is channel by channel.
    n_inputs = 1 if name.startswith("upsample") else shape[0]
    return normal(name, shape, 2 * n_inputs).float()


def training_sounds(mimi: PersonaPlexMimiConfig) -> Tensor:
    """What the codebooks are made for: the voices and noise at all levels, tones. [N, 1, T]"""
    n_samples = SOUND_FRAMES * mimi.samples_per_frame
    seconds = np.arange(n_samples) / mimi.sample_rate
    voices = [
        np.resize(read_voice(path, mimi.sample_rate), n_samples) for path in sorted(VOICES.glob("*.wav"))
    ]
    shifts = range(0, mimi.samples_per_frame, mimi.samples_per_frame // 8)
    spoken = [np.roll(voice, shift) for voice in voices for shift in shifts]
    noise = list(0.125 * generator("noise").standard_normal((8, n_samples)))
    sounds = [level * sound for sound in spoken + noise for level in (1.0, 0.25, 0.05)]
    sounds += [TONE_PEAK * np.sin(2 * np.pi * 110 * 2 ** (n / 4) * seconds) for n in range(24)]
    return torch.from_numpy(np.stack(sounds))[:, None].double()


def fill_codebooks(quantizer: Any, latents: Tensor) -> None:
    """Fit each codebook to what the ones before it leave over. latents [N, C, F]"""
    left = quantizer.input_proj(latents).transpose(1, 2).flatten(0, 1)
    for layer in quantizer.vq.layers:
        # float16 has the gaps that swallow the differences between machines.
        centres = cluster(left, CARD).half().double()
        layer._codebook.embedding_sum.copy_(centres)
        left = left - centres[torch.cdist(left, centres).argmin(dim=1)]


def cluster(points: Tensor, n_centres: int) -> Tensor:
    """Lloyd's k-means from evenly picked points; a centre that nobody is near stays. [N, D] -> [n, D]"""
    centres = points[torch.linspace(0, len(points) - 1, n_centres).long()]
    for _ in range(10):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        n_near = torch.bincount(nearest, minlength=n_centres)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(n_near > 0, sums / n_near.clamp(min=1), centres)
    return centres


def set_level(model: Any, mimi: PersonaPlexMimiConfig) -> None:
    """Scale the decoder's last convolution so that random codes have the wanted level."""
    codes = torch.from_numpy(generator("codes").integers(CARD, size=(1, mimi.num_codebooks, 100)))
    rms = model.decode(codes).square().mean().sqrt()
    model.decoder.model[-1].conv.conv.weight.mul_(round(REPLY_RMS / float(rms), 3))


if __name__ == "__main__":
    main()
