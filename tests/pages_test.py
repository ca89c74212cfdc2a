#!/usr/bin/env python3
"""The command lines of README and of the pages: the command takes each as it stands.

    pages_test.py PROGRAM SOURCE

Each `modelcenter ...` of a code block, or between backticks, names options that --help has, so that
no page shows one that does not exist or is an older form, and is no wrong usage: it is run where
none of its files is, and ends with another error. Options by themselves between backticks are some
command's.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

PROGRAM, SOURCE = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
# options of other programs that the pages name: CMake, the scripts, mpirun, and ModelCenter
OTHERS = {"--build", "--fuzz", "--install", "--prefix", "--preset", "--target", "--static", "--cflags", "--libs",
          "--map-by", "--allow-run-as-root", "--max-encoder-length", "--max-decoder-length"}
OLD = "docs/migrating.md"  # names the options of BMTrain and Megatron
# that work without any file: what they are given is parsed alone
WORK = {"plan", "bench", "doctor"}
RUNS_PROGRAM = re.compile(r"(?:^|[\s;&|(])(?:[\w./-]*/)?modelcenter\s+([a-z]+)\b")


def blocks(text):
    """Code of a page, with the number of the line that it begins on: fenced and indented blocks,
    continued lines as one, and what stands between backticks, which may go on in the next line."""
    lines, prose, fenced, joined, first = text.split("\n"), [], False, "", 0
    for number, line in enumerate(lines + [""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            prose.append("")
            continue
        code = fenced or line.startswith("    ")
        prose.append("" if code else line)
        if not code and not joined:
            continue
        first = first or number
        joined += line.strip().removeprefix("$ ")
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        yield first, joined, True
        joined, first = "", 0
    page = "\n".join(prose)
    for found in re.finditer(r"`([^`]+)`", page):
        yield page.count("\n", 0, found.start()) + 1, " ".join(found[1].split()), False


def words_of(line):
    """The words of one command up to a pipe, a redirection or a comment; None: no such line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return None
    for i, word in enumerate(words):
        if word and set(word) <= set("|&;<>()"):
            return words[:i]
    return words


def called(line, whole):
    """Command and arguments of each call of the program in a line."""
    for found in RUNS_PROGRAM.finditer(line):
        if found[1] in HELP:
            words = words_of(line[found.start(1):])
            if words:
                yield words[0], words[1:], line[:found.start()].rstrip().endswith("|") or "<" in line
    name = line.split(" ", 1)[0]
    if not whole and name in HELP and " --" in line:
        words = words_of(line)
        if words:
            yield name, words[1:], False


def run(arguments, folder, piped):
    variables = dict(os.environ, HF_HOME=folder, HF_HUB_CACHE=folder, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    return subprocess.run([PROGRAM, *arguments], cwd=folder, env=variables, capture_output=True, text=True,
                          timeout=60, **({"input": "text\n"} if piped else {"stdin": subprocess.DEVNULL}))


def without_gaps(arguments):
    """The arguments that are written out: without "...", what follows it up to an option, and [...]."""
    kept, gap = [], False
    for word in arguments:
        gap = "..." in word or (gap and not word.startswith("--"))
        if not gap and not word.startswith("["):
            kept.append(word)
    return kept


def check_call(command, arguments, piped, whole):
    """What is wrong with a call, or None."""
    names = [word.split("=", 1)[0].replace("_", "-") for word in arguments if re.match(r"--[a-z]", word)]
    for name in names:
        if name not in HELP[command] | {"--help"}:
            return f"{command} --help has no {name}"
    given = without_gaps(arguments)
    part, arguments = given != arguments, given
    if arguments and not arguments[0].startswith("-") and command not in PLACED:
        return f"{command}: \"{arguments[0]}\" is no option"
    if not whole or "--help" in names or "--run-file" in names or any(word.isupper() for word in arguments):
        return None  # words in capitals stand for others
    with tempfile.TemporaryDirectory() as folder:
        if not part and command not in WORK:
            done = run([command, *arguments], folder, piped)
            return done.stderr.split("\n")[0] if done.returncode in (0, 2) or done.returncode < 0 else None
        # the parser takes all that stands before the first option that it does not know
        done = run([command, *arguments, "--no-such-option"], folder, piped)
        return None if 'unknown option "--no-such-option"' in done.stderr else done.stderr.split("\n")[0]


with tempfile.TemporaryDirectory() as empty:
    names = re.findall(r"^  ([a-z]+)  ", run(["--help"], empty, False).stdout, re.M)
    TEXT = {name: run([name, "--help"], empty, False).stdout for name in names}
    HELP = {name: set(re.findall(r"^  (--[a-z0-9-]+)", text, re.M)) for name, text in TEXT.items()}
    PLACED = {name for name, text in TEXT.items() if "<" in text.split("\n")[0]}  # without an option's name
assert len(HELP) > 10 and all(HELP.values()), HELP
ALL = set().union(*HELP.values()) | OTHERS | {"--help", "--version"}

flaws, calls, seen = [], 0, {}
pages = [SOURCE / "README.md", SOURCE / "examples/README.md", *sorted((SOURCE / "docs").rglob("*.md"))]
for page in pages:
    text = page.read_text()
    for number, line, whole in blocks(text):
        where = f"{page.relative_to(SOURCE)}:{number}"
        found = list(called(line, whole))
        for call in found:
            key = (call[0], tuple(call[1]), call[2], whole)
            if key not in seen:
                seen[key] = check_call(*call, whole)
            calls += 1
            if seen[key]:
                flaws.append(f"{where}: {line}\n    {seen[key]}")
        if not whole and line.startswith("--") and str(page.relative_to(SOURCE)) != OLD:
            for name in re.findall(r"(?:^|\s)(--[a-z][a-z0-9-]+)", line):
                if name not in ALL:
                    flaws.append(f"{where}: `{line}`\n    no command has {name}")

for flaw in flaws:
    print(flaw)
print(f"{calls} calls, {len(flaws)} flaws")
sys.exit(bool(flaws) or calls < 50)
