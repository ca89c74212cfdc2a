#!/usr/bin/env python3
"""Turns CUDA C into C++ for the simulator in this folder.

    translate.py SOURCE RESULT NAME

Every line stays on its line; NAME is what errors call the file. What is rewritten:

    kernel<<<grid, block, shared, stream>>>(arguments)   a call of mc_sim::launch
    __shared__ T a[N], b;                                static variables, poisoned for each block
    extern __shared__ T a[];                             a pointer to the block's dynamic memory
    __launch_bounds__(N)                                 a check in the kernel's body
    asm("...")                                           what the instruction in INSTRUCTIONS does
"""
import re
import sys

# What each PTX instruction in use is in C++; {0}, {1}, ... are its operands.
INSTRUCTIONS = {
    "bar.sync %0, %1;": "((void)({0}), __syncthreads())",  # all threads of a block have to come
    "griddepcontrol.launch_dependents;": "(void)0",  # kernels run one after the other
    "griddepcontrol.wait;": "(void)0",
    "ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];":
        "mc_sim_load_16({0}, {1}, {2}, {3}, {4})",
    "ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];":
        "mc_sim_load_16({0}, {1}, {2}, {3}, {4})",
    "st.relaxed.gpu.global.u32 [%0], %1;": "*(uint32_t *)({0}) = {1}",
    "prefetch.global.L2 [%0];": "((void)({0}))",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};":
        "mc_sim_mma<__nv_bfloat16>({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9})",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
    "{%0, %1, %2, %3};":
        "mc_sim_mma<__half>({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9})",
    "ex2.approx.ftz.f32 %0, %1;": "{0} = mc_sim::ex2_approx_ftz_f32({1})",
    "rcp.approx.ftz.f32 %0, %1;": "{0} = 1.0f / {1}",
    "st.global.v4.b32 [%0], {%1, %2, %3, %4};": "*(uint4 *)({0}) = make_uint4({1}, {2}, {3}, {4})",
    # the second operand is the lower byte (core/device/fp8_internal.h)
    "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;":
        "{0} = (uint16_t)(mc_to_e4m3({2}) | mc_to_e4m3({1}) << 8)",
    "cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;":
        "{0} = (uint16_t)(mc_to_e5m2({2}) | mc_to_e5m2({1}) << 8)",
}


def fail(text, at, why):
    sys.exit(f"{sys.argv[1]}:{text.count(chr(10), 0, at) + 1}: {why}")


def blank_comments(text):
    """The same text with comments and the insides of strings as blanks, for finding things."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def matching(code, at):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += code[i] in "([{"
        depth -= code[i] in ")]}"
        if depth == 0:
            return i
    fail(code, at, "a bracket is not closed")


def split(code, text):
    """Parts of text between commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(code):
        depth += c in "([{<"
        depth -= c in ")]}>"
        if c == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return parts + [text[begin:]]


def kernel_begin(code, end):
    """Where the expression of a kernel that ends at `end` begins."""
    at = end
    while code[at - 1].isspace():
        at -= 1
    if code[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += (code[at] == ">") - (code[at] == "<")
            if depth == 0:
                break
    while re.match(r"[\w:]", code[at - 1]):
        at -= 1
    return at


def launches(text):
    while (at := (code := blank_comments(text)).find("<<<")) >= 0:
        begin, end = kernel_begin(code, at), code.find(">>>", at)
        opening = end + 3
        while code[opening].isspace():
            opening += 1
        if begin == at or end < 0 or code[opening] != "(":
            fail(text, at, "this launch is not understood")
        closing = matching(code, opening)
        kernel, config = text[begin:at], text[at + 3:end]
        between, arguments = text[end + 3:opening], text[opening + 1:closing]
        name = " ".join(kernel.split()).replace('"', '\\"')
        comma = "," if arguments.strip() else ""
        text = (text[:begin] + f'mc_sim::launch("{name}", {kernel}, mc_sim::config({config}){comma}'
                + between + arguments + text[closing:])
    return text


def shared_variables(text):
    pattern = re.compile(r"\b(extern\s+)?__shared__\b([^;]*);")
    while m := pattern.search(blank_comments(text)):
        if m.group(1):
            dynamic = re.fullmatch(r"\s*(.*?)\s*\b(\w+)\s*\[\s*\]\s*", m.group(2), flags=re.S)
            if not dynamic:
                fail(text, m.start(), "this shared memory is not understood")
            kind, name = dynamic.groups()
            result = f"{kind} *const {name} = ({kind} *)mc_sim::dynamic_shared();"
        else:
            declared = text[m.start(2):m.end(2)]
            names = []
            for part in split(blank_comments(declared), declared):
                name = re.search(r"\b(\w+)\s*(?:\[[^\]]*\]\s*)*$", part)
                if not name:
                    fail(text, m.start(), "this shared variable is not understood")
                names.append(name.group(1))
            marks = "".join(f" MC_SIM_SHARED({name});" for name in names)
            result = f"static{declared};{marks}"
        lost = text[m.start():m.end()].count("\n") - result.count("\n")
        text = text[:m.start()] + result + "\n" * lost + text[m.end():]
    return text


def launch_bounds(text):
    while m := re.search(r"__launch_bounds__\s*\(", code := blank_comments(text)):
        closing = matching(code, m.end() - 1)
        bounds = text[m.end():closing]
        parameters = code.find("(", closing)
        body = matching(code, parameters) + 1
        while code[body].isspace():
            body += 1
        kept = "\n" * text[m.start():closing].count("\n")
        check = f" mc_sim::check_bounds({bounds});" if code[body] == "{" else ""
        text = (text[:m.start()] + kept + text[closing + 1:body + 1] + check + text[body + 1:])
    return text


def instructions(text):
    pattern = re.compile(r"\basm\b(\s+volatile)?\s*\(")
    at = 0
    while m := pattern.search(blank_comments(text), at):
        closing = matching(blank_comments(text), m.end() - 1)
        inside = text[m.end():closing]
        template = re.match(r'\s*((?:"[^"]*"\s*)+)', inside)
        code = "".join(re.findall(r'"([^"]*)"', template.group(1))) if template else None
        rest = inside[template.end():] if template else ""
        operands = re.findall(r'"[^"]*"\s*\(([^()]*)\)', rest)
        if code == "":  # a hint for the compiler alone
            result = ", ".join(f"(void)({operand})" for operand in operands) or "(void)0"
        elif code in INSTRUCTIONS:
            result = INSTRUCTIONS[code].format(*operands)
        else:
            fail(text, m.start(), "an instruction that translate.py does not know")
        result += "\n" * text[m.start():closing].count("\n")
        text = text[:m.start()] + result + text[closing + 1:]
        at = m.start() + len(result)
    return text


def main():
    source, result, name = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    for step in (instructions, shared_variables, launch_bounds, launches):
        text = step(text)
    with open(result, "w", encoding="utf-8") as file:
        file.write(f'#line 1 "{name}"\n{text}')


main()
