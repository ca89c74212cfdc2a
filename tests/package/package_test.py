#!/usr/bin/env python3
"""Tests of the installed package and of the examples, one step a call: package_test.py STEP.

`install` comes first: it installs the build, moves the result elsewhere, and checks what is there.
The other steps work on the moved copy, in a folder outside the source tree. All settings come from
the environment (see CMakeLists.txt). Exit codes: 0 passed, 1 failed, 77 skipped.
"""

import array
import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys

ENV = {key: os.environ["MC_PACKAGE_" + key] for key in
       ("SOURCE BUILD WORK CC FLAGS SHARED_LIBS LIBDIR CMAKE PKG_CONFIG GENERATOR MAKE MPIEXEC HARDENING").split()}
SOURCE, BUILD, WORK = (pathlib.Path(ENV[key]) for key in ("SOURCE", "BUILD", "WORK"))
sys.path.insert(0, str(SOURCE / "tests" / "dist"))
from kept_port import KeptPort

SHARED_LIBS = ENV["SHARED_LIBS"].upper() in ("ON", "1", "TRUE", "YES")
PREFIX = WORK / "moved" / "here"
STRICT = ["-std=c17", "-Wall", "-Wextra", "-Werror"]
EXAMPLES = ["finetune_boolq", "custom_module", "embed_sentence", "custom_loss", "pretrain_gpt2",
            "classify", "generate"]


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def check(good, message):
    if not good:
        raise Failed(message)


def run(command, environment=None, cwd=None):
    """Runs a command and gives its result; a signal is always a failure."""
    command = [str(word) for word in command]
    result = subprocess.run(command, cwd=cwd, env={**os.environ, **(environment or {})},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, check=False)
    check(result.returncode >= 0, f"{' '.join(command)}: killed by signal {-result.returncode}\n"
          f"{result.stdout}{result.stderr}")
    return result


def must(command, **options):
    result = run(command, **options)
    check(result.returncode == 0, f"{' '.join(map(str, command))}: exit code "
          f"{result.returncode}\n{result.stdout}{result.stderr}")
    return result


# ---- the installed copy --------------------------------------------------------------------------

def public_names():
    """Every function that the public headers declare."""
    names = set()
    for header in (PREFIX / "include").rglob("*.h"):
        for declaration in re.findall(r"MC_API\b([^;{]*);", header.read_text()):
            names.update(re.findall(r"\b(mc_\w+)\s*\(", declaration)[:1])
    return names


def check_symbols():
    library = PREFIX / ENV["LIBDIR"] / "libmodelcenter.so"
    check(library.is_symlink(), f"{library}: expected a link to the versioned library")
    lines = must(["nm", "-D", "--defined-only", library]).stdout.splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines}
    declared = public_names()
    check(exported - declared == set(), f"exported, but in no public header: "
          f"{sorted(exported - declared)}")
    check(declared - exported == set(), f"in a public header, but not exported: "
          f"{sorted(declared - exported)}")
    dynamic = must(["readelf", "-d", library]).stdout
    major, minor = pkg_config("--modversion")[0].split(".")[:2]
    soname = f"libmodelcenter.so.{major}" + (f".{minor}" if major == "0" else "")
    check(re.search(rf"SONAME.*\[{re.escape(soname)}\]", dynamic), f"the soname is not {soname}:\n{dynamic}")
    print(f"{len(exported)} functions exported")


def check_paths():
    """What is installed must not know where it was built or installed."""
    texts = [*PREFIX.rglob("*.pc"), *PREFIX.rglob("*.cmake"), *PREFIX.rglob("*.h")]
    check(len(texts) > 10, f"{PREFIX}: hardly any files: {texts}")
    for file in texts:
        content = file.read_text()
        for folder in (SOURCE, BUILD, WORK):
            check(str(folder) not in content, f"{file.name} holds the path {folder}")
    internal = [file.name for file in PREFIX.rglob("*_internal.h")]
    check(not internal, f"private headers were installed: {internal}")
    found = sorted(path.name for path in (PREFIX / "include").iterdir())
    check(found == ["modelcenter", "modelcenter.h"], f"in the include path: {found}")


def step_install():
    shutil.rmtree(WORK, ignore_errors=True)
    first = WORK / "first"
    must([ENV["CMAKE"], "--install", BUILD, "--prefix", first])
    PREFIX.parent.mkdir(parents=True)
    first.rename(PREFIX)
    command = PREFIX / "bin" / "modelcenter"
    if command.exists():
        text = must([command, "--version"]).stdout
        check(text.startswith("modelcenter "), f"modelcenter --version printed {text!r}")
    check((PREFIX / "share" / "doc" / "modelcenter" / "LICENSE").exists(), "no licence installed")
    check_paths()
    if SHARED_LIBS:
        check_symbols()
    make_model()  # what steps share, for they run side by side
    make_data()


