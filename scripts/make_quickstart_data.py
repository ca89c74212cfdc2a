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
# Of a hundred: names that are spelled freely; swaps with a third fact and with a sentence that says
# nothing; questions with a question mark, and scenes whose passages lack the last full stop.
FREE_NAMES, THIRD_FACTS, FILLED, MARKED = 15, 0, 0, 5

# ----------------------------------------------------------------------------------------------
# Words
# ----------------------------------------------------------------------------------------------

# People. The vocabulary holds no name. Most names are a letter and an end ("m" "aria"), both among
# its pieces; a name that was never seen consists of pieces that were.
NAME_LETTERS = "bcdfghjklmnprstvwz"
NAME_ENDS = """
alia alma amon ana anda ara aria aric arla aron arta aura elen elia ella elma elora emil ena enna
erik essa ilda ilo ina ira iron obert olin ona onia ora oris orin osa ulia una
""".split()
# The others have more pieces, down to letters, as a name typed by a user may.
FIRST_NAMES = """
adam agnes albert alex alice amy andrew anita anna arthur audrey barbara bernard bill bob boris brad
brenda brian bruno carl carlos carol charles chloe chris claire clara colin conrad cora craig daisy
daniel david deborah denis derek diego donald doris dorothy douglas duncan edgar edith edward eileen
elaine eleanor emily eric ernest esther ethan eva evan evelyn fatima felix fiona flora frances frank
fred gary george gerald gilbert gloria grace graham greta gustav guy hannah harold harry heather
hector henry herbert holly horace howard hubert hugo igor irene iris ivan ivy jack jacob james janet
jason jean jenny jeremy jill jim joan john jonas joseph joyce judith karen karl kate keith kelly
kenneth kevin kim kurt laura leo leslie lewis liam lily linda lloyd louis lucas lucy luke lydia
mabel marco margaret mark martha martin mary matthew maud max megan michael mike monica moses muriel
nancy naomi nathan neil nelson nick nicole nigel noah norman oliver olivia omar orla oscar otto owen
pamela patrick paul peggy peter philip phoebe polly rachel ralph rebecca rex richard rita
robin roger roland rose roy ruby rudolf rupert russell ruth sally samuel sandra sarah saul scott
sean sharon sheila simon sofia sophie stanley stella stephen steve stuart susan sven sylvia tamara
tanya teresa thomas tim tina todd tom tony tracy trevor trudy ugo ulrich uma ursula vanessa vera
vernon victor vincent viola violet vivian walter wanda warren wendy wilfred winston yann yara
yasmin yolanda yusuf yvonne zachary zelda zoe zora
""".split()
PLAIN_BEGINNINGS = "box can cat did dog got has hen pig red the was".split()
NAME_STARTS = "ad al am an ar au".split()
NAME_PIECES = """
ah al am an ar ard as ce da eb el en er ert es ic ich ie il im in is ly ob ol on or ora os oy ph
ra re ri te th ul us vi
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


def blocked(name):
    """Whether the tokenizer would take the name's beginning for a plain word."""
    return any(name.startswith(word) for word in PLAIN_BEGINNINGS)


class World:
    """The people and the nameless things of one split: a quarter of all is for validation."""

    def __init__(self, validation):
        self.validation = validation
        names = [letter + end for letter in NAME_LETTERS for end in NAME_ENDS]
        names = [name for name in names if name not in FIRST_NAMES and not blocked(name)]
        Rng(SEED).shuffle(names)
        self.names = self.by_letter(self.mine(names))
        self.first_names = self.by_letter(self.mine(FIRST_NAMES))

    def by_letter(self, names):
        letters = {}
        for name in names:
            letters.setdefault(name[0], []).append(name.capitalize())
        return letters

    def mine(self, names):
        return [name for i, name in enumerate(names) if (i % 4 == 3) == self.validation]

    def some_people(self, rng, n):
        """People of one scene: their names begin with different letters."""
        people = {}
        while len(people) < n:
            names = self.first_names if rng.chance(FREE_NAMES) else self.names
            letter = rng.choice(sorted(names))
            people[letter] = rng.choice(names[letter])
        return list(people.values())

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
                 ["{s} is in the {v}.", "{s} went into the {v}.", "{s} is waiting in the {v}."],
                 ["is {s} in the {v}", "can you find {s} in the {v}",
                  "is {s} now in the {v}"])


def animal(rng, world, n):
    return Facts(rng, world.some_people(rng, n), rng.sample(ANIMALS, n),
                 ["{s} keeps a {v}.", "{s} has a {v}.", "{s} looks after a {v}."],
                 ["does {s} keep a {v}", "does {s} have a {v}", "is the {v} owned by {s}"])


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
                 ["{s} visits us on {v}.", "{s} is here on {v}.",
                  "{s} arrives on {v}."],
                 ["does {s} visit us on {v}", "is {s} here on {v}",
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
    names = {name for validation in (False, True) for world in [World(validation)]
             for names in (world.names, world.first_names) for some in names.values()
             for name in some}
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
    vocab += NAME_STARTS + ["##" + piece for piece in sorted(set(NAME_PIECES + NAME_ENDS))]
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
