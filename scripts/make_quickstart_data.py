#!/usr/bin/env python3
"""Write the quickstart's data set, vocabulary and model configuration.

    scripts/make_quickstart_data.py [FOLDER]     (default: datasets/quickstart)

The rows have BoolQ's format. They come in fours, from a scene with two passages and two
questions, each question with "yes" under one passage and "no" under the other:

                            Alma keeps a goat. Orla keeps a duck.   Alma keeps a duck. Orla ...
    does alma keep a goat                   true                            false
    does alma keep a duck                   false                           true

So neither a question nor a passage says anything about the answer alone. In validation both
passages of a scene hold the same words, so that which words occur says nothing either: who has
what must be read. The training split also holds easier scenes ("lessons"), whose passages differ
in more than the order of their words; a network that starts from random weights climbs over them.

No person of validation occurs in training; where a question names no person, its facts are split
instead. Standard library only, no network, and its own random numbers, so that every Python
writes the same bytes. scripts/check_quickstart_data.py asserts all of this.
"""

import json
import os
import sys

SEED = 20240611
TRAIN_SCENES = 6000
VALIDATION_SCENES = 250

# What a scene teaches: how many of a hundred, in training and in validation. The functions are
# below, in this order.
LESSONS = ["other", "both", "value", "subject", "cross", "order", "swap"]
TRAIN_SHARES = [12, 16, 10, 10, 14, 20, 18]
VALIDATION_SHARES = [0, 0, 0, 0, 15, 15, 70]
# Per hundred: names that are spelled freely, swaps with a third fact, swaps with a sentence that
# says nothing, scenes with a mark of their own (questions with "?", passages without full stop).
FREE_NAMES, THIRD_FACTS, FILLED, MARKED = 10, 0, 0, 5

# ----------------------------------------------------------------------------------------------
# Words
# ----------------------------------------------------------------------------------------------

# People are called by a beginning and an end ("al" "ma", "or" "la"), both pieces of the
# vocabulary: a name that was never seen still consists of pieces that were.
NAME_STARTS = """
al an ar el em er ol or ba be bo bri ca cla da de di do fa fe fi fra ga ge gi gra ha he ho hu ja je
jo ju ka ke ki la le li lo lu ma me mi mo na ne ni no pa pe po ra re ri ro ru sa se si so su ta te
ti to va ve vi wen wi ya zo
""".split()
NAME_ENDS = "la na ra ma da ia lia mon ric ron ton vin len lo nor bert rie sa ta co".split()

# Other first names have more pieces, down to letters, as a name typed by a user may.
FIRST_NAMES = """
adam agnes albert alex alice amy andrew anita anna arthur audrey barbara ben bernard beth betty
bill bob boris brad brenda brian bruno carl carlos carol charles chloe chris claire clara colin
conrad cora craig daisy dan daniel david dean deborah denis derek diana diego donald doris dorothy
douglas duncan edgar edith edward eileen elaine eleanor ellen emil emily emma eric ernest esther
ethan eva evan evelyn fatima felix fiona flora frances frank fred gabriel gary george gerald gina
gloria gordon grace graham greta gustav guy hannah harold harry hassan hazel heather hector helen
henry herbert holly horace howard hubert hugo ian igor ines ingrid irene iris isaac isabel ivan
ivy jack jacob james jane janet jason jean jenny jill jim joan john jonas joseph joyce judith
julia julie june karen karl kate keith kelly kenneth kevin kim kurt laura lena leo leon leslie
lewis liam lily linda lisa lloyd louis louise lucas lucy luke lydia mabel marco margaret maria
mark martha martin mary matthew maud max megan michael mike milan mona monica moses muriel
nadia nancy naomi nathan neil nelson nick nicole nigel nina noah nora norman oliver olivia omar
oscar otto owen pamela patrick paul paula pedro peggy peter philip phoebe polly quentin rachel
ralph ray rebecca rex richard rita robert robin roger roland rosa rose roy ruby rudolf rupert
russell ruth sally sam samuel sandra sarah saul scott sean sharon sheila simon sofia sonia sophie
stanley stella stephen steve stuart sue susan sven sylvia tamara tanya ted teresa thea theodore
thomas tim tina todd tom tony tracy trevor trudy ulrich una ursula vanessa vera vernon victor
vincent viola violet vivian walter wanda warren wendy wilfred wilma winston yolanda yusuf
yvonne zachary zelda zoe zora
""".split()