def pkg_config(*what):
    folder = PREFIX / ENV["LIBDIR"] / "pkgconfig"
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PKG_CONFIG_PATH")]))
    static = [] if SHARED_LIBS else ["--static"]
    return must([ENV["PKG_CONFIG"], *static, *what, "modelcenter"],
                environment={"PKG_CONFIG_PATH": path}).stdout.split()


def compile_program(source, output, flags=()):
    output.parent.mkdir(parents=True, exist_ok=True)
    rpath = [f"-Wl,-rpath,{PREFIX / ENV['LIBDIR']}"] if SHARED_LIBS else []
    must([ENV["CC"], *STRICT, *flags, *ENV["FLAGS"].split(), *pkg_config("--cflags"), source, "-o",
          output, *pkg_config("--libs"), "-lm", *rpath])
    return output


def example(name):
    """An example, copied out of the tree and compiled against the installed copy. Each step has its
    own, for steps run side by side and a program that runs can't be written."""
    folder = WORK / "outside" / sys.argv[1]
    folder.mkdir(parents=True, exist_ok=True)
    source = shutil.copy(SOURCE / "examples" / f"{name}.c", folder)
    return compile_program(pathlib.Path(source), folder / name)


def readme_code(language):
    """The first example in README.md of a language."""
    return re.search(rf"^```{language}\n(.*?)^```", (SOURCE / "README.md").read_text(), re.M | re.S)[1]


def check_cxx(folder, names):
    """C++ programs can include every header alone and call the library, where there is a C++ compiler."""
    compiler = shutil.which("c++")
    if not compiler:
        print("no c++ to try the headers with")
        return
    source, program = folder / "program.cpp", folder / "program.o"
    flags = ["-Wall", "-Wextra", "-Werror", *pkg_config("--cflags"), "-c", source, "-o", program]
    for name in names:
        source.write_text(f"#include <{name}>\n")
        must([compiler, "-std=c++11", "-pedantic", *flags])
    source.write_text("#include <modelcenter.h>\nint main()\n{\n" + readme_code("cpp") +
                      "mc_shape shape = MC_SHAPE(2, 3);\n"
                      "return mc_failed(ctx) || shape.ndim != 2;\n}\n")
    must([compiler, *flags])
    symbols = must(["nm", program]).stdout
    check(" U mc_init_distributed_as" in symbols, f"C++ mangles the names:\n{symbols}")


def step_headers():
    """Every public header compiles alone, also as strict C11, as C++ and with every name in it unused."""
    root = PREFIX / "include"
    names = sorted(str(header.relative_to(root)) for header in root.rglob("*.h"))
    check(len(names) > 10, f"{root}: hardly any headers")
    folder = WORK / "headers"
    folder.mkdir(exist_ok=True)

    def compile_c(source, *more):
        must([ENV["CC"], "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes", *more,
              *pkg_config("--cflags"), "-c", source, "-o", folder / "one.o"])

    for name in names:
        source = folder / "one.c"
        source.write_text(f"#include <{name}>\nint nothing;\n")
        for standard in ("-std=c11", "-std=c17"):
            compile_c(source, standard, "-pedantic")
    check_cxx(folder, names)
    for name in names:
        text = (root / name).read_text()
        may_change = name.startswith("modelcenter/more")
        said = ("Not part of the promised interface" if may_change else
                "This header includes the promised interface" if name == "modelcenter.h" else
                "Part of the promised interface")
        check(said.lower() in text[:text.index("*/")].lower(), f"{name}: its first comment does not say \"{said}\"")
    print(f"{len(names)} headers")


# ---- tiny data -----------------------------------------------------------------------------------

CONFIG = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2}


def save_model(family, recipe, model):
    """Initial weights of the shape and with the tokenizer that a folder describes."""
    program = WORK / "make_tiny_model"
    if not program.exists():
        compile_program(SOURCE / "tests" / "package" / "make_tiny_model.c", program)
    must([program, family, recipe, model])


