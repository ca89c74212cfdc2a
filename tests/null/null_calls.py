#!/usr/bin/env python3
"""Writes the calls of test_null_calls.c: one C function for each public function of the library.

    null_calls.py FOLDER_OF_INSTALLED_HEADERS OUTPUT.h

Each takes its live arguments from live_values.h, by type, and puts NULL in the place it is asked for. A
prototype that this script cannot read is an error, and a type without a live value does not compile: a
new public function is tested, or the build fails."""

import pathlib
import re
import sys

INTEGERS = {"bool", "int", "size_t", "int32_t", "int64_t", "uint64_t"}
REALS = {"float", "double"}


def fail(message):
    sys.exit(f"null_calls.py: error: {message}")


def read_headers(folder):
    """All public headers as one text, without comments and preprocessor lines."""
    texts = []
    for path in sorted(pathlib.Path(folder).rglob("*.h")):
        text = re.sub(r"/\*.*?\*/", " ", path.read_text(encoding="utf-8"), flags=re.S)
        text = re.sub(r"\\\n", " ", text)
        text = re.sub(r"\bMC_PRINTF\([^)]*\)", " ", text)
        texts.append(re.sub(r"^[ \t]*#.*$", "", text, flags=re.M))
    if not texts:
        fail(f"{folder}: no headers")
    return "\n".join(texts)


class Types:
    """What the headers' typedefs say about types that are passed by value."""

    def __init__(self, text):
        self.enums = set(re.findall(r"typedef enum \w+ \{.*?\} (\w+);", text, flags=re.S))
        bodies = re.findall(r"typedef struct \w+ \{(.*?)\n\} (\w+);", text, flags=re.S)
        self.with_pointers = {name for body, name in bodies if "*" in body}
        self.functions = set(re.findall(r"typedef [^;{}]*?\(\*(\w+)\)\(", text))


def split_parameters(text):
    """The parameters of a prototype, at the commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    parts.append(part.strip())
    return [] if parts == ["void"] else parts


class Parameter:
    """A parameter: its C declaration as a local variable, whether NULL fits it, and its live value."""

    def __init__(self, function, text, types):
        self.function, self.text = function, text
        pointer = re.fullmatch(r".*\(\*(\w+)\)\(.*\)", text)
        plain = re.fullmatch(r"(.*?)(\w+)(\[\w*\])?", text)
        self.name = (pointer or plain).group(1 if pointer else 2)
        self.nullable, self.type, self.absent = True, None, "NULL"
        if pointer:
            self.declare = lambda local: text.replace(f"(*{self.name})", f"(*{local})", 1)
            self.live = f"live_{function}_{self.name}()"
            return
        self.type = plain.group(1).strip() + (" *" if plain.group(3) else "")
        self.declare = lambda local: f"{self.type} {local}"
        self.live = self.live_value(types)

    def live_value(self, types):
        where = f'"{self.function}", "{self.name}"'
        stars = self.type.count("*")
        base = re.sub(r"\bconst\b|\bstruct\b|\*", " ", self.type).split()
        if len(base) != 1:
            fail(f"{self.function}: no way to read the type of \"{self.text}\"")
        base = base[0]
        if stars == 0:
            self.nullable = base in types.functions
            if base in types.functions:
                return f"live_{base}()"
            if base in INTEGERS | types.enums:
                return f"({base})live_integer({where})"
            if base in REALS:
                return f"({base})live_real({where})"
            if base in types.with_pointers:
                self.nullable, self.absent = True, f"({base}){{0}}"
            return f"value_{base}({where})"
        if stars == 2:
            out = "const" not in self.type.split("*")[1]
            return "live_out()" if out else f"live_list_{base}({where})"
        if stars > 2:
            fail(f"{self.function}: no live value for \"{self.text}\"")
        if base in INTEGERS:
            return f"live_integers({where}, sizeof({base}))"
        if base in REALS:
            return f"live_reals({where}, sizeof({base}))"
        if base == "char" and "const" in self.type:
            return f"live_text({where})"
        if base in ("char", "void"):
            return "live_bytes()"
        return f"live_{base}({where})"


def result_check(returns, types):
    """The function of test_null_calls.c that looks at a result; None: there is nothing to look at."""
    if returns == "mc_status":
        return "returned_status"
    if "*" in returns:
        return "returned_pointer"
    if returns in INTEGERS | REALS | types.enums:
        return "returned_number"
    return None


def write_call(out, returns, function, parameters, types):
    out.append(f"static void call_{function}(int place)\n{{")
    named = [p for p in parameters if p.text != "..."]
    for i, p in enumerate(named):
        absent = f"place == {i} || place == ALL_PLACES ? {p.absent} : " if p.nullable else ""
        out.append(f"    {p.declare(f'a{i}')} = {absent}{p.live};")
    call = f"{function}({', '.join(f'a{i}' for i in range(len(named)))})"
    check = result_check(returns, types)
    if not any(p.nullable for p in named):
        out.append("    (void)place;")
    out.append("    begin_call();")
    out.append(f"    {check}({call});" if check else f"    {call};")
    out.append("}\n")


def main():
    if len(sys.argv) != 3:
        fail("usage: null_calls.py FOLDER_OF_INSTALLED_HEADERS OUTPUT.h")
    text = read_headers(sys.argv[1])
    types = Types(text)
    out, rows = ["/* Written by null_calls.py. */\n"], []
    prototype = re.compile(r"MC_API\s+([\w\s*]*?)(\w+)\s*\(([^;{}]*)\)\s*;")
    for declaration in re.finditer(r"\bMC_API\b[^;{]*[;{]", text):
        match = prototype.fullmatch(declaration.group())
        if not match:
            fail("cannot read this prototype: " + " ".join(declaration.group().split()))
        returns = " ".join(match.group(1).split())
        function, arguments = match.group(2), " ".join(match.group(3).split())
        parameters = [Parameter(function, p, types) for p in split_parameters(arguments)
                      if p != "..."]
        write_call(out, returns, function, parameters, types)
        names = ", ".join(f'"{p.name}"' if p.nullable else "NULL" for p in parameters)
        rows.append(f'    {{"{function}", call_{function}, {len(parameters)}, {{{names}}}}},')
    out.append("static const null_call calls[] = {\n" + "\n".join(rows) + "\n};")
    pathlib.Path(sys.argv[2]).write_text("\n".join(out) + "\n", encoding="utf-8")


main()
