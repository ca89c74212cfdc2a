#!/usr/bin/env python3
"""Write the quickstart's data set, vocabulary and model configuration.

    scripts/make_quickstart_data.py [FOLDER]     (default: datasets/quickstart)

The rows have BoolQ's format. They come in fours, from a scene with two passages and two
questions; the passages hold the same words, yet each question has "yes" under one passage and "no"
under the other:

                                  Ada keeps a goat. Tom keeps a duck.   Ada keeps a duck. Tom ...
    does ada keep a goat                        true                            false
    does ada keep a duck                        false                           true

So neither the question alone, nor the passage alone, nor the words of both without their order say
anything about the answer. People and towns of validation never occur in training; where a family of
questions names neither, its facts are split instead.

Standard library only, no network, and its own random numbers, so that every Python writes the same
bytes. scripts/check_quickstart_data.py asserts all of this.
"""

import json
import os
import sys

SEED = 20240611
TRAIN_SCENES = 1900
VALIDATION_SCENES = 250

# ----------------------------------------------------------------------------------------------
# Words
# ----------------------------------------------------------------------------------------------

# People, all spelled with the pieces of the vocabulary; every fourth is kept for validation.
PEOPLE = """
aaron abby abel ada adam adela adrian agatha agnes aida aidan aisha alan albert alma alex alfred
alice alina alvin amanda amber amelia amina amir amos amy ana andrea andrew angela anita anna anton
archie ariel arnold arthur asher astrid audrey august aurora axel barbara barry basil beatrice bella
ben benita bernard bertha beth bianca bill blanca bob boris brad brenda brian bridget bruno bryan
caleb calvin camila carl carla carlos carmen carol caspar cecil celia charles charlotte chloe
christine clara clare claude clement colin conrad cora craig curtis cyril daisy damian dan dana
daniel daphne darius david dean deborah delia denis derek diana diego dina dominic donald donna dora
doris dorothy douglas duncan edgar edith edmund edna edward edwin eileen elaine eleanor elena eli
elias elisa eliza ella ellen elliot elmer elsa elton elvira emil emily emma enid enzo eric erika
ernest esther ethan eva evan evelyn ezra fabian faith fatima felix fergus fiona flora florence
floyd frances frank freda fred gabriel gareth garth gavin gemma george gerald gilbert gina giles
glenda gloria gordon grace graham grant greta gustav guy gwen hadley hank hannah harold harriet
harry harvey hassan hazel heather hector heidi helen helga henry herbert herman hilda holly homer
hope horace howard hubert hugo ian ibrahim ida igor ilse imogen ines ingrid irene iris irma isaac
isabel ivan ivy jack jacob jade jake james jamila jane janet jared jasmin jason jasper jean jenny
jeremy jerome jesse jill joan joel johan john jonas jordan jorge joseph joyce judith julia julian
june karen karim karl kate kathleen keith kelly kenneth kevin kim kirsten klara klaus kurt laila
lana lara lars laura laurence leah leila lena leo leon leona leroy leslie lester lewis liam lily
lina linda lionel lisa lloyd lola lorenzo lorna louis louise lucas lucia lucy luis luke luna lydia
mabel madeleine magda malcolm mandy manuel mara marcel marco margaret maria marian marina mario
marius mark marlene marta martin marvin mary mateo matilda matthew maud maurice max maya melanie
melvin mercy michael mila milan mildred miles mina minna miranda miriam mirjam mohamed moira molly
mona monica morgan moses muriel myra myrtle nadia nadine nancy naomi natalie nathan ned neil nellie
nelson nestor nicholas nicola nigel nils nina noah noel nora norbert norman octavia odette olaf
olga olive oliver olivia omar ophelia orla orson oscar osman otis otto owen pablo pamela pascal
patrick paul paula pedro peggy penelope perry peter petra philip phoebe phyllis pierre polly
priscilla quentin rachel ralph ramona randolph raphael raul raymond rebecca regina rene reuben rhoda
richard rita robert robin rodney roger roland rolf roman ronald rosa rosalind rose rosemary roy ruby
rudolf rufus rupert russell ruth sabina sabine sally salma salvador samira samson samuel sandra
sarah saskia saul scott sean selma serena sergio seth sharon sheila sibyl sidney sigrid silas silvia
simon sofia solomon sonia sophie stanley stella stephen steven stuart susan suzanne sven sybil
sylvia tamara tanya tara ted teresa tess thea thelma theodore thomas tilda tim tobias todd tom tony
tracy trevor trudy ulrich una ursula valentin valerie vanessa vera vernon veronica victor vincent
viola violet virgil vivian vladimir wallace walter wanda warren wendy wesley wilbur wilfred wilhelm
will wilma winifred xavier yasmin yolanda yusuf yvonne zachary zara zelda zoe zora
""".split()

