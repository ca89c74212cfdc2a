#!/bin/sh
# Guess: with use_stateful_dataloader=True, save_state in the middle of a shuffled epoch and load_state in a new process
# go on with the rows that are left, as torchdata's StatefulDataLoader, which does the work, goes on by itself.
# Really: load_state restores how many batches are done, not their order. The rest of the epoch comes from another
# shuffle: some rows are trained on twice, as many never. With use_seedable_sampler=True as well this is right in the
# first epoch, and from the second one on the order of the first epoch is repeated. No warning.
# Why users meet it: the option is there for exactly this, and a resumed run shows no sign of it but a jump of the loss.
# Right is: use_seedable_sampler=True without a stateful loader, set_epoch, and skip_first_batches.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 numpy==2.4.6 accelerate==1.15.0 torchdata==0.11.0

# loader.py save|resume KIND EPOCH FOLDER: rows of the epoch after the checkpoint. "save" makes it in the middle.
cat >loader.py <<'END'
import json
import sys

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

ROWS, BATCH, DONE = 400, 20, 10
what, kind, epoch, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.manual_seed(5)
data = list(range(ROWS))
if kind == "torchdata":
    loader = StatefulDataLoader(data, batch_size=BATCH, shuffle=True)
else:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(
        use_stateful_dataloader="stateful" in kind, use_seedable_sampler="seedable" in kind))
    loader = accelerator.prepare(DataLoader(data, batch_size=BATCH, shuffle=True))


def save():
    if kind == "torchdata":
        torch.save(loader.state_dict(), folder)
    else:
        accelerator.save_state(folder)


def load():
    if kind == "torchdata":
        loader.load_state_dict(torch.load(folder, weights_only=False))
    else:
        accelerator.load_state(folder)


rows = []
if what == "save":
    for e in range(epoch + 1):
        for done, batch in enumerate(loader, 1):
            if e == epoch and done > DONE:
                rows += batch.tolist()
            if e == epoch and done == DONE:
                save()
else:
    load()
    if "skip" in kind:
        loader.set_epoch(epoch)
        loader = skip_first_batches(loader, DONE)
    for batch in loader:
        rows += batch.tolist()
print(json.dumps(rows))
END

cat >compare.py <<'END'
import importlib.metadata as metadata
import json
import subprocess
import sys

print(*(f"{name} {metadata.version(name)}" for name in ("accelerate", "torchdata", "torch")))


def rows(*words):
    out = subprocess.run([sys.executable, "-W", "ignore", "loader.py", *words], check=True, capture_output=True,
                         text=True).stdout
    return json.loads(out.splitlines()[-1])


for kind, right in (("torchdata", (True, True)), ("stateful", (False, False)), ("stateful seedable", (True, False)),
                    ("skip seedable", (True, True))):
    for epoch in (0, 1):
        folder = f"{kind} {epoch}".replace(" ", "_")
        wanted, found = rows("save", kind, str(epoch), folder), rows("resume", kind, str(epoch), folder)
        print(f"{kind}: resumed in the middle of epoch {epoch + 1}: {len(found)} of 400 rows are left, order kept: "
              f"{found == wanted}; trained on twice: {len(set(found) - set(wanted))}, "
              f"never: {len(set(wanted) - set(found))}")
        assert len(found) == len(wanted) == len(set(found)) == 200
        assert (found == wanted) == right[epoch] and (right[epoch] or len(set(wanted) - set(found)) > 50)
END
venv/bin/python compare.py