COLOURS = "red blue green yellow black white brown grey".split()
THINGS = "lamp chair kite clock box table bag coat".split()
ROOMS = "kitchen garden hall cellar library garage study tower".split()
ANIMALS = "goat duck horse cow dog cat sheep pig".split()
JOBS = "baker teacher doctor farmer painter singer sailor lawyer".split()
FOODS = "soup bread rice fish cheese pasta salad honey".split()
GIFTS = "book ring map letter key coin cake ticket".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
FILLERS = [
    "It is a quiet village.", "The weather is mild.", "Most people know each other.",
    "The school is close by.", "It was a cold winter.", "They are all good friends.",
]

# ----------------------------------------------------------------------------------------------
# Random numbers (splitmix64)
# ----------------------------------------------------------------------------------------------

MASK = (1 << 64) - 1


class Rng:
    def __init__(self, seed):
        self.state = seed & MASK

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) * n) >> 64

    def chance(self, percent):
        return self.below(100) < percent

    def choice(self, items):
        return items[self.below(len(items))]

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def sample(self, items, n):
        items = list(items)
        self.shuffle(items)
        return items[:n]

    def by_shares(self, items, shares):
        roll = self.below(sum(shares))
        for item, share in zip(items, shares):
            if roll < share:
                return item
            roll -= share


# ----------------------------------------------------------------------------------------------
# What one split may talk about
# ----------------------------------------------------------------------------------------------


def readable(start, end):
    """Whether the two make a name that can be read and that is tokenized as the two."""
    plain = THINGS + ANIMALS + FOODS + ROOMS + JOBS + GIFTS + ["can", "went"]
    return (not (start[-1] in "aeiou" and end[0] in "aeiou") and start[-2:] != end[:2]
            and not any((start + end).startswith(word) for word in plain))


class World:
    """The people and the nameless things of one split: a quarter of all is for validation."""

    def __init__(self, validation):
        self.validation = validation
        names = [(start, end) for start in NAME_STARTS for end in NAME_ENDS if readable(start, end)]
        Rng(SEED).shuffle(names)
        names = [start + end for start, end in names if start + end not in FIRST_NAMES]
        self.people = self.mine(names)
        self.first_names = self.mine(FIRST_NAMES)

    def mine(self, names):
        return [name for i, name in enumerate(names) if (i % 4 == 3) == self.validation]

    def some_people(self, rng, n):
        """People of one scene: no two names begin or end alike."""
        while True:
            names = [rng.choice(self.first_names if rng.chance(FREE_NAMES) else self.people)
                     for _ in range(n)]
            if len({name[:2] for name in names}) == n and len({name[-2:] for name in names}) == n:
                return [name.capitalize() for name in names]

    def some_things(self, rng, n):
        """Things of one kind that differ in colour; each coloured thing is in one split only."""
        t = rng.below(len(THINGS))
        colours = [colour for c, colour in enumerate(COLOURS)
                   if ((c + 3 * t) % len(COLOURS) < 3) == self.validation]
        return [f"{colour} {THINGS[t]}" for colour in rng.sample(colours, n)]


# ----------------------------------------------------------------------------------------------
# Families of facts
# ----------------------------------------------------------------------------------------------


class Facts:
    """Facts of one family: form i says that subject i has value i.

    Forms and questions hold {s} and {v}; article is what stands before a value named alone.
    """

    def __init__(self, rng, subjects, values, forms, questions, article="the "):
        self.subjects = subjects
        self.values = values
        self.forms = [rng.choice(forms) for _ in subjects]
        self.question = rng.choice(questions)
        self.article = article

    def tell(self, i, subject=None, value=None):
        text = self.forms[i].format(s=subject or self.subjects[i], v=value or self.values[i])
        return text[0].upper() + text[1:]

    def ask(self, subject, value):
        return self.question.format(s=subject, v=value).lower()


