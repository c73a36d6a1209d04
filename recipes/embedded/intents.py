"""What is said: users' questions and the agents' replies to them.

Users' phrasings are in three parts: `train`, `dev` (for tuning) and `test` (for the final figures alone).
Those of `train` have groups, "(can|could) I have {item}": hundreds of ways to put it, less what is held out.
"""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass
from functools import cache

from recipes.embedded.domain import DAYS, KINDS, Part, Role

UNKNOWN = "I am sorry, I do not know that."


@dataclass(frozen=True)
class Intent:
    """A kind of question: how users put it, and the reply to it.

    `replies` are tried in turn: the first whose facts are all known is said.
    Of a phrasing's group, "(can|could)", one part is said.
    """

    replies: tuple[str, ...]
    train: tuple[str, ...]
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def phrasing(self, part: Part, rng: random.Random) -> str:
        """One way in which users of a part put it; none of another part's."""
        lines = {"train": self.train, "dev": self.dev, "test": self.test}[part]
        while True:
            phrasing = GROUP.sub(lambda group: rng.choice(group[1].split("|")), rng.choice(lines))
            if part != "train" or alike(phrasing) not in held_out():
                return phrasing


GROUP = re.compile(r"\(([^()]*)\)")


def ways(text: str) -> tuple[str, ...]:
    """Phrasings, one a line."""
    return tuple(line.strip() for line in text.strip().splitlines())


def alike(phrasing: str) -> str:
    """The words alone: what sounds the same is the same."""
    return " ".join(re.findall(r"[a-z'{}]+", phrasing.lower().replace("'s", " is").replace("'d", " would")))


@cache
def held_out() -> frozenset[str]:
    """The phrasings of the parts that are not for training."""
    return frozenset(alike(one) for intent in INTENTS.values() for one in (*intent.dev, *intent.test))