TOWN_STARTS = """
ab al am ar as bal bar bel ber bor bran bren car cas cor dal dan del dor dun el en fal far fen gal
gar gil gor hal har hel hol kel ken kir lan lar lin lor mal mar mel mir mor nar nel nor pal pel pen
por ral ren ros ry sal sel sil sor tal tan tel tor ul var vel ver vin wal wen wil win
""".split()
TOWN_ENDS = """
bach beck berg borough bridge burg bury by dale don fell field ford gate ham haven hurst land leigh
low mere mont more mouth ness port ridge shaw stead stock ton tree vale ville wick wood worth
""".split()

COLOURS = "red blue green yellow black white brown grey pink purple silver golden".split()
THINGS = """
lamp chair kite clock box table bag coat hat scarf bicycle boat car cup bowl vase drum piano tent
basket bell mirror ladder carpet curtain suitcase wagon bucket bottle pencil blanket violin guitar
statue helmet lantern
""".split()
GIFTS = """
book ring map letter key coin cake ticket parcel photo flute camera compass knife watch radio
necklace puzzle whistle trophy
""".split()
ROOMS = """
kitchen garden hall cellar library garage study tower bedroom barn office workshop chapel museum
studio stable nursery market
""".split()
ANIMALS = """
goat duck horse cow dog cat sheep pig rabbit hen parrot turtle donkey mouse goose pony snake lizard
hamster camel ferret pigeon swan llama
""".split()
JOBS = """
baker teacher doctor farmer painter singer sailor lawyer nurse pilot tailor writer cook judge
dancer miner gardener plumber carpenter chemist banker librarian fisher potter
""".split()
FOODS = """
soup bread rice fish cheese pasta salad honey cabbage pears plums beans mushrooms pancakes porridge
noodles tomatoes carrots cherries potatoes yoghurt spinach
""".split()
SHOPS = "bakery library museum market bank pool cinema theatre pharmacy bookshop".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
HOURS = "one two three four five six seven eight nine ten eleven twelve".split()
VEHICLES = "train bus ferry coach tram".split()
COMPARED = [("older", "younger"), ("taller", "shorter"), ("faster", "slower"),
            ("stronger", "weaker"), ("richer", "poorer"), ("heavier", "lighter")]
FILLERS = [
    "It is a quiet village.", "The weather is mild.", "Most people know each other.",
    "This has been so for years.", "The school is close by.", "Everyone was pleased.",
    "It was a cold winter.", "The road is narrow.", "Nobody else was there.",
    "The story was in the paper.", "They are all good friends.", "The summer was long and dry.",
]

# Nouns left out of the vocabulary on purpose: they are spelled with the pieces of names, as a word
# typed by a user may be.
SPELLED = set("""
lantern statue helmet guitar suitcase necklace compass trophy whistle nursery stable hamster camel
ferret llama librarian chemist potter spinach yoghurt cherries pharmacy
""".split())

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


# ----------------------------------------------------------------------------------------------
# What one split may talk about
# ----------------------------------------------------------------------------------------------


class World:
    """The people, towns and nameless facts of one split."""

    def __init__(self, validation):
        self.validation = validation
        self.people = [name.capitalize() for i, name in enumerate(PEOPLE) if self.mine(i)]
        towns = [start + end for start in TOWN_STARTS for end in TOWN_ENDS]
        Rng(SEED).shuffle(towns)
        towns = [town for town in towns[:480] if town not in PEOPLE]
        self.towns = [town.capitalize() for i, town in enumerate(towns) if self.mine(i)]

    def mine(self, i):
        return (i % 4 == 3) == self.validation

    def rooms(self, thing):
        """The rooms where this split may put the thing."""
        t = THINGS.index(thing)
        return [room for r, room in enumerate(ROOMS) if self.mine(t * 7 + r * 5 + t * r)]