def make_model():
    """A tiny BERT with random weights; its vocabulary spells everything out in letters."""
    model = WORK / "tiny-bert"
    if model.exists():
        return model
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters,
                  *("##" + c for c in letters if c.isalnum())]
    recipe = WORK / "recipe"
    recipe.mkdir(parents=True, exist_ok=True)
    (recipe / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (recipe / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": len(vocabulary)}))
    save_model("bert", recipe, model)
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        check((model / name).is_file(), f"{model}/{name} was not written")
    return model


def make_data():
    data = WORK / "tiny-boolq"
    if data.exists():
        return data
    data.mkdir(parents=True)
    for split, rows in (("train", 20), ("val", 7)):
        lines = [json.dumps({"question": f"is number {i} even", "label": i % 2 == 0, "idx": i,
                             "passage": f"Number {i} is {'even' if i % 2 == 0 else 'odd'}."})
                 for i in range(rows)]
        (data / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return data


# ---- programs that use it ------------------------------------------------------------------------

def vectors(text):
    """What embed_sentence prints: a list of {"ids": [...], "pooled": [...], "mean": [...]}."""
    found = []
    for line in text.splitlines():
        name, *numbers = line.split()
        if name == "ids":
            found.append({})
        found[-1][name] = [float(x) for x in numbers]
    return found


def check_embedding(program):
    sentences = ["Is it even?", "Number 7 is odd."]
    found = vectors(must([program, make_model(), *sentences]).stdout)
    alone = vectors(must([program, make_model(), sentences[1]]).stdout)
    check([len(v["pooled"]) for v in found] == [32, 32], f"expected two vectors of 32: {found}")
    for name in ("pooled", "mean"):
        error = max(abs(a - b) for a, b in zip(found[1][name], alone[0][name]))
        check(error < 1e-5, f"{name}: a sentence in a batch differs by {error} from it alone")
    check(abs(sum(x * x for x in found[0]["mean"]) - 1) < 1e-5, "mean is not of length 1")


def step_pkg_config():
    check_embedding(example("embed_sentence"))


def step_cmake():
    folder = WORK / "cmake-consumer"
    must([ENV["CMAKE"], "-S", SOURCE / "tests" / "package" / "consumer", "-B", folder,
          "-G", ENV["GENERATOR"], f"-DCMAKE_MAKE_PROGRAM={ENV['MAKE']}",
          f"-DCMAKE_C_COMPILER={ENV['CC']}", f"-DCMAKE_C_FLAGS={ENV['FLAGS']}",
          f"-DCMAKE_PREFIX_PATH={PREFIX}",
          f"-DEXAMPLE={SOURCE / 'examples' / 'embed_sentence.c'}"])
    must([ENV["CMAKE"], "--build", folder])
    check_embedding(folder / "embed_sentence")


def step_readme():
    """The program in README.md compiles as it stands, and trains, with a model and data that are here."""
    folder = WORK / "readme"
    folder.mkdir(exist_ok=True)
    source = folder / "program.c"
    source.write_text(readme_code("c"))
    compile_program(source, folder / "as_it_stands")
    text, count = re.subn('"bert-base-uncased"', json.dumps(str(make_model())), readme_code("c"))
    check(count == 2 and '"data/boolq"' in text, "README.md's program has other paths now")
    source.write_text(text.replace('"data/boolq"', json.dumps(str(make_data()))))
    found = must([compile_program(source, folder / "program")]).stdout
    check(re.fullmatch(r"(loss \d+\.\d+\n)+", found), f"README.md's program printed {found!r}")


def step_whole():
    """All that an install copies from the build tree is made by configuring and by the target installed_files
    alone, which is what the quick start builds."""
    if ENV["GENERATOR"] != "Ninja":
        raise Skipped("not built with Ninja")
    commands = must([ENV["MAKE"], "-C", BUILD, "-t", "commands", "installed_files"]).stdout
    built = {(BUILD / word).resolve() for word in re.split(r"[\s'\"]+", commands)}
    taken = {pathlib.Path(path) for script in BUILD.glob("**/cmake_install.cmake")
             for path in re.findall(rf'"({re.escape(str(BUILD))}/[^"$]+)"', script.read_text())}
    # configuring makes what lies in BUILD itself, and CMake's files
    files = {path for path in taken if path.is_file() and path.parent != BUILD and path.suffix != ".cmake"}
    left = [str(path) for path in sorted(files) if path.resolve() not in built]
    check(len(files) > 1 and not left, f"installed_files does not make {left}, of {files}")
    print(f"{len(files)} files")


# ---- documents -----------------------------------------------------------------------------------

def anchors(page):
    """What links to the page's headings end in."""
    found, text = set(), re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for title in re.findall(r"^#+ +(.*?) *$", text, re.M):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found


def dead_links(root, pages):
    """The relative links of pages that lead to no file, or to no heading of one."""
    dead = []
    for page in pages:
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^) \n]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{page.relative_to(root)}: {target}")
    return dead


def step_documents():
    """No relative link is dead, in the repository and where the documents are installed; README.md knows
    every page."""
    pages = [SOURCE / line for line in
             must(["git", "ls-files", "*.md"], cwd=SOURCE).stdout.splitlines()] \
        if (SOURCE / ".git").exists() else [*SOURCE.glob("*.md"), *SOURCE.glob("docs/**/*.md")]
    pages = [page for page in pages if page.exists()]
    dead = dead_links(SOURCE, pages)
    check(not dead, "dead links: " + ", ".join(dead))
    readme = (SOURCE / "README.md").read_text()
    unnamed = [page for page in [*SOURCE.glob("docs/*.md"), *SOURCE.glob("docs/*/README.md")]
               if f"]({page.relative_to(SOURCE)})" not in readme.split("## More")[-1]]
    check(not unnamed, f"the list at README.md's end lacks {unnamed}")
    folder = PREFIX / "share" / "doc" / "modelcenter"
    installed = [*folder.rglob("*.md")]
    check(len(installed) > 15, f"{folder}: hardly any pages: {installed}")
    dead = dead_links(folder, installed)
    check(not dead, "dead links of the installed pages: " + ", ".join(dead))
    print(f"{len(pages)} pages, {len(installed)} of them installed")


# ---- manual pages and completion -----------------------------------------------------------------

def check_man(share, commands):
    """A page a command, which has all of its options and which man renders without a warning."""
    folder = share / "man" / "man1"
    names = {"modelcenter.1", *(f"modelcenter-{name}.1" for name in commands)}
    found = {page.name for page in folder.iterdir()}
    check(found == names, f"{folder} holds {found}, expected {names}")
    for name in commands:
        page = (folder / f"modelcenter-{name}.1").read_text().replace("\\-", "-")
        summary = must([PREFIX / "bin" / "modelcenter", name, "--help"]).stdout
        for option in re.findall(r"^  (--[a-z0-9-]+)", summary, re.M):
            check(re.search(rf"\\fB{option}\b", page), f"modelcenter-{name}.1 lacks {option}")
    if not shutil.which("man"):
        print("no man to render the pages with")
        return
    result = run(["man", "--warnings", "-l", *sorted(folder.iterdir())], environment={"MANWIDTH": "80"})
    check(result.returncode == 0 and not result.stderr, f"man: {result.stderr}")


# The words of a command line, the last of which is completed, and what has to be offered.
COMPLETED = [
    (["fi"], ["finetune"]),
    (["help", "conv"], ["convert"]),
    (["finetune", "--sch"], ["--scheduler"]),
    (["finetune", "--scheduler", "co"], ["constant", "cosine"]),
    (["finetune", "--scheduler", "=", "li"], ["linear"]),
    (["pretrain", "--seed", "3", "--scheduler", "no"], ["noam"]),
    (["pretrain", "--data", "rows.csv", "ro"], ["rows.csv"]),
    (["convert", "model", "folder", "--to", "h"], ["hf"]),
]


def check_bash(script):
    folder = WORK / "completion"
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").touch()
    lines = [f"source {shlex.quote(str(script))}", "complete -p modelcenter"]
    for words, _ in COMPLETED:
        words = " ".join(map(shlex.quote, ["modelcenter", *words]))
        lines += [f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _modelcenter",
                  'echo "${COMPREPLY[*]}"']
    result = must(["bash", "-c", "\n".join(lines)], cwd=folder)
    check(not result.stderr, f"bash: {result.stderr}")
    first, *found = result.stdout.splitlines()
    check(first == "complete -F _modelcenter modelcenter", f"complete -p: {first}")
    for (words, expected), offered in zip(COMPLETED, found, strict=True):
        check(offered.split() == expected,
              f"{words}: bash offers {offered!r}, expected {expected}")


def step_pages():
    command = PREFIX / "bin" / "modelcenter"
    if not command.exists():
        raise Skipped("the command was not built")
    share = PREFIX / "share"
    commands = re.findall(r"^  ([a-z]+) ", must([command, "--help"]).stdout, re.M)
    check(len(commands) > 10, f"hardly any commands: {commands}")
    check_man(share, commands)
    check_bash(share / "bash-completion" / "completions" / "modelcenter")
    if shutil.which("zsh"):
        must(["zsh", "-n", share / "zsh" / "site-functions" / "_modelcenter"])
    else:
        print("no zsh")


# ---- what is loaded ------------------------------------------------------------------------------

def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def search_folders(files):
    """Of each ELF file the elements of its RUNPATH and RPATH."""
    folders, file = {file: [] for file in map(str, files)}, None
    for line in must(["readelf", "-dW", *files]).stdout.splitlines():
        if line.startswith("File: "):
            file = line[len("File: "):]
        path = re.search(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", line)
        if path:
            folders[file or str(files[0])] += path[1].split(":")
    return folders


def elf_files():
    """What is installed, and what was built: programs and libraries of our own."""
    installed = [path for path in PREFIX.rglob("*") if is_elf(path)]
    built = [path for name in ("", "bin", "lib", "tests", "examples", "cmake", ENV["LIBDIR"])
             for path in (BUILD / name).glob("*") if is_elf(path)]
    check(installed and built, "no ELF files were found")
    return installed, built


def step_hardening():
    """Programs and libraries are linked with RELRO and all symbols bound at the start; the library and
    the command have canaries and checked copies. As far as the compiler has them."""
    on, (installed, built) = ENV["HARDENING"], elf_files()
    if "relro" not in on:
        raise Skipped("this linker has no -z relro")
    for path in sorted({*installed, *built}):
        text = must(["readelf", "-lWd", path]).stdout
        check("GNU_RELRO" in text, f"{path}: no RELRO")
        check("BIND_NOW" in text or re.search(r"FLAGS_1.*\bNOW\b", text), f"{path}: symbols are bound late")
    ours = [path for path in installed if re.search(r"/(modelcenter|libmodelcenter\.so.*)$", str(path))]
    for path in ours:
        names = must(["readelf", "-sW", path]).stdout
        if "-fstack-protector-strong" in on:
            check("__stack_chk_fail" in names, f"{path}: no canaries")
        if "FORTIFY" in on:
            check(re.search(r"__(?!stack)[a-z]+_chk\b", names), f"{path}: no checked copies")
    print(f"{len(installed)} files installed, {len(built)} built, {len(ours)} with canaries: {on}")


def step_rpath():
    """No program or library looks for libraries in the working folder: its path has no empty element and
    no relative one. What is installed does not look into the build tree."""
    installed, built = elf_files()
    for file, folders in search_folders(sorted({*installed, *built})).items():
        for folder in folders:
            check(re.match(r"/|\$ORIGIN(/|$)", folder), f"{file}: looks for libraries in \"{folder}\"")
            check(not (file.startswith(str(PREFIX)) and folder.startswith(str(BUILD))),
                  f"{file} is installed and looks for libraries in {folder}")
    print(f"{len(installed)} files installed, {len(built)} built")


# ---- the package of Debian -----------------------------------------------------------------------

def step_deb():
    """cpack makes a package that says what it needs, and whose command runs."""
    for tool in ("dpkg-shlibdeps", "file"):
        if not shutil.which(tool):
            raise Skipped(f"no {tool}")
    if not SHARED_LIBS or not (PREFIX / "bin").exists():
        raise Skipped("no shared library, or no command")
    folder = WORK / "deb"
    cpack = pathlib.Path(ENV["CMAKE"]).with_name("cpack")
    must([cpack, "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", folder,
          "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none"])
    package, = folder.glob("*.deb")
    version = must([PREFIX / "bin" / "modelcenter", "--version"]).stdout.splitlines()[0]
    fields = dict(re.findall(r"^([A-Za-z-]+): *(.*)", must(["dpkg-deb", "--field", package]).stdout, re.M))
    check(fields["Package"] == "modelcenter" and f"modelcenter {fields['Version']}" == version, f"{fields}")
    check({"libc6", "libcjson1"} <= {word.split()[0] for word in fields["Depends"].split(", ")}, f"{fields}")
    check(fields["Section"] and fields["Description"] and "@" in fields["Maintainer"], f"{fields}")
    root = folder / "root"
    check(", libopenblas0," not in fields["Depends"], f"one flavour of OpenBLAS alone: {fields}")
    must(["dpkg-deb", "--extract", package, root])
    for file in ("share/man/man1/modelcenter.1.gz", "share/doc/modelcenter/copyright",
                 "share/doc/modelcenter/changelog.gz", "share/bash-completion/completions/modelcenter",
                 "share/zsh/vendor-completions/_modelcenter"):
        check((root / "usr" / file).is_file(), f"{package.name} has no usr/{file}")
    check([path.name for path in root.iterdir()] == ["usr"], f"{package.name} has more than usr/")
    library, = [path for path in root.glob("usr/lib/**/libmodelcenter.so.*") if not path.is_symlink()]
    for file, folders in search_folders([library, root / "usr" / "bin" / "modelcenter"]).items():
        check(not folders, f"{file} looks for libraries in {folders}")
    found = must([root / "usr" / "bin" / "modelcenter", "--version"],
                 environment={"LD_LIBRARY_PATH": str(library.parent)}).stdout
    check(found.splitlines()[0] == version, f"--version printed {found!r}")


def step_examples():
    text = must([example("finetune_boolq"), make_model(), make_data(), "3"]).stdout
    check(len(re.findall(r"^loss \d+\.\d+ \| norm \d+\.\d+$", text, re.M)) == 3,
          f"finetune_boolq: expected three steps:\n{text}")
    check(len(re.findall(r"^accuracy \d+\.\d\d %$", text, re.M)) == 3,
          f"finetune_boolq: expected three evaluations:\n{text}")
    weights = WORK / "custom.safetensors"
    text = must([example("custom_module"), weights]).stdout
    accuracy = float(re.search(r"^accuracy (\S+) %$", text, re.M)[1])
    check(accuracy > 90, f"custom_module learned nothing: {accuracy} %")
    header, _ = read_safetensors(weights)
    check("gate" in header and "blocks.2.up.weight" in header, f"{weights}: {sorted(header)}")
    loss = example("custom_loss")
    off = {which: float(re.search(r"^weights off by (\S+)$", must([loss, which]).stdout, re.M)[1])
           for which in ("mse", "composed", "custom")}
    # where all three have converged, least squares is off by 1.88, the others by 0.11
    check(off["mse"] > 1 and off["composed"] < 0.5 and off["custom"] < 0.5,
          f"custom_loss: weights off by {off}")
    result = run([loss, "hubert"])
    check(result.returncode == 2 and "hubert" in result.stderr, f"custom_loss: {result.stderr}")
    text = must([example("pretrain_gpt2"), *make_token_file(), "400"]).stdout
    losses = [float(x) for x in re.findall(r"^step \d+  loss (\S+)", text, re.M)]
    check(len(losses) == 400 and losses[-1] < 0.5 * losses[0], f"pretrain_gpt2: {losses}")
    text = must([example("own_tokens"), "200"]).stdout
    losses = [float(x) for x in re.findall(r"^step \d+  \d+ pieces  loss (\S+)$", text, re.M)]
    check(len(losses) == 10 and losses[-1] < 0.5 * losses[0], f"own_tokens: {losses}")
    text = must([example("pretrain_t5"), "300"]).stdout
    losses = [float(x) for x in re.findall(r"^step \d+  loss (\S+)$", text, re.M)]
    check(len(losses) == 15 and losses[-1] < 0.5 * losses[0], f"pretrain_t5: {losses}")
    if (PREFIX / "bin" / "modelcenter").exists():
        check_classify()
        check_generate()


def make_classifier():
    """The tiny BERT, fine-tuned on a few rows of a table."""
    folder, rows = WORK / "classes", WORK / "rows.csv"
    lines = [f"number {i},{'even' if i % 2 == 0 else 'odd'}" for i in range(40)]
    rows.write_text("\n".join(["text,kind", *lines]) + "\n")
    must([PREFIX / "bin" / "modelcenter", "finetune", "bert", "--pretrained", make_model(), "--data",
          rows, "--text", "text", "--label", "kind", "--epochs", "1", "--output", folder])
    return folder, rows


def check_classify():
    """The same classes and probabilities as the command writes for the rows of a table."""
    folder, rows = make_classifier()
    output = WORK / "classes.jsonl"
    must([PREFIX / "bin" / "modelcenter", "predict", folder, "--data", rows, "--output", output])
    texts = [line.split(",")[0] for line in rows.read_text().splitlines()[1:]]
    found = [line.split("\t") for line in must([example("classify"), folder, *texts]).stdout.splitlines()]
    expected = [json.loads(line) for line in output.read_text().splitlines()]
    check(len(found) == len(expected) == 40, f"classify: {len(found)} lines")
    for (label, probability), row in zip(found, expected, strict=True):
        check(label == row["label"] and abs(float(probability) - row["probability"]) < 1e-3,
              f"classify: {label} {probability}, predict: {row}")


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_gpt2():
    """A tiny GPT-2 whose tokens are letters and the space."""
    recipe = WORK / "recipe-gpt2"
    recipe.mkdir(exist_ok=True)
    words = ["<|endoftext|>", "\u0120", *LETTERS]  # U+0120 stands for a space in its vocabularies
    (recipe / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (recipe / "merges.txt").write_text("#version: 0.2\n")
    (recipe / "config.json").write_text(json.dumps(
        {"model_type": "gpt2", "vocab_size": len(words), "n_embd": 32, "n_layer": 2, "n_head": 2,
         "n_positions": 128, "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}))
    return recipe


def make_t5():
    """A tiny T5 whose pieces are letters, with and without a space before them."""
    recipe = WORK / "recipe-t5"
    recipe.mkdir(exist_ok=True)
    special = ["<pad>", "</s>", "<unk>"]
    pieces = special + ["\u2581", *LETTERS, *("\u2581" + c for c in LETTERS)]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
    (recipe / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "normalizer": None, "pre_tokenizer": space, "decoder": space,
        "added_tokens": [{"id": i, "content": t, "special": True} for i, t in enumerate(special)],
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                      {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                                    {"Sequence": {"id": "B", "type_id": 0}}],
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[t, -1.0 * (i > 2)] for i, t in enumerate(pieces)]}}))
    (recipe / "config.json").write_text(json.dumps(
        {"model_type": "t5", "vocab_size": len(pieces), "d_model": 32, "d_ff": 64, "d_kv": 16, "num_heads": 2,
         "num_layers": 2, "relative_attention_num_buckets": 8, "decoder_start_token_id": 0, "eos_token_id": 1,
         "tie_word_embeddings": False, "initializer_factor": 3,
         "pad_token_id": 0}))
    return recipe


def check_generate():
    """The answers of the command `generate`: of one prompt as its text comes, of several in any order."""
    program, command = example("generate"), PREFIX / "bin" / "modelcenter"
    prompts = ["is it even", "number", "a b c d e f g"]
    for family, recipe in (("gpt2", make_gpt2()), ("t5", make_t5())):
        model = WORK / f"tiny-{family}"
        save_model(family, recipe, model)
        rows = WORK / f"{family}.jsonl"
        rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
        must([command, "generate", family, "--pretrained", model, "--prompts", rows,
              "--output", WORK / f"{family}-answers.jsonl"])
        expected = [json.loads(line)["text"] for line in (WORK / f"{family}-answers.jsonl").read_text().splitlines()]
        check(len(expected) == len(set(expected)) == 3, f"{family}: {expected}")
        found = must([program, model, *prompts]).stdout
        wanted = [f"{i}\t{text}" for i, text in enumerate(expected)]
        check(sorted(found.splitlines()) == wanted, f"{family}: {found}, expected {wanted}")
        for text, answer in zip(prompts, expected, strict=True):
            found = must([program, model, text]).stdout
            check(found == answer + "\n", f"{family}: {text!r} gives {found!r}, expected {answer!r}")


def make_token_file():
    """A file of llm.c's form whose tokens count up to 50 again and again, and a GPT-2 to learn it."""
    tokens = WORK / "counting.bin"
    count = 4000
    header = struct.pack("<256i", 20240520, 1, count, *[0] * 253)
    tokens.write_bytes(header + struct.pack(f"<{count}H", *[i % 50 for i in range(count)]))
    config = WORK / "tiny_gpt2.json"
    config.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 50, "n_embd": 32,
                                  "n_layer": 2, "n_head": 2, "n_positions": 128}))
    return tokens, config