INTENTS: dict[str, Intent] = {
    "hello": Intent(
        ("Hello, this is {name} from {business}. How can I help you?", "Hello, how can I help you?"),
        ways("""
            (hello|hi|hey)
            (hello|hi|hey) there
            (hello|hi), (hello|hi|hey)
            (hello|hi) again
            (|hello, |hi, |hey, )good (morning|afternoon|evening|day)
            good (morning|afternoon|evening|day) to you
            (hello|hi), is (anybody|somebody|anyone|someone) there
            hello, (can|do) you hear me
            (hello|hey), are you there
            (hello|hi), (I have a question|I have a few questions)
            (hello|hi), (I need some information|I am calling for some information)
            (hello|hi), (can|could) you help me
            hey, (hi|good morning|good evening)
            (hello|hi), hello there
            (yes|oh|ah), (hello|hi|hey)
            (hello|hi), anybody (home|there)
            hello, is this thing on
            (hello|hi), (my name is|this is|here is) (Peter|Anna|John|Mary|Susan|Tom)
            (hello|hi), (I am glad I reached you|I would like to ask something|may I ask you something)
        """),
        ways("""
            hey, hello
            hi, is anyone there
        """),
        ways("""
            hello, good afternoon
            hi, can you hear me
            hey there
        """),
    ),
    "name": Intent(
        ("My name is {name}.", UNKNOWN),
        ways("""
            (what is|what's|so what is|what was) your (name|first name)
            what is your name again
            who am I (speaking|talking) to
            who am I (speaking|talking) with
            with whom am I (speaking|talking)
            (can|will|would) you (tell|give) me your name
            (can|could|would) you (say|repeat) your name
            (can|could|would) you please tell me your name
            (can|could|would) you tell me who you are
            (may|can|could) I (ask|know|get) your name
            could I have your name
            (tell me|give me|say|I need|I would like to know) your name
            tell me who you are
            who (is this|are you|is speaking|is on the line|is that|is talking|is there)
            I (did not|didn't) (catch|get|hear|understand) your name
            what (are you called|should I call you|can I call you|do people call you)
            how do people call you
            and your name is
            who do I (speak|talk) to
            (can|would|will) you tell me who I am (speaking|talking) (to|with)
            (tell me|I would like to know|may I know|may I ask) who I am (speaking|talking) (to|with)
            (tell me|may I ask|may I know) who (is speaking|is talking|this is|that is)
            (can|could) you tell me what your name is
            (tell me|I would like to know|do you know) what your name is
            do you have a (first name|last name|nickname)
            (have you got|did you say|did you tell me) (a name|your name)
            what name (do you have|do you go by|should I write down)
            by what name (do you go|should I call you)
        """),
        ways("""
            do you have a name
            could you tell me who I am speaking to
        """),
        ways("""
            may I have your name
            could you tell me your name
            and what is your name
        """),
    ),
    "business": Intent(
        ("This is {business}, we are {kind}.", UNKNOWN),
        ways("""
            (what|which) (company|business|shop|store|firm) (is this|is that)
            (what|which) (company|business|shop|store|firm) (did I call|have I reached|is on the line)
            (what|which) (company|business|firm) do you (work for|represent)
            which (company|business|store|shop) am I calling
            (what|which) (company|business|store|shop) are you
            what is the name of (the|this) (company|business|store|shop|place)
            what is the name of your (company|business|store|place)
            (what|how) is (your|the) (company|business|shop|store) called
            who do you work for
            where do you work
            what kind of (business|company|store|place) is this
            what kind of (business|company|shop|store) (are you|is it|is that|do you have)
            what (do you|does your company|does your business) (do|sell|offer)
            what do you (do|sell) there
            what are you selling
            what is this place
            what is this place called
            where (am I calling|did I call)
            tell me about your (company|business|shop|store)
            what is this (company|business|shop|store)
            (can|could) you tell me the name of (your|the) (company|business|shop)
            is this (a|the) (bakery|hotel|garage|gym|hair salon|book store|coffee shop|flower shop)
            are you a (bakery|hotel|garage|gym|hair salon|book store|coffee shop|bike shop)
            (tell me|can you tell me|I would like to know) (who you work for|where you work)
            (tell me|can you tell me) what (company|kind of store|kind of business) this is
            (tell me|do you know|can you tell me) what this place is
            what is (the|your) (company|store|firm) called
            who am I calling
            what do you people do
        """),
        ways("""
            which company do you work for
            what kind of shop is this
        """),
        ways("""
            what business am I calling
            what is the name of your shop
            which place is this
        """),
    ),
    "hours": Intent(
        ("We are open from {opens} to {closes}.", UNKNOWN),
        ways("""
            (what time|when) do you (open|close)
            when do you (open|close) (today|tomorrow|in the morning|in the evening|on the weekend)
            what time do you (open|close) (tomorrow|in the morning|in the evening|on the weekend)
            what time do you open today
            (when|until when|how late|till when) are you open
            (when|how late|how long) are you open (today|tomorrow|tonight|on the weekend)
            (what are|tell me) (your|the) (opening hours|hours|opening times|business hours)
            (give me|I need|I would like to know) (your|the) (opening hours|hours)
            (give me|I need|I would like to know) (your|the) (opening times|business hours)
            (can|could) you tell me (your|the) (opening hours|hours|opening times|business hours)
            (can|could) you tell me when you (open|close)
            (can|could) you tell me (how long|how late) you are open
            are you (open|closed) (now|today|tonight|right now|tomorrow|on the weekend)
            are you (open|still open|already open|closed)
            is (the|your) (shop|store|office|business) (open|still open|open now|open today)
            (what time|when) does (the|your) (shop|store|office|business) (open|close)
            (what|until what) time are you open
            until what time are you open
            what time are you open until
            from when to when are you open
            how (early|late) do you (open|close)
            what time do you (start|finish) work
            when is (the|your) (shop|store|office) open
            (tell me|I would like to know|do you know|please say) when you (open|close)
            (tell me|I would like to know|do you know) how (long|late) you are open
            (do you|does your shop) (open|close) (early|late|at noon|on the weekend)
            are you open (late|early|at night|in the evening|every day)
            what hours (are you open|do you have|do you keep|do you work)
            (do you have|do you know) (the|your) (hours|opening times|business hours)
            what about (your|the) (hours|opening hours)
            until when (can I come|is somebody there|is the shop open)
        """),
        ways("""
            do you know your opening hours
            what time do you close today
        """),
        ways("""
            at what time do you open
            how long are you open
            could you tell me when you are open
        """),
    ),
    "address": Intent(
        ("Our address is {address}.", UNKNOWN),
        ways("""
            where are you
            where are you located
            where exactly are you located
            where is (your|the) (shop|store|office|business|company|place)
            (what is|what's) (your|the) (address|location|exact address)
            (can|would|will) you give me (your|the) (address|location)
            (can|could) you tell me (your|the) (location|exact address)
            (can|could) you tell me where you are
            (can|could) you tell me where (the|your) (shop|store|office) is
            (how|where) do I find (you|your shop|your store|the shop|the store)
            how do I (get|come) (there|to you|to the shop|to your office)
            how can I (find you|get there|get to you|come to you)
            (what|which) street (is your shop on|is the shop on|is the store on|are you in|do I go to)
            what street are you on
            which street is (it|that|it on|that on)
            (tell|give) me (your|the) (address|location)
            (I need|I want|I would like to know|I am looking for) (your|the) (address|location)
            where (can I find you|do I have to go|do I need to go|should I go|do I go)
            I do not know where you are
            where is it
            where is that
            (tell me|I would like to know|do you know) where (you are|it is|your shop is|the store is)
            (I cannot|I can't) find (you|your shop|your store|the shop)
            (what|which) (street|road|avenue) is (your|the) (shop|store|office|business) on
            (in|on) (what|which) (street|road) (are you|is it|is your shop)
            where (would|will|do|could) I find (you|your shop|the store)
            do you (have|know) (an|the|your) address
            (do you have|please say|please repeat) (the|your) address
            what (street|road|place) do I (drive to|come to|look for)
            which (building|house|house number) is it
        """),
        ways("""
            can you tell me the address
            which street are you on
        """),
        ways("""
            could you give me your address
            where exactly are you
            what street is it on
        """),
    ),
    "price": Intent(
        ("{Item} costs {price} dollars.", UNKNOWN),
        ways("""
            how much (is|would be) {item}
            how much (is it|is that|is this|would it be|will it be|would that be|will that be)
            how much does (it|that|this|{item}) cost
            how much (would|will) (it|that|{item}) cost
            how much do you (charge|want|ask) for {item}
            how much do I (pay|have to pay|need to pay)
            how much do I (pay|have to pay|need to pay) for {item}
            how much money is (it|that|{item})
            what does (it|that|{item}) cost
            what will (it|that|{item}) cost
            (what is|what's) the price
            (what is|tell me|give me) the price (of|for) {item}
            (can|could) you tell me the price
            (can|could) you tell me the price (of|for) {item}
            (can|could) you tell me (what it costs|what {item} costs|how much {item} is)
            what do you charge
            what do you charge for (that|{item})
            what are your (prices|rates)
            how expensive is (it|that)
            is (it|that|{item}) expensive
            I (want|would like) to know (the price|what it costs)
            I (want|would like) to know (how much it is|how much {item} is|what {item} costs)
            what do I pay for {item}
            what is your price for {item}
            (tell me|I would like to know|do you know) (how much it is|what it costs|the price)
            (tell me|do you know) how much that is
            (tell me|I would like to know|do you know) (the price of|the cost of) {item}
            how much for {item}
            {item}, how much (is it|is that|would that be)
            and how much (is {item}|for that|will I pay)
            how much should I (pay|bring|expect)
            what (would|will|does) {item} cost me
            what does (it|that) come to
            what is the (charge|fee|price|cost)
            (how high|how big) is the price
        """),
        ways("""
            what would it cost
            what's the price for {item}
        """),
        ways("""
            how expensive is {item}
            what is the cost of {item}
            could you tell me how much it is
        """),
    ),
    "order": Intent(
        ("Sure, {item} for {price} dollars. Anything else?", UNKNOWN),
        ways("""
            (I'd like|I want|I need|I will take|I'll take|I am looking for|I came for) {item}
            (let me have|let me get|give me|get me) {item}
            I'd like to (order|buy|have|get) {item}
            I would like to (order|buy|have|get|take) {item}
            I (want|need|wish) to (buy|have|get|take) {item}
            I need to order {item}
            (can|could|may) I have {item}
            (can|may) I get {item}
            (can|could|may) I (buy|take) {item}
            could I order {item}
            (can|could|would) you (give|get|bring|sell) me {item}
            I (want|would like|need|'d like) to order something
            I (want|would like|need) to (place an order|make an order|buy something)
            (can|could|may) I (order something|place an order|buy something)
            (do you have|do you sell|have you got) {item}
            {item} for me
            I was thinking of {item}
            I (think I will|would love to|am going to) (take|have|get) {item}
            I (will have|will get|would love|could use|am here for) {item}
            we (need|want|would like|will take) {item}
            {item} for (today|tomorrow|two|my wife|my husband)
            (can|could) you (make|prepare|get me|reserve) {item}
            (is it possible to|can we|could we) (get|have|buy) {item}
            (put|write) me down for {item}
            (could I take|could I have|could we have) {item}
        """),
        ways("""
            I would like {item}
            may I order {item}
        """),
        ways("""
            I want to order {item}
            could I get {item}
            can I order {item}
        """),
    ),
    "appointment": Intent(
        ("Sure, which day would you like?",),
        ways("""
            I (want|need) to make an appointment
            I (want|need|would like|'d like) to (get|schedule|have|arrange|set up) an appointment
            I (need|would like) to (make|book) an appointment
            I (want|need|would like|'d like) to (make|book|get|have) a reservation
            I (want|need|would like|'d like) to make a booking
            can I (make|book|get|schedule|arrange) an appointment
            (could|may) I (make|get|schedule|have|arrange) an appointment
            (can|may) I (make|book|get|have) a reservation
            I (need|want|would like) (an appointment|a reservation)
            do you have any (free appointments|appointments|free time|openings|free slots)
            do you have (free appointments|time for me|an appointment for me)
            do you have any (appointments|time|openings) (this week|next week)
            (can|could|may) I come (in|by|over)
            (can|could|may) I come by (some time|some day|this week|next week)
            (I'd like|I want|I would like) to (come in|come by|visit you)
            is it possible to (make|book|get) an appointment
            what day can I (come|come in|have an appointment)
            (can|could) you (book me in|make me an appointment|give me an appointment)
            are there any (free appointments|free slots)
            how do I (make|book) an appointment
            (can|could|may) I book (a visit|a time|a slot|a reservation|something)
            (can|could|may) we (make|book|have|get) (an appointment|a reservation)
            (I would like|I want|I need) to book (a visit|a time|a slot|a reservation)
            (I would like|I want|I need|I wish) to (see|meet) (you|somebody|someone)
            (when|on which day) (can|could|may) I (come|come in|come by|visit you)
            is there (a free slot|any free time|an opening|a time) (for me|this week|next week)
            do I need an appointment
            (please|would you) (make|book) (me an appointment|an appointment for me)
        """),
        ways("""
            could I book an appointment
            I want to book an appointment
        """),
        ways("""
            could I make a reservation
            can I have an appointment
            I'd like to make an appointment
        """),
    ),
    "day": Intent(
        ("All right, I have booked you for {day}.",),
        ways("""
            {day}
            (on|for|next|this|maybe|maybe on|perhaps on) {day}
            (let us say|say|I think|make it|then|I say|how about) {day}
            (how about|maybe|let us say) next {day}
            {day} (is good|is fine|is okay|is best|would be fine)
            {day} (would be best|works|works for me|works well|sounds good)
            (on|for) {day} then
            can I (come|come in|come by|visit you|come over) (on|next|this) {day}
            could I (come in|come by|visit you) (on|next) {day}
            (can|could|may) I (make|book|get|have) an appointment (for|on|next) {day}
            I would like to (come|come in|come by) (on|next) {day}
            I want to (come|come in|book|make an appointment) (on|for) {day}
            I (need|want) an appointment (on|for|next) {day}
            I would like an appointment (for|next) {day}
            do you have (time|anything|something free|an appointment|a free slot) (on|for|next) {day}
            (put me down|book me|book me in) for {day}
            (I am|are you) free on {day}
            is {day} (okay|free|fine|all right)
            I can come on {day}
            I have time on {day}
            (what about|and what about|and) (next|this|on) {day}
            (how about|and how about) (this|on) {day}
            I (would|will) (come|take|prefer|like|choose) {day}
            (on|this|next) {day} (is good|would be fine|if possible|would be best)
            {day} (if possible|then|I think|maybe|would be great|would be perfect)
            (book|make|take) {day}
        """),
        ways("""
            could I come on {day}
            what about {day}
        """),
        ways("""
            {day} would be good
            I'd like an appointment on {day}
            is {day} possible
        """),
    ),
    "payment": Intent(
        ("You can pay with cash or by card.",),
        ways("""
            (can|could|may) I pay (by card|by credit card|with a card)
            (can|could|may) I pay (with a credit card|with my credit card|in cash|cash)
            could I pay with (cash|my card)
            do you (take|accept) (cash|checks|my card|a credit card)
            do you accept (cards|debit cards)
            do you take (credit cards|debit cards)
            how can I pay
            how do I pay
            how (can|do|could) I pay (you|for it|for that|for this)
            do I (have to|need to) pay (cash|in cash|by card|right away)
            (can|could|may) I use (my credit card|my card|a credit card|a card)
            which (cards|credit cards) do you (take|accept)
            is it cash only
            do you only take cash
            do you want (cash|a card)
            what (cards|credit cards) do you (take|accept)
            is (a card|a credit card|cash) (okay|all right|fine|possible)
            what are the ways to pay
            can I pay (later|online|when I come)
            is it (okay|possible|all right) to pay (by card|in cash|with a card|cash)
            (I would like|I want|I prefer) to pay (by card|in cash|with a card|cash)
            I (only have|have only) (cash|a card|a credit card)
            I (have|carry) no cash
            (what about|how does) (payment|paying) (work|go|by card)
            (how|where) (do people|would I|should we|do we) pay
            (do you need|do you want|do I need) (cash|a card|a credit card)
            do you (take|like) (checks|credit|money|coins)
            (tell me|can you tell me|do you know) how (I can|to|I should) pay
        """),
        ways("""
            do you take cards
            can I pay with cash
        """),
        ways("""
            do you accept credit cards
            how should I pay
            can I pay with my card
        """),
    ),
    "how": Intent(
        ("I am doing great, thank you for asking.",),
        ways("""
            how are you
            how are you (doing|today|doing today|this morning|this evening|tonight|keeping)
            how is it going
            how is it going (today|with you)
            how (do you feel|do you feel today|have you been|have you been doing)
            are you (well|okay|fine|all right)
            are you (feeling well|feeling good|feeling okay)
            are you (well|okay|fine) today
            how is your (morning|evening|life)
            how is your day (going|so far)
            how is your day
            is everything (fine|okay|all right|good)
            is everything (fine|okay|all right) with you
            how is (everything|life)
            how was your (day|morning|weekend)
            are you having a (good|nice) day
            did you have a (good|nice) day
            (and how|so how|how) are you (feeling today|doing there|these days|getting on)
            how do you (feel|feel right now|feel this morning)
            how are (you all|you guys|you people|you folks)
            (are you|I hope you are) (doing okay|doing fine|doing good)
            how (goes it|have things been|has your day been|has your morning been)
            what's (up|new|going on)
            nice to (meet|hear) you, how are you
        """),
        ways("""
            how are things
            how do you do
        """),
        ways("""
            how are you feeling
            are you doing well
            how is your day today
        """),
    ),
    "human": Intent(
        ("I am a computer that answers the phone.",),
        ways("""
            are you a (robot|machine|computer|person|real person|human being|program|real human|bot)
            are you (human|a man or a machine|some kind of machine|some kind of robot)
            am I (talking|speaking) to a (computer|robot|person|human|human being|program)
            am I speaking to a machine
            am I talking to a real (person|human)
            am I (talking|speaking) with a (machine|robot|computer|person|human)
            is this a (machine|robot|real person|recording|program|human|person|bot)
            is (that|there) a (real person|person|human) (there|speaking|on the line)
            are you (really|actually) (human|a person|a robot)
            you sound like a (robot|machine|computer)
            do I (talk|speak) to a (robot|machine|computer|person)
            can I (talk|speak) to a (human|person|real person)
            are you (alive|artificial|automatic|for real|some program|a living person)
            are you a (real|living|true) (man|woman|voice)
            (is this|is that) (a tape|automated|an automatic system|a living person|a human being)
            (tell me|can you tell me) (if you are human|if you are a robot|if you are a machine)
            is your voice (real|artificial|human)
            are you made of (metal|flesh and blood)
            do you have a (brain|heart|body)
        """),
        ways("""
            are you real
            is this a computer
        """),
        ways("""
            are you a human
            am I talking to a machine
            am I speaking to a real person
        """),
    ),
    "no": Intent(
        ("All right. Have a nice day.",),
        ways("""
            no
            no, thank you
            no thanks
            no, (that is all|that is it|that would be all)
            no, (that will be all|that's everything|that is everything)
            (that is all|that's all|that would be all|that will be all|that was all|that was everything)
            that's everything
            (|no, )nothing else
            nothing (more|at all)
            no, (I am fine|I am good|I am all set|I am done)
            no, (I have everything|not today|not right now|not at the moment)
            no, (that's all I need|that is all I need|that is all for today|that is all for now)
            (that is|that's) all (I need|I wanted|for today|for now)
            I (do not|don't) need anything (else|more)
            (I am good|I am fine|I have everything)
            no more questions
            I have no more questions
            not really, no
            nothing (today|for now|right now|for me|really)
            nothing (else|more|today|for now|for me), thanks
            no, (nothing|nothing today|nothing at all|nothing for me)
            nothing, thanks
            (I think|I guess) (that is|that's) (all|it|everything)
            no, I think (that is all|that's all|that's it|I am good)
            (I have|we have) (all I need|everything|what we need)
            (that's it|that is it) (for today|for now|for me|from me)
            I (do not have|don't have|have no) (any|other|more) questions
            (we are|I am) (done|all set|finished)
        """),
        ways("""
            no, that's all
            nothing, thank you
        """),
        ways("""
            no, nothing more
            that is everything
            no, that's it
        """),
    ),
    "thanks": Intent(
        ("You are welcome.",),
        ways("""
            thank you
            thanks
            thank you (very much|so much|a lot)
            thanks (a lot|very much|so much)
            many thanks
            great, (thank you|thank you very much|thanks a lot)
            (perfect|good|all right|fine), (thanks|thanks a lot|thank you very much)
            (good|all right|fine|super|excellent), thank you
            wonderful, (thank you|thank you so much)
            okay, (thank you|thanks|thank you very much)
            that helps, (thank you|thanks)
            (thank you|thanks) for (your help|the help|the information|telling me|that)
            thank you, that (is great|is very kind|was helpful|is good to know)
            (that is|that's) (very kind|very nice|great|wonderful|perfect), (thank you|thanks)
            I (thank you|appreciate it|appreciate your help)
            (that was very helpful|you have been very helpful)
            thank you, that (helped|helps me|helps a lot|is helpful|was all I wanted to know)
            thanks, that (helps|helped|helps me|is nice|is helpful)
            thank you, (you helped me|you are very kind|good to know|great help)
            (oh|ah|well|very good|very nice|lovely|nice|cool), (thanks|thank you)
            (you are|that is|that's) (so|very|really) (kind|helpful|nice) (|of you)
            I am (grateful|very grateful|thankful)
            (great|super|excellent), (thank you so much|that helps)
        """),
        ways("""
            great, thanks
            thank you, that helps
        """),
        ways("""
            perfect, thank you
            okay, thanks a lot
            wonderful, thanks
        """),
    ),
    "bye": Intent(
        ("Thank you for calling {business}. Goodbye.", "Goodbye."),
        ways("""
            (goodbye|bye|bye bye|good night)
            (okay|all right|well then), (bye|goodbye)
            all right, bye bye
            see you
            see you (later|soon|tomorrow|then|around)
            okay, see you (soon|then|tomorrow)
            see you (later|soon|then), bye
            have a (nice|good|great) (day|evening), bye
            have a (nice|great) (day|evening), goodbye
            (goodbye|bye bye) and have a (nice|good|great) (day|evening|weekend)
            I have to go
            I have to (go now|go, bye|go, goodbye|hang up now|leave now)
            I (must|need to) (go|go now|leave)
            (talk|speak) to you (later|soon)
            until (later|next time|then)
            take care
            take care, (bye|goodbye)
            (goodbye|bye) (then|for now)
            bye, (take care|see you|see you soon|until next time)
            (bye|goodbye|bye bye), (have a good day|have a great day|have a good one|have a nice evening)
            (thank you|thanks), (bye|goodbye|bye bye)
            (bye|goodbye), (thank you|thanks|and thank you)
            have a (nice|good|great) (day|evening|weekend|one)
            (okay|well|all right), (I have to go|I must go|see you|take care)
            I will (call again|call back|hang up now|call you later)
            (okay|all right), (talk to you soon|until then|have a good evening)
        """),
        ways("""
            okay, see you later
            bye, have a nice day
        """),
        ways("""
            have a good day, goodbye
            okay, bye bye
            see you soon
        """),
    ),
    "unknown": Intent(
        (UNKNOWN,),
        ways("""
            what is the weather (like|like today|like tomorrow|tomorrow|in London)
            (is it|will it be) (raining|snowing|sunny) (today|tomorrow|tonight|on the weekend)
            (is it|will it be) (cold|warm|windy|foggy) (today|tomorrow|tonight|on the weekend)
            will it (snow|be warm|be cold) (today|tomorrow|tonight)
            (is|was) there (snow|a storm|any rain) (outside|yesterday|today)
            who (won the game|won the race|won the election|was on television) last night
            who (is the president|is the king|is the mayor|is your boss|is your best singer|is your mother)
            who (wrote this book|painted this picture)
            who (invented the telephone|built this house|sings this song)
            (tell me|do you know|can you tell me) (a story|a poem|a secret)
            (tell me|do you know|can you tell me) (a fairy tale|something funny|something about history)
            tell me a joke
            do you know any (stories|songs|poems|famous people|good movies|games)
            what is the capital of (France|Italy|Germany|Japan|China|Brazil)
            what is the capital of (Canada|Russia|Egypt|India|Mexico|Poland)
            where is (France|Italy|China|Brazil|Canada|Egypt|India|Mexico|New York|London)
            how (old|tall|strong|fast|rich|smart) are you
            how (old|tall|rich) is (the president|the king|your boss|your brother|this tree)
            how (far|big|old|hot|cold|deep) is (the moon|the sun|the ocean|the earth|this lake|Mars)
            how (high|far|long) is (the bridge|the tower|the road|the river)
            do you like (music|cats|chocolate|football|sports|movies|summer)
            do you like (winter|dancing|cheese|horses|spiders|fish|birds)
            do you (eat meat|drink wine|play the piano|live here)
            do you (read books|believe in ghosts|dream at night|sleep|smoke)
            do you have (a dog|a cat|children|a brother|a sister|a car|a girlfriend|any pets|a hobby)
            do you speak (Spanish|German|French|Chinese|any other language|Latin)
            can you (sing|dance|swim|fly|drive)
            can you (play chess|play the guitar|count to a hundred|keep a secret|sing a song)
            can you (play some music|lend me some money|call my mother)
            can you (turn on the light|read me a book|write a letter)
            can you help me with my (homework|garden|taxes|computer game|dog|bags)
            when (is the next train|is the next flight|is the next ship|is my birthday)
            when (is Christmas|is Easter|is the concert|is the movie)
            when (was the war|was the moon landing|did Rome fall)
            when (does the movie start|does the sun rise|does the school start)
            when does the (train|bus|plane) (leave|arrive)
            is there a (bus|train|taxi|flight) to (the airport|the city|the beach|the museum)
            how do I (cook|boil|make|fry|prepare) (rice|pasta|soup|potatoes|fish|tea|a steak|spaghetti)
            how do I (learn French|lose weight|get rich|build a house|sleep better|tie a tie|catch a fish)
            what is (two plus two|ten minus three|five times six|eight plus nine|half of ninety)
            what is (the meaning of life|love|the fastest animal)
            what is (the longest river|the time in London|the largest ocean|the news)
            what is your favorite (color|food|movie|animal|song|season|book|sport|team)
            where (is the nearest hospital|can I buy a car|is the train station)
            where (is my brother|is the museum|is the post office)
            where (is the airport|did you grow up|were you born)
            where (can I swim|is the moon|are my keys|do elephants live)
            are you (married|hungry|tired|happy|famous|rich|from Germany|in love|afraid|bored|a doctor|old)
            did you (see|watch|like) (the game|the news|the movie|the match|the show)
            what did you (do|eat|dream|see|watch) (yesterday|last night|this morning|last summer)
            why (is the sky blue|is the grass green|do birds sing)
            why (do we sleep|is the sea salty|do cats sleep so much|is water wet)
            what should I (eat tonight|wear today|cook|read|watch|do tonight|do with my life|give my wife)
            which (team|animal|song|movie|planet|country) (do you like|is the best)
            which (team|animal|song|movie|planet|country) (is the biggest|is the oldest)
            how many (people live here|stars are there|languages do you speak)
            how many (days are in a year|legs does a spider have|countries are there)
            I (lost my keys|feel sick|am bored|am hungry)
            I (love you|cannot sleep|missed my train|broke my leg|am getting married)
            my (dog is sick|car is gone|computer is slow|brother is late|house is on fire|mother says hello)
            can I (marry you|sing you a song|tell you a secret|park here|swim here|smoke here)
            how is the (traffic|food|water|sea|snow|garden|concert|beach|temperature)
            how (was|is) the (game|movie|flight|party|wedding)
            how (warm|cold|hot) is it (outside|today|in Paris)
            what is the (biggest|tallest|oldest|richest) (tree|house|man|animal|country|town|lake)
            what is the (largest|highest|smallest|oldest) (mountain|animal|country|church|town)
            how (tall|high|old|heavy) is the (tower|building|elephant|church|castle)
            do you like (apples|rain|flowers|children|mice|poetry|opera)
            do you (know|like|hate) (my sister|my uncle|my neighbor)
            (what|which) (movie|book|song) (should I see|is new|can you recommend)
            have you (ever seen the ocean|been to Paris|met my wife|seen my cat)
            could you (fix my roof|drive me home|water my plants|feed my cat)
        """),
        ways("""
            how is the weather
            how tall is the mountain
            do you like dogs
            what is the biggest city
        """),
        ways("""
            will it rain today
            what is the capital of Spain
            do you know a joke
            who is your friend
            when is the next bus
            how do I cook an egg
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
    phrase = INTENTS[intent].phrasing(part, rng)
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
