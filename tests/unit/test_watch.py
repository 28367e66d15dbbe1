"""A launcher that fails for a moment does not end the watch."""

from clusterenv.head.inbox import Inbox
from clusterenv.head.watch import Ended, Watch
from clusterenv.launchers.base import Status


class Shaky:
    watch_every_s = 0.01

    def __init__(self):
        self.asked = 0

    def status(self):
        self.asked += 1
        if self.asked < 3:
            raise OSError("the engine is away")
        return {"worker-0.0": Status(ended=True, reason="exit code 1")}


def test_a_lost_worker_is_reported_although_the_launcher_failed_before(caplog):
    inbox = Inbox()
    watch = Watch(Shaky(), inbox)
    watch.start()
    inbox.wait(20.0)
    watch.close()
    watch.join(20.0)
    assert list(inbox.take()) == [("worker-0.0", Ended("exit code 1"), [])]
    inbox.close()
    assert "could not say how the workers are" in caplog.text


def test_a_broken_connection_is_reported_with_what_the_engine_says():
    class Knows:
        watch_every_s = 60.0

        def status(self):
            return {"worker-0.0": Status(ended=False, reason="on node n1")}

    inbox = Inbox()
    watch = Watch(Knows(), inbox)
    watch.connection_broke("worker-0.0")
    watch.start()
    inbox.wait(20.0)
    watch.close()
    watch.join(20.0)
    ((worker, ended, _),) = inbox.take()
    inbox.close()
    assert worker == "worker-0.0"
    assert "its connection broke" in ended.reason
    assert "(on node n1)" in ended.reason
