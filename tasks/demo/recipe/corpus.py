"""Three regimes of synthetic dialogue: code (predictable), math (in the middle), chat (free-form).

Everything comes from the small grammars below; no text is copied. They differ in how well a drafter can foresee the
answer, which is what makes the best `num_speculative_tokens` differ between the demo's workloads.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

IM_START, IM_END, END_OF_TEXT, PAD, MASK = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>", "<|mask|>"

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


class Turn(NamedTuple):
    user: str
    assistant: str


FIELDS = _words(
    "price count name size total owner label weight width height depth color title speed level score index status "
    "amount rate limit offset region code email phone street city year month day hour minute budget target source "
    "volume area length value key stock tax cost"
)
CLASSES = _words(
    "Order Item Box Car Book User Player Team Task Job Shop Room House Tree Ship Plane Train Ticket Event Account "
    "Sensor Device Robot Garden Recipe Album Song Movie Letter Parcel"
)


class Aggregate(NamedTuple):
    name: str
    start: str
    step: str
    """Body of the loop, with `{o}` the object and `{f}` the field."""
    result: str


AGGREGATES = (
    Aggregate("sum", "total = 0", "total += {o}.{f}", "total"),
    Aggregate("count", "total = 0", "total += 1 if {o}.{f} else 0", "total"),
    Aggregate("max", "best = None", "best = {o}.{f} if best is None else max(best, {o}.{f})", "best"),
    Aggregate("min", "best = None", "best = {o}.{f} if best is None else min(best, {o}.{f})", "best"),
    Aggregate("list", "result = []", "result.append({o}.{f})", "result"),
)
COMPARISONS = (("above", ">"), ("below", "<"), ("equal_to", "=="))


def code_class(rng: random.Random) -> Turn:
    """A class with getters and setters: nearly every token follows from the question."""
    name, fields = rng.choice(CLASSES), rng.sample(FIELDS, rng.randint(3, 5))
    lines = [f"class {name}:", f"    def __init__(self, {', '.join(fields)}):"]
    lines += [f"        self.{field} = {field}" for field in fields]
    for field in fields:
        lines += ["", f"    def get_{field}(self):", f"        return self.{field}"]
        lines += ["", f"    def set_{field}(self, value):", f"        self.{field} = value", "        return self"]
    lines += ["", "    def to_dict(self):", "        return {"]
    lines += [f'            "{field}": self.{field},' for field in fields]
    lines += ["        }"]
    return Turn(f"Write a Python class {name} with the fields {', '.join(fields)}.", "\n".join(lines))


def code_functions(rng: random.Random) -> Turn:
    one = rng.choice(CLASSES).lower()
    many = one + "s"
    fields = rng.sample(FIELDS, rng.randint(2, 3))
    aggregates = rng.sample(AGGREGATES, 2)
    lines = []
    for field in fields:
        for aggregate in aggregates:
            lines += [
                f"def {aggregate.name}_{field}({many}):",
                f'    """Return the {aggregate.name} of {field} over all {many}."""',
                f"    {aggregate.start}",
                f"    for {one} in {many}:",
                "        " + aggregate.step.format(o=one, f=field),
                f"    return {aggregate.result}",
                "",
            ]
    wanted = f"the {aggregates[0].name} and the {aggregates[1].name} of {' and '.join(fields)}"
    return Turn(f"Write Python functions for {many}: {wanted}.", "\n".join(lines).rstrip())


def code_filters(rng: random.Random) -> Turn:
    one = rng.choice(CLASSES).lower()
    many = one + "s"
    fields = rng.sample(FIELDS, rng.randint(3, 4))
    word, operator = rng.choice(COMPARISONS)
    spoken = word.replace("_", " ")
    lines = []
    for field in fields:
        lines += [
            f"def filter_{field}_{word}({many}, limit):",
            f'    """Keep the {many} with {field} {spoken} the limit."""',
            "    result = []",
            f"    for {one} in {many}:",
            f"        if {one}.{field} {operator} limit:",
            f"            result.append({one})",
            "    return result",
            "",
        ]
    user = f"Write Python filters that keep the {many} with {', '.join(fields)} {spoken} a limit."
    return Turn(user, "\n".join(lines).rstrip())


def code(rng: random.Random) -> Turn:
    return rng.choice((code_class, code_functions, code_filters))(rng)


PEOPLE = _words("Tom Ana Ben Eva Max Lia Sam Ida Leo Mia Kim Joe Zoe Dan Amy Ned Pia Tim Ula Rob")
THINGS = _words(
    "apples pens books coins cards balls eggs shells stamps cups plums beads nails bricks stickers marbles cookies "
    "pencils candles buttons"
)
PACKS = _words("bags boxes packs jars trays baskets")


class Step(NamedTuple):
    """One event of a word problem: how it is told, how it is worked out, and the amount after it."""

    told: str
    solved: str
    amount: int


def _buys(rng: random.Random, who: str, what: str, amount: int) -> Step:
    packs, each, pack = rng.randint(2, 9), rng.randint(2, 9), rng.choice(PACKS)
    bought = packs * each
    told = f"{who} buys {packs} {pack} with {each} {what} each."
    product = f"{packs} {pack} with {each} {what} each make {packs} * {each} = {bought} {what}"
    return Step(told, f"{product}, so {amount} + {bought} = {amount + bought} {what}.", amount + bought)


def _gives(rng: random.Random, who: str, what: str, amount: int) -> Step:
    given, other = rng.randint(1, max(1, amount - 1)), rng.choice(PEOPLE)
    left = amount - given
    solved = f"After giving {given} {what} to {other}, {who} has {amount} - {given} = {left} {what}."
    return Step(f"{who} gives {given} {what} to {other}.", solved, left)


def _finds(rng: random.Random, who: str, what: str, amount: int) -> Step:
    found = rng.randint(2, 40)
    solved = f"Finding {found} more gives {amount} + {found} = {amount + found} {what}."
    return Step(f"{who} finds {found} more {what}.", solved, amount + found)


def _loses(rng: random.Random, who: str, what: str, amount: int) -> Step:
    lost = rng.randint(1, max(1, amount // 2))
    solved = f"Losing {lost} leaves {amount} - {lost} = {amount - lost} {what}."
    return Step(f"{who} loses {lost} {what}.", solved, amount - lost)


EVENTS = (_buys, _gives, _finds, _loses)


def math_problem(rng: random.Random) -> Turn:
    """A word problem: the wording can be foreseen, the numbers have to be worked out."""
    who, what, amount = rng.choice(PEOPLE), rng.choice(THINGS), rng.randint(5, 60)
    question, answer = [f"{who} has {amount} {what}."], [f"{who} starts with {amount} {what}."]
    for _ in range(rng.randint(3, 5)):
        step = EVENTS[rng.randint(0, len(EVENTS) - 1)](rng, who, what, amount)
        question.append(step.told)
        answer.append(step.solved)
        amount = step.amount
    question.append(f"How many {what} does {who} have now?")
    answer.append(f"The answer is {amount}.")
    return Turn(" ".join(question), " ".join(answer))


NOUNS = _words(
    "garden river window morning coffee music friend neighbour dog cat kitchen street mountain story summer winter "
    "weekend movie project office teacher sister brother bicycle train market bread soup painting letter dream holiday "
    "concert lake forest bridge shop boat rain storm song recipe puzzle camera blanket chair lamp phone ticket island "
    "village museum library guitar piano candle jacket umbrella"
)
ADJECTIVES = _words(
    "quiet bright strange lovely tiny huge old fresh warm cold noisy gentle funny honest clever lazy busy simple "
    "pretty odd brave calm dusty golden hidden lucky modern narrow plain rare shiny slow soft sweet tired wild young "
    "empty friendly"
)
VERBS = _words(
    "visited painted forgot found missed loved fixed borrowed noticed cleaned carried described dropped enjoyed "
    "followed hid ignored kept lost mentioned ordered planned remembered shared sold tasted watched wrapped admired "
    "chased"
)
ADVERBS = _words(
    "really quietly suddenly slowly maybe honestly probably always never often almost finally barely simply"
)
PERSONS = _phrases(
    "my sister|my neighbour|an old friend|the teacher|my uncle|somebody at work|the man next door|a girl I know|"
    "my cousin|our landlord|the baker|one of the kids"
)
TIMES = _phrases(
    "yesterday|last week|this morning|on Sunday|a while ago|the other day|in the spring|late at night|after lunch|"
    "before the storm|every evening|once"
)
OPENINGS = _phrases(
    "Well,|Oh,|Hmm,|Honestly,|To be fair,|You know,|Funny you ask,|Ah,|Sure,|Right,|Good question,|Look,"
)
TAGS = _phrases(
    "I guess.|you know?|if you ask me.|at least for now.|and that was it.|believe it or not.|which is fine.|"
    "more or less.|so who knows.|and I laughed.|as usual.|don't you think?"
)

# {n} noun, {a} adjective, {v} verb, {d} adverb, {w} person, {t} time, {g} tag; capital W and T: at a sentence's start.
QUESTIONS = (
    "How was the {n} {t}?",
    "What do you think about the {a} {n}?",
    "Tell me about your {n}.",
    "Did {w} like the {n}?",
    "Any plans with the {a} {n}?",
    "I {v} a {a} {n} {t}. And you?",
)
SENTENCES = (
    "I {d} {v} the {a} {n} {t}, {g}",
    "{W} {v} a {a} {n} and then {v} the {n}.",
    "The {n} was {a} but the {n} felt {a}, {g}",
    "What about the {a} {n}, do you {d} like it?",
    "There is a {a} {n} near the {n}, and it looks {a} {t}.",
    "{T} {w} {d} {v} my {n}, {g}",
    "I keep thinking of that {a}, {a} {n}.",
    "Some people say a {n} should be {a}, others prefer a {a} {n}.",
    "We {v} the {n} {t} and {d} {v} the {a} {n}.",
    "Not every {n} is {a}, {g}",
    "My {n} is {a}, {a} and {d} {a}.",
    "{W} told {w} about the {n}, {g}",
)


class _Bag:
    """Draws without repeats, so that the target learns not to repeat itself in chat."""

    def __init__(self, rng: random.Random, items: Sequence[str]) -> None:
        self._rng, self._items, self._left = rng, items, list[str]()

    def draw(self) -> str:
        if not self._left:
            self._left = self._rng.sample(self._items, len(self._items))
        return self._left.pop()


class _Words:
    """Fills templates, with one bag per kind of word."""

    def __init__(self, rng: random.Random) -> None:
        kinds = {"n": NOUNS, "a": ADJECTIVES, "v": VERBS, "d": ADVERBS, "w": PERSONS, "t": TIMES, "g": TAGS}
        self._bags = {kind: _Bag(rng, items) for kind, items in kinds.items()}

    def fill(self, template: str) -> str:
        return re.sub(r"\{(\w)\}", self._draw, template)

    def _draw(self, blank: re.Match[str]) -> str:
        kind = blank.group(1)
        word = self._bags[kind.lower()].draw()
        return word.capitalize() if kind.isupper() else word


def chat(rng: random.Random) -> Turn:
    """Small talk: hardly any word can be foreseen."""
    words = _Words(rng)
    user = rng.choice([words.fill(question) for question in QUESTIONS])
    sentences = [words.fill(SENTENCES[i]) for i in rng.sample(range(len(SENTENCES)), rng.randint(9, len(SENTENCES)))]
    return Turn(user, rng.choice(OPENINGS) + " " + " ".join(sentences))


REGIMES: Mapping[str, Callable[[random.Random], Turn]] = MappingProxyType(
    {"code": code, "math": math_problem, "chat": chat}
)


def format_prompt(user: str) -> str:
    """The text up to where the assistant starts: what `CHAT_TEMPLATE` gives for one user message."""
    return f"{IM_START}user\n{user}{IM_END}\n{IM_START}assistant\n"


def format_turn(turn: Turn) -> str:
    return f"{format_prompt(turn.user)}{turn.assistant}{IM_END}\n"
