"""Drawing, against exact probabilities and against the reference's own procedure."""

from __future__ import annotations

import pytest
import torch
from moshi.utils.sampling import sample_token

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.sampling import Draw, Draws, Tape, exponential_noise, pick_token, settle, uniform
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
    keys = Tape(5, "a file", 1).take(N)[:, 0]
    drawn = pick_token(logits.expand(N, -1), keys, Draw(temperature, top_k))
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
    ours = pick_token(logits.expand(N, -1), Tape(1, "x", 1).take(N)[:, 0], Draw(0.8, 10))
    frequencies = [torch.bincount(tokens, minlength=30) / N for tokens in (ours, theirs)]
    assert (frequencies[0] - frequencies[1]).abs().max() < 5 * (0.25 * 2 / N) ** 0.5


def test_noise_is_exponential_and_independent_between_tokens_and_draws() -> None:
    keys = Tape(2, "x", 2).take(N)
    noise = exponential_noise(keys[:, 0], torch.arange(3).expand(N, -1)).double()
    other = exponential_noise(keys[:, 1], torch.arange(3).expand(N, -1)).double()
    assert noise.min() > 0
    for column in noise.T:
        # The moments of Exp(1) are 1, 2, 6; five standard errors.
        for power, (moment, variance) in enumerate([(1, 1), (2, 20), (6, 684)], start=1):
            assert abs(column.pow(power).mean() - moment) < 5 * (variance / N) ** 0.5
        ranked = (-column).exp().sort().values
        assert (ranked - torch.linspace(0, 1, N, dtype=torch.float64)).abs().max() < 2 / N**0.5
    correlations = torch.corrcoef(torch.cat([noise, other], 1).T) - torch.eye(6)
    assert correlations.abs().max() < 5 / N**0.5


def test_noise_is_never_0_nor_infinite() -> None:
    """The extreme bit patterns, which no sample would hit: 0 would let the impossible win."""
    extremes = uniform(torch.tensor([0, 1, 0x7FFFFE, 0x7FFFFF, -1, 1 << 23]))
    assert extremes.dtype == torch.float32
    assert ((extremes > 0) & (extremes < 1)).all()
    assert len(set(extremes.tolist())) == 4
    assert (-extremes.log() >= 5e-8).all()


def test_neighbouring_keys_give_unrelated_noise() -> None:
    ids = torch.arange(1000).expand(2, -1)
    one, next_one = exponential_noise(torch.tensor([5, 6]), ids)
    assert torch.corrcoef(torch.stack([one, next_one]))[0, 1].abs() < 5 / 1000**0.5


def test_noise_hangs_on_the_token_and_not_on_its_rank() -> None:
    """Near ties that rounding decides the other way leave the draw alone."""
    logits = logits_of(40).expand(2000, -1).clone()
    logits[:, 7] = logits[:, 9] = logits[:, 11]
    shaken = logits.clone()
    shaken[:, 7] += 1e-6
    shaken[:, 11] -= 1e-6
    keys = Tape(3, "x", 1).take(2000)[:, 0]
    draw = Draw(0.8, 40)
    assert torch.equal(pick_token(logits, keys, draw), pick_token(shaken, keys, draw))


def test_temperature_0_takes_the_likeliest_without_noise() -> None:
    logits = logits_of(40).expand(3, -1)
    drawn = [pick_token(logits, torch.full((3,), key), Draw(0.0, 25)).tolist() for key in (0, 1)]
    assert drawn == [[int(logits[0].argmax())] * 3] * 2


def test_a_tape_can_be_cut_anywhere() -> None:
    whole = Tape(7, "b.wav", 9).take(50)
    tape = Tape(7, "b.wav", 9)
    assert torch.equal(torch.cat([tape.take(n) for n in (1, 0, 13, 32, 4)]), whole)


def test_tapes_differ_by_seed_and_by_name_and_take_names_in_any_bytes() -> None:
    tapes = [Tape(seed, name, 4).take(2) for seed in (0, 1) for name in ("a.wav", "b.wav", "\udcff.wav")]
    assert len({tuple(tape.flatten().tolist()) for tape in tapes}) == 6


def test_top_k_0_and_too_large_mean_the_whole_vocabulary() -> None:
    draws = Draws.of(Sampling(topk_text=0, topk_audio=9999), PersonaPlexConfig())
    assert (draws.text.top_k, draws.code.top_k, draws.n_draws) == (32000, 2048, 9)


def test_greedy_is_temperature_0_whatever_else_is_chosen() -> None:
    draws = Draws.of(Sampling(temp_text=2.0, greedy=True), PersonaPlexConfig())
    assert (draws.text.temperature, draws.code.temperature) == (0.0, 0.0)


def test_what_is_forced_wins() -> None:
    assert settle(torch.tensor([1, 2, 3]), torch.tensor([FREE, 9, -1])).tolist() == [1, 9, -1]
