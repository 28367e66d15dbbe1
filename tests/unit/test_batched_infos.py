"""The infos of VectorEnvs stay arrays, and come out as one VectorEnv of all slots gives them."""

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from clusterenv.errors import ProtocolError
from clusterenv.head.infos import Infos
from clusterenv.plain.batched_infos import BatchedInfos, as_tree
from clusterenv.plain.infos import pack_infos, unpack_infos
from clusterenv.plain.values import pack
from tests.equality import assert_same

NUM_ENVS = 6
WORKERS = [(0, 1), (2, 3, 4), (5,)]
ALL = {
    "env_id": np.arange(NUM_ENVS, dtype=np.int32),
    "ram": np.arange(NUM_ENVS * 4, dtype=np.uint8).reshape(NUM_ENVS, 4),
    "players": {"env_id": np.arange(NUM_ENVS, dtype=np.int32)},
    "episode": {"r": np.linspace(0, 1, NUM_ENVS), "_r": np.arange(NUM_ENVS) % 2 == 0},
    "_episode": np.arange(NUM_ENVS) % 2 == 0,
    "name": np.array(list("abcdef"), object),
}


class Gymnasiums(VectorEnv):
    num_envs = NUM_ENVS


class Listed(VectorEnv):
    """A way of one's own to merge infos."""

    def _add_info(self, vector_infos, env_info, env_num):
        return {**vector_infos, env_num: env_info}


def rows_of(tree, rows):
    return {
        name: rows_of(value, rows) if isinstance(value, dict) else value[rows]
        for name, value in tree.items()
    }


def arrived(said):
    """What workers say of their slots, as the head has it."""
    infos = Infos(NUM_ENVS)
    for slots, tree in said:
        own = BatchedInfos(np.array(slots), tree)
        data = pack_infos(own, allow_pickle=False)
        infos.put(unpack_infos(data, allow_pickle=False), slots)
    return infos


def of_all(workers=WORKERS):
    return arrived([(slots, rows_of(ALL, list(slots))) for slots in workers])


@pytest.mark.parametrize("workers", [WORKERS, WORKERS[::-1], [tuple(range(NUM_ENVS))]])
def test_the_infos_of_all_workers_are_those_of_one_vector_env(workers):
    assert_same(of_all(workers).take(Gymnasiums()._add_info), ALL)


def test_infos_of_some_slots_have_their_rows_and_leave_those_of_the_others():
    infos = of_all()
    assert_same(infos.take_of([1, 2, 3, 4]), rows_of(ALL, [1, 2, 3, 4]))
    assert_same(infos.take_of([0, 5]), rows_of(ALL, [0, 5]))
    assert infos.take_of([0, 5]) == {}


def test_rows_of_whom_nobody_speaks_are_empty():
    infos = arrived([((2, 3, 4), {"x": np.ones((3, 2)), "name": np.array(["a"] * 3, object)})])
    taken = infos.take(Gymnasiums()._add_info)
    assert taken["x"].tolist() == [[0, 0]] * 2 + [[1, 1]] * 3 + [[0, 0]]
    assert taken["name"].tolist() == [None, None, "a", "a", "a", None]


def test_what_the_head_says_of_a_slot_is_added():
    infos = of_all()
    infos.note(3, {"env_lost": True})
    taken = infos.take(Gymnasiums()._add_info)
    assert taken.pop("env_lost").tolist() == [False] * 3 + [True] + [False] * 2
    taken.pop("_env_lost")
    assert_same(taken, ALL)


def test_arrays_of_different_kinds_are_merged_as_gymnasium_does():
    infos = arrived([((0, 1), {"x": np.array([1, 2])}), ((2, 3, 4, 5), {"x": np.full(4, 0.5)})])
    taken = infos.take(Gymnasiums()._add_info)
    assert taken["x"].tolist() == [1, 2, 0, 0, 0, 0]
    assert taken["_x"].all()


def test_whoever_merges_another_way_gets_a_dict_per_slot():
    infos = arrived([((0, 1), {"x": np.array([1, 2])}), ((2, 3, 4, 5), {"x": np.arange(4)})])
    taken = infos.take(Listed()._add_info)
    assert taken == {slot: {"x": x} for slot, x in enumerate([1, 2, 0, 1, 2, 3])}


def test_what_a_vector_env_says_once_holds_for_all_its_envs():
    assert_same(as_tree({"s": 0.5, "l": [1, 2]}, 2), {"s": np.full(2, 0.5), "l": np.array([1, 2])})


def test_an_info_with_rows_for_other_envs_is_named():
    with pytest.raises(ValueError, match="info 'x' has 3 rows for 2 envs"):
        as_tree({"x": np.zeros(3)}, 2)


def test_an_info_whose_name_is_no_string_is_named():
    with pytest.raises(ValueError, match="an info called 5: names are strings"):
        as_tree({5: np.zeros(2)}, 2)


def test_the_head_knows_the_dtype_of_the_rewards():
    infos = Infos(2)
    said = BatchedInfos(np.arange(2), {}, "<f4")
    infos.put(unpack_infos(pack_infos(said, allow_pickle=False), allow_pickle=False), (0, 1))
    assert infos.reward_dtype == np.float32
    assert infos.take(Gymnasiums()._add_info) == {}


SLOTS = np.array([1, 2])


@pytest.mark.parametrize(
    "said",
    [
        5,
        (SLOTS, {}),
        (SLOTS, [], ""),
        (SLOTS[::-1].copy(), {}, ""),
        (SLOTS.astype(np.int32), {}, ""),
        (SLOTS[:0], {}, ""),
        (SLOTS, {"x": 5}, ""),
        (SLOTS, {5: np.zeros(2)}, ""),
        (SLOTS, {"x": np.zeros(3)}, ""),
        (SLOTS, {"x": np.zeros(())}, ""),
        (SLOTS, {"x": {"y": np.zeros(3)}}, ""),
        (SLOTS, {}, "<M8[s]"),
        (SLOTS, {}, "no dtype"),
    ],
)
def test_batched_infos_of_another_layout_are_a_protocol_error(said):
    with pytest.raises(ProtocolError):
        unpack_infos(b"b" + pack(said, allow_pickle=False), allow_pickle=False)


@pytest.mark.parametrize("slots", [(0, 1), (1, 3), (2,)])
def test_batched_infos_of_other_slots_are_a_protocol_error(slots):
    with pytest.raises(ProtocolError, match="other slots"):
        Infos(4).put(BatchedInfos(SLOTS, {"x": np.zeros(2)}), slots)
