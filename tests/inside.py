"""All that tests know of the inside of a ClusterEnv: a change there changes this file alone.

Tests of one inner class construct that class; all others see ``envs`` from outside, or ask here.
"""

import os

from clusterenv.head import recovery
from clusterenv.memory import answer_flags
from clusterenv.protocol.policies import TakePolicy

MAY_SPIN = answer_flags.MAY_SPIN
"""Whether this machine orders memory so that workers can answer without a message."""
restart_seed = recovery.restart_seed
"""The seed of a slot that starts over for the so-many-th time."""


# Workers and their slots.


def _host(envs):
    """The host in this process."""
    return envs._session.fleet._host


def _workers(envs):
    return envs.workers


def worker_names(envs):
    """The worker in each place."""
    return [worker.name for worker in _workers(envs)]


def slots_by_worker(envs):
    """The slots of each worker that has some."""
    return {worker.name: tuple(worker.slots) for worker in _workers(envs) if worker.slots}


def host_names(envs):
    """The host in each place that has slots."""
    return [host.name for host in envs._session.fleet.hosts]


def host_pid(envs, host):
    """The process of a host behind a socket."""
    return next(one.pid for one in envs._session.fleet.survey() if one.name == host)


def survey(envs):
    """All hosts as they are now."""
    return envs._session.fleet.survey()


def slots_by_host(envs):
    """The slots of each host, in order."""
    by_host = {}
    for worker in _workers(envs):
        by_host.setdefault(worker.host, []).extend(worker.slots)
    return by_host


def times_replaced(envs):
    """How often the worker in each place was replaced."""
    return [worker.incarnation for worker in _workers(envs)]


def restarts_that_count(envs):
    """How many of the last minute's replacements in each place count against the budget."""
    return [worker.restarts.num_recent for worker in _host(envs)._staff.members]


def times_restarted(envs, slot):
    """How often a slot has started over."""
    return envs._session.recovery._incarnations.get(slot, 0)


def worker_pid(envs, worker):
    """The process of a worker."""
    return next(one.pid for one in _workers(envs) if one.name == worker)


def hosts_replaced(envs):
    """How often the host in each place was replaced."""
    return [host.incarnation for host in envs._session.fleet.hosts]


def host_restarts_that_count(envs):
    """As `restarts_that_count`, of hosts behind sockets."""
    return [host.restarts.num_recent for host in envs._session.fleet.hosts]


def all_are_here(envs):
    """Whether every host that was ordered has come."""
    return all(host.state != "ordered" for host in envs._session.fleet.survey())


def num_spares(envs):
    """How many hosts wait for a place."""
    return len(envs._session.fleet.spares)


# The launcher.


def lose_slots(envs, slots):
    """As if these slots alone had been lost, which happens where slots of two hosts are dealt."""
    envs._session.recovery.lost(slots, ())


def launcher_of(envs):
    """The launcher that started the hosts."""
    return envs._session.fleet.launcher


def logs_of(envs, worker):
    """What there is of a worker's output."""
    return next(one.running.log_tail() for one in _host(envs)._staff.members if one.name == worker)


def last_status(envs):
    """What the launcher last said about its hosts: another object each time."""
    return envs._session.fleet._hosts.watch.status


# How head and hosts talk.


def shares_memory(envs):
    """Whether the host is an object in the head's process."""
    return hasattr(envs._session.fleet, "_host")


def head_address(envs):
    """Where the head listens."""
    return envs._session.fleet.address


def _hosts(envs):
    """The hosts behind sockets."""
    return envs._session.fleet._hosts


def invite(envs, host):
    """An invitation for a host that nobody started."""
    return _hosts(envs)._socket.invite(host, 30.0, _hosts(envs).limits, 1)


def revoke(envs, host):
    """Do not let that host in any more."""
    with _hosts(envs).driver:
        _hosts(envs)._socket.revoke(host)


def num_fragments_on_their_way(envs):
    """How many fragments have come and were not taken."""
    return len(envs._session.fragments.waiting)


# How the head waits for the host in its process.


def _inbox(envs):
    return _host(envs)._workers.inbox


def let_spin(envs, may_spin):
    """Whether the head looks for answers for a while before it sleeps."""
    _inbox(envs).may_spin = may_spin


def finish_lockstep(envs, timeout_s):
    """Wait for all answers to `step_async`, without taking them; whether they came."""
    return _host(envs)._asking.lockstep.finish(timeout_s)


def ring(envs):
    """Wake the head for nothing."""
    _inbox(envs).bell.ring()


def forget_rings(envs):
    """Let the head not wake for answers that came before."""
    _inbox(envs).bell.clear()


