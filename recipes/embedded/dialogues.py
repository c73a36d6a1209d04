"""What the language model learns from: calls with replies, as tables of tokens, made anew for every batch.

A table [17, N] holds tokens by position, as the engine's turns do: a role and a voice are chosen at random
for a call that was coded beforehand, and the replies that fit are laid beside it. Every value of a role is
drawn by itself, so nothing but the prompt can tell what to say.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import torch
from torch import Tensor

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.turns import FREE, add_delays
from personaplex_cli.prompt import SILENCE_SECONDS, phase
from personaplex_cli.text import tag_role
from recipes.embedded import codes
from recipes.embedded.domain import VOICES, Role, invented, role_text, role_values, thinned
from recipes.embedded.export import config_tree
from recipes.embedded.hearing import words
from recipes.embedded.intents import INTENTS, Question, holes, question, reply_to
from recipes.embedded.vocabulary import EPAD, PAD

N_POSITIONS = 416
FRAME_SECONDS = 0.08
LONGEST_SILENCE = 1500
"""Frames by which a call may seem to have gone on since its prompt: after minutes the role still holds."""
PAUSE_FRAMES = int(SILENCE_SECONDS / FRAME_SECONDS)
TEXT_LEADS = 2
"""Frames by which a word's first piece comes before its sound."""
FIRST_WEIGHT, WORD_WEIGHT, ROLE_WEIGHT = 5.0, 2.0, 0.3
"""Of text, against a frame's padding: the first word decides what is said."""

NAMED = {"name", "business", "address"}
"""Facts that are names: of these there is no end, and each is said its own way."""
BETWEEN = (3, 12)
"""Frames of silence between replies that are read aloud, at least and at most."""

NOTHING = -100
"""Where a target is not to be learnt."""


class Row(NamedTuple):
    """A table and what is learnt from it, by position. In a batch, [B, ...]."""

    table: Tensor
    """[17, N] tokens."""
    text_weights: Tensor
    """[N]"""
    speaking: Tensor
    """[N] whether the agent speaks."""
    live: Tensor
    """[N] behind the prompt."""
    intents: Tensor
    """[N] what the user has just asked, where that can be known; else NOTHING."""
    heard: Tensor
    """[N] the number of the phrasing; else NOTHING."""
    moments: Tensor
    """[N] where each position stands in time: a call may have gone on for long since its prompt."""


class Prompt(NamedTuple):
    """A persona by frame."""

    frames: Tensor
    """[17, P]"""
    n_voice: int

    @property
    def n_frames(self) -> int:
        """P"""
        return self.frames.shape[1]