# ----------------------------------------------------------------------------------------------
# Families of facts
#
# A family returns (subjects, values, sentences, questions): sentence i states values[i] of
# subjects[i]; in the scene's second passage the values of subjects 0 and 1 change places. All
# values take the article "a", so that the swap leaves the passage's words as they are.
# ----------------------------------------------------------------------------------------------


def how_many(rng):
    return rng.choice([2, 2, 2, 3, 3, 4])


def colour(rng, world):
    n = how_many(rng)
    thing = rng.choice(THINGS)
    return (rng.sample(world.people, n), rng.sample(COLOURS, n),
            [f"{{s}} has a {{v}} {thing}.", f"{{s}} owns a {{v}} {thing}.",
             f"{{s}} bought a {{v}} {thing}.", f"The {thing} of {{s}} is {{v}}.",
             f"{{s}}'s {thing} is {{v}}."],
            [f"is the {thing} of {{s}} {{v}}", f"does {{s}} have a {{v}} {thing}",
             f"is {{s}}'s {thing} {{v}}", f"does {{s}} own a {{v}} {thing}"])


def whereabouts(rng, world):
    n = how_many(rng)
    return (rng.sample(world.people, n), rng.sample(ROOMS, n),
            ["{s} is in the {v}.", "{s} went to the {v}.", "{s} is waiting in the {v}.",
             "{s} sits in the {v}.", "In the {v} you will find {s}."],
            ["is {s} in the {v}", "can you find {s} in the {v}", "is it true that {s} is in the {v}"])


def animal(rng, world):
    n = how_many(rng)
    return (rng.sample(world.people, n), rng.sample(ANIMALS, n),
            ["{s} keeps a {v}.", "{s} has a {v}.", "{s} looks after a {v}.",
             "The {v} belongs to {s}.", "The animal of {s} is a {v}."],
            ["does {s} keep a {v}", "does {s} have a {v}", "does the {v} belong to {s}",
             "does {s} look after a {v}"])


def job(rng, world):
    n = how_many(rng)
    return (rng.sample(world.people, n), rng.sample(JOBS, n),
            ["{s} works as a {v}.", "{s} is a {v}.", "{s} became a {v} last year.",
             "{s} earns a living as a {v}.", "The {v} is called {s}."],
            ["is {s} a {v}", "does {s} work as a {v}", "is the {v} called {s}"])


def opening(rng, world):
    n = how_many(rng)
    shop = rng.choice(SHOPS)
    return (rng.sample(world.towns, n), rng.sample(DAYS, n),
            [f"The {shop} in {{s}} opens on {{v}}.", f"In {{s}} the {shop} is open on {{v}}.",
             f"The {shop} of {{s}} opens on {{v}}.", f"On {{v}} the {shop} in {{s}} is open."],
            [f"does the {shop} in {{s}} open on {{v}}", f"is the {shop} in {{s}} open on {{v}}",
             f"is the {shop} of {{s}} open on {{v}}"])


def departure(rng, world):
    n = how_many(rng)
    vehicle = rng.choice(VEHICLES)
    return (rng.sample(world.towns, n), rng.sample(HOURS, n),
            [f"The {vehicle} to {{s}} leaves at {{v}}.", f"At {{v}} the {vehicle} to {{s}} leaves.",
             f"The {vehicle} for {{s}} departs at {{v}}."],
            [f"does the {vehicle} to {{s}} leave at {{v}}",
             f"does the {vehicle} for {{s}} depart at {{v}}",
             f"is there a {vehicle} to {{s}} at {{v}}"])


def food(rng, world):
    n = how_many(rng)
    return (rng.sample(world.people, n), rng.sample(FOODS, n),
            ["{s} likes {v}.", "{s} often eats {v}.", "{s} loves {v}.",
             "The favourite food of {s} is {v}.", "For lunch {s} has {v}."],
            ["does {s} like {v}", "does {s} eat {v}", "is {v} the favourite food of {s}"])


def home(rng, world):
    n = how_many(rng)
    return (rng.sample(world.people, n), rng.sample(world.towns, n),
            ["{s} lives in {v}.", "{s} comes from {v}.", "{s} was born in {v}.",
             "The home of {s} is in {v}."],
            ["does {s} live in {v}", "is {s} from {v}", "is the home of {s} in {v}"])


