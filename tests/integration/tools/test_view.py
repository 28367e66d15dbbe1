"""`python -m clusterenv view` shows a running head to whoever has the token, and does no harm."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from clusterenv.tools.main import main
from tests.engines.harness.packages import find, install
from tests.engines.harness.waiting import EngineError
from tests.integration.heads import ROOT, HeadScript
from tests.integration.polling import MARK, eventually, is_alive, kill, marked_processes

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

# It trains until the sign is there, and then does nothing.
RUNNING = """
from clusterenv import AdaptiveSync, LocalLauncher
from clusterenv.tools.bench_policy import bench_policy
sync, launcher = AdaptiveSync(threshold=1e-4), LocalLauncher(hosts=2)
with ClusterEnv("CartPole-v1", num_envs=4, num_workers=2, sync=sync, launcher=launcher) as envs:
    policy = bench_policy(envs.single_observation_space, envs.single_action_space, 4)
    envs.rollout(policy, 8)
    say(envs.run_id, "running")
    while not os.path.exists(SIGN):
        envs.rollout(policy, 8)
        policy.load({**policy.weights(), "2": policy.weights()["2"] * np.float32(1.05)})
        time.sleep(0.01)
    say("idle")
    time.sleep(1000)
"""


class View:
    """`view` of a run in a process of its own, as a browser sees it."""

    def __init__(self, run, errors):
        self._mark = os.urandom(8).hex()
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), MARK: self._mark}
        command = [sys.executable, "-m", "clusterenv", "view", run, "--every", "0.2"]
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.url = self.process.stdout.readline().split()[-1]
        self.token = self.url.partition("token=")[2]

    @contextlib.contextmanager
    def open(self, path, token=None, **headers):
        """An answer whose body is yet to be read."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        token = self.token if token is None else token
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **headers})
        with contextlib.closing(connection), connection.getresponse() as answer:
            yield answer

    def get(self, path):
        with self.open(path) as answer:
            return answer.read().decode()

    def events(self, path):
        """(name, value) of server-sent events, as they come."""
        with self.open(path) as answer:
            assert answer.getheader("content-type").startswith("text/event-stream")
            name = "message"
            for line in answer:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)
                    name = "message"

    def others(self):
        """What it has started."""
        return [pid for pid in marked_processes(self._mark) if pid != self.process.pid]

    def close(self):
        """Ctrl-C, as a person would end it; the exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A head that trains, and its view; the tests look at both."""
    folder = tmp_path_factory.mktemp("head")
    with HeadScript(folder, RUNNING) as head:
        head.wait_for("running")
        view = View(head.output.split()[0], folder / "view")
        try:
            yield head, view
            # Ctrl-C ends it at once, even while a page is open.
            page = view.events("/events")
            assert next(page)[0] == "story"
        finally:
            assert view.close() == 0
            assert eventually(lambda: not view.others())
        # The page's stream ends too; a last look may still be on its way.
        assert {name for name, _ in page} <= {"news"}
        said = (folder / "view").read_text()
        assert "ERROR" not in said
        assert "Traceback" not in said


def workers_of(view):
    return [one for host in json.loads(view.get("/status"))["hosts"] for one in host["workers"]]


# Who may see it.


@pytest.mark.parametrize("path", ["/", "/events", "/metrics", "/status", "/view.js", "/play/0"])
def test_without_the_token_there_is_nothing_to_see(seen, path):
    _, view = seen
    for token in ("", "wrong", view.token[:-1]):
        with view.open(path, token=token) as answer:
            assert answer.status == 401
            assert b"token" in answer.read()


def test_the_address_with_the_token_gives_a_cookie_and_goes(seen):
    _, view = seen
    with view.open(f"/?token={view.token}", token="") as answer:
        assert (answer.status, answer.getheader("location")) == (303, "/")
        cookie, *attributes = answer.getheader("set-cookie").split("; ")
        assert "HttpOnly" in attributes
        assert "SameSite=lax" in attributes
    with view.open("/", token="", Cookie=cookie) as answer:
        assert answer.status == 200
        assert "default-src 'none'" in answer.getheader("content-security-policy")
        assert b"<title>ClusterEnv</title>" in answer.read()


def test_a_page_of_somebody_else_whose_name_leads_here_gets_nothing(seen):
    _, view = seen
    with view.open("/status", Host="evil.example:80") as answer:
        assert answer.status == 421
        assert b"run" not in answer.read()