def expect_error(command, named):
    """The program must say what is wrong, naming it, and exit with 1: no crash, no report."""
    # after an error main returns at once and leaves its memory to the system
    result = run(command, environment={"ASAN_OPTIONS": "detect_leaks=0", "HF_HUB_CACHE": str(WORK)})
    check(result.returncode == 1, f"{' '.join(map(str, command))}: exit code {result.returncode}, "
          f"expected 1\n{result.stdout}{result.stderr}")
    check(result.stderr.startswith("error: ") and named in result.stderr,
          f"{' '.join(map(str, command))}: expected an error that names {named}:\n{result.stderr}")
    check("Sanitizer" not in result.stderr and "runtime error" not in result.stderr, result.stderr)


# Each path in finetune_boolq.c in turn, and the task's name: text, how it is misspelt.
MISSPELT = [
    (r"(mc_bert_from_pretrained\(ctx, )model", r'\1"wrong/bert"', "wrong/bert"),
    (r"(mc_tokenizer_from_pretrained\(ctx, )model", r'\1"wrong/words"', "wrong/words"),
    (r'(mc_dataset_open\(ctx, "BoolQ", )data(, "train")', r'\1"wrong/train"\2', "wrong/train"),
    (r'(mc_dataset_open\(ctx, "BoolQ", )data(, "val")', r'\1"wrong/val"\2', "wrong/val"),
    (r'(mc_dataset_open\(ctx, )"BoolQ"(, data, "train")', r'\1"BoolK"\2', "BoolK"),
    (r'(mc_dataset_open\(ctx, "BoolQ", data, )"val"', r'\1"vall"', "vall"),
]