def colour(rng, world, n):
    thing = rng.choice(THINGS)
    return Facts(rng, world.some_people(rng, n), rng.sample(COLOURS, n),
                 [f"{{s}} has a {{v}} {thing}.", f"{{s}} owns a {{v}} {thing}.",
                  f"{{s}} bought a {{v}} {thing}."],
                 [f"is the {thing} of {{s}} {{v}}", f"does {{s}} have a {{v}} {thing}",
                  f"does {{s}} own a {{v}} {thing}"], "")


def whereabouts(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(ROOMS, n),
                 ["{s} is in the {v}.", "{s} went to the {v}.", "{s} is waiting in the {v}."],
                 ["is {s} in the {v}", "can you find {s} in the {v}",
                  "is it true that {s} is in the {v}"])


def animal(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(ANIMALS, n),
                 ["{s} keeps a {v}.", "{s} has a {v}.", "{s} looks after a {v}."],
                 ["does {s} keep a {v}", "does {s} have a {v}", "does the {v} belong to {s}"])


def job(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(JOBS, n),
                 ["{s} works as a {v}.", "{s} is a {v}.", "{s} became a {v} last year."],
                 ["is {s} a {v}", "does {s} work as a {v}", "is the {v} called {s}"])


def food(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(FOODS, n),
                 ["{s} likes {v}.", "{s} often eats {v}.", "{s} loves {v}."],
                 ["does {s} like {v}", "does {s} eat {v}", "is {v} the favourite food of {s}"], "")


def present(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(GIFTS, n),
                 ["{s} got a {v}.", "{s} was given a {v}.", "{s} found a {v}."],
                 ["did {s} get a {v}", "does {s} have the {v} now", "was {s} given a {v}"])


def visit(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(DAYS, n),
                 ["{s} comes to visit on {v}.", "{s} will be here on {v}.",
                  "{s} arrives on {v}."],
                 ["does {s} come to visit on {v}", "will {s} be here on {v}",
                  "does {s} arrive on {v}"], "")


def thing_in_room(rng, world, n):
    return Facts(rng, world.some_things(rng, n), rng.sample(ROOMS, n),
                 ["the {s} is in the {v}.", "the {s} stands in the {v}.",
                  "the {s} was left in the {v}."],
                 ["is the {s} in the {v}", "does the {s} stand in the {v}",
                  "is there a {s} in the {v}"])


ABOUT_PEOPLE = [colour, whereabouts, animal, job, food, present, visit]
FAMILIES = ABOUT_PEOPLE + [thing_in_room]

# ----------------------------------------------------------------------------------------------
# Scenes: (passages, questions); question i has "yes" under passage i and "no" under the other
# ----------------------------------------------------------------------------------------------


def passage(rng, sentences):
    rng.shuffle(sentences)
    return " ".join(sentences)


def other(rng, world):
    """The passages have nothing in common."""
    first, second = rng.sample(FAMILIES, 2)
    a, b = first(rng, world, 1), second(rng, world, 1)
    return ([a.tell(0), b.tell(0)],
            [a.ask(a.subjects[0], a.values[0]), b.ask(b.subjects[0], b.values[0])])


def both(rng, world):
    """Another subject has another value."""
    facts = rng.choice(FAMILIES)(rng, world, 2)
    return ([facts.tell(0), facts.tell(1)],
            [facts.ask(facts.subjects[i], facts.values[i]) for i in range(2)])


def value(rng, world):
    """The one subject has another value."""
    facts = rng.choice(FAMILIES)(rng, world, 2)
    return ([facts.tell(0), facts.tell(0, value=facts.values[1])],
            [facts.ask(facts.subjects[0], v) for v in facts.values])


def subject(rng, world):
    """Another subject has the one value."""
    facts = rng.choice(FAMILIES)(rng, world, 2)
    return ([facts.tell(0), facts.tell(0, subject=facts.subjects[1])],
            [facts.ask(s, facts.values[0]) for s in facts.subjects])


def cross(rng, world):
    """Two people change places in facts of two families."""
    first, second = rng.sample(ABOUT_PEOPLE, 2)
    a, b = first(rng, world, 2), second(rng, world, 1)
    people = a.subjects
    passages = [passage(rng, [a.tell(0, subject=people[i]), b.tell(0, subject=people[1 - i])])
                for i in range(2)]
    return passages, [a.ask(person, a.values[0]) for person in people]