def test_only_files_of_the_page_are_served(seen):
    _, view = seen
    for path in ("/server.py", "/..%2fserver.py", "/../server.py", "/view.html%00"):
        with view.open(path) as answer:
            assert answer.status == 404


# What there is to see.


def test_news_come_while_the_run_goes_on(seen):
    head, view = seen
    events = view.events("/events")
    name, story = next(events)
    assert name == "story"
    assert story["latest"]["status"]["pid"] == head.process.pid
    assert story["latest"]["status"]["env"] == "CartPole-v1"
    told = [next(events) for _ in range(3)]
    events.close()
    assert [name for name, _ in told] == ["news"] * 3
    assert any(news["point"]["steps_per_s"] > 0 for _, news in told)
    versions = [news["status"]["version"] for _, news in told]
    assert versions == sorted(versions)
    assert told[-1][1]["status"]["episodes"] > 0
    assert told[-1][1]["point"]["threshold"] > 0


def test_metrics_are_served(seen):
    _, view = seen
    with view.open("/metrics") as answer:
        assert answer.getheader("content-type").startswith("text/plain")
        text = answer.read().decode()
    assert "clusterenv_up 1.0" in text
    assert 'clusterenv_workers{host="host-0",state="ready"} 1.0' in text


def test_doctor_top_and_the_page_name_the_same_hosts(seen):
    head, view = seen
    status = json.loads(view.get("/status"))
    on_the_page = [[host["name"], host["machine"]] for host in status["hosts"]]
    table = top(head.output.split()[0])
    in_top = [line.split()[:2] for line in table.splitlines() if line.startswith("host-")]
    launcher = ["--launcher", "clusterenv:LocalLauncher(2)", "--num-envs", "4"]
    told = tool("doctor", *launcher, "--num-workers", "2", "--megabytes", "1")
    by_doctor = re.findall(r"^ok: versions: (\S+) on (\S+) runs the same$", told, re.MULTILINE)
    assert on_the_page == in_top == [list(host) for host in by_doctor]
    workers = status["hosts"][0]["workers"] + status["hosts"][1]["workers"]
    assert f"{len(workers)} workers" in table
    assert f"{len(workers)} worker(s)" in told


def test_a_policy_is_seen_at_play_and_the_process_ends_when_nobody_looks(seen):
    pytest.importorskip("pygame")
    _, view = seen
    pictures = view.events("/play/2")
    shown = [next(pictures)[1] for _ in range(3)]
    assert "error" not in shown[0], shown[0]["error"]
    assert [one["step"] for one in shown] == [1, 2, 3]
    assert all(one["version"] > 0 and one["jpeg"].startswith("/9j/") for one in shown)
    (player,) = view.others()
    pictures.close()
    assert eventually(lambda: not is_alive(player))


def test_a_killed_worker_is_seen_with_its_replacement(seen):
    _, view = seen
    events = view.events("/events")
    next(events)
    victim = workers_of(view)[1]
    kill(victim["pid"])
    happened = {}
    while "replaced" not in happened:
        name, news = next(events)
        assert name == "news"
        happened |= {event["kind"]: event["text"] for event in news["events"]}
    events.close()
    assert happened["lost"].startswith(f"{victim['name']} of host-1.0: killed by SIGKILL")
    assert happened["replaced"] == "worker-0.1 of host-1 is ready"
    assert victim["name"] in happened["warning"]
    assert workers_of(view)[1]["name"] == "worker-0.1"


