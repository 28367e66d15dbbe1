"""All that tests know of the inside of a ClusterEnv: a change there changes this file alone.

Tests of one inner class construct that class; all others see ``envs`` from outside, or ask here.
"""

from clusterenv.head import roster
from clusterenv.wire import marks

MAY_SPIN = marks.MAY_SPIN
"""Whether this machine orders memory so that workers can answer without a message."""
restart_seed = roster.restart_seed
"""The seed of a slot that starts over under its so-many-th replacement."""


# Workers and their slots.


def worker_names(envs):
    """The worker in each place."""
    return [member.worker for member in envs._head.roster.members]


def slots_by_worker(envs):
    """The slots of each worker that has some."""
    return {member.worker: member.slots for member in envs._head.roster.staffed}


def times_replaced(envs):
    """How often the worker in each place was replaced."""
    return [member.incarnation for member in envs._head.roster.members]


def restarts_that_count(envs):
    """How many of the last minute's replacements in each place count against the budget."""
    return [len(member.restarts) for member in envs._head.roster.members]


def times_restarted(envs, slot):
    """How often a slot was given to another worker."""
    return envs._head.roster._incarnations[slot]


def worker_pid(envs, worker):
    """The process of a worker."""
    return envs._head.crew.reception.host_of(worker)[1]


def all_are_here(envs):
    """Whether there is a connection to the worker in each place."""
    return all(map(envs._head.crew.reception.is_here, worker_names(envs)))


def num_spares(envs):
    """How many workers wait for a place."""
    return len(envs._head.crew._enrolment.spares)


def send_to(envs, place, message):
    """Send a message to the worker in that place."""
    envs._head.crew.send(envs._head.roster.members[place], message)


# The launcher.


def launcher_of(envs):
    """The launcher that started the workers."""
    return envs._head.crew._launcher


def logs_of(envs, worker):
    """What the launcher has of a worker's output."""
    return launcher_of(envs).logs(worker)


def last_status(envs):
    """What the launcher last said about its workers: another object each time."""
    return envs._head.crew.watch.status


def knows_all_pods(envs):
    """Whether the Kubernetes launcher knows the pod of each worker."""
    return all(launcher_of(envs)._run._crowd._pod_by_worker)


# How head and workers talk.


def shares_memory(envs):
    """Whether the head has memory in common with its workers."""
    crew = envs._head.crew
    return crew.shares_memory or crew.arena_fd is not None


def head_address(envs):
    """Where the head listens."""
    return envs._head.crew._socket.address


def invite(envs, worker):
    """An invitation for a worker that no launcher starts."""
    return envs._head.crew._socket.invite(
        worker, lease_s=30.0, step_timeout_s=30.0, startup_timeout_s=30.0, shared=None
    )


def revoke(envs, worker):
    """Take back what :func:`invite` gave."""
    envs._head.crew._socket.revoke(worker)


def num_fragments_on_their_way(envs):
    """How many fragments were asked for and have not come."""
    return len(envs._head.collector._parts)


# How the head waits.


def let_spin(envs, may_spin):
    """Whether the head looks for answers for a while before it sleeps."""
    envs._head.crew.inbox.may_spin = may_spin


def finish_lockstep(envs, timeout_s):
    """Wait for all answers to `step_async`, without taking them; whether they came."""
    return envs._head._exchange.finish_lockstep(timeout_s)


def ring(envs):
    """Wake the head for nothing."""
    envs._head.crew.inbox.bell.ring()


def forget_rings(envs):
    """Let the head not wake for answers that came before."""
    envs._head.crew.inbox.bell.clear()


def cores_of_workers(envs):
    """The core that each worker last ran on: an array that changes."""
    return envs._head._arena.marks._cores


def pretend_to_sleep_on(patch, core):
    """Let the head believe that it runs on the core `core()`; `patch` is a monkeypatch."""
    patch.setattr("clusterenv.wire.marks.current_core", core)


def num_silent_answers(envs):
    """How many parts were answered without a message, ever."""
    return envs._head._arena.part_marks.total()


def look_for_losses_no_more(envs):
    """Let the head not look, now and then, who is lost."""
    envs._head._exchange._next_check = float("inf")


def replace_wait(envs, patch, function):
    """Have the head call `function` where it would wait; `patch` is a monkeypatch."""
    patch.setattr(envs._head.crew.inbox, "wait", function)


def is_clocked(envs):
    """Whether the head's waits are being timed."""
    return bool({"wait", "wait_for_bell", "spin_until"} & set(vars(envs._head.crew.inbox)))


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
    return note_calls(envs._head.crew.inbox, "wait")


def note_sleeps(envs):
    """(seconds,) of each time that the head sleeps until somebody wakes it."""
    return note_calls(envs._head.crew.inbox, "wait_for_bell")


def note_spins(envs):
    """Each time that the head begins to look for answers without sleeping."""
    return note_calls(envs._head.crew.inbox, "spin_until")


def note_pumps(envs):
    """Each time that the head takes in messages."""
    return note_calls(envs._head._exchange, "pump")


def note_full_begins(envs):
    """Each step that begins with a look at every worker."""
    return note_calls(envs._head._exchange._lockstep, "begin")


def note_part_calls(envs):
    """(…, …, slots, …) of each time that a worker is called for a part of its slots."""
    return note_calls(envs._head._exchange._parts, "call")


def note_arrivals(envs):
    """The messages that arrive."""
    inbox, arrivals = envs._head.crew.inbox, []
    take = inbox.take
    inbox.take = lambda: [arrivals.append(arrival) or arrival for arrival in take()]
    return arrivals


def note_rings(envs):
    """Of each sleep whether somebody ended it."""
    inbox, rings = envs._head.crew.inbox, []
    wait_for_bell = inbox.wait_for_bell
    inbox.wait_for_bell = lambda seconds: rings.append(wait_for_bell(seconds)) or rings[-1]
    return rings


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
