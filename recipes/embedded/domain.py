"""Who answers: small businesses, their roles with the facts in them, and the agent's voices.

A `Role` is the facts that a role prompt carries. Its values (names, businesses, hours, addresses, prices) are
in two parts: some are met in training, some never are (`unseen`).
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from faker.providers.person.en_US import Provider as People

Part = Literal["train", "dev", "test"]

DIGITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = """
    ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
""".split()
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMBERS = [*DIGITS, *TEENS, *(f"{ten}{digit}" for ten in TENS for digit in ["", *(f" {d}" for d in DIGITS)])]
"""one ... ninety nine"""

HALVES = ["", " thirty"]
OPENS = [f"{hour}{half}" for hour in ["six", "seven", "eight", "nine", "ten", "eleven"] for half in HALVES]
CLOSES = [
    f"{hour}{half}"
    for hour in ["three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    for half in HALVES
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
ROADS = ["Street", "Road", "Avenue", "Lane", "Square"]
STREETS = """
    Main Park Market River Hill Church Station Garden Forest Lake Bridge Castle King Queen Mill School
    Spring Summer Winter Maple Cedar Pine Willow Chestnut Walnut Cherry Rose Lincoln Washington Jefferson
    Madison Jackson Franklin Harbor Ocean Valley Meadow Orchard Prospect Highland Sunset Union Liberty
    College Temple Victoria Albert Baker Carter Cooper Dexter Fisher Granite Hunter Mason Palmer Porter
    Silver Taylor
""".split()
FIRST_WORDS = """
    Sunny Golden Happy Blue Green Royal Corner Village City Family Lucky Silver Little Grand Modern Crystal
    Rainbow Star Moon Central Northern Southern Eastern Western Bright Fresh Classic Perfect Premium
    Friendly Red White Diamond Eagle Lion Tiger Dolphin Harbor Mountain Valley Garden Island Summer Winter
    Quick Smart Super Urban Velvet Magic Jolly Noble Rapid Gentle Cosmic Coral Amber Ruby Emerald
""".split()

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Bakery": ("a bakery", ("a loaf of bread", "a birthday cake", "an apple pie")),
    "Pizza": ("a pizza shop", ("a large pizza", "a small pizza", "a garlic bread")),
    "Books": ("a book store", ("a picture book", "a road map", "a calendar")),
    "Flowers": ("a flower shop", ("a dozen roses", "a potted plant", "a wedding bouquet")),
    "Dental": ("a dental clinic", ("a cleaning", "a filling", "a check up")),
    "Repair": ("a repair shop", ("a new battery", "a new screen", "a repair")),
    "Hotel": ("a small hotel", ("a single room", "a double room", "a breakfast")),
    "Salon": ("a hair salon", ("a haircut", "a shave", "a manicure")),
    "Coffee": ("a coffee shop", ("a cup of coffee", "a chocolate muffin", "a sandwich")),
    "Bikes": ("a bike shop", ("a bike rental", "a new tire", "a helmet")),
    "Garage": ("a garage", ("an oil change", "a car wash", "an inspection")),
    "Fitness": ("a gym", ("a day ticket", "a monthly ticket", "a yoga class")),
}
"""The business's last word -> (what it is, what it sells)."""

SHARE_UNSEEN = 0.15


def is_unseen(value: str) -> bool:
    """Whether a value is kept out of training. Its spelling alone decides: no run can mix the parts."""
    return hashlib.sha256(value.encode()).digest()[0] < 256 * SHARE_UNSEEN


@cache
def names() -> list[str]:
    """First names that are easy to say: one or two syllables' worth of letters."""
    return sorted(name for name in set(People.first_names) if 3 <= len(name) <= 8 and name.isalpha())


def of_part(values: Sequence[str], unseen: bool) -> list[str]:
    """The values that training meets, or those that it never meets."""
    return [value for value in values if is_unseen(value) == unseen]


