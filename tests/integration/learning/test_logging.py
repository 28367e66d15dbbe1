"""Logs and the progress line in the places that they are for, with the real packages."""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clusterenv import ClusterEnv, NumpyPolicy
from clusterenv.distributions import Categorical
from clusterenv.logging import Progress, TensorBoardLog
from clusterenv.logging.scalars import ledger_scalars
from tests.integration.polling import eventually

NOT_INSTALLED = "{} is not installed"

# Two episodes end with the same return, the third with another.
RUN = """
with Progress(20, logs=[log], hyperparameters={"seed": 1, "out": Path("runs/x")}) as progress:
    opened(log)
    progress.stepped(10, [(1.5, 7), (1.5, 7), (-2.0, 9)], version=3, lag=1)
    progress.learned(value_loss=0.1)
    progress.stepped(10, [(4.0, 2)], version=4)
"""
RETURNS = [[3, 1.5], [6, 1.5], [10, -2.0], [20, 4.0]]


def run(folder, script, **environment):
    """What a script prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# A real run.


def toss(weights, observations):
    return Categorical(np.zeros((len(observations), 2), np.float32) + weights["bias"])


def test_tensorboard_has_the_episodes_and_pulls_of_a_real_run(tmp_path):
    returns = []
    with (
        ClusterEnv("CartPole-v1", 4, 2, launcher="in-process") as envs,
        Progress(512, logs=[TensorBoardLog(tmp_path)]) as progress,
    ):
        policy = NumpyPolicy(toss, {"bias": np.zeros(2, np.float32)})
        envs.reset(seed=1)
        while progress.step < 512:
            before, rollout = progress.step, envs.rollout(policy, 64)
            progress.collected(rollout, newest=envs.version)
            rows = rollout.finals.steps * 4 + rollout.finals.columns
            steps = (before + 1 + rows).tolist()
            returns += zip(steps, rollout.episodes.returns.tolist(), strict=True)
        progress.synced(envs.ledger)
        synced = ledger_scalars(envs.ledger)
    assert returns
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    points = [(e.step, e.value) for e in events.Scalars("charts/episodic_return")]
    assert points == returns
    assert len({step for step, _ in points}) == len(points)
    assert synced["sync/pulls"] > 0
    for name, value in synced.items():
        assert events.Scalars(name)[0].value == pytest.approx(value), name


# Weights & Biases.

WANDB = """
import json
from pathlib import Path
import psutil, wandb
from clusterenv.logging import Progress, WandbLog

def opened(log):
    global file, processes
    file = str(Path(log.run.dir).parent / f"run-{log.run.id}.wandb")
    processes = [child.pid for child in psutil.Process().children(recursive=True)]
"""
# An offline run is a log in LevelDB's format: blocks of 32 KiB with pieces of records.
READ_WANDB = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record

def records(content):
    at, whole = 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7]) if left >= 7 else (0, 0)
        if kind == 0:
            at += left
            continue
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""

rows, config, code = [], {}, None
for record in records(open(FILE, "rb").read()):
    match record.WhichOneof("record_type"):
        case "history":
            items = record.history.item
            named = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
            rows.append({k: v for k, v in named.items() if not k.startswith("_")})
        case "run":
            config = {i.key: json.loads(i.value_json) for i in record.run.config.update}
        case "exit":
            code = record.exit.exit_code
print(json.dumps(dict(rows=rows, config=config, exit_code=code)))
"""


