"""TensorBoard reads what was logged, also after a run was resumed."""

import math
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as ServersAccumulator,
)
from torch.utils.tensorboard import SummaryWriter

from clusterenv.logging import Progress, TensorBoardLog
from tests.unit.test_logging import fragment, ledger


def curves_in(folder):
    """What TensorBoard reads: (step, value) by tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def servers_curve(folder, tag):
    """The same as TensorBoard's server reads it with --load_fast=false."""
    events = ServersAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(tag)]


def text_in(folder, tag):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events.Tensors(tag)[0].tensor_proto.string_val[0].decode()


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    with Progress(100, logs=[TensorBoardLog(tmp_path / "new")]) as progress:
        progress.collected(fragment(), newest=6)
        progress.learned(value_loss=0.1, entropy=math.nan)
        progress.synced(ledger())
    curves = curves_in(tmp_path / "new")
    assert curves["charts/episodic_return"] == [(2, 1.5), (3, -2.0)]
    assert curves["charts/version_lag"] == [(8, 3.0)]
    assert curves["losses/value_loss"] == [(8, pytest.approx(0.1))]
    assert math.isnan(curves["losses/entropy"][0][1])
    assert curves["sync/sync_bytes"] == [(8, 510.0)]


def test_the_event_file_has_what_pytorchs_writer_would_have_written(tmp_path):
    log, writer = TensorBoardLog(tmp_path / "ours"), SummaryWriter(str(tmp_path / "theirs"))
    log.open({"seed": 1, "out": Path("runs/x")}, first_step=0)
    writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|seed|1|\n|out|runs/x|")
    for step in range(50):
        values = {"charts/SPS": step / 7, "losses/value_loss": -step}
        log.scalars(step, values)
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    log.close(failed=False)
    writer.close()
    assert curves_in(tmp_path / "ours") == curves_in(tmp_path / "theirs")
    texts = [text_in(tmp_path / w, "hyperparameters/text_summary") for w in ("ours", "theirs")]
    assert texts[0] == texts[1]


def test_a_run_that_goes_on_replaces_what_came_after_its_first_step(tmp_path):
    for first_step in (0, 30):
        with Progress(1, logs=[TensorBoardLog(tmp_path)], first_step=first_step) as progress:
            for _ in range(5):
                progress.stepped(10, [])
                progress.scalars({"own/part": first_step})
    expected = [
        *((step, 0.0) for step in (10, 20, 30)),
        *((step, 30.0) for step in (40, 50, 60, 70, 80)),
    ]
    assert curves_in(tmp_path)["own/part"] == expected
    assert servers_curve(tmp_path, "own/part") == expected


def test_no_thread_is_left_when_progress_is_left(tmp_path):
    before = set(threading.enumerate())
    with Progress(100, logs=[TensorBoardLog(tmp_path)]) as progress:
        assert set(threading.enumerate()) > before
        progress.stepped(10, [])
    assert set(threading.enumerate()) == before
