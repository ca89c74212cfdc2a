#!/usr/bin/env python3
"""Compares caches with Hugging Face's own client, both ways: check_huggingface_hub.py MODELCENTER

Needs the package huggingface_hub; run by hand. What `modelcenter` downloads is a cache that the
client scans without warnings, resolves and takes as whole; what the client downloads (from the same
hub of tests) is whole for `modelcenter`, which then asks for nothing. Exit codes: 0, or 1."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from hub_server import Hub, Repo

FILES = {"config.json": b'{"model_type": "bert"}\n', "model.safetensors": bytes(range(256)) * 40000,
         "vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n", "onnx/a b.json": b"{}",
         "empty.txt": b""}
NEEDED = ["config.json", "model.safetensors", "vocab.txt"]


def main():
    tool = str(pathlib.Path(sys.argv[1]).resolve())
    hub = Hub()
    for name in ("some-org/some-model", "bert-base-cased"):
        hub.repos[name] = Repo(FILES, ["model.safetensors"])
    folder = pathlib.Path(tempfile.mkdtemp())
    os.environ.update({"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder), "HF_HUB_DISABLE_XET": "1",
                       "HF_HUB_DISABLE_TELEMETRY": "1"})
    import huggingface_hub as client  # reads the environment when it is imported
    print("huggingface_hub", client.__version__)
    failures = []

    def expect(found, expected, what):
        print(f"{'ok' if found == expected else 'FAILED'}: {what}")
        if found != expected:
            failures.append(what)
            print(f"  found    {found!r}\n  expected {expected!r}")

    def download(cache, *words):
        return subprocess.run([tool, "download", *words, "--cache-dir", cache], text=True,
                              stdout=subprocess.PIPE, check=True).stdout.rstrip("\n")

    for name, repo in hub.repos.items():
        ours, theirs = str(folder / f"ours-{len(name)}"), str(folder / f"theirs-{len(name)}")
        path = download(ours, name)
        download(ours, name, "--include", "onnx/", "--include", "empty.txt")
        scan = client.scan_cache_dir(ours)
        expect([str(w) for w in scan.warnings], [], f"{name}: scan_cache_dir warns of nothing")
        found = next(iter(scan.repos))
        expect((found.repo_id, found.repo_type, found.nb_files, sorted(found.refs)),
               (name, "model", len(FILES), ["main"]), f"{name}: scan_cache_dir")
        expect(found.size_on_disk, sum(map(len, FILES.values())), f"{name}: size on disk")
        before = len(hub.log)
        expect(client.snapshot_download(name, cache_dir=ours, local_files_only=True), path,
               f"{name}: snapshot_download of local files")
        for file in FILES:
            expect(client.try_to_load_from_cache(name, file, cache_dir=ours), f"{path}/{file}",
                   f"{name}: try_to_load_from_cache {file}")
        expect(len(hub.log), before, f"{name}: no requests")
        client.snapshot_download(name, cache_dir=ours)
        fetched = [r[2] for r in hub.log[before:] if r[1] == "GET" and "/api/" not in r[2]]
        expect(fetched, [], f"{name}: the client fetches nothing again")
        path = client.snapshot_download(name, cache_dir=theirs)
        before = len(hub.log)
        expect(download(theirs, name), path, f"{name}: the client's cache is whole")
        expect(download(theirs, name, "--revision", repo.commit), path, f"{name}: by commit")
        expect(len(hub.log), before, f"{name}: no requests")
        for file in FILES:
            expect(os.readlink(f"{path}/{file}"),
                   os.readlink(f"{path.replace('theirs', 'ours', 1)}/{file}"), f"{name}: link {file}")
    shutil.rmtree(folder)
    return len(failures) > 0


if __name__ == "__main__":
    sys.exit(main())