@pytest.fixture
def wandb(tmp_path):
    """Runs a script with a log, and reads the offline run once the script has ended."""
    pytest.importorskip("wandb", reason=NOT_INSTALLED.format("wandb"))
    quiet = {"WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "false"}

    def run_and_read(script):
        script = f"{WANDB}{script}\nprint(json.dumps([file, processes]))"
        file, processes = run(tmp_path, script, **quiet)
        # W&B's own service ends with the script, and writes until then.
        assert processes
        assert eventually(lambda: not any(map(is_running, processes)))
        return run(tmp_path, READ_WANDB.replace("FILE", repr(file)))

    return run_and_read


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_offline_run_of_wandb_has_every_number_under_its_step(wandb):
    found = wandb(f"log = WandbLog('tests', mode='offline'){RUN}")
    rows = [row for row in found["rows"] if "charts/episodic_return" in row]
    assert [[row["global_step"], row["charts/episodic_return"]] for row in rows] == RETURNS
    assert {"losses/value_loss": 0.1, "global_step": 10} in found["rows"]
    assert found["config"].items() >= {"seed": 1, "out": "runs/x"}.items()
    assert found["exit_code"] == 0


def test_wandb_learns_that_a_run_failed_and_leaves_the_users_own_run_open(wandb):
    found = wandb("""
own = wandb.init(project="own", mode="offline")
try:
    with Progress(1, logs=[log := WandbLog("tests", mode="offline")]) as progress:
        opened(log)
        progress.stepped(1, [])
        1 / 0
except ZeroDivisionError:
    pass
assert own.id != log.run.id
own.log({"still": "open"})
own.finish()
""")
    assert found["exit_code"] == 1
    assert [sorted(row) for row in found["rows"]] == [
        ["charts/SPS", "charts/version", "charts/version_lag", "global_step"]
    ]


def test_wandbs_config_is_what_progress_gives_it():
    pytest.importorskip("wandb", reason=NOT_INSTALLED.format("wandb"))
    from clusterenv.logging import WandbLog

    with pytest.raises(ValueError, match=r"Progress\(hyperparameters=…\) instead"):
        WandbLog("tests", config={})


# MLflow.

MLFLOW = """
import json
from pathlib import Path
from mlflow import MlflowClient
from clusterenv.logging import MlflowLog, Progress

def opened(log):
    pass

def read(log, name="charts/episodic_return"):
    client = MlflowClient("sqlite:///runs.db")
    run = client.get_run(log.run_id)
    history = client.get_metric_history(log.run_id, name)
    points = [[metric.step, metric.value] for metric in history]
    return dict(points=points, params=run.data.params, status=run.info.status)
"""


@pytest.fixture
def mlflow(tmp_path):
    pytest.importorskip("mlflow", reason=NOT_INSTALLED.format("mlflow-skinny"))
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny keeps runs in a file by sqlalchemy")
    return lambda script: run(tmp_path, MLFLOW + script, MLFLOW_DISABLE_TELEMETRY="true")


def test_mlflow_has_every_number_under_its_step(mlflow):
    made = f"log = MlflowLog('tests', 'sqlite:///runs.db'){RUN}"
    found = mlflow(f"{made}\nprint(json.dumps([read(log), read(log, 'losses/value_loss')]))")
    assert sorted(found[0]["points"]) == RETURNS
    assert found[1]["points"] == [[10, 0.1]]
    assert found[0]["params"] == {"seed": "1", "out": "runs/x"}
    assert found[0]["status"] == "FINISHED"


def test_a_run_of_mlflow_goes_on_after_it_failed(mlflow):
    found = mlflow("""
log = MlflowLog("tests", "sqlite:///runs.db")
try:
    with Progress(20, logs=[log], hyperparameters={"seed": 1}) as progress:
        progress.stepped(10, [(1.0, 1)])
        1 / 0
except ZeroDivisionError:
    first = read(log)
again = MlflowLog("tests", "sqlite:///runs.db", run_id=log.run_id)
hyperparameters = {"seed": 2, "new": "yes"}
with Progress(20, logs=[again], hyperparameters=hyperparameters, first_step=10) as progress:
    progress.stepped(10, [(2.0, 1)])
    during = read(again)["status"]
print(json.dumps([first, during, read(again)]))
""")
    assert found[0] == {"points": [[10, 1.0]], "params": {"seed": "1"}, "status": "FAILED"}
    assert found[1] == "RUNNING"
    assert found[2]["points"] == [[10, 1.0], [20, 2.0]]
    assert found[2]["params"] == {"seed": "1", "new": "yes"}
    assert found[2]["status"] == "FINISHED"


def test_mlflow_is_sent_numbers_every_ten_seconds_and_many_at_a_time(mlflow):
    found = mlflow("""
now_s = [0.0]
log = MlflowLog("tests", "sqlite:///runs.db", clock=lambda: now_s[0])
counts = []
with Progress(10_000, logs=[log], hyperparameters={f"p{i}": i for i in range(150)}) as progress:
    for _ in range(1200):
        progress.stepped(1, [(float(progress.step), 1)])
    counts.append(len(read(log)["points"]))
    now_s[0] = 10.0
    progress.stepped(1, [])
    counts.append(len(read(log)["points"]))
    progress.stepped(1, [(0.0, 1)])
counts.append(len(read(log)["points"]))
print(json.dumps([counts, len(read(log)["params"])]))
""")
    assert found == [[0, 1200, 1201], 150]


# Terminals and notebooks.

STEPS = """
from clusterenv.logging import Progress
with Progress(100, "[PPO]") as progress:
    for _ in range(4):
        progress.stepped(25, [(1.5, 7)], version=3, lag=1)
        print("said by the user")
print("after it")
"""


def shown_in_a_terminal(script):
    """Everything that a terminal was sent."""
    head, tail = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=tail, env=environment)
    os.close(tail)
    shown = b""
    try:
        while part := os.read(head, 65536):
            shown += part
    except OSError:
        pass  # so ends a terminal whose program has ended
    os.close(head)
    assert child.wait() == 0
    return shown.decode()


def test_a_terminal_has_a_bar_below_what_is_printed():
    shown = shown_in_a_terminal(STEPS)
    assert "[PPO] " in shown
    assert "100 steps" in shown
    assert "return      1.5  version 3 lag 1" in shown
    # The bar's line is cleared before a line is printed in its place, and drawn anew below.
    assert shown.count("\x1b[2Ksaid by the user\r\n") == 4
    # The cursor is hidden and comes back.
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert shown.endswith("after it\r\n")


def test_a_terminal_without_rich_has_plain_lines_and_says_what_to_install():
    shown = shown_in_a_terminal(f"import sys; sys.modules['rich'] = None\n{STEPS}")
    lines = shown.splitlines()
    assert lines[0].startswith("a progress bar needs rich: pip install 'clusterenv[progress]'")
    *said, last, after = lines[1:]
    assert said == ["said by the user"] * 4
    assert last.startswith("[PPO]        100 steps ")
    assert after == "after it"


def test_a_notebook_has_one_line_that_changes_in_place(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason=NOT_INSTALLED.format("nbclient"))
    nbformat = pytest.importorskip("nbformat", reason=NOT_INSTALLED.format("nbformat"))
    pytest.importorskip("ipykernel", reason=NOT_INSTALLED.format("ipykernel"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(STEPS)])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=tmp_path)
    line, *printed = notebook.cells[0].outputs
    assert line["output_type"] == "display_data"
    assert line["data"]["text/plain"].startswith(f"[PPO] {'━' * 30} 100 steps ")
    text = "".join(output["text"] for output in printed)
    assert text == "said by the user\n" * 4 + "after it\n"