def step_misspelt():
    model, data = make_model(), make_data()
    original = (SOURCE / "examples" / "finetune_boolq.c").read_text()
    for i, (pattern, replacement, named) in enumerate(MISSPELT):
        text, count = re.subn(pattern, replacement, original)
        check(count == 1, f"finetune_boolq.c has {count} places like {pattern}, expected 1")
        source = WORK / "misspelt" / f"program{i}.c"
        source.parent.mkdir(exist_ok=True)
        source.write_text(text)
        expect_error([compile_program(source, source.with_suffix("")), model, data], named)
    finetune = example("finetune_boolq")
    expect_error([finetune, f"{model}x", data], f"{model}x")
    expect_error([finetune, model, f"{data}x"], f"{data}x")
    expect_error([finetune, model / "vocab.txt", data], "vocab.txt")
    expect_error([finetune, model, data / "train.jsonl"], "train.jsonl")
    expect_error([finetune], "bert-base-uncased")
    expect_error([example("embed_sentence"), f"{model}x", "a text"], f"{model}x")
    expect_error([example("classify"), model, "a text"], "no classification head")
    expect_error([example("generate"), f"{model}x", "a text"], f"{model}x")
    expect_error([example("generate"), model, "a text"], "an encoder does not generate text")
    expect_error([example("custom_module"), WORK / "missing" / "o.safetensors"], "missing")
    expect_error([example("pretrain_gpt2"), WORK / "missing.bin"], "missing.bin")
    expect_error([example("pretrain_gpt2"), WORK / "missing.bin", "gpt9"], "gpt9")
    expect_error([example("own_tokens"), "5", "gpu9"], "gpu9")
    expect_error([example("pretrain_t5"), "5", "gpu9"], "gpu9")


