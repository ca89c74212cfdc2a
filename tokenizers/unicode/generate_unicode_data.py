#!/usr/bin/env python3
"""Writes unicode_data.c: what Hugging Face's BERT normaliser and the word cutters of byte-level BPE
(GPT-2's, o200k's) do with every code point.

The rules mix three Unicode versions (character categories, decompositions and lower case come from
different Rust crates), and the contract is their behaviour, not any one version of the standard. So
the tables are read off the behaviour: every code point is put through the PyPI package `tokenizers`.
Run with a Python that has it, after it changed; the output is committed:

    python3 tokenizers/unicode/generate_unicode_data.py > tokenizers/unicode/unicode_data.c
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

(OTHER, SPACE, PUNCT, CJK, MARK, DECOMPOSES, LOWERS, WORD, COMBINES,
 LETTER, NUMBER, WHITE, CAPITALS, SMALLS, COMPOSED, COMPAT) = (1 << i for i in range(16))
BLOCK = 128
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def bert(**on):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**off, **on}).normalize_str


clean, chinese = bert(clean_text=True), bert(handle_chinese_chars=True)
strip, lower = bert(strip_accents=True), bert(lowercase=True)
nfc, nfd, nfkd = (getattr(normalizers, form)().normalize_str for form in ("NFC", "NFD", "NFKD"))
words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
gpt2_words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str


def word_tester():
    """Whether a character counts as part of a word beside a single_word token (Rust's \\w)."""
    tokenizer = Tokenizer(models.WordPiece({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("zz", single_word=True, normalized=False)])
    return lambda char: 1 not in tokenizer.encode("zz" + char).ids


def gpt2_class(char):
    """Which of GPT-2's runs a character goes on with: \\p{L}, \\p{N}, \\s, or (0) none of these."""
    runs = [f for f, start in ((LETTER, "a"), (NUMBER, "1"), (0, "!"))
            if len(gpt2_words(start + char)) == 1]
    assert len(runs) <= 1
    return runs[0] if runs else WHITE


def regex_class(pattern):
    """Whether a regular expression of tokenizers matches a character."""
    cut = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str
    return lambda char: not cut(char)


def combining_classes(decomposes):
    """The canonical combining class of each character that NFD moves around.

    The standard library gives the class (they never change); whether NFD knows the character is
    tried out, and so is its order against one known character of every class."""
    high, low = "\u0345", "\u0334"  # classes 240 and 1, the ends of the range
    moves = lambda pair: nfd(pair) != pair
    active = [chr(c) for c in CODE_POINTS if c not in decomposes
              and (moves(high + chr(c)) or moves(chr(c) + low))]
    known = {}
    for char in active:
        known.setdefault(unicodedata.combining(char), char)
    assert 0 not in known
    for char in active:
        fits = [k for k, other in known.items() if not moves(other + char) and not moves(char + other)]
        assert fits == [unicodedata.combining(char)], hex(ord(char))
    return {ord(char): unicodedata.combining(char) for char in active}


def composed(decomposed, combining):
    """The characters that NFC leaves alone and joins with none before them."""
    joined = {parts[-1] for c, parts in decomposed.items() if len(parts) > 1 and nfc(parts) == chr(c)}
    return {c for c in CODE_POINTS if nfc(chr(c)) == chr(c)
            and not any(ord(d) in combining or d in joined for d in (chr(c), nfd(chr(c))[0]))}


def probe():
    flags, decomposed, lowered = {}, {}, {}
    is_word = word_tester()
    is_capital = regex_class(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]")
    is_small = regex_class(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")
    for c in CODE_POINTS:
        char, f = chr(c), 0
        if clean(char) == "": f |= OTHER
        split = [piece for piece, _ in words("a" + char + "b")]
        if split == ["a", "b"]: f |= SPACE
        elif split == ["a", char, "b"]: f |= PUNCT
        else: assert split == ["a" + char + "b"]
        assert clean(char) == ("" if f & OTHER else " " if f & SPACE else char)
        if chinese(char) != char:
            assert chinese(char) == " " + char + " "
            f |= CJK
        if nfd(char) != char:
            decomposed[c] = nfd(char)
            f |= DECOMPOSES
        elif strip(char) == "":
            f |= MARK
        if lower(char) != char:
            lowered[c] = lower(char)
            f |= LOWERS
        if not f & SPACE and is_word(char): f |= WORD
        f |= gpt2_class(char)
        if is_capital(char): f |= CAPITALS
        if is_small(char): f |= SMALLS
        if nfkd(char) != nfd(char): f |= COMPAT
        flags[c] = f
    combining = combining_classes(decomposed)
    for c in combining: flags[c] |= COMBINES
    for c in composed(decomposed, combining): flags[c] |= COMPOSED
    for c in decomposed:  # accents are stripped after decomposing, nothing else happens
        kept = "".join(d for d in decomposed[c] if not flags[ord(d)] & MARK)
        assert strip(chr(c)) == kept and len(decomposed[c]) <= 4
    assert not any(c in lowered for c in combining) and max(map(len, lowered.values())) <= 2
    return flags, decomposed, lowered, combining


def hangul(c):
    return 0xAC00 <= c < 0xAC00 + 11172  # decomposed by arithmetic


def rows(items, per_line):
    for i in range(0, len(items), per_line):
        yield "    " + " ".join(items[i:i + per_line])


def write(flags, decomposed, lowered, combining):
    records, blocks, index = {}, {}, []
    for start in range(0, 0x110000, BLOCK):
        block = []
        for c in range(start, start + BLOCK):
            record = (flags.get(c, OTHER), combining.get(c, 0))  # surrogates never come up
            block.append(records.setdefault(record, len(records)))
        index.append(blocks.setdefault(tuple(block), len(blocks)))
    assert len(records) <= 256 and len(blocks) <= 65536
    out = ["/* Generated by generate_unicode_data.py from tokenizers " + tokenizers.__version__
           + "; not edited by hand. */", "/* clang-format off */",
           '#include "tokenizers/unicode/unicode_internal.h"', "",
           f"const mc_unicode_record mc_unicode_records[{len(records)}] = {{"]
    out += rows([f"{{{f}, {k}}}," for f, k in records], 10)
    out += ["};", "", f"const uint16_t mc_unicode_index[{len(index)}] = {{"]
    out += rows([f"{i}," for i in index], 24)
    out += ["};", "", f"const uint8_t mc_unicode_blocks[{len(blocks)}][MC_UNICODE_BLOCK] = {{"]
    for block in blocks:
        # a short form for the many blocks that say one thing throughout
        if len(set(block)) == 1 and block[0] == 0: out.append("    {0},")
        else: out += ["    {"] + list(rows([f"{v}," for v in block], 32)) + ["    },"]
    maps = [("mc_unicode_decompositions", {c: d for c, d in decomposed.items() if not hangul(c)}, 3),
            ("mc_unicode_lower", lowered, 5)]
    out += ["};"]
    for name, table, per_line in maps:
        entries = ["{0x%x, {%s}}," % (c, ", ".join("0x%x" % ord(d) for d in to))
                   for c, to in sorted(table.items())]
        out += ["", f"const size_t {name}_count = {len(entries)};",
                f"const mc_unicode_mapping {name}[{len(entries)}] = {{"]
        out += list(rows(entries, per_line)) + ["};"]
    print("\n".join(out))
    print(f"{len(records)} records, {len(blocks)} blocks", file=sys.stderr)


if __name__ == "__main__":
    write(*probe())
