"""What the tests of downloads share: a hub, a cache and the command for each, and checks."""

import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import tempfile

from hub_server import Hub, Repo

MIB = 1 << 20


class Failed(Exception):
    pass


def check(good, *what):
    if not good:
        raise Failed(" ".join(map(str, what)))


def same(found, expected, what=""):
    check(found == expected, f"{what}: found {found!r}, expected {expected!r}")


# ---- one test's hub, cache, and command ----------------------------------------------------------

class Case:
    def __init__(self, tool):
        self.tool = str(tool)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mc-hub-"))
        self.cache = self.folder / "home" / "hub"
        self.hub, self.notes = Hub(), ""
        self.refuses = socket.socket()  # bound, so that nobody is given the port, and without a listener
        self.refuses.bind(("127.0.0.1", 0))
        self.nobody = f"127.0.0.1:{self.refuses.getsockname()[1]}"
        read = ("HF_", "HUGGING", "TRANSFORMERS_", "SSL_", "CURL_", "REQUESTS_")
        kept = {k: v for k, v in os.environ.items()
                if not k.startswith(read) and "proxy" not in k.lower()}
        self.env = {**kept, "HOME": str(self.folder), "HF_HOME": str(self.folder / "home"),
                    "HF_ENDPOINT": self.hub.endpoint}

    def start(self, *words, **environment):
        # Python ignores SIGXFSZ: so does the command then, and a limit is an error of a write
        return subprocess.Popen([self.tool, *words], env={**self.env, **environment},
                                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, stdin=subprocess.DEVNULL, restore_signals=False)

    def finish(self, process):
        out, err = process.communicate(timeout=240)
        check(process.returncode >= 0, f"killed by signal {-process.returncode}\n{err}")
        return process.returncode, out, err

    def run(self, *words, **environment):
        return self.finish(self.start(*words, **environment))

    def get(self, *words, **environment):
        """Downloads, successfully; the snapshot's folder."""
        code, out, err = self.run("download", *words, **environment)
        same(code, 0, f"download {words}: {err}")
        check(out.endswith("\n") and out.count("\n") == 1, f"stdout: {out!r}")
        return pathlib.Path(out[:-1])

    def refused(self, words, *parts, **environment):
        """Fails with a message that has all parts, and stdout stays empty."""
        code, out, err = self.run("download", *words, **environment)
        same((code, out), (1, ""), f"download {words}: {err}")
        for part in parts:
            check(part in err, f"{part!r} is not in: {err}")
        return err

    def add(self, name, files=None, large=("model.safetensors",), **how):
        files = {"config.json": b'{"model_type": "bert"}\n', "model.safetensors": b"weights" * 99,
                 "vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n", "README.md": b"#",
                 "tf_model.h5": b"tf", "pytorch_model.bin": b"torch"} if files is None else files
        self.hub.repos[name] = Repo(files, [n for n in large if n in files], **how)
        return self.hub.repos[name]

    def folder_of(self, name):
        return self.cache / ("models--" + name.replace("/", "--"))

    def matches(self, snapshot, repo, names):
        """The snapshot has just these files, with the right contents, as links into blobs/."""
        found = sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if not p.is_dir())
        same(found, sorted(names), "files of the snapshot")
        for name in names:
            path = snapshot / name
            check(path.read_bytes() == repo.files[name], f"{name}: other contents")
            up = "../" * (2 + name.count("/"))
            same(os.readlink(path), f"{up}blobs/{repo.hash(name)}", name)
        folder = snapshot.parent.parent
        same(sorted(p.name for p in (folder / "blobs").iterdir()),
             sorted({repo.hash(n) for n in names}), "blobs")


def large_file(size, seed=1):
    return random.Random(seed).randbytes(size)


def tiny_gpt2():
    shapes = {"wte.weight": (10, 8), "wpe.weight": (16, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    for name, *shape in (("ln_1.weight", 8), ("ln_1.bias", 8), ("ln_2.weight", 8), ("ln_2.bias", 8),
                         ("attn.c_attn.weight", 8, 24), ("attn.c_attn.bias", 24),
                         ("attn.c_proj.weight", 8, 8), ("attn.c_proj.bias", 8),
                         ("mlp.c_fc.weight", 8, 32), ("mlp.c_fc.bias", 32),
                         ("mlp.c_proj.weight", 32, 8), ("mlp.c_proj.bias", 8)):
        shapes["h.0." + name] = tuple(shape)
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for d in shape:
            size *= d
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 10,
              "n_positions": 16, "n_ctx": 16}
    return {"config.json": json.dumps(config).encode(),
            "model.safetensors": struct.pack("<Q", len(text)) + text + bytes(at)}
