"""Stage 5: a small language model of the published layout, trained on dialogues made anew for every batch.

moshi's own model holds the parameters. The forward is written for training: the depformer's steps stand side
by side in batched products, and only some frames pass it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from moshi.models.loaders import get_moshi_lm
from torch import Tensor, nn
from torch.nn import functional as F

from personaplex_cli.config.tree import PersonaPlexConfig
from recipes.embedded.dialogues import NOTHING, Dialogues, Row
from recipes.embedded.training import HALF, Training, in_workers
from recipes.embedded.vocabulary import PAD

N_ROWS = 8
"""Dialogues a step and worker."""
READING = 0.25
"""The share of readings among those that are no drills."""
N_KEPT = 640
"""So many of a batch's frames pass the depformer..."""
QUIET_SHARE = 0.12
"""...and this much less often those in which the agent is quiet."""
N_CODEBOOKS = 8

START = "lm.start.pt"
"""A state to go on from, if there is one: it counts as two thirds of a training."""


def new_lm(config: PersonaPlexConfig) -> Any:
    """moshi's model of a config tree's widths, untrained."""
    return get_moshi_lm(None, lm_kwargs(config), dtype=torch.float32)


def lm_kwargs(config: PersonaPlexConfig) -> dict[str, Any]:
    """A config tree as the arguments of moshi's `get_moshi_lm`."""
    temporal, depformer = config.temporal_config, config.depformer_config
    return {
        "dim": temporal.hidden_size,
        "text_card": config.text_vocab_size,
        "existing_text_padding_id": PAD,
        "n_q": config.num_audio_codebooks,
        "dep_q": depformer.dep_q,
        "card": config.audio_vocab_size,
        "num_heads": temporal.num_attention_heads,
        "num_layers": temporal.num_hidden_layers,
        # moshi makes two thirds of this the inner width.
        "hidden_scale": 1.5 * temporal.intermediate_size / temporal.hidden_size,
        "causal": True,
        "layer_scale": None,
        "context": temporal.sliding_window,
        "max_period": temporal.rope_theta,
        "gating": "silu",
        "norm": "rms_norm_f32",
        "positional_embedding": "rope",
        "depformer_dim": depformer.hidden_size,
        "depformer_dim_feedforward": depformer.intermediate_size * 3 // 2,
        "depformer_num_heads": depformer.num_attention_heads,
        "depformer_num_layers": depformer.num_hidden_layers,
        "depformer_layer_scale": None,
        "depformer_multi_linear": True,
        "depformer_context": depformer.dep_q,
        "depformer_max_period": 10000,
        "depformer_gating": "silu",
        "depformer_pos_emb": "none",
        "depformer_weights_per_step": True,
        "delays": list(config.delays),
    }


def embedded(lm: Any, table: Tensor) -> Tensor:
    """Tokens by position -> the sum of their embeddings; -1 embeds to nothing. [B, 17, N] -> [B, N, D]"""
    total = lm.text_emb(table[:, 0])
    for stream, embedding in enumerate(lm.emb, start=1):
        total = total + embedding(table[:, stream])
    return total