def test_the_output_of_a_worker_can_be_read(seen):
    _, view = seen
    worker = workers_of(view)[0]["name"]
    assert json.loads(view.get(f"/logs/host-0.0/{worker}")) == {"lines": [], "reason": ""}
    assert "no worker-9.0" in json.loads(view.get("/logs/host-0.0/worker-9.0"))["reason"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuchrun"], "no run 'nosuchrun'"),
        (["--token-file", "TOKEN"], "at least 16 printable characters"),
        (["--port", "PORT"], "cannot listen on 127.0.0.1 port PORT"),
        (["--every", "0"], "--every 0: it must be above 0"),
        ([], "pip install 'clusterenv[view]'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(seen, arguments, said, tmp_path, monkeypatch, capsys):
    head, view = seen
    (tmp_path / "TOKEN").write_text("abc\n")
    monkeypatch.chdir(tmp_path)
    port = str(urlsplit(view.url).port)
    if not arguments:
        monkeypatch.setitem(sys.modules, "starlette.applications", None)
        monkeypatch.delitem(sys.modules, "clusterenv.tools.view.server", raising=False)
    given = [one.replace("PORT", port) for one in arguments]
    run = [] if "nosuchrun" in given else [head.output.split()[0]]
    with pytest.raises(SystemExit, match="1"):
        main(["view", *run, *given])
    told = capsys.readouterr().err
    assert told.startswith("clusterenv view: ")
    assert said.replace("PORT", port) in told
    assert told.count("\n") == 1


def test_a_head_that_is_stopped_does_not_answer_but_has_not_ended(seen):
    head, view = seen
    events = view.events("/events")
    next(events)
    os.kill(head.process.pid, signal.SIGSTOP)
    try:
        assert "silent" in (name for name, _ in events)
    finally:
        os.kill(head.process.pid, signal.SIGCONT)
    assert "news" in (name for name, _ in events)
    events.close()


# In a browser. Last, since it ends the run.


def path_of_chromium():
    """Installed if need be and possible."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with contextlib.suppress(EngineError):
            install("chromium")
            found = find("chromium")
    if found is None:
        pytest.skip("NOT TESTED: there is no Chromium here (Debian: apt-get install chromium)")
    return found


@contextlib.contextmanager
def chromium():
    """A browser; Playwright's loop belongs to the thread that starts it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="NOT TESTED: no playwright")
    with playwright.sync_playwright() as started:
        # As root, Chromium has no sandbox; it sees nothing but our own page.
        browser = started.chromium.launch(executable_path=path_of_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def tool(*arguments):
    command = [sys.executable, "-m", "clusterenv", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout


def top(run):
    return tool("top", run, "--once")


@pytest.mark.timeout(400)  # with Chromium's installation
def test_the_page_in_a_real_browser_shows_the_run_and_agrees_with_top(seen):
    head, view = seen
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(view.url)
        assert "token" not in page.url
        page.wait_for_selector("#state.live")
        page.wait_for_selector("#chart-steps polyline")
        before = page.inner_text("#state")
        # The page forbids the code from strings that `wait_for_function` would run.
        assert eventually(lambda: page.inner_text("#state") != before)
        # It fits a telephone.
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # Values that are close together have marks that differ.
        marks = page.evaluate("import('/charts.js').then(c => c.ticks(499, 500).map(c.short))")
        assert marks == ["495", "500"]
        # A killed worker.
        kill(workers_of(view)[0]["pid"])
        page.wait_for_selector("#timeline li:has-text('worker-0.0 of host-0.0: killed by SIGKILL')")
        page.wait_for_selector("#timeline li:has-text('worker-0.1 of host-0 is ready')")
        assert "SIGKILL" in page.inner_text("#warnings")
        # A policy at play.
        page.click("button[aria-label='Watch worker-0.1 of host-0.0']")
        page.wait_for_selector("#player img[src^='data:image/jpeg']", timeout=60_000)
        assert "version" in page.inner_text("#player .caption")
        page.keyboard.press("Escape")
        # What it printed.
        page.click("button[aria-label='Log of worker-0.1 of host-0.0']")
        assert eventually(lambda: page.inner_text("#log pre") != "")
        page.keyboard.press("Escape")
        # The same numbers as in `top`.
        head.sign.touch()
        head.wait_for("idle")
        table = top(head.output.split()[0])
        version = int(table.splitlines()[0].rpartition("version ")[2])
        assert eventually(lambda: str(version) in page.inner_text("#figures"))
        assert hosts_on(page) == hosts_in(table)
        # The end of the run.
        head.process.kill()
        page.wait_for_selector("#state.ended")
        assert errors == []


def hosts_on(page):
    """(name, version, lag, pulls, restarts, losses) of each host."""
    # In one go: the rows are other ones after the next look.
    rows = page.evaluate(
        "[...document.querySelectorAll('tr.host')]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    return [[row[0], *(row[n] for n in (4, 5, 7, 8, 9))] for row in rows]


def hosts_in(table):
    rows = [line.split() for line in table.splitlines() if line.startswith("host-")]
    return [[row[0], *(row[n] for n in (6, 7, 9, 10, 11))] for row in rows]
