"""What is said: calls to small businesses. Roles with their facts, users' questions, agents' replies.

A `Role` is the facts that a role prompt carries. Its values (names, businesses, hours, addresses, prices) are
in two parts: some are met in training, some never are (`unseen`). Users' phrasings are in three parts:
`train`, `dev` (for tuning) and `test` (for the final figures alone).
"""

from __future__ import annotations

import hashlib
import itertools
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
        name=made_up(rng),
        business=f"{made_up(rng)} {str(role.business).split()[-1]}",
        address=f"{number} {made_up(rng)} {road}",
    )


def made_up(rng: random.Random) -> str:
    """A word that might be a name: Tobel, Ramisto."""
    syllables = [rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") + rng.choice(["", "", *"lmnrst"])
                 for _ in range(rng.randint(2, 3))]  # fmt: skip
    return "".join(syllables).capitalize()


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


@dataclass(frozen=True)
class Intent:
    """A kind of question: how users put it, and the reply to it.

    `replies` are tried in turn: the first whose facts are all known is said.
    """

    replies: tuple[str, ...]
    train: tuple[str, ...]
    dev: tuple[str, ...] = field(default=())
    test: tuple[str, ...] = field(default=())

    def phrasings(self, part: Part) -> tuple[str, ...]:
        """How users of a part put it."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[part]


UNKNOWN = "I am sorry, I do not know that."


def ways(text: str) -> tuple[str, ...]:
    """Phrasings with strokes between them."""
    return tuple(" ".join(phrasing.split()) for phrasing in text.split("/"))


INTENTS: dict[str, Intent] = {
    "hello": Intent(
        ("Hello, this is {name} from {business}. How can I help you?", "Hello, how can I help you?"),
        ways("""
            hello / hi / hi there / hello there / good morning / good afternoon / good evening /
            hello, is anybody there / hey / hello, can you hear me / hello, good morning /
            hi, good afternoon
        """),
        ways("hey, hello / hi, is anyone there"),
        ways("hello, good afternoon / hi, can you hear me / hey there"),
    ),
    "name": Intent(
        ("My name is {name}.", UNKNOWN),
        ways("""
            what is your name / what's your name / who am I speaking to / who am I talking to /
            who is this / can you tell me your name / may I ask your name / who are you /
            tell me your name / and your name is / could I have your name / with whom am I speaking /
            what are you called / I did not catch your name
        """),
        ways("do you have a name / could you tell me who I am speaking to"),
        ways("may I have your name / could you tell me your name / and what is your name"),
    ),
    "business": Intent(
        ("This is {business}, we are {kind}.", UNKNOWN),
        ways("""
            what company is this / which company is this / what business is this / where do you work /
            who do you work for / what kind of business are you / what company do you work for /
            what shop is this / which business am I calling / what is the name of your company /
            what is this place / which shop is this / what do you do there /
            what is the name of the business
        """),
        ways("which company do you work for / what kind of shop is this"),
        ways("what business am I calling / what is the name of your shop / which place is this"),
    ),
    "hours": Intent(
        ("We are open from {opens} to {closes}.", UNKNOWN),
        ways("""
            what time do you open / when do you open / when are you open / what are your opening hours /
            how late are you open / when do you close / what time do you close / what are your hours /
            until when are you open / are you open today / are you open now /
            can you tell me your opening hours / how long are you open today /
            what are the opening hours / what time are you open until
        """),
        ways("do you know your opening hours / what time do you close today"),
        ways("at what time do you open / how long are you open / could you tell me when you are open"),
    ),
    "address": Intent(
        ("Our address is {address}.", UNKNOWN),
        ways("""
            where are you / what is your address / what's your address / how do I find you /
            where is your shop / can you give me the address / what street are you on /
            where can I find you / where are you located / how do I get there / tell me the address /
            which street is it / where is your business / I need your address / what is your location
        """),
        ways("can you tell me the address / which street are you on"),
        ways("could you give me your address / where exactly are you / what street is it on"),
    ),
    "price": Intent(
        ("{Item} costs {price} dollars.", UNKNOWN),
        ways("""
            how much is it / what does it cost / how much does it cost / what is the price /
            what's the price / can you tell me the price / how much is {item} /
            what is the price of {item} / how much does {item} cost / what do you charge for {item} /
            how much do I have to pay / what are your prices / how expensive is it /
            what does {item} cost / how much money is {item}
        """),
        ways("what would it cost / what's the price for {item}"),
        ways("how expensive is {item} / what is the cost of {item} / could you tell me how much it is"),
    ),
    "order": Intent(
        ("Sure, {item} for {price} dollars. Anything else?", UNKNOWN),
        ways("""
            I would like to order {item} / I'd like {item} / can I have {item} / I want to buy {item} /
            I need {item} / could I order {item} / I want {item} / can I get {item} /
            I would like to buy {item} / I would like to have {item} / I want to order something /
            I would like to place an order / give me {item} / could I have {item}
        """),
        ways("I would like {item} / may I order {item}"),
        ways("I want to order {item} / could I get {item} / can I order {item}"),
    ),
    "appointment": Intent(
        ("Sure, which day would you like?",),
        ways("""
            I want to make an appointment / can I make an appointment /
            I would like to make a reservation / I need an appointment / can I book an appointment /
            I would like to book an appointment / do you have any free appointments /
            I want to make a reservation / could I make an appointment / I'd like to come in /
            can I come by some time / I would like an appointment
        """),
        ways("could I book an appointment / I want to book an appointment"),
        ways("could I make a reservation / can I have an appointment / I'd like to make an appointment"),
    ),
    "day": Intent(
        ("All right, I have booked you for {day}.",),
        ways("""
            {day} / on {day} / {day} is good / how about {day} / maybe on {day} / {day} would be fine /
            can I make an appointment for {day} / I would like to come on {day} /
            I want to book for {day} / do you have time on {day} / can I come on {day} /
            I need an appointment on {day} / next {day} / let us say {day}
        """),
        ways("could I come on {day} / what about {day}"),
        ways("{day} would be good / I'd like an appointment on {day} / is {day} possible"),
    ),
    "payment": Intent(
        ("You can pay with cash or by card.",),
        ways("""
            can I pay by card / do you take credit cards / how can I pay / do you accept cash /
            can I pay with a credit card / do I have to pay cash / do you accept cards /
            can I use my credit card / which cards do you take / how do I pay / is it cash only /
            can I pay in cash
        """),
        ways("do you take cards / can I pay with cash"),
        ways("do you accept credit cards / how should I pay / can I pay with my card"),
    ),
    "how": Intent(
        ("I am doing great, thank you for asking.",),
        ways("""
            how are you / how are you doing / how are you today / how is it going / how do you feel /
            are you well / how are you doing today / how is your day / how have you been /
            is everything fine with you / how is your day going / are you okay
        """),
        ways("how are things / how do you do"),
        ways("how are you feeling / are you doing well / how is your day today"),
    ),
    "human": Intent(
        ("I am a computer that answers the phone.",),
        ways("""
            are you a robot / are you a real person / am I talking to a computer / are you human /
            are you a machine / is this a real person / am I talking to a robot / are you a computer /
            is this a machine / is this a robot / are you a person / am I speaking to a human
        """),
        ways("are you real / is this a computer"),
        ways("are you a human / am I talking to a machine / am I speaking to a real person"),
    ),
    "no": Intent(
        ("All right. Have a nice day.",),
        ways("""
            no thank you / no, that is all / nothing else / no, I am fine / no, that is it / that is all /
            no, nothing else / no thanks / that's all / no, that's everything / that would be all /
            nothing more
        """),
        ways("no, that's all / nothing, thank you"),
        ways("no, nothing more / that is everything / no, that's it"),
    ),
    "thanks": Intent(
        ("You are welcome.",),
        ways("""
            thank you / thank you very much / thanks a lot / thanks / many thanks / great, thank you /
            thank you so much / perfect, thanks / that helps, thank you / wonderful, thank you /
            okay, thank you / thanks very much
        """),
        ways("great, thanks / thank you, that helps"),
        ways("perfect, thank you / okay, thanks a lot / wonderful, thanks"),
    ),
    "bye": Intent(
        ("Thank you for calling {business}. Goodbye.", "Goodbye."),
        ways("""
            goodbye / bye / bye bye / see you later / have a nice day, bye / I have to go now /
            okay, bye / see you / okay, goodbye / goodbye and have a nice day / see you soon, bye /
            I have to go, goodbye
        """),
        ways("okay, see you later / bye, have a nice day"),
        ways("have a good day, goodbye / okay, bye bye / see you soon"),
    ),
    "unknown": Intent(
        (UNKNOWN,),
        ways("""
            what is the weather like / is it raining today / who won the game last night /
            tell me a joke / what is the capital of France / how old are you / can you sing a song /
            what is two plus two / do you like music / when is the next train / how far is the moon /
            who is the president / what should I eat tonight / do you have a dog /
            can you help me with my homework / why is the sky blue / what is your favorite color /
            where can I buy a car / do you speak Spanish / is there a bus to the airport /
            how do I cook rice / what did you do yesterday / are you married / can you play some music /
            will it be sunny on the weekend / where is the nearest hospital / how many people live here /
            what is the meaning of life / do you know any stories / who wrote this book
        """),
        ways("""
            how is the weather / how tall is the mountain / do you like dogs / what is the biggest city
        """),
        ways("""
            will it rain today / what is the capital of Spain / do you know a joke / who is your friend /
            when is the next bus / how do I cook an egg
        """),
    ),
}

BEFORE = [
    "",
    "",
    "",
    "",
    "hi, ",
    "hello, ",
    "excuse me, ",
    "okay, ",
    "and ",
    "so ",
    "well, ",
    "um, ",
    "please, ",
]
AFTER = ["", "", "", "", "", ", please", ", please"]
ALONE = {"hello", "how", "no", "thanks", "bye", "day"}
"""Said as they are: a greeting needs no greeting before it."""


@dataclass(frozen=True)
class Question:
    """What a user says, and what it asks for."""

    intent: str
    text: str
    item: str | None = None
    day: str | None = None


def question(intent: str, part: Part, rng: random.Random, item: str | None = None) -> Question:
    """One way to put it.

    `item`: what is asked for, where something is; by itself anything that a business sells.
    """
    phrase = rng.choice(INTENTS[intent].phrasings(part))
    wanted = item or rng.choice([one for _, items in KINDS.values() for one in items])
    day = rng.choice(DAYS)
    text = phrase.format(item=wanted, day=day)
    if intent not in ALONE:
        text = rng.choice(BEFORE) + text + rng.choice(AFTER)
    return Question(intent, text, wanted if "{item}" in phrase else None, day if "{day}" in phrase else None)


def reply_to(asked: Question, role: Role) -> tuple[str, tuple[str, ...]]:
    """What the agent says, and the facts in it. -> (text, the values that fill its template)"""
    known = {**role.facts, **({"day": asked.day} if asked.day else {})}
    for template in INTENTS[asked.intent].replies:
        wanted = holes(template)
        if wanted <= known.keys():
            return template.format(**known), tuple(known[name] for name in sorted(wanted))
    return UNKNOWN, ()


def holes(template: str) -> set[str]:
    """The names of a template's holes."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


VOICES = {"female": "slt", "male": "rms"}
"""The agent's voices, and flite's that speak them."""

VOICE_SENTENCES = [
    "Hello, and thank you for your call. I am happy to help you today.",
    "The quick brown fox jumps over the lazy dog, and then it runs back home.",
    "Please remember to bring your umbrella, because it may rain this evening.",
    "I enjoy walking along the river in the morning when everything is quiet.",
]
"""What a voice prompt says: the first is the packaged one."""
