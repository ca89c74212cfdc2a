#!/bin/sh
# Guess: a restart mark (SessionLog START) at step 3 hides what an earlier file of the run has from
# step 3 on; both readers of the tensorboard package agree about it.
# Really: EventAccumulator drops the old steps. The reader of the page (plugin_event_accumulator, used
# with --load_fast=false) takes the first mark of a run as its beginning and drops nothing, so the steps
# appear twice, unless the first file has a mark as well.
# Why users meet it: writers put the mark only into the file of a resumed run (SummaryWriter does, with
# purge_step). A script that reads the curves and the page then show different curves of one run.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
cd "$dir"
python3 -m venv venv
venv/bin/pip install --quiet tensorboard==2.21.0 numpy==2.4.6 protobuf==7.36.2 setuptools==80.9.0

venv/bin/python - <<'END'
import os

from tensorboard import version
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

print("tensorboard", version.VERSION)


def write(name, time, steps, value, mark):
    events = [Event(wall_time=time, file_version="brain.Event:2")]
    if mark:
        start = SessionLog(status=SessionLog.START)
        events.append(Event(wall_time=time, step=steps[0], session_log=start))
    for step in steps:
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
        events.append(Event(wall_time=time + step, step=step, summary=summary))
    with open(name, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


def steps_read(first_has_mark):
    run = f"run{first_has_mark}"
    os.mkdir(run)
    write(f"{run}/events.out.tfevents.1000.host", 1000, range(5), 1.0, first_has_mark)
    write(f"{run}/events.out.tfevents.2000.host", 2000, range(3, 6), 2.0, True)
    script = event_accumulator.EventAccumulator(run).Reload()
    page = plugin_event_accumulator.EventAccumulator(run).Reload()
    answer = [x.step for x in script.Scalars("loss")], [x.step for x in page.Tensors("loss")]
    print("mark in the first file:", first_has_mark)
    print("  EventAccumulator:        ", answer[0])
    print("  plugin_event_accumulator:", answer[1])
    return answer


once = [0, 1, 2, 3, 4, 5]
assert steps_read(True) == (once, once)
assert steps_read(False) == (once, [0, 1, 2, 3, 4, 3, 4, 5])
print("As described: the page's reader ignores a run's first mark.")
END