def order(rng, world):
    """The same facts in another order: who or what is named first?"""
    facts = rng.choice(FAMILIES)(rng, world, 2)
    told = [facts.tell(0), facts.tell(1)]
    if world.validation or rng.chance(50):  # in validation only about what training never names
        named = [("the " if s[0].islower() else "") + s for s in facts.subjects]
    else:
        named = [facts.article + v for v in facts.values]
    return ([" ".join(told), " ".join(told[::-1])],
            [f"is {name} named first".lower() for name in named])


def swap(rng, world):
    """Two of two or three subjects exchange their values."""
    n = 3 if rng.chance(THIRD_FACTS) else 2
    facts = rng.choice(FAMILIES)(rng, world, n)
    s, v = facts.subjects, facts.values
    others = [facts.tell(i) for i in range(2, n)]
    if rng.chance(FILLED):
        others.append(rng.choice(FILLERS))
    passages = [passage(rng, [facts.tell(0, value=v[i]), facts.tell(1, value=v[1 - i])] + others)
                for i in range(2)]
    if rng.chance(50):
        return passages, [facts.ask(s[0], v[0]), facts.ask(s[0], v[1])]
    return passages, [facts.ask(s[0], v[0]), facts.ask(s[1], v[0])]


def split(world, scenes, shares, seed):
    rng = Rng(seed)
    rows = []
    while len(rows) < 4 * scenes:
        lesson = globals()[rng.by_shares(LESSONS, shares)]
        passages, questions = lesson(rng, world)
        if rng.chance(MARKED):
            questions = [question + "?" for question in questions]
        if rng.chance(MARKED):
            passages = [passage[:-1] for passage in passages]
        rows += [{"question": questions[q], "passage": passages[p], "label": q == p}
                 for q in range(2) for p in range(2)]
    rng.shuffle(rows)
    return [{"question": row["question"], "passage": row["passage"], "idx": i,
             "label": row["label"]} for i, row in enumerate(rows)]


# ----------------------------------------------------------------------------------------------
# The vocabulary
# ----------------------------------------------------------------------------------------------


def words_of(text):
    """The words that BERT's basic tokenizer makes of lower-cased plain text."""
    return "".join(c if c.isalnum() else f" {c} " for c in text.lower()).split()


def vocabulary(rows):
    """Special tokens, characters, the plain words of the rows, and the pieces of names."""
    names = {name.capitalize() for name in World(False).people + World(True).people + FIRST_NAMES}
    words = set()
    for row in rows:
        text = " ".join(w for w in row["passage"].split() if w.strip(".") not in names)
        words.update(words_of(text))
        words.update(w for w in words_of(row["question"]) if w.capitalize() not in names)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab += [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    vocab += ["##" + c for c in letters]
    vocab += sorted(word for word in words if len(word) > 1)
    vocab += [start for start in NAME_STARTS if start not in words]
    vocab += ["##" + end for end in NAME_ENDS]
    return vocab


CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 64,
    "id2label": {"0": "no", "1": "yes"},
    "initializer_range": 0.25,
    "intermediate_size": 128,
    "label2id": {"no": 0, "yes": 1},
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 128,
    "model_type": "bert",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 0,
}

# ----------------------------------------------------------------------------------------------


def files():
    """All files of the data set: name -> text."""
    train = split(World(False), TRAIN_SCENES, TRAIN_SHARES, SEED + 1)
    validation = split(World(True), VALIDATION_SCENES, VALIDATION_SHARES, SEED + 2)
    vocab = vocabulary(train)
    config = dict(CONFIG, vocab_size=len(vocab))
    return {
        "train.jsonl": "".join(json.dumps(row) + "\n" for row in train),
        "val.jsonl": "".join(json.dumps(row) + "\n" for row in validation),
        "vocab.txt": "".join(token + "\n" for token in vocab),
        "config.json": json.dumps(config, indent=2) + "\n",
    }


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "datasets", "quickstart")
    os.makedirs(folder, exist_ok=True)
    for name, text in files().items():
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        print(f"{os.path.join(folder, name)}: {len(text)} bytes")


if __name__ == "__main__":
    main()
