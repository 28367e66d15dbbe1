"""What a worker works with once it knows the layout of rows."""

from __future__ import annotations

from clusterenv.memory.line import WorkerEnd
from clusterenv.memory.messages import MapRows
from clusterenv.memory.shared_rows import SharedRows
from clusterenv.memory.weights import WeightStore
from clusterenv.plain.spaces import leaves_of, single_array_leaf, space_from_plain
from clusterenv.plain.values import unpack
from clusterenv.worker.acting import Acting, Workplace
from clusterenv.worker.answers import Answers
from clusterenv.worker.built_envs import BuiltEnvs
from clusterenv.worker.called_steps import CalledSteps
from clusterenv.worker.deadlines import Deadlines
from clusterenv.worker.newest import NewestObservations
from clusterenv.worker.rows import RowWriter


class Desk:
    """Where actions are read and answers go, and the policy that acts."""

    def __init__(
        self, envs: BuiltEnvs, message: MapRows, line: WorkerEnd, deadlines: Deadlines
    ) -> None:
        observation_space = space_from_plain(unpack(message.observation_space, allow_pickle=True))
        action_space = space_from_plain(unpack(message.action_space, allow_pickle=True))
        leaves, action = leaves_of(observation_space), single_array_leaf(action_space)
        fds, number = line.descriptors, message.worker
        slots = range(message.first_slot, message.first_slot + message.num_slots)
        self.shared = SharedRows(fds.rows, slots, message.num_workers, action, leaves)
        self.newest = NewestObservations(self.shared, envs.build.slots)
        self.rows = RowWriter(self.shared, number, leaves, envs.build.trusted)
        self.answers = Answers(line, self.shared.flags, number, self.rows)
        self.called = CalledSteps(line, self.shared, number, self.rows, envs.stepper)
        self.acting = Acting(
            Workplace(
                slots=envs.build.slots,
                stepper=envs.stepper,
                observation_space=observation_space,
                action_space=action_space,
                weights=WeightStore(fds.weights),
                evaluation_weights=WeightStore(fds.evaluation_weights),
                build_more_envs=envs.more,
                made_progress=deadlines.expect_progress,
                times=line.mailbox.times,
            )
        )

    def close(self) -> None:
        """Close the envs that were built for evaluation."""
        self.acting.close()
