#!/usr/bin/env python3
"""Downloads with `modelcenter`, from a hub of its own: hub_test.py MODELCENTER HUB_FAULTS [NAME...]

NAME: only the tests whose names contain one of them. MC_HUB_KILLS: how often a download is killed
before it has to end in the right file (20); MC_HUB_LIES: how many downloads get wrong answers at
random (20). Exit codes: 0, or 1 with what failed."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

from hub_case import MIB, Case, Failed, check, large_file, same, tiny_gpt2
from hub_server import Hub, faults_taken, git_hash

TOOL, FAULTS = (pathlib.Path(word).resolve() for word in sys.argv[1:3])

MODEL = ["config.json", "model.safetensors", "vocab.txt"]

# ---- what is downloaded, and where to ------------------------------------------------------------


def test_layout(c):
    repo = c.add("some-org/some.model")
    snapshot = c.get("some-org/some.model")
    same(snapshot, c.folder_of("some-org/some.model") / "snapshots" / repo.commit)
    c.matches(snapshot, repo, MODEL)
    same((snapshot.parent.parent / "refs/main").read_text(), repo.commit)
    same(len(c.hub.log), 7, "a list, and header and contents of each file")
    same(c.get("some-org/some.model"), snapshot)
    same(len(c.hub.log), 7, "requests for what is there")


def test_bare_name_is_the_folders(c):
    repo = c.add("google-bert/bert-base-uncased")
    c.hub.moved["bert-base-uncased"] = "google-bert/bert-base-uncased"
    snapshot = c.get("bert-base-uncased")
    same(snapshot.parent.parent, c.folder_of("bert-base-uncased"))
    c.matches(snapshot, repo, MODEL)
    before = len(c.hub.log)
    same(sorted(p.name for p in c.cache.glob("*/.no_exist/*/*"))[:2], ["added_tokens.json", "chat_template.jinja"])
    same(c.get("google-bert/bert-base-uncased"), snapshot)  # the same model's other name
    same(len(c.hub.log), before)


def test_names_of_modelcenter(c):
    c.add("gpt2")
    same(c.get("gpt2-base").parent.parent, c.folder_of("gpt2"))
    c.add("google/flan-t5-small")
    same(c.get("flan-t5-small").parent.parent, c.folder_of("google/flan-t5-small"))
    before = len(c.hub.log)
    c.refused(["cpm1-large"], "cpm1-large", "no repository on the Hugging Face hub")
    code, _, err = c.run("generate", "cpm2", "--pretrained", "cpm2-large", "--ids", "--prompt", "1")
    check(code == 1 and "no repository on the Hugging Face hub" in err, err)
    same(len(c.hub.log), before)


def test_only_what_is_needed(c):
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "generation_config.json": b"{ }",
             "pytorch_model.bin": b"torch", "model.fp16.safetensors": b"half", "flax.msgpack": b"x"}
    repo = c.add("a/bin", files, large=["pytorch_model.bin"])
    c.matches(c.get("a/bin"), repo, ["config.json", "tokenizer.json", "generation_config.json",
                                     "pytorch_model.bin"])
    check(not c.hub.requests("fp16") and not c.hub.requests("flax"), "asked for other files")
    repo = c.add("a/pt", {"config.json": b"{}", "pytorch_model.pt": b"pt"}, large=[])
    c.matches(c.get("a/pt"), repo, ["config.json", "pytorch_model.pt"])
    c.add("a/none", {"config.json": b"{}", "flax.msgpack": b"x"})
    c.refused(["a/none"], "a/none", "no weights", "model.safetensors")
    c.add("a/nothing", {"README.md": b"{}"})
    c.refused(["a/nothing"], "a/nothing", "no tokenizer")
    repo = c.add("a/words", {"README.md": b"{}", "vocab.txt": b"x"})
    c.matches(c.get("a/words"), repo, ["vocab.txt"])
    before = len(c.hub.log)
    for name in ("a/words", "a/bin", "a/pt"):  # what they lack is known
        c.get(name)
    same(len(c.hub.log), before)
    (c.folder_of("a/bin") / "snapshots" / c.hub.repos["a/bin"].commit / "tokenizer.json").unlink()
    c.get("a/bin")
    check(len(c.hub.log) > before, "a tokenizer that is missing was not fetched")


def shards(kind):
    index = {"weight_map": {"a": f"{kind}-1", "b": f"{kind}-2", "c": f"{kind}-1"}}
    return {"config.json": b"{}", f"{kind}.index.json": json.dumps(index).encode(),
            f"{kind}-1": b"first", f"{kind}-2": b"second", f"{kind}-3": b"another's"}


def test_shards(c):
    for kind in ("model.safetensors", "pytorch_model.bin"):
        name = f"s/{kind[:5]}"
        repo = c.add(name, shards(kind), large=[f"{kind}-1", f"{kind}-2"])
        snapshot = c.get(name)
        c.matches(snapshot, repo, ["config.json", f"{kind}.index.json", f"{kind}-1", f"{kind}-2"])
        before = len(c.hub.log)
        same(c.get(name), snapshot)
        same(len(c.hub.log), before)
        (snapshot / f"{kind}-2").unlink()  # the link alone: the contents are there
        same(c.get(name), snapshot)
        same([r[1] for r in c.hub.log[before:] if "resolve" in r[2]], ["HEAD"])
        before = len(c.hub.log)
    files = shards("model.safetensors")
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "../../../../etc/passwd"}}'
    c.add("s/evil", files)
    c.refused(["s/evil"], "s/evil", "weight_map", "expected one of the repository's files")


def test_patterns(c):
    files = {"onnx/a.json": b"1", "onnx/deep/b.json": b"2", "c.json": b"3", "d e+%.txt": b"4"}
    repo = c.add("a/b", files)
    c.matches(c.get("a/b", "--include", "onnx/"), repo, ["onnx/a.json", "onnx/deep/b.json"])
    c.get("a/b", "--include", "d e+%.txt")
    before = len(c.hub.log)
    snapshot = c.get("a/b", "--include", "c.json", "--include", "d e*.txt")
    c.matches(snapshot, repo, list(files))
    same(len(c.hub.log), before + 3, "a list, and head and contents of one file")
    c.get("a/b", "--include", "c.json")
    same(len(c.hub.log), before + 3)
    c.refused(["a/b", "--include", "*.bin"], "a/b", "none of the repository's 4 files", "*.bin")


def test_revisions(c):
    old = c.add("a/b")
    c.get("a/b")
    new = c.add("a/b", {**old.files, "model.safetensors": b"better"}, commit="f" * 40)
    new.refs = {"main": new.commit, "v2": new.commit, "refs/pr/1": new.commit}
    snapshot = c.get("a/b", "--revision", "v2")
    check(snapshot.name == new.commit and (snapshot / "model.safetensors").read_bytes() == b"better")
    same(c.get("a/b@refs/pr/1"), snapshot)
    same((snapshot.parent.parent / "refs/refs/pr/1").read_text(), new.commit)
    check(c.hub.requests("/revision/refs%2Fpr%2F1"), "the revision's '/' is not escaped")
    same(c.get("a/b").name, old.commit, "main, as it was downloaded")
    same(c.get("a/b", "--revision", new.commit), snapshot)
    c.refused(["a/b", "--revision", "v9"], "a/b", "no such revision", "v9")
    c.refused(["a/b@v2", "--revision", "v1"], "a/b@v2", "v1")
    c.refused(["a/b", "--revision", "../x"], "a/b", "../x")
    same(c.get("a/b", "--cache-dir", str(c.folder / "other")).parts[:-3],
         (c.folder / "other").parts)


def test_empty_files(c):
    repo = c.add("a/b", {"config.json": b"", "model.safetensors": b""})
    c.matches(c.get("a/b"), repo, ["config.json", "model.safetensors"])


# ---- no requests ---------------------------------------------------------------------------------

def test_no_requests(c):
    c.add("a/b")
    for variable, value in (("HF_HUB_OFFLINE", "1"), ("HF_HUB_OFFLINE", "true"),
                            ("TRANSFORMERS_OFFLINE", "YES")):
        c.refused(["a/b"], "a/b", f"{variable} is set", "models--a--b", **{variable: value})
    for path in ("/no/where", "./nowhere", "../nowhere", "~/nowhere", "a/b/c"):
        c.refused([path], path, "cannot open this folder")
    (c.folder / "here").mkdir()
    same(c.get("here"), pathlib.Path("here"))
    same(c.hub.log, [])
    c.get("a/b", HF_HUB_OFFLINE="0")
    same(c.get("a/b", HF_HUB_OFFLINE="1").parent.name, "snapshots")
    for endpoint in ("ftp://x", "huggingface.co", "http://a b"):
        c.refused(["a/c"], "HF_ENDPOINT", HF_ENDPOINT=endpoint)


def test_loading_by_name(c):
    """Commands load what is not there yet; a model without a tokenizer is one."""
    repo = c.add("me/tiny", tiny_gpt2())
    code, out, err = c.run("generate", "gpt2", "--pretrained", "me/tiny", "--ids", "--prompt", "1 2",
                           "--max-new-tokens", "2")
    same(code, 0, err)
    c.matches(c.folder_of("me/tiny") / "snapshots" / repo.commit, repo, list(repo.files))
    before = len(c.hub.log)
    same(c.run("inspect", "me/tiny@main")[0], 0)
    same(len(c.hub.log), before, "requests for what is there")
    repo.refs["v1"] = repo.commit
    same(c.run("inspect", "me/tiny", "--revision", "v1")[0], 0)
    code, _, err = c.run("tokenize", "--model", "me/tiny", "--text", "hello")
    check(code == 1 and "me/tiny" in err and "no tokenizer" in err, err)
    c.add("me/words", {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n"})
    code, out, err = c.run("tokenize", "--model", "me/words", "--text", "hello")
    check(code == 0 and "hello" in out, err)
    code, _, err = c.run("inspect", "my-model")
    check(code == 1 and err.startswith('error: "my-model": no such folder') and c.hub.endpoint in err
          and "no such repository" in err, err)


# ---- who may, and what is not there --------------------------------------------------------------

def test_token(c):
    repo = c.add("meta/llama", gated=401)
    err = c.refused(["meta/llama"], "meta/llama", "config.json", "gated", "HF_TOKEN",
                    str(c.folder / "home/token"), "Access is restricted")
    repo.gated = 403
    err = c.refused(["meta/llama"], "gated", "does not open it", HF_TOKEN="hf_wrong")
    check("hf_wrong" not in err, "the token is shown")
    (c.folder / "home").mkdir(exist_ok=True)
    (c.folder / "home/token").write_text("hf_secret\n")
    snapshot = c.get("meta/llama")
    c.matches(snapshot, repo, MODEL)
    check(c.hub.requests("model.safetensors?signature"), "nothing came from the other host")
    for host, _, path, headers in c.hub.log:
        check(host == "hub" or "Authorization" not in headers, f"the token went to {host}{path}")
    (c.folder / "mine").write_text(" hf_secret ")
    c.get("meta/llama", "--cache-dir", "x", HF_TOKEN_PATH=str(c.folder / "mine"))
    shutil.rmtree(c.cache)
    c.refused(["meta/llama"], "gated", HF_TOKEN="hf_wrong")  # before the file
    c.refused(["meta/llama"], "HF_TOKEN", "expected a token", HF_TOKEN="a\r\nX-Evil: b")
    c.add("me/private", private=True)
    c.refused(["me/private"], "me/private", "no such repository, or it is private",
              HF_TOKEN_PATH="/nowhere")
    c.get("me/private")


def test_https(c):
    """A host whose certificate nobody has signed receives nothing."""
    if not shutil.which("openssl"):
        c.notes = "(without: there is no openssl)"
        return
    made = c.folder / "both.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                    "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", made,
                    "-out", c.folder / "authority.pem"], check=True, capture_output=True)
    with open(made, "ab") as file:
        file.write((c.folder / "authority.pem").read_bytes())
    c.hub = Hub(made)
    c.env["HF_ENDPOINT"] = c.hub.endpoint
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(9 * MIB)}, private=True)
    c.refused(["a/b"], "a/b", c.hub.endpoint, "certificate", HF_TOKEN="hf_secret")
    same(c.hub.log, [])
    trusted = {"SSL_CERT_FILE": str(c.folder / "authority.pem"), "HF_TOKEN": "hf_secret"}
    c.matches(c.get("a/b", **trusted), repo, list(repo.files))
    c.refused(["a/b", "--cache-dir", "x"], "certificate", CURL_CA_BUNDLE="/nowhere.pem")
    # https never redirects to http: for the list, a header and a file
    plain, on = Hub(), "expected https again"
    storage, c.hub.storage = c.hub.storage, plain.storage
    c.refused(["a/b", "--cache-dir", "x"], "a/b", "model.safetensors", plain.storage, on, **trusted)
    redirect = ("status", 302, {"Location": plain.endpoint + "/x"})
    c.hub.faults = {"/list": [redirect]}
    c.refused(["a/b", "--cache-dir", "x"], "a/b", "list of its files", plain.endpoint, on, **trusted)
    c.hub.faults, c.hub.storage = {"config.json": [redirect]}, storage
    c.refused(["a/b", "--cache-dir", "x"], "a/b", "config.json", plain.endpoint, on, **trusted)
    same(plain.log, [], "requests without https")


def test_not_found(c):
    c.refused(["no/where"], "no/where", c.hub.endpoint, "no such repository", "no such folder")
    c.add("a/b", {"config.json": b"{}", "model.safetensors": b"x"})
    c.hub.faults["HEAD", "config.json"] = [("status", 404, {"X-Error-Code": "EntryNotFound"})]
    c.refused(["a/b"], "a/b", "config.json", "no such file")
    same(list(c.cache.glob("*/refs/*")) + list(c.cache.glob("*/snapshots/*")), [])
    repo = c.add("a/evil", {"../../evil": b"x", "config.json": b"{}"})
    c.refused(["a/evil"], "a/evil", "../../evil")
    repo.files, repo.commit = {"config.json": b"{}", "model.safetensors": b""}, "../../x"
    repo.refs["main"] = "../../x"
    c.refused(["a/evil"], "a/evil", "commit")


# ---- networks that break -------------------------------------------------------------------------

def test_busy(c):
    repo = c.add("a/b")
    busy, many = ("status", 503, {"Retry-After": "0"}), ("status", 429, {"Retry-After": "0"})
    c.hub.faults.update({"config.json": [busy, many, busy], "/list": [many],
                         ("HEAD", "model.safetensors"): [many], "model.safetensors": [busy] * 3})
    c.matches(c.get("a/b"), repo, MODEL)
    c.add("a/c")
    c.hub.faults["HEAD", "config.json"] = [busy] * 99
    c.refused(["a/c"], "a/c", "config.json", "HTTP 503", "not available", "tries")
    c.hub.faults["HEAD", "config.json"] = [("status", 429, {"Retry-After": "1000"})] * 99
    c.refused(["a/c"], "a/c", "HTTP 429", "too many requests", "wait 1000 s")
    c.hub.faults["HEAD", "config.json"] = [("status", 503, {"Retry-After": "1"})]
    start = time.monotonic()
    c.get("a/c")
    check(time.monotonic() - start >= 1, "did not wait as long as the hub said")


def test_broken_transfers(c):
    data = large_file(10 * MIB)
    repo = c.add("a/b", {"config.json": b"{}" * 100, "model.safetensors": data})
    c.hub.faults = {"config.json": [("break", 50)],
                    "model.safetensors": [("break", MIB), ("break", 3 * MIB + 5), ("break", 0),
                                          ("status", 500, {}), ("break", 700000)]}
    c.matches(c.get("a/b"), repo, ["config.json", "model.safetensors"])
    ranges = [r[3]["Range"] for r in c.hub.requests("model.safetensors?signature")]
    firsts = [int(re.match(r"bytes=(\d+)-", r)[1]) for r in ranges]
    check(len(firsts) >= 3 + 4, "three parts and their resumptions:", ranges)
    check(any(f % (4 * MIB) for f in firsts), "nothing was resumed at its byte:", ranges)
    same(len(set(ranges)) <= len(ranges) - 2, True, "refused ranges are asked for again")


def test_stalled_transfer(c):
    data = large_file(5 * MIB)
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": data})
    goes_on = threading.Event()  # never: the client has to go on by itself
    c.hub.faults = {"model.safetensors": [("hold", MIB, goes_on)]}
    c.matches(c.get("a/b", HF_HUB_DOWNLOAD_TIMEOUT="2"), repo, list(repo.files))
    goes_on.set()


def test_slow_hub(c):
    """A byte now and then is no silence: a list has a time limit, a file a least rate."""
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(MIB)})
    c.hub.faults = {"/list": [("drip", 0.1)] * 9}
    start = time.monotonic()
    c.refused(["a/b"], "a/b", "the list of its files", "no whole answer within 3 s",
              HF_HUB_DOWNLOAD_TIMEOUT="0.05")
    check(time.monotonic() - start < 60, "waited for a list that takes a day")
    c.hub.faults = {"model.safetensors": [("drip", 0.1)] * 99}
    c.refused(["a/b"], "a/b", "model.safetensors", "expected 1024 bytes a second or more",
              HF_HUB_DOWNLOAD_TIMEOUT="0.5")
    c.hub.faults = {}
    c.matches(c.get("a/b"), repo, list(repo.files))


def test_long_list(c):
    """Each name is looked up by hash, once."""
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": b"x"})
    names = list(repo.files) + [f"f{i}" for i in range(100000)]
    body = {"id": "a/b", "sha": repo.commit, "siblings": [{"rfilename": n} for n in names]}
    c.hub.faults = {"/list": [("body", json.dumps(body).encode())]}
    c.matches(c.get("a/b"), repo, list(repo.files))
    body["siblings"].append({"rfilename": "f7"})
    c.hub.faults = {"/list": [("body", json.dumps(body).encode())]}
    c.refused(["a/b", "--cache-dir", "x"], "a/b", "the hub's list of files has \"f7\" twice")
    # an index of as many shards, all of them in the list
    index = {"weight_map": {n: n for n in names[2:]}}
    repo = c.add("a/c", {"config.json": b"{}", "model.safetensors.index.json":
                         json.dumps(index).encode()})
    names = list(repo.files) + names[2:]
    body = {"id": "a/c", "sha": repo.commit, "siblings": [{"rfilename": n} for n in names]}
    c.hub.faults = {"/list": [("body", json.dumps(body).encode())],
                    ("HEAD", "f0"): [("status", 404, {})]}
    c.refused(["a/c"], "a/c", "f0", "no such file")


def test_no_ranges(c):
    c.hub.ranges = False
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(9 * MIB)})
    c.hub.faults = {"model.safetensors": [("break", 5 * MIB)] * 3}
    c.matches(c.get("a/b"), repo, list(repo.files))


def start_and_hold(c):
    """A download of a/b whose large file stops coming after 1000 bytes of each part; the event that ends
    the connections."""
    goes_on = threading.Event()
    c.hub.faults = {"model.safetensors": [("hold", 1000, goes_on)] * 99}
    process = c.start("download", "a/b")
    while not c.hub.requests("signature") and process.poll() is None:
        time.sleep(0.01)
    return process, goes_on


def test_expired_link(c):
    data = large_file(9 * MIB)
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": data})
    process, goes_on = start_and_hold(c)
    c.hub.faults = {}
    c.hub.signature = 2
    goes_on.set()
    code, _, err = c.finish(process)
    same(code, 0, err)
    check(c.hub.requests("signature=2"), "no new link was asked for")
    c.matches(c.folder_of("a/b") / "snapshots" / repo.commit, repo, list(repo.files))


def test_unreachable(c):
    c.refused(["a/b"], "a/b", c.nobody, "after 3 tries", HF_ENDPOINT=f"http://{c.nobody}")


def test_doctor(c):
    """`doctor` asks the hub only when it is told to, says what it answers, and shows no token."""
    def examine(*words, **environment):
        code, out, err = c.run("doctor", "--json", *words, HF_HUB_OFFLINE="0", **environment)
        check("secret" not in out + err and code == 0, f"doctor: {code} {out} {err}")
        return json.loads(out)["hub"]

    (c.folder / "home").mkdir()
    (c.folder / "home/token").write_text("hf_secret\n")
    hub = examine()
    same((hub["reached"], c.hub.log), (None, []))
    same((hub["token"], hub["token_from"]), (True, str(c.folder / "home/token")))
    hub = examine("--ask-hub")
    same((hub["reached"], hub["answer"], hub["endpoint"]), (True, "", c.hub.endpoint))
    same([(method, headers["Authorization"]) for _, method, _, headers in c.hub.log],
         [("HEAD", "Bearer hf_secret")])
    hub = examine("--ask-hub", HF_TOKEN="hf_secret_2")
    same((hub["reached"], hub["token_from"]), (False, "HF_TOKEN"))
    check("HTTP 401: the token is not accepted" in hub["answer"], hub["answer"])
    hub = examine("--ask-hub", HF_ENDPOINT=f"http://{c.nobody}")
    check(not hub["reached"] and c.nobody in hub["answer"], hub["answer"])
    hub = examine("--ask-hub", TRANSFORMERS_OFFLINE="1")
    same((hub["reached"], hub["offline_by"]), (False, "TRANSFORMERS_OFFLINE"))


def test_lies(c):
    """Answers that are none."""
    c.add("a/b")
    redirect = ("status", 302, {"Location": "file:///etc/passwd"})
    for fault, *parts in ((("status", 200, {}), "revision/main:1: malformed JSON"),
                          (redirect, "file:///etc/passwd", "rotocol \"file\""),
                          (("status", 304, {}), "HTTP 304 leads nowhere")):
        c.hub.faults["/list"] = [fault] * 9
        c.refused(["a/b"], "error: a/b: ", *parts)
    c.hub.faults = {"/list": [redirect]}
    c.hub.moved["a/loop"] = "a/loop"
    c.refused(["a/loop"], "a/loop", "leads nowhere")
    c.hub.faults = {"model.safetensors": [("shift",)]}
    c.refused(["a/b"], "a/b", "model.safetensors", "the server sent bytes 1-692 of 693")
    c.hub.faults = {"vocab.txt": [redirect] * 99}
    c.refused(["a/b"], "a/b", "vocab.txt", "file:///etc/passwd")


def random_fault(rng, size):
    """One that a hub can come up with, for a file of so many bytes."""
    status = rng.choice([200, 203, 204, 206, 301, 302, 304, 307, 400, 401, 404, 410, 416, 418, 500, 503])
    headers = rng.choice([{}, {"Retry-After": "0"}, {"Location": "ftp://x/y"}, {"Content-Range": "bytes 9-1/0"},
                          {"ETag": '"' + "0" * 64 + '"'}, {"Content-Length": str(rng.randrange(9))}])
    return rng.choice([("status", status, headers), ("body", rng.randbytes(rng.randrange(300))), ("shift",),
                       ("body", b'{"sha": [' * rng.randrange(99)), ("break", rng.randrange(size)),
                       ("other", rng.randbytes(size))])


def test_random_lies(c):
    """Wrong answers at random: an error that names the model, or its files; what has a name is whole."""
    count, seed = int(os.environ.get("MC_HUB_LIES", "20")), random.randrange(1 << 30)
    rng, right = random.Random(seed), 0
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(20000)})
    for i in range(count):
        where = rng.choice(["/list", "config.json", "model.safetensors", ("HEAD", "model.safetensors")])
        c.hub.faults = {where: [random_fault(rng, 2 if where == "config.json" else 20000)] * rng.choice([1, 9])}
        code, out, err = c.run("download", "a/b")
        said = f"seed {seed}, lie {i}: {c.hub.faults} {code} {err}"
        check(code == 0 or (code == 1 and "a/b" in err and not out), said)
        for link in c.cache.glob("*/snapshots/*/*"):
            check(link.read_bytes() == repo.files[link.name], f"seed {seed}, lie {i}: {link} is not whole")
        if code == 0:
            c.matches(pathlib.Path(out[:-1]), repo, list(repo.files))
            right += 1
        shutil.rmtree(c.cache, ignore_errors=True)
    c.notes = f"{count} lies, seed {seed}, {right} downloads came through"


# ---- contents that are wrong, disks that are full ------------------------------------------------

def test_checksums(c):
    data = large_file(5 * MIB)
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": data})
    wrong = data[:-1] + bytes([data[-1] ^ 1])
    c.hub.faults = {"model.safetensors": [("other", wrong)] * 2}
    c.refused(["a/b"], "a/b", "model.safetensors", "wrong checksum",
              hashlib.sha256(wrong).hexdigest(), hashlib.sha256(data).hexdigest())
    check(not list(c.cache.glob("*/blobs/*incomplete*")), "wrong contents are kept")
    c.hub.faults = {"config.json": [("other", b"[]")]}
    shutil.rmtree(c.cache)
    c.refused(["a/b"], "a/b", "config.json", "wrong checksum", git_hash(b"[]"), git_hash(b"{}"))
    same(list(c.cache.glob("*/snapshots/*")) + list(c.cache.glob("*/refs/*")), [])
    c.matches(c.get("a/b"), repo, list(repo.files))
    c.add("a/c", {"config.json": b"{}", "model.safetensors": b"x"})
    c.hub.etag = '"5f3-abc"'
    c.refused(["a/c"], "a/c", "config.json", "5f3-abc", "nothing to check the contents by")


def break_off(c, after):
    """A download that ends in an error when part of the file has come, over one connection."""
    data = large_file(4 * MIB - 1)
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": data})
    c.hub.faults = {"model.safetensors": [("break", after)] + [("status", 404, {})] * 30}
    c.refused(["a/b"], "a/b", "model.safetensors", "HTTP 404")
    return repo


def test_damaged_rest(c):
    """What an earlier call left is wrong: all is fetched anew."""
    repo = break_off(c, 2 * MIB)
    rest, = c.cache.glob("*/blobs/*.incomplete")
    with open(rest, "r+b") as file:
        file.seek(1000)
        file.write(b"damaged")
    c.hub.faults = {}
    c.matches(c.get("a/b"), repo, list(repo.files))


def test_resume_in_a_later_call(c):
    repo = break_off(c, 2 * MIB)
    before = len(c.hub.log)
    c.hub.faults = {}
    c.matches(c.get("a/b"), repo, list(repo.files))
    ranges = [r[3]["Range"] for r in c.hub.log[before:] if "signature" in r[2]]
    asked = sum(int(b) - int(a) + 1 for a, b in (re.findall(r"\d+", r) for r in ranges))
    same(asked, 2 * MIB - 1, "bytes that were asked for")


def test_full_disk(c):
    data = large_file(3 * MIB)
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": data})
    limited = ["sh", "-c", "ulimit -f 2048; exec \"$0\" \"$@\"", str(TOOL), "download", "a/b"]
    r = subprocess.run(limited, env=c.env, capture_output=True, text=True, restore_signals=False,
                       check=False)
    check(r.returncode == 1 and "no room for it on disk" in r.stderr and str(len(data)) in r.stderr
          and repo.hash("model.safetensors") in r.stderr, r.returncode, r.stderr)
    disk = c.folder / "disk"
    disk.mkdir()
    full = ("mount -t tmpfs -o size=2m none '%s' || exit 9; HF_HUB_CACHE='%s' '%s' download a/b; "
            "code=$?; du -k '%s' | tail -1 >&2; exit $code" % (disk, disk, TOOL, disk))
    r = subprocess.run(["unshare", "-rm", "sh", "-c", full], env=c.env, capture_output=True,
                       text=True, check=False)
    if r.returncode == 9 or "unshare:" in r.stderr:
        c.notes = "without a disk that is really full: no mounts here"
    else:
        check(r.returncode == 1 and "No space left on device" in r.stderr, r.stderr)
        check(int(r.stderr.split("\n")[-2].split()[0]) < 1000, "the disk is left full", r.stderr)
    c.matches(c.get("a/b"), repo, list(repo.files))


def test_failing_allocations(c):
    c.add("a/b", {"config.json": b"{}", "model.safetensors": b"weights"})
    r = subprocess.run([FAULTS, "a/b", c.folder / "caches"], env=c.env, capture_output=True,
                       text=True, check=False)
    check(r.returncode in (0, 77), r.returncode, r.stderr)
    c.notes = "no fault injection in this build" if r.returncode else r.stdout.strip()


def test_planted_links(c):
    """Links that others have put into the cache lead nothing out of it."""
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(MIB), "vocab.txt": b"x"})
    folder, outside = c.folder_of("a/b"), c.folder / "outside"
    snapshot, blobs = folder / "snapshots" / repo.commit, folder / "blobs"
    weights = blobs / repo.hash("model.safetensors")
    places = [folder / "refs/main", snapshot / "config.json", snapshot / "other.json", weights,
              pathlib.Path(f"{weights}.modelcenter.incomplete"),
              folder / ".no_exist" / repo.commit / "merges.txt"]
    outside.mkdir()
    for i, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        (outside / str(i)).write_bytes(bytes([65 + i]) * (MIB if place == weights else 40))
        os.symlink(outside / str(i), place)
    hard = pathlib.Path(f"{blobs / repo.hash('vocab.txt')}.modelcenter.incomplete")
    (outside / "hard").write_text("hard")
    os.link(outside / "hard", hard)
    before = {p.name: p.read_bytes() for p in outside.iterdir()}
    (folder / "refs/v1").write_text(repo.commit)
    c.refused(["a/b@v1"], "leads out of the repository", HF_HUB_OFFLINE="1")
    c.matches(c.get("a/b"), repo, ["config.json", "model.safetensors", "vocab.txt"])
    same({p.name: p.read_bytes() for p in outside.iterdir()}, before)
    check(not (folder / "refs/main").is_symlink(), "the ref is the planted link")
    c.get("a/b@v1", HF_HUB_OFFLINE="1")
    # folders and the lock
    for place in (".locks/models--a--b", "models--a--b", "models--a--b/blobs", "models--a--b/refs",
                  "models--a--b/snapshots", "models--a--b/.no_exist",
                  ".locks/models--a--b/modelcenter.lock"):
        shutil.rmtree(c.cache)
        (c.cache / place).parent.mkdir(parents=True, exist_ok=True)
        lock = place.endswith("lock")
        os.symlink(outside / "none" if lock else outside, c.cache / place)
        c.refused(["a/b"], place, "symbolic link")
        same({p.name: p.read_bytes() for p in outside.iterdir()}, before, place)


def test_verify(c):
    """Contents of the right size that are others: --verify finds them, and so does the first use
    after a download that died."""
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(3 * MIB)})
    names, lock = list(repo.files), c.cache / ".locks/models--a--b/modelcenter.lock"
    snapshot = c.get("a/b")
    same(lock.read_bytes(), b"", "a note of work that is done")

    def damage(name="model.safetensors"):
        blob = (snapshot / name).resolve()
        blob.write_bytes(bytes([blob.read_bytes()[0] ^ 1]) + blob.read_bytes()[1:])
        return blob

    same(c.run("download", "a/b", "--verify", HF_HUB_OFFLINE="1")[0], 0)
    for name in names:
        blob, before = damage(name), len(c.hub.log)
        c.get("a/b")
        same(len(c.hub.log), before, "requests for what is there")
        code, _, err = c.run("download", "a/b", "--verify")
        check(code == 0 and f"{blob}: other contents than its name says" in err, err)
        c.matches(snapshot, repo, names)
    blob = damage()
    c.refused(["a/b", "--verify"], "a/b", "1 of its files in the cache", "HF_HUB_OFFLINE is set",
              HF_HUB_OFFLINE="1")
    check(not blob.exists(), "wrong contents are kept")
    c.get("a/b")
    # a download of another revision dies
    large = {"config.json": b"{}", "model.safetensors": large_file(9 * MIB, 2)}
    other = c.add("a/b", large, commit="f" * 40)
    other.refs = {"main": repo.commit, "v2": other.commit}
    c.hub.rate = MIB
    process = c.start("download", "a/b", "--revision", "v2")
    while not c.hub.requests("signature", "GET") or not lock.read_bytes():
        time.sleep(0.01)
    damage()
    c.get("a/b")  # the other one lives: what is whole is used as it is
    process.kill()
    process.communicate()
    same(lock.read_bytes(), b"d")
    c.hub.rate, c.hub.repos["a/b"] = 0, repo
    code, _, err = c.run("inspect", "a/b")
    check("other contents than its name says" in err and "checking the contents" in err, err)
    same((snapshot / "model.safetensors").read_bytes() == repo.files["model.safetensors"], True)
    same(lock.read_bytes(), b"")


# ---- processes -----------------------------------------------------------------------------------

def test_processes(c):
    data = large_file(9 * MIB)
    repo = c.add("a/b", {"config.json": b"{}", "model.safetensors": data})
    c.hub.rate = 24 * MIB
    running = [c.start("download", "a/b") for _ in range(4)]
    results = [c.finish(p) for p in running]
    same({r[:2] for r in results}, {(0, str(c.folder_of("a/b") / "snapshots" / repo.commit) + "\n")})
    same(len(c.hub.requests("/api/models/")), 1, "lists that were asked for")
    same(len(c.hub.requests("config.json", "GET")), 1)


def test_ranks(c):
    """One of a job's ranks downloads, the others wait; an error is all ranks'."""
    mpirun = os.environ.get("MC_HUB_MPIRUN")
    if not mpirun:
        c.notes = "without ranks: no MPI"
        return
    files = tiny_gpt2()
    repo = c.add("me/tiny", {**files, "tokenizer.json": large_file(6 * MIB)}, large=["tokenizer.json"])
    c.hub.rate, env = 8 * MIB, {**c.env, "ASAN_OPTIONS": "detect_leaks=0"}  # MPI's own
    command = [mpirun, "-np", "3", TOOL, "generate", "gpt2", "--ids", "--prompt", "1 2",
               "--max-new-tokens", "2", "--pretrained"]
    r = subprocess.run(command + ["me/tiny"], env=env, capture_output=True, text=True, timeout=240,
                       check=False)
    same(r.returncode, 0, r.stderr)
    same(len(c.hub.requests("/api/models/")), 1, "lists that were asked for")
    c.matches(c.folder_of("me/tiny") / "snapshots" / repo.commit, repo, list(repo.files))
    # ranks with caches of their own, of which one is whole, and the others take longer than ranks wait
    env["HF_HOME"] = ""
    each = ["sh", "-c", f'HF_HUB_CACHE={c.cache}.$((OMPI_COMM_WORLD_RANK % 2)) exec "$0" "$@"']
    c.cache.rename(f"{c.cache}.1")
    for timeout in 6, 60:  # with more time where the ranks of a busy machine do not start within less
        c.hub.rate, before = 5 * MIB // timeout, len(c.hub.requests("/api/models/"))
        r = subprocess.run(command[:3] + each + command[3:] + ["me/tiny", "--comm-timeout", str(timeout)],
                           env=env, capture_output=True, text=True, timeout=240, check=False)
        if r.returncode == 0 or "rendezvous" not in r.stderr:
            break
        shutil.rmtree(f"{c.cache}.0", ignore_errors=True)
    same(r.returncode, 0, r.stderr)
    same(len(c.hub.requests("/api/models/")) - before, 1, "lists that were asked for")
    env["HF_HOME"] = c.env["HF_HOME"]
    r = subprocess.run(command + ["me/none"], env=env, capture_output=True, text=True, timeout=240,
                       check=False)
    check(r.returncode and "me/none" in r.stderr and "no such repository" in r.stderr, r.stderr)


def test_bar(c):
    """On a terminal there is a bar, elsewhere nothing but what is logged."""
    c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(9 * MIB)})
    c.hub.rate = 8 * MIB
    seen, shown = pty.openpty()
    process = subprocess.Popen([TOOL, "download", "a/b"], env={**c.env, "TERM": "xterm"},
                               stdout=subprocess.PIPE, stderr=shown)
    os.close(shown)
    text = b""
    while select.select([seen], [], [], 20)[0]:
        try:
            text += os.read(seen, 4096)
        except OSError:  # the other end is closed
            break
    os.close(seen)
    process.communicate()
    check(re.search(rb"download +\d+% .*\d/9 .*MB/s ETA", text), text)
    check(text.endswith(b"\r"), "the bar is left on the screen:", text[-100:])
    shutil.rmtree(c.cache)
    code, out, err = c.run("download", "a/b")
    check(code == 0 and err.startswith("downloading a/b from ") and err.count("\n") == 1, err)


def test_interrupt(c):
    """Ctrl-C ends the reading of a list, and that of a file."""
    c.add("a/b", {"config.json": b"{}", "model.safetensors": large_file(9 * MIB)})
    c.hub.faults = {"/list": [("drip", 0.1)]}
    process = c.start("download", "a/b")
    while not c.hub.requests("api/models/a/b") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, out, err = c.finish(process)
    check((code, out) == (130, "") and "interrupted" in err, code, err)
    process, goes_on = start_and_hold(c)
    process.send_signal(signal.SIGINT)
    code, out, err = c.finish(process)
    goes_on.set()
    check((code, out) == (130, "") and "interrupted" in err, code, err)


def test_kills(c):
    kills, seed = int(os.environ.get("MC_HUB_KILLS", "20")), random.randrange(1 << 30)
    rng, done, whole = random.Random(seed), 0, 0
    repo = c.add("a/b", {"config.json": b"{}", "vocab.txt": b"x", "model.safetensors":
                         large_file(12 * MIB)})
    c.hub.rate = 16 * MIB
    start = time.monotonic()
    c.get("a/b")
    usual = time.monotonic() - start
    shutil.rmtree(c.cache)
    while done < kills:
        process = c.start("download", "a/b")
        time.sleep(rng.uniform(0, 0.7 * usual))
        process.kill()
        process.communicate()
        done += process.returncode == -signal.SIGKILL
        for link in c.cache.glob("*/snapshots/*/*"):  # what has a name is whole
            if not re.search(r"\.tmp-[0-9a-f]{16}$", link.name):  # not named yet: the next one removes it
                check(link.read_bytes() == repo.files[link.name], f"{link}: not whole after a kill")
        if list(c.cache.glob("*/refs/main")) and done < kills:
            c.matches(c.get("a/b", HF_HUB_OFFLINE="1"), repo, list(repo.files))
            shutil.rmtree(c.cache)
            whole += 1
    c.notes = f"{kills} kills, seed {seed}, {whole} downloads ended before"
    c.matches(c.get("a/b"), repo, list(repo.files))


def test_link_without_name(c):
    """A kill between the making of a link and its naming leaves it; the next download removes it."""
    repo = c.add("a/b")
    snapshot = c.get("a/b")
    (snapshot.parent.parent / "refs/main").unlink()  # which comes after the links
    (snapshot / "vocab.txt").rename(snapshot / "vocab.txt.tmp-0123456789abcdef")
    c.matches(c.get("a/b"), repo, MODEL)


def run(test):
    """Whether it failed."""
    case, start, name = Case(TOOL), time.monotonic(), test.__name__
    try:
        test(case)
        said = f"ok, {time.monotonic() - start:.2f} s {case.notes}"
    except (Failed, subprocess.TimeoutExpired) as failure:
        said = f"FAILED: {failure}"
    finally:
        shutil.rmtree(case.folder, ignore_errors=True)
    print(f"{name}: {said.strip()}", flush=True)
    return said.startswith("FAILED")


def main():
    wanted = sys.argv[3:]
    tests = [t for n, t in globals().items() if n.startswith("test_")]
    chosen = [t for t in tests if not wanted or any(w in t.__name__ for w in wanted)]
    chosen.sort(key=lambda t: t not in (test_kills, test_ranks, test_failing_allocations))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # they wait more than they work
        failed = any(list(pool.map(run, chosen)))
    print(f"{len(chosen)} tests, {faults_taken[0]} faulty answers")
    return failed


if __name__ == "__main__":
    sys.exit(main())