def listened(lm: Any, table: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """table [B, 17, N], moments [B, N] -> hidden states [B, N, D], text logits [B, N, V]"""
    x = embedded(lm, table)
    turns = turns_of(moments, lm.transformer.layers[0].self_attn)
    for layer in lm.transformer.layers:
        attention, gating = layer.self_attn, layer.gating
        x = temporal_layer(
            x,
            turns,
            layer.norm1.alpha,
            attention.in_projs[0].weight,
            attention.out_projs[0].weight,
            layer.norm2.alpha,
            gating.linear_in.weight,
            gating.linear_out.weight,
            attention.num_heads,
        )
    hidden = normed(x, lm.out_norm.alpha)
    return hidden, F.linear(hidden.to(HALF), lm.text_linear.weight.to(HALF)).float()


def turns_of(moments: Tensor, attention: Any) -> Tensor:
    """By how much each pair of numbers is turned: cosines and sines. [B, N] -> [2, B, 1, N, D / 2]"""
    half = attention.embed_dim // attention.num_heads // 2
    angles = moments[:, None, :, None] * 10000 ** (-torch.arange(half) / half)
    return torch.stack([angles.cos(), angles.sin()])


@torch.compile(dynamic=False)
def temporal_layer(
    x: Tensor,
    turns: Tensor,
    alpha1: Tensor,
    inwards: Tensor,
    outwards: Tensor,
    alpha2: Tensor,
    wide: Tensor,
    narrow: Tensor,
    n_heads: int,
) -> Tensor:
    """One layer of the temporal transformer; the residual stays in float32. [B, N, D] -> [B, N, D]"""
    batch, n, width = x.shape
    qkv = F.linear(normed(x, alpha1).to(HALF), inwards.to(HALF))
    q, k, v = qkv.view(batch, n, 3, n_heads, width // n_heads).permute(2, 0, 3, 1, 4)
    told = F.scaled_dot_product_attention(turned(q, turns), turned(k, turns), v, is_causal=True)
    x = x + F.linear(told.transpose(1, 2).reshape(batch, n, width), outwards.to(HALF)).float()
    gate, up = F.linear(normed(x, alpha2).to(HALF), wide.to(HALF)).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, narrow.to(HALF)).float()


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Interleaved RoPE: the pair (2i, 2i + 1) is turned. [B, H, N, D] -> [B, H, N, D]"""
    cosines, sines = turns
    one, other = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack([one * cosines - other * sines, one * sines + other * cosines], dim=-1)
    return pairs.flatten(-2).to(x.dtype)


def normed(x: Tensor, alpha: Tensor) -> Tensor:
    """Root mean square norm, in float32."""
    wide = x.float()
    return (alpha * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-8)).to(x.dtype)


def depformed(lm: Any, hidden: Tensor, text: Tensor, codes: Tensor) -> Tensor:
    """What each inner step says of its code, the earlier ones given.

    hidden [n, D], codes [n, 8] -> [8, n, V]
    """
    earlier = [lm.depformer_text_emb(text)]
    earlier += [lm.depformer_emb[step - 1](codes[:, step - 1]) for step in range(1, N_CODEBOOKS)]
    x = torch.matmul(hidden.to(HALF), stacked(lm.depformer_in).transpose(1, 2)) + torch.stack(earlier).to(
        HALF
    )
    for layer in lm.depformer.layers:
        attention = layer.self_attn
        x = depformer_layer(
            x,
            layer.norm1.alpha,
            stacked(attention.in_projs),
            stacked(attention.out_projs),
            layer.norm2.alpha,
            stacked([gating.linear_in for gating in layer.gating]),
            stacked([gating.linear_out for gating in layer.gating]),
            attention.num_heads,
        )
    return torch.bmm(x, stacked(lm.linears).transpose(1, 2)).float()


@torch.compile(dynamic=False)
def depformer_layer(
    x: Tensor,
    alpha1: Tensor,
    inwards: Tensor,
    outwards: Tensor,
    alpha2: Tensor,
    wide: Tensor,
    narrow: Tensor,
    n_heads: int,
) -> Tensor:
    """One layer of the depformer; each inner step has its own weights. [8, n, D] -> [8, n, D]"""
    n_steps, n, width = x.shape
    qkv = torch.bmm(normed(x, alpha1), inwards.transpose(1, 2))
    q, k, v = qkv.view(n_steps, n, 3, n_heads, width // n_heads).permute(2, 1, 3, 0, 4)
    # Eight keys: products beat the library's blocks.
    later = torch.ones(n_steps, n_steps, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2)).float().masked_fill(later, -torch.inf) * (width // n_heads) ** -0.5
    told = scores.softmax(-1).to(x.dtype) @ v
    x = x + torch.bmm(told.permute(2, 0, 1, 3).reshape(n_steps, n, width), outwards.transpose(1, 2))
    gate, up = torch.bmm(normed(x, alpha2), wide.transpose(1, 2)).chunk(2, dim=-1)
    return x + torch.bmm(F.silu(gate) * up, narrow.transpose(1, 2))


def stacked(linears: Any) -> Tensor:
    """The weights of all inner steps. [8, D, C]"""
    return torch.stack([linear.weight for linear in linears]).to(HALF)


class Comprehension(nn.Module):
    """What has the user just asked? Read from hidden states; used in training alone."""

    def __init__(self, width: int, n_intents: int, n_words: int) -> None:
        super().__init__()
        self.intent, self.words = nn.Linear(width, n_intents), nn.Linear(width, n_words)
        # Chance weights would push the states about, and those of a model that is there have much to lose.
        for told in (self.intent, self.words):
            nn.init.zeros_(told.weight)
        # Of all words, a sentence has few.
        nn.init.constant_(self.words.bias, -5.0)


def spoilt(table: Tensor, numbers: torch.Generator, card: int) -> Tensor:
    """What is read, worse than it was: no recording shall be known by heart, and no slip lead astray.

    Of the user, the codebooks from some one on are hidden, single codes are hidden, and single codes are
    others. Of the agent, single codes are others: what it hears of itself was drawn.
    """
    n_rows, _, n = table.shape
    spoilt = table.clone()
    user, agent = spoilt[:, 9:], spoilt[:, 1:9]

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=numbers)

    last = torch.where(drawn(n_rows) < 0.7, torch.randint(1, 8, (n_rows,), generator=numbers), 8)
    fine = torch.arange(8)[None, :, None] >= last[:, None, None]
    gone = drawn(n_rows, 8, n) < drawn(n_rows, 1, 1) * 0.2
    user[fine | gone] = -1
    other = torch.randint(card, (n_rows, 8, n), generator=numbers)
    wrong = drawn(n_rows, 8, n) < drawn(n_rows, 1, 1) * 0.08
    user[wrong] = other[wrong]
    slips = drawn(n_rows, 8, n) < drawn(n_rows, 1, 1) * 0.06
    agent[slips] = other[slips]
    return spoilt


def train(work: Path, n_steps: int, n_workers: int) -> None:
    """Train; `lm.pt` is the averaged state."""
    if not (work / "lm.pt").exists():
        in_workers(n_workers, train_worker, work, n_steps)


def train_worker(rank: int, work: Path, n_steps: int) -> None:
    """One worker's share."""
    torch.manual_seed(1)
    begun = (work / START).exists()
    first = n_steps * 2 // 3 if begun else 0
    training = Training("lm", work, n_steps, rate=1.5e-3, betas=(0.9, 0.98), clip=1.0, first=first)
    dialogues = Dialogues(work, seed=0)
    config = dialogues.config
    lm = new_lm(config).train()
    if begun:
        lm.load_state_dict(torch.load(work / START, weights_only=True))
    comprehension = Comprehension(
        config.temporal_config.hidden_size, len(dialogues.intents), len(dialogues.words)
    )
    training.take(lm=lm, comprehension=comprehension)
    seed = 2 * training.step + rank
    dialogues.rng.seed(seed)
    numbers = torch.Generator().manual_seed(seed)
    while not training.done:
        # Copying comes first and is never left alone.
        n_drills = round(N_ROWS * max(0.125, 0.5 - training.progress))
        rows = [dialogues.drill() for _ in range(n_drills)]
        rows += [
            dialogues.reading() if dialogues.rng.random() < READING else dialogues.dialogue()
            for _ in range(N_ROWS - n_drills)
        ]
        batch = Row(*map(torch.stack, zip(*rows, strict=True)))
        loss, told = losses(lm, comprehension, batch, dialogues.bags, numbers, config.audio_vocab_size)
        training.update(loss, **told)
        training.log(every=50)
    if rank == 0:
        torch.save(training.averaged()["lm"], work / "lm.pt")


def losses(
    lm: Any, comprehension: Comprehension, batch: Row, bags: Tensor, numbers: torch.Generator, card: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Everything that is learnt from a batch, and its parts."""
    read, target = spoilt(batch.table, numbers, card)[:, :, :-1], batch.table[:, :, 1:]
    hidden, logits = listened(lm, read, batch.moments[:, :-1])

    text = target[:, 0]
    each = F.cross_entropy(logits.transpose(1, 2), text, reduction="none")
    weights = batch.text_weights[:, 1:] * torch.where(text == PAD, 0.3, 1.0)
    of_text = (each * weights).sum() / weights.sum()

    live, speaking = batch.live[:, 1:], batch.speaking[:, 1:]
    # The delayed codebooks end a position later.
    speaking = speaking | F.pad(speaking, (1, 0))[:, :-1]
    chances = torch.where(speaking, 1.0, QUIET_SHARE) * live
    kept = torch.multinomial(chances.flatten(), N_KEPT, generator=numbers)
    flat = target.transpose(1, 2).flatten(0, 1)[kept]
    codes = flat[:, 1 : 1 + N_CODEBOOKS]
    said = depformed(lm, hidden.flatten(0, 1)[kept], flat[:, 0], codes)
    by_code = F.cross_entropy(said.transpose(1, 2), codes.t().clamp(max=card - 1), reduction="none")
    per_codebook = torch.tensor([3.0] + [1.0] * 7)[:, None]
    code_weights = per_codebook * torch.where(speaking.flatten()[kept], 1.0, 0.5)
    of_codes = (by_code * code_weights).sum() / code_weights.sum()

    known = (batch.intents[:, 1:] != NOTHING).flatten().nonzero()[:, 0]
    states = hidden.flatten(0, 1)[known].float()
    intents = batch.intents[:, 1:].flatten()[known]
    guessed = comprehension.intent(states)
    of_intents = F.cross_entropy(guessed, intents)
    heard = bags[batch.heard[:, 1:].flatten()[known]]
    of_words = (
        F.binary_cross_entropy_with_logits(comprehension.words(states), heard, reduction="none")
        .sum(-1)
        .mean()
    )

    loss = of_text + of_codes + 0.5 * of_intents + 0.1 * of_words
    spoken = (text > PAD) & (batch.text_weights[:, 1:] > 0) & live
    with torch.no_grad():
        told = {
            "text": of_text,
            "word": each[spoken].mean(),
            "word_right": (logits.argmax(-1) == text)[spoken].float().mean(),
            "codes": of_codes,
            "first": by_code[0].mean(),
            "intent": (guessed.argmax(-1) == intents).float().mean(),
            "words": of_words,
        }
    return loss, told