def present(rng, world):
    n = how_many(rng)
    return (rng.sample(world.people, n), rng.sample(GIFTS, n),
            ["{s} got a {v}.", "{s} was given a {v}.", "{s} found a {v}.",
             "The {v} was a present for {s}.", "The {v} is now with {s}."],
            ["did {s} get a {v}", "does {s} have the {v} now", "was {s} given a {v}"])


def thing_in_room(rng, world):
    n = min(how_many(rng), 3)
    thing = rng.choice(THINGS)
    while len(world.rooms(thing)) < n:
        thing = rng.choice(THINGS)
    return ([f"{c} {thing}" for c in rng.sample(COLOURS, n)], rng.sample(world.rooms(thing), n),
            ["The {s} is in the {v}.", "The {s} stands in the {v}.", "The {s} was left in the {v}.",
             "In the {v} there is a {s}.", "Somebody put the {s} in the {v}."],
            ["is the {s} in the {v}", "does the {s} stand in the {v}", "is there a {s} in the {v}"])


FAMILIES = [colour, whereabouts, animal, job, opening, departure, food, home, present,
            thing_in_room]

# ----------------------------------------------------------------------------------------------
# Scenes
# ----------------------------------------------------------------------------------------------


def capital(sentence):
    return sentence[0].upper() + sentence[1:]


def swapped(values):
    return [values[1], values[0]] + values[2:]


def join(sentences, links):
    """Run sentence i into the one before it where links[i] is a word."""
    text = sentences[0]
    for sentence, link in zip(sentences[1:], links[1:]):
        if link:
            first = sentence.split(" ", 1)[0]
            if first in ("The", "In", "On", "At", "For", "Somebody"):
                sentence = sentence[0].lower() + sentence[1:]
            text = text[:-1] + link + sentence
        else:
            text += " " + sentence
    return text


def other_fact(rng, world, family, subjects):
    """A sentence of another family, about one of the scene's people where it is about people."""
    other = rng.choice([f for f in FAMILIES if f is not family])
    names, values, sentences, _ = other(rng, world)
    name = names[0]
    if name in world.people and subjects[0] in world.people:
        name = rng.choice(subjects)
    return capital(rng.choice(sentences).format(s=name, v=values[0]))


def finish(rng, firsts, seconds, extras):
    """The scene's two passages: each in its own order, with the same words."""
    count = len(firsts) + len(extras)
    links = [rng.choice([", and ", ", while ", ", but "]) if rng.chance(15) else ""
             for _ in range(count)]
    passages = []
    for facts in (firsts, seconds):
        sentences = facts + extras
        rng.shuffle(sentences)
        passages.append(join(sentences, links))
    if rng.chance(15):
        passages = [passage[:-1] for passage in passages]
    return passages


def value_scene(rng, world):
    """Two of a few subjects change their values."""
    family = rng.choice(FAMILIES)
    subjects, values, sentences, questions = family(rng, world)
    forms = [rng.choice(sentences) for _ in subjects]

    def state(vs):
        return [capital(f.format(s=s, v=v)) for f, s, v in zip(forms, subjects, vs)]

    extras = []
    if rng.chance(30):
        extras.append(other_fact(rng, world, family, subjects))
    if rng.chance(25):
        extras.append(rng.choice(FILLERS))
    passages = finish(rng, state(values), state(swapped(values)), extras)
    form = rng.choice(questions)
    who = rng.below(2)
    if rng.chance(50):  # one subject, two values
        asked = [(subjects[who], values[who]), (subjects[who], values[1 - who])]
    else:  # one value, two subjects
        asked = [(subjects[who], values[who]), (subjects[1 - who], values[who])]
    return passages, [form.format(s=s, v=v).lower() for s, v in asked]


def comparison_scene(rng, world):
    """Two people change their places in a comparison."""
    n = rng.choice([2, 2, 3, 4])
    names = rng.sample(world.people, n)
    more, less = rng.choice(COMPARED)
    if rng.chance(50):
        more, less = less, more
    first = [f"{names[0]} is {more} than {names[1]}."]
    second = [f"{names[1]} is {more} than {names[0]}."]
    if n == 4:
        other = f"{names[2]} is {more} than {names[3]}."
        first, second = first + [other], second + [other]
    extras = [rng.choice(FILLERS)] if n == 3 else []
    asked = more
    a, b = names[0], names[1]
    if rng.chance(25):
        asked = less
        a, b = b, a
    return (finish(rng, first, second, extras),
            [f"is {a} {asked} than {b}".lower(), f"is {b} {asked} than {a}".lower()])