# ---- several ranks -------------------------------------------------------------------------------

MPI = {"MC_COMM_TIMEOUT": "60", "ASAN_OPTIONS": "detect_leaks=0"}  # MPI keeps memory until the end


def train_custom(ranks, level, weights):
    """Trains the custom module, and gives its losses, step by step, and its accuracy."""
    command = [example("custom_module"), "--zero-level", level, weights]
    port = KeptPort()
    environment = {**MPI, "MC_MASTER_PORT": str(port.number)}
    text = must([ENV["MPIEXEC"], "-np", ranks, *command], environment=environment).stdout
    lines = re.findall(r"^step +(\d+) \| loss (\S+)$", text, re.M)
    accuracy = re.findall(r"^accuracy (\S+) %$", text, re.M)
    check(len(lines) > 10 and len(accuracy) == 1,
          f"{ranks} ranks, level {level}: expected the first rank's lines alone:\n{text}")
    return {int(step): float(loss) for step, loss in lines}, float(accuracy[0])


def step_ranks():
    """The same losses at any number of ranks and every level."""
    if not ENV["MPIEXEC"]:
        raise Skipped("this build knows of no MPI")
    expected, accuracy = train_custom(1, 0, WORK / "alone.safetensors")
    check(min(expected.values()) < 0.5 * expected[1], f"custom_module learned nothing: {expected}")
    alone = read_safetensors(WORK / "alone.safetensors")
    names = alone[0].keys()
    worst = 0
    for ranks in (1, 2, 4):
        for level in range(4):
            where = f"{ranks} ranks, level {level}"
            file = WORK / f"weights-{ranks}-{level}.safetensors"
            losses, share = train_custom(ranks, level, file)
            check(losses.keys() == expected.keys(), f"{where}: steps {sorted(losses)}")
            # what is printed is off by half a unit of its last place
            errors = [abs(losses[k] - expected[k]) - 1e-7 for k in expected]
            worst = max(worst, *(e / expected[k] for e, k in zip(errors, expected)))
            check(worst < 1e-5, f"{where}: losses {losses}, expected {expected}")
            check(share == accuracy, f"{where}: accuracy {share} %, expected {accuracy} %")
            together = read_safetensors(file)
            check(together[0].keys() == names, f"{where}: {sorted(together[0])}")
            for name in names - {"__metadata__"}:
                found, shape = tensor(together, name)
                wanted, wanted_shape = tensor(alone, name)
                error = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
                check(shape == wanted_shape and error < 1e-3, f"{where}: {name} is off by {error}")
    print(f"12 runs, losses within {worst:.1e}")