@dataclass(frozen=True)
class Role:
    """The facts of one role; None where the role does not say."""

    name: str | None = None
    business: str | None = None
    opens: str | None = None
    closes: str | None = None
    address: str | None = None
    item: str | None = None
    price: str | None = None

    @property
    def kind(self) -> str | None:
        """a bakery, a gym, ..."""
        return KINDS[self.business.split()[-1]][0] if self.business else None

    @property
    def facts(self) -> dict[str, str]:
        """What is known, for a template's holes."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        if self.kind:
            known["kind"] = self.kind
        if self.item:
            known["Item"] = self.item[0].upper() + self.item[1:]
        return known


def role_values(rng: random.Random, *, unseen: bool) -> Role:
    """A role that knows everything. `unseen`: each value that can be, is one that training never meets."""
    kind = rng.choice(list(KINDS))
    number, street = rng.choice(of_part(NUMBERS, unseen)), rng.choice(of_part(STREETS, unseen))
    return Role(
        name=rng.choice(of_part(names(), unseen)),
        business=f"{rng.choice(of_part(FIRST_WORDS, unseen))} {kind}",
        # Hours are few: what is new in an unseen role is the pair of them.
        **dict(zip(("opens", "closes"), hours(rng, unseen=unseen), strict=True)),
        address=f"{number} {street} {rng.choice(ROADS)}",
        item=rng.choice(KINDS[kind][1]),
        price=rng.choice(of_part(NUMBERS[4:], unseen)),
    )


def hours(rng: random.Random, *, unseen: bool) -> tuple[str, str]:
    """When a business opens and closes."""
    pairs = list(itertools.product(OPENS, CLOSES))
    return rng.choice([pair for pair in pairs if is_unseen(" to ".join(pair)) == unseen])


def thinned(role: Role, rng: random.Random) -> Role:
    """The role with a fact or two left out, now and then."""
    lost: dict[str, None] = {}
    for fields in (("opens", "closes"), ("address",), ("item", "price")):
        if rng.random() < 0.12:
            lost.update(dict.fromkeys(fields))
    return replace(role, **lost)


def invented(role: Role, rng: random.Random) -> Role:
    """The role with made-up names, such as nobody has: what cannot be known must be read."""
    number, _, road = str(role.address).rsplit(" ", 2)
    return replace(
        role,
        name=made_up(of_part(names(), False), rng),
        business=f"{made_up(of_part(FIRST_WORDS, False), rng)} {str(role.business).split()[-1]}",
        address=f"{number} {made_up(of_part(STREETS, False), rng)} {road}",
    )


def made_up(words: Sequence[str], rng: random.Random) -> str:
    """A word that might be a name: syllables (Tobel), or one word's head with another's tail (Rainley)."""
    while True:
        if rng.random() < 0.5:
            word = "".join(syllable(rng) for _ in range(rng.randint(2, 3))).capitalize()
        else:
            head, tail = rng.choice(words), rng.choice(words)
            word = head[: rng.randint(2, 4)] + tail[rng.randint(2, 3) :]
        if not is_unseen(word):
            return word


def syllable(rng: random.Random) -> str:
    """ram, to, breel, ..."""
    begin = rng.choice([*"bcdfghjklmnprstvwz", "br", "ch", "gr", "sh", "st", "th", "tr"])
    middle = rng.choice([*"aeiou" * 3, "ai", "ea", "ee", "igh", "oo", "ow", "y"])
    return begin + middle + rng.choice(["", "", *"lmnrst"])


PLAIN_ROLES = [
    "You are a wise and friendly teacher. Answer questions or provide advice in a clear and engaging way.",
    "You enjoy having a good conversation.",
    "",
]
"""Roles without facts: those of PersonaPlex's own examples, and none."""


def role_text(role: Role, rng: random.Random) -> str:
    """The role as a prompt, in PersonaPlex's style."""
    if role.business is None:
        plain = rng.choice(PLAIN_ROLES)
        return f"{plain} Your name is {role.name}.".strip() if role.name else plain
    facts = []
    if role.opens:
        facts.append(rng.choice(["Open from {opens} to {closes}.", "Opening hours: {opens} to {closes}."]))
    if role.address:
        facts.append("Address: {address}.")
    if role.price:
        facts.append(rng.choice(["{Item} costs {price} dollars.", "{Item}: {price} dollars."]))
    rng.shuffle(facts)
    head = "You work for {business} which is {kind} and your name is {name}."
    return " ".join([head, *(["Information:"] if facts else []), *facts]).format(**role.facts)


VOICES = {"female": "slt", "male": "rms"}
"""The agent's voices, and flite's that speak them."""

VOICE_SENTENCES = [
    "Hello, and thank you for your call. I am happy to help you today.",
    "The quick brown fox jumps over the lazy dog, and then it runs back home.",
    "Please remember to bring your umbrella, because it may rain this evening.",
    "I enjoy walking along the river in the morning when everything is quiet.",
]
"""What a voice prompt says: the first is the packaged one."""