class Dialogues:
    """Calls, replies, roles and voices, put together at random."""

    def __init__(self, work: Path, seed: int) -> None:
        replies, self.voices, self.calls, section = codes.load(work)
        self.config: PersonaPlexConfig = config_tree(section)
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(work / "tokenizer.model"))
        self.rng = random.Random(seed)
        self.silence = torch.tensor(section.silence_codes)
        self.said: dict[tuple[str, str], Any] = {}
        self.pools: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        for reply in replies:
            self.said[reply["voice"], reply["text"]] = reply
            self.pools[reply["voice"], reply["template"]].append(reply)
        self.intents = {intent: index for index, intent in enumerate(INTENTS)}
        texts = {asked["text"] for call in self.calls for asked, _, _ in call["asked"]}
        self.text_numbers = {text: index for index, text in enumerate(sorted(texts))}
        spelled = {text: words(text) for text in self.text_numbers}
        self.words = sorted({word for one in spelled.values() for word in one})
        numbers = {word: index for index, word in enumerate(self.words)}
        self.bags = torch.zeros(len(texts), len(self.words))
        for text, index in self.text_numbers.items():
            self.bags[index, [numbers[word] for word in spelled[text]]] = 1

    # ---- roles ----

    def role(self, voice: str, item: str | None) -> Role:
        """A role whose every reply has been rendered; each value from another reply's role."""
        if self.rng.random() < 0.1:
            return Role()

        def of(template: str) -> Role:
            return Role(**self.rng.choice(self.pools[voice, template])["role"])

        greeting = of("Hello, this is {name} from {business}. How can I help you?")
        priced = [one["role"] for one in self.pools[voice, "{Item} costs {price} dollars."]]
        fitting = [one for one in priced if item in (None, one["item"])]
        # What this voice has never priced, its role does not sell.
        price = Role(**self.rng.choice(fitting)) if fitting else Role()
        hours, where = of("We are open from {opens} to {closes}."), of("Our address is {address}.")
        return thinned(
            Role(
                name=greeting.name,
                business=greeting.business,
                opens=hours.opens,
                closes=hours.closes,
                address=where.address,
                item=price.item,
                price=price.price,
            ),
            self.rng,
        )

    # ---- tables ----

    def prompt(self, voice: str, role: str) -> Prompt:
        """A prompt as the product makes it; the voice's sample is any part of what the voice said."""
        sample = self.rng.choice(self.voices[voice]).long()
        n_voice = self.rng.randint(14, min(56, sample.shape[1]))
        begin = self.rng.randrange(sample.shape[1] - n_voice + 1)
        tokens = torch.tensor(self.pieces.encode(tag_role(role)) if role else [], dtype=torch.long)
        pause = phase(self.config, agent=self.silence[:, None].expand(-1, PAUSE_FRAMES))
        spoken = phase(self.config, agent=self.silence[:, None].expand(-1, len(tokens)), text=tokens)
        sounded = phase(self.config, agent=sample[:, begin : begin + n_voice])
        return Prompt(torch.cat([sounded, pause, spoken, pause], dim=1), n_voice)

    def dialogue(self) -> Row:
        """A call and its replies."""
        call = self.rng.choice(self.calls)
        asked = [(Question(**question), begin, end) for question, begin, end in call["asked"]]
        voice = self.rng.choice(list(VOICES.values()))
        item = next((one.item for one, _, _ in asked if one.item), None)
        role = self.role(voice, item)
        prompt = self.prompt(voice, role_text(role, self.rng))
        user = call["codes"].long()
        n_frames = min(user.shape[1], N_POSITIONS - prompt.n_frames - 1)
        given, weights, speaking = self.quiet(n_frames)
        given[9:] = user[:, :n_frames]
        intents = torch.full((n_frames,), NOTHING)
        heard = torch.full((n_frames,), NOTHING)
        for one, _, end in asked:
            # Later than at a pause between a question's words, and no later than people mind.
            start = end + self.rng.randint(4, 5)
            if start >= n_frames:
                break
            # The last sounds of a question tell most.
            intents[end : start + 1] = self.intents[one.intent]
            heard[end : start + 1] = self.text_numbers[one.text]
            text, _ = reply_to(one, role)
            self.speak(given, weights, speaking, self.said[voice, text], start)
        return self.row(prompt, given, weights, speaking, intents, heard)

    def speak(self, given: Tensor, weights: Tensor, speaking: Tensor, reply: Any, start: int) -> None:
        """Lay a reply's words from a frame on, and its sound a little later."""
        n_frames = given.shape[1]
        sound = start + TEXT_LEADS
        codes_ = reply["codes"][:, : max(0, n_frames - sound)].long()
        given[1:9, sound : sound + codes_.shape[1]] = codes_
        speaking[sound : sound + codes_.shape[1]] = True
        # In the frames before it the agent decides to speak, and how.
        at = start
        for index, (word, onset) in enumerate(zip(reply["text"].split(), reply["onsets"], strict=True)):
            at = max(at, start + int(onset / FRAME_SECONDS))
            tokens = torch.tensor(self.pieces.encode(word))[: max(0, n_frames - at)]
            if 0 < at < n_frames and given[0, at - 1] == PAD:
                given[0, at - 1] = EPAD
            given[0, at : at + len(tokens)] = tokens
            weights[at : at + len(tokens)] = WORD_WEIGHT if index else FIRST_WEIGHT
            at += len(tokens)

    def drill(self) -> Row:
        """A role, and what it makes an agent say, word upon word without a sound:

        how to copy is learnt here.
        """
        role = role_values(self.rng, unseen=False)
        if self.rng.random() < 0.75:
            role = invented(role, self.rng)
        role = thinned(role, self.rng)
        prompt = self.prompt(self.rng.choice(list(VOICES.values())), role_text(role, self.rng))
        said: list[int] = []
        intents = [
            intent
            for intent in INTENTS
            if any(holes(one) & role.facts.keys() for one in INTENTS[intent].replies)
        ]
        spread = self.rng.choice([0, 0, 3, 8])
        n_frames = N_POSITIONS - prompt.n_frames - 1
        while len(said) < n_frames:
            intent = self.rng.choice(intents or list(INTENTS))
            for word in reply_to(question(intent, "train", self.rng), role)[0].split():
                gap = self.rng.randint(0, spread)
                said += [PAD] * (gap - 1) + [EPAD] * (gap > 0) + self.pieces.encode(word)
        given, _, speaking = self.quiet(n_frames)
        given[0] = torch.tensor(said[:n_frames])
        weights = torch.where(given[0] > PAD, 1.0, 0.1)
        nothing = torch.full((n_frames,), NOTHING)
        return self.row(prompt, given, weights, speaking, nothing, nothing)

    def reading(self) -> Row:
        """Replies with names in them, read aloud one after another, whoever's they are:

        how a name sounds is learnt here, and a call has few. No word of it is learnt.
        """
        voice = self.rng.choice(list(VOICES.values()))
        prompt = self.prompt(voice, role_text(Role(), self.rng))
        n_frames = N_POSITIONS - prompt.n_frames - 1
        given, weights, speaking = self.quiet(n_frames)
        templates = [one for of, one in self.pools if of == voice and holes(one) & NAMED]
        at = self.rng.randint(*BETWEEN)
        while at < n_frames:
            reply = self.rng.choice(self.pools[voice, self.rng.choice(templates)])
            self.speak(given, weights, speaking, reply, at)
            at += TEXT_LEADS + reply["codes"].shape[1] + self.rng.randint(*BETWEEN)
        nothing = torch.full((n_frames,), NOTHING)
        return self.row(prompt, given, torch.zeros(n_frames), speaking, nothing, nothing)

    def quiet(self, n_frames: int) -> tuple[Tensor, Tensor, Tensor]:
        """Nobody speaks: tokens [17, F], weights of text [F], whether the agent speaks [F]."""
        given = torch.empty(17, n_frames, dtype=torch.long)
        given[0], given[1:9], given[9:] = PAD, self.silence[:, None], self.silence[:, None]
        return given, torch.ones(n_frames), torch.zeros(n_frames, dtype=torch.bool)

    def row(
        self, prompt: Prompt, given: Tensor, weights: Tensor, speaking: Tensor, intents: Tensor, heard: Tensor
    ) -> Row:
        """Everything by position, N_POSITIONS of them."""
        known = torch.cat([prompt.frames, given], dim=1)
        table = add_delays(known, self.config)[:, :N_POSITIONS]

        def placed(values: Tensor, before: float | int) -> Tensor:
            out = torch.full((N_POSITIONS,), before, dtype=values.dtype)
            end = min(N_POSITIONS, prompt.n_frames + len(values))
            out[prompt.n_frames : end] = values[: end - prompt.n_frames]
            return out

        n = table.shape[1]
        full = torch.full((17, N_POSITIONS), self.config.audio_initial)
        full[0] = PAD
        full[:, :n] = torch.where(table == FREE, full[:, :n], table)
        # The role itself is text, too, and its order can be learnt.
        text_weights = placed(weights, 0.0)
        role = slice(prompt.n_voice + PAUSE_FRAMES, prompt.n_frames - PAUSE_FRAMES)
        text_weights[role] = ROLE_WEIGHT
        text_weights[n - 1 :] = 0
        live = torch.arange(N_POSITIONS) >= prompt.n_frames
        live[n - 1 :] = False
        moments = torch.arange(N_POSITIONS)
        if self.rng.random() < 0.5:
            moments[prompt.n_frames :] += self.rng.randrange(LONGEST_SILENCE)
        return Row(
            full,
            text_weights,
            placed(speaking, False),
            live,
            placed(intents, NOTHING),
            placed(heard, NOTHING),
            moments,
        )
