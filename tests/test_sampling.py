"""Drawing, against exact probabilities and against the reference's own procedure."""

from __future__ import annotations

import pytest
import torch
from moshi.utils.sampling import sample_token

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.sampling import Draw, Draws, Tape, pick_token, settle
from personaplex_cli.engine.turns import FREE
from personaplex_cli.settings import Sampling

N = 200_000


def logits_of(n_tokens: int) -> torch.Tensor:
    return 2 * torch.randn(n_tokens, generator=torch.Generator().manual_seed(3))


def exact_probabilities(logits: torch.Tensor, temperature: float, top_k: int) -> torch.Tensor:
    """softmax, then only the top k, then to one again."""
    p = torch.softmax(logits.double() / temperature, -1)
    kept = torch.zeros_like(p)
    best = p.argsort(descending=True)[:top_k]
    kept[best] = p[best]
    return kept / kept.sum()


@pytest.mark.parametrize(("temperature", "top_k"), [(0.7, 25), (0.8, 5), (1.3, 40), (0.2, 40)])
def test_draws_have_the_exact_distribution(temperature: float, top_k: int) -> None:
    logits = logits_of(40)
    noise = Tape(5, "a file", top_k).take(N)
    drawn = pick_token(logits.expand(N, -1), noise, Draw(temperature, top_k))
    expected = exact_probabilities(logits, temperature, top_k)
    counts = torch.bincount(drawn, minlength=40).double()
    assert counts[expected == 0].sum() == 0
    possible = expected * N > 5
    chi_square = ((counts - expected * N)[possible] ** 2 / (expected * N)[possible]).sum()
    freedom = int(possible.sum()) - 1
    # Five standard deviations over the mean of the chi-square distribution.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_draws_are_distributed_as_moshis_own() -> None:
    logits = logits_of(30)
    torch.manual_seed(1)
    theirs = sample_token(logits.expand(1, 1, N, -1), use_sampling=True, temp=0.8, top_k=10).flatten()
    ours = pick_token(logits.expand(N, -1), Tape(1, "x", 10).take(N), Draw(0.8, 10))
    frequencies = [torch.bincount(tokens, minlength=30) / N for tokens in (ours, theirs)]
    assert (frequencies[0] - frequencies[1]).abs().max() < 5 * (0.25 * 2 / N) ** 0.5


def test_temperature_0_takes_the_likeliest_without_noise() -> None:
    logits = logits_of(40).expand(3, -1)
    draw = Draw(0.0, 25)
    assert draw.n_noise == 0
    assert pick_token(logits, torch.ones(3, 0), draw).tolist() == [int(logits[0].argmax())] * 3


def test_a_tape_can_be_cut_anywhere() -> None:
    whole = Tape(7, "b.wav", 33).take(50)
    tape = Tape(7, "b.wav", 33)
    assert torch.equal(torch.cat([tape.take(n) for n in (1, 0, 13, 32, 4)]), whole)
    assert (whole > 0).all()


def test_tapes_differ_by_seed_and_by_name_and_take_names_in_any_bytes() -> None:
    tapes = [Tape(seed, name, 4).take(2) for seed in (0, 1) for name in ("a.wav", "b.wav", "\udcff.wav")]
    assert len({tuple(tape.flatten().tolist()) for tape in tapes}) == 6


def test_top_k_0_and_too_large_mean_the_whole_vocabulary() -> None:
    config = PersonaPlexConfig()
    draws = Draws.of(Sampling(topk_text=0, topk_audio=9999), config)
    assert (draws.text.top_k, draws.code.top_k) == (32000, 2048)
    assert draws.n_noise == 32000 + 8 * 2048
    assert Draws.of(Sampling(greedy=True), config).n_noise == 0


def test_one_steps_noise_is_split_by_token() -> None:
    draws = Draws.of(Sampling(topk_text=3, topk_audio=2), PersonaPlexConfig())
    text, *codes = draws.split(torch.arange(2 * draws.n_noise).view(2, -1).float())
    assert text.shape == (2, 3)
    assert [code.shape for code in codes] == [(2, 2)] * 8
    assert torch.cat([text, *codes], 1)[0].tolist() == list(range(19))


def test_what_is_forced_wins() -> None:
    assert settle(torch.tensor([1, 2, 3]), torch.tensor([FREE, 9, -1])).tolist() == [1, 9, -1]