def cores_of_workers(envs):
    """The core that each worker last ran on: an array that changes."""
    return _host(envs).rows.flags._cores


def pretend_to_sleep_on(patch, core):
    """Let the head believe that it runs on the core `core()`; `patch` is a monkeypatch."""
    patch.setattr("clusterenv.memory.answer_flags.current_core", core)


def num_silent_answers(envs):
    """How many parts were answered without a message, ever."""
    return _host(envs).rows.part_flags.total()


def send_unasked(envs, place):
    """Send the worker in that place a message that asks for nothing."""
    host = _host(envs)
    host._workers.send(host.staff[place], TakePolicy(0, b"", b""))


def wait_long(patch):
    """Let the head, if nobody wakes it, sleep for as long as its caller waits at a time."""
    patch.setattr("clusterenv.host.host._TICK_S", float("inf"))


def interrupt_next_start(envs, patch):
    """Ctrl-C comes when the host next starts a worker; `patch` is a monkeypatch."""
    starter = _host(envs)._workers._starter
    start = starter.start

    def interrupted(*args):
        patch.setattr(starter, "start", start)
        raise KeyboardInterrupt

    patch.setattr(starter, "start", interrupted)


def frame_bytes(envs):
    """How much memory there is for what each worker sends."""
    return [os.fstat(worker.line.descriptors.from_worker).st_size for worker in _host(envs).staff]


def look_for_losses_no_more(envs):
    """Let the head not look, now and then, who is lost."""
    _host(envs)._next_check = float("inf")


def replace_wait(envs, patch, function):
    """Have the head call `function` where it would wait; `patch` is a monkeypatch."""
    patch.setattr(_inbox(envs), "wait", function)


# What the head does from now on: the arguments of each call, in a list that grows.


def note_calls(owner, method):
    """The arguments of all calls of a method from now on."""
    calls, original = [], getattr(owner, method)

    def noted(*args):
        calls.append(args)
        return original(*args)

    setattr(owner, method, noted)
    return calls


def note_waits(envs):
    """(seconds, …) of each time that the head waits for something to arrive."""
    return note_calls(_inbox(envs), "wait")


def note_sleeps(envs):
    """(seconds,) of each time that the head sleeps until somebody wakes it."""
    return note_calls(_inbox(envs), "wait_for_bell")


def note_spins(envs):
    """Each time that the head begins to look for answers without sleeping."""
    return note_calls(_inbox(envs), "spin_until")


def note_pumps(envs):
    """Each time that the head takes in messages."""
    return note_calls(_host(envs), "heard")


def note_full_begins(envs):
    """Each step that begins with a look at every worker."""
    return note_calls(_host(envs)._asking.lockstep, "begin")


def note_part_calls(envs):
    """(…, …, …, slots, …) of each time that a worker is called for a part of its slots."""
    return note_calls(_host(envs)._asking.parts, "call")


def note_arrivals(envs):
    """The messages that arrive."""
    inbox, arrivals = _inbox(envs), []
    take = inbox.take
    inbox.take = lambda: [arrivals.append(arrival) or arrival for arrival in take()]
    return arrivals


def note_rings(envs):
    """Of each sleep whether somebody ended it."""
    inbox, rings = _inbox(envs), []
    wait_for_bell = inbox.wait_for_bell
    inbox.wait_for_bell = lambda seconds: rings.append(wait_for_bell(seconds)) or rings[-1]
    return rings


def is_timed(envs):
    """Whether the head, or a worker of its own process, counts what it does."""
    workers = [worker.line.mailbox.times.is_on for worker in _host(envs).staff]
    return any([envs._session.fleet.stopwatch.is_on, *workers])


# How partial batches are cut into parts.


def leave_parts_as_they_are(envs):
    """However long batches take."""
    envs._partial._note_time = lambda: None


def pretend_batches_take(envs, seconds):
    """As if each batch took so long, where a second is worth parts."""
    batches = envs._partial
    batches._note_time, batches._worth_parts_s = batches._choose_parts, 1.0
    batches._seconds_per_batch = seconds


def join_parts(envs):
    """Have slots of one worker that come back together stepped together."""
    envs._partial._is_to_join_parts = True


def pretend_to_have_paused(envs, seconds):
    """As if the last batch had been received so much earlier."""
    envs._partial._received_at -= seconds


def seconds_per_batch(envs):
    """How long a batch takes, as the head believes."""
    return envs._partial._seconds_per_batch


def seconds_worth_parts(envs):
    """From how long batches on parts are worth it."""
    return envs._partial._worth_parts_s


# Threads.


def may_be_called(envs):
    """Whether no other thread is in a call."""
    # Trying to take the turn could refuse it to the other thread.
    return repr(envs._calls.turn).startswith("<unlocked")