def taste_scene(rng, world):
    """Somebody likes one food but not another; somebody else has it the other way round."""
    n = rng.choice([1, 2])
    names = rng.sample(world.people, n)
    x, y = rng.sample(FOODS, 2)
    form = rng.choice(["{s} likes {a} but not {b}.", "{s} eats {a} but never {b}.",
                       "{s} loves {a} and hates {b}."])
    first = [form.format(s=names[0], a=x, b=y)]
    second = [form.format(s=names[0], a=y, b=x)]
    if n == 2:
        first.append(form.format(s=names[1], a=y, b=x))
        second.append(form.format(s=names[1], a=x, b=y))
    extras = [rng.choice(FILLERS)] if rng.chance(30) else []
    question = "does {s} eat {v}" if "eats" in form else "does {s} like {v}"
    return (finish(rng, first, second, extras),
            [question.format(s=names[0].lower(), v=x), question.format(s=names[0].lower(), v=y)])


def scene(rng, world):
    kind = rng.below(100)
    if kind < 10:
        return comparison_scene(rng, world)
    if kind < 17:
        return taste_scene(rng, world)
    return value_scene(rng, world)


def split(world, scenes, seed):
    rng = Rng(seed)
    rows = []
    seen = set()
    while len(rows) < 4 * scenes:
        passages, questions = scene(rng, world)
        if rng.chance(12):
            questions = [question + "?" for question in questions]
        key = (questions[0], questions[1])
        if key in seen or (key[1], key[0]) in seen or passages[0] == passages[1]:
            continue
        seen.add(key)
        for q in range(2):
            for p in range(2):
                rows.append({"question": questions[q], "passage": passages[p], "label": q == p})
    rng.shuffle(rows)
    return [{"question": row["question"], "passage": row["passage"], "idx": i,
             "label": row["label"]} for i, row in enumerate(rows)]


# ----------------------------------------------------------------------------------------------
# The vocabulary
# ----------------------------------------------------------------------------------------------


def words_of(text):
    """The words that BERT's basic tokenizer makes of lower-cased plain text."""
    spaced = "".join(c if c.isalnum() else f" {c} " for c in text.lower())
    return spaced.split()


def frequent(counts, least):
    return sorted(piece for piece, count in counts.items() if count >= least)


def pieces_of_names(names):
    """Beginnings and continuations of two to four letters that many of the names share."""
    starts, inner = {}, {}
    for name in names:
        for size in (2, 3):
            if size < len(name):
                starts[name[:size]] = starts.get(name[:size], 0) + 1
        for size in (2, 3, 4):
            for at in range(1, len(name) - size + 1):
                piece = "##" + name[at:at + size]
                inner[piece] = inner.get(piece, 0) + 1
    return frequent(starts, 4) + [p for p in frequent(inner, 8) if len(p) < 6 or inner[p] >= 12]


def vocabulary(train):
    """Special tokens, characters, the frequent plain words, then the pieces of names."""
    world = World(False)
    names = [name.lower() for name in world.people + world.towns]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    characters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    words = set()
    for row in train:
        words.update(words_of(row["question"] + " " + row["passage"]))
    words -= set(names) | SPELLED
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + characters
    vocab += ["##" + c for c in letters]
    vocab += sorted(word for word in words if len(word) > 1)
    vocab += [piece for piece in pieces_of_names(names + sorted(SPELLED)) if piece not in words]
    return vocab


CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 128,
    "id2label": {"0": "no", "1": "yes"},
    "initializer_range": 0.05,
    "intermediate_size": 512,
    "label2id": {"no": 0, "yes": 1},
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 128,
    "model_type": "bert",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 0,
}

# ----------------------------------------------------------------------------------------------


def files():
    """All files of the data set: name -> text."""
    train = split(World(False), TRAIN_SCENES, SEED + 1)
    validation = split(World(True), VALIDATION_SCENES, SEED + 2)
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