# ---- the real thing ------------------------------------------------------------------------------

def read_safetensors(path):
    content = path.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    return header, content[8 + size:]


def tensor(file, name):
    header, content = file
    entry = header[name]
    values = array.array({"F32": "f", "I64": "q"}[entry["dtype"]])
    values.frombytes(content[slice(*entry["data_offsets"])])
    return list(values), entry["shape"]


def shared_folder():
    folder = pathlib.Path(os.environ.get("MC_SHARED") or SOURCE.parent / "shared")
    for name in ("goldens/minilm/expected.safetensors", "data/minilm-l6/config.json"):
        if not (folder / name).exists():
            raise Skipped(f"no {folder / name} (MC_SHARED names the folder of reference data)")
    return folder


def close(found, expected, what):
    largest = max(abs(x) for x in expected)
    error = max(abs(a - b) for a, b in zip(found, expected, strict=True)) / largest
    check(error < 1e-5, f"{what}: relative error {error:.2e}")
    return error


SENTENCES = [
    "How many people live in Berlin?",
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square "
    "kilometers.",
    "New York City is famous for the Metropolitan Museum of Art.",
    "does ethanol take more energy make that produces",
]


def step_minilm():
    folder = shared_folder()
    file = read_safetensors(folder / "goldens" / "minilm" / "expected.safetensors")
    text = must([example("embed_sentence"), folder / "data" / "minilm-l6", *SENTENCES]).stdout
    worst = 0
    for i, found in enumerate(vectors(text)):
        ids, _ = tensor(file, f"{i}.ids")
        check(found["ids"] == ids, f"sentence {i}: ids {found['ids']}, expected {ids}")
        pooled, _ = tensor(file, f"{i}.pooled")
        hidden, (_, rows, dim) = tensor(file, f"{i}.last_hidden")
        mean = [sum(hidden[k::dim]) / rows for k in range(dim)]
        length = sum(x * x for x in mean) ** 0.5
        worst = max(worst, close(found["pooled"], pooled, f"sentence {i}, pooled"),
                    close(found["mean"], [x / length for x in mean], f"sentence {i}, mean"))
    print(f"{len(SENTENCES)} sentences, worst relative error {worst:.1e}")


def main():
    try:
        globals()["step_" + sys.argv[1]]()
    except Skipped as reason:
        print(f"SKIPPED: {reason}")
        return 77
    except Failed as reason:
        print(f"FAILED: {reason}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
