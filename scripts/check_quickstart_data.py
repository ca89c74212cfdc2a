#!/usr/bin/env python3
"""Check the quickstart's data set: that no shortcut answers it, and that its files are current.

    scripts/check_quickstart_data.py [FOLDER]    (default: datasets/quickstart)

Standard library only. Prints what was found; exits with 1 and the reason at the first property
that does not hold.
"""

import collections
import json
import os
import sys

import make_quickstart_data as generator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_LENGTH = 128


def require(condition, message):
    if not condition:
        sys.exit(f"check_quickstart_data: {message}")


def read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
        return file.read()


def words_of(text):
    """The words that BERT's basic tokenizer makes of lower-cased plain text."""
    return "".join(c if c.isalnum() else f" {c} " for c in text.lower()).split()


def pieces_of(word, vocab):
    """WordPiece: the longest piece of the vocabulary first; None where no piece fits."""
    pieces, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        fits = [end for end in range(start + 1, len(word) + 1) if mark + word[start:end] in vocab]
        if not fits:
            return None
        pieces.append(mark + word[start:fits[-1]])
        start = fits[-1]
    return pieces


def tokens_of(row, vocab):
    """The row as ModelCenter's BoolQ template shows it to BERT."""
    tokens = ["[CLS]"]
    for word in words_of(f"{row['passage']}. {row['question']}"):
        pieces = pieces_of(word, vocab)
        require(pieces, f"row {row['idx']}: the vocabulary cannot spell '{word}'")
        tokens += pieces
    return tokens + ["[SEP]"]


def bag(text):
    return tuple(sorted(words_of(text)))


def names_of(rows, vocab):
    """The words that are not whole in the vocabulary: those are names."""
    return {word for row in rows for word in words_of(row["passage"] + " " + row["question"])
            if word not in vocab}


def sentences_of(rows):
    return {sentence.strip(". ") for row in rows
            for sentence in row["passage"].split(". ")} - {s.strip(".") for s in generator.FILLERS}


def check_format(name, rows):
    for i, row in enumerate(rows):
        require(list(row) == ["question", "passage", "idx", "label"], f"{name} row {i}: its keys")
        require(row["idx"] == i and isinstance(row["label"], bool), f"{name} row {i}: idx, label")
        require(row["question"] and row["passage"], f"{name} row {i}: an empty text")


def check_balance(name, rows, key, what):
    """Rows with the same key have as many yes as no: who sees only the key scores 50 %."""
    answers = collections.defaultdict(list)
    for row in rows:
        answers[key(row)].append(row["label"])
    for k, labels in answers.items():
        require(len(labels) >= 2 and 2 * sum(labels) == len(labels),
                f"{name}: {sum(labels)} of {len(labels)} rows say yes to {what} {k}")
    print(f"{name}: {len(answers)} times {what}, each with as many yes as no")


def check_opposite(name, rows):
    """Every question has a passage that says yes and another that says no."""
    said = collections.defaultdict(lambda: (set(), set()))
    for row in rows:
        said[row["question"]][row["label"]].add(row["passage"])
    for question, (no, yes) in said.items():
        require(no and yes and not no & yes, f"{name}: '{question}' has no opposite passages")


def check_split(name, rows, vocab):
    check_format(name, rows)
    check_opposite(name, rows)
    check_balance(name, rows, lambda row: row["question"], "a question")
    check_balance(name, rows, lambda row: row["passage"], "a passage")
    tokens = [tokens_of(row, vocab) for row in rows]
    longest = max(map(len, tokens))
    require(longest <= MAX_LENGTH, f"{name}: a row of {longest} tokens")
    print(f"{name}: {len(rows)} rows, {sum(map(len, tokens))} tokens, longest {longest}")
    return {token for row in tokens for token in row}


def check_disjoint(train, validation, vocab):
    names = names_of(validation, vocab)
    common = names & names_of(train, vocab)
    require(len(names) >= 50, f"validation has only {len(names)} names")
    require(not common, f"names of both splits: {sorted(common)[:5]}")
    for what, of in (("sentence", sentences_of),
                     ("question", lambda rows: {row["question"].strip("?") for row in rows})):
        common = of(validation) & of(train)
        require(not common, f"{what} of both splits: {sorted(common)[:3]}")
    print(f"validation: {len(names)} names, none of them, no sentence of a fact and no question "
          "in training")


def check_current(folder):
    for name, text in generator.files().items():
        require(read(folder, name) == text, f"{name} is not what make_quickstart_data.py writes")
    print("files: as make_quickstart_data.py writes them")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "datasets", "quickstart")
    vocab = set(read(folder, "vocab.txt").split("\n")[:-1])
    train, validation = ([json.loads(line) for line in read(folder, f"{split}.jsonl").splitlines()]
                         for split in ("train", "val"))
    seen = check_split("train", train, vocab)
    unseen = check_split("validation", validation, vocab) - seen
    require(not unseen, f"pieces of validation that training never shows: {sorted(unseen)[:5]}")
    # Both passages of a question hold the same words: their bag says nothing, whatever is done
    # with it and the question.
    check_balance("validation", validation, lambda row: (row["question"], bag(row["passage"])),
                  "a question with a bag of words")
    check_disjoint(train, validation, vocab)
    check_current(folder)


if __name__ == "__main__":
    main()
