"""Seconds become shares and advice."""

from dataclasses import replace

import pytest

from clusterenv.profile import SHARES, Profile, advise, report, shares
from clusterenv.tools.profile_table import profile_table, recommend


def worker(env=0.0, inference=0.0, serialise=0.0, pull=0.0, other=0.0, idle=0.0):
    return {
        "env": env, "inference": inference, "serialise": serialise,
        "pull": pull, "other": other, "idle": idle,
    }  # fmt: skip


def profile(*workers, behind_s=0.0, calls=("step",), num_workers=None, cores=16, **head):
    return Profile(
        wall_s=10.0,
        steps=1000,
        head=head,
        workers=workers,
        behind_s=behind_s,
        calls=frozenset(calls),
        num_envs=16,
        num_workers=num_workers or len(workers),
        cores=cores,
    )


def test_shares_sum_to_one_and_are_those_of_an_average_worker():
    share = shares(profile(worker(env=8, idle=2), worker(env=4, idle=6), learner=1.0))
    assert sum(share.values()) == pytest.approx(1)
    assert set(share) == set(SHARES)
    assert share["env"] == pytest.approx(0.6)
    assert share["learner"] == pytest.approx(0.1)
    assert share["network"] == pytest.approx(0.3)


def test_what_nobody_explains_was_spent_on_the_way():
    lockstep = profile(worker(env=2, pull=1, idle=7), behind_s=3.0, learner=1.0, head=1.0)
    share = shares(lockstep)
    assert (share["wait"], share["learner"], share["head"]) == pytest.approx((0.3, 0.1, 0.1))
    assert share["network"] == pytest.approx(0.2 + 0.1)


def test_a_learner_that_overlaps_with_workers_does_not_count_twice():
    share = shares(profile(worker(env=9, idle=1), learner=10.0, calls=["stream"]))
    assert share["env"] == pytest.approx(0.9)
    assert share["learner"] == pytest.approx(0.1)
    assert share["network"] == 0


def test_the_forward_pass_at_the_head_is_inference():
    share = shares(profile(worker(env=4, idle=6), inference=5.0, learner=1.0))
    assert share["inference"] == pytest.approx(0.5)


def test_nothing_measured_is_no_crash():
    assert sum(shares(profile(num_workers=2)).values()) == 0
    assert report(profile(num_workers=2))


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (profile(worker(env=3, idle=7), learner=7.0, calls=["rollout"]), "stream()"),
        (profile(*[worker(env=2, idle=8)] * 4, learner=8.0, calls=["stream"]), "num_workers=1"),
        (profile(worker(env=5, idle=5), worker(env=9, idle=1), behind_s=3), "batch_size="),
        (profile(worker(env=5, idle=5), behind_s=4, calls=["rollout"]), "stream()"),
        (profile(worker(env=2, idle=8)), "rollout(policy)"),
        (profile(worker(env=2, pull=8), calls=["rollout"]), "bf16"),
        (profile(worker(env=2, idle=8), calls=["rollout"]), "num_steps="),
        (profile(worker(env=2, inference=8), calls=["rollout"]), "more envs per worker"),
        (profile(worker(env=2, idle=8), inference=8.0), "GPU"),
        (profile(worker(env=2, idle=8), head=8.0), "copy=False"),
        (profile(worker(env=9, idle=1)), "num_workers=16"),
        (profile(worker(env=9, idle=1), cores=1), "more cores than the 1"),
        (profile(*[worker(env=9, idle=1)] * 16, cores=None), "more envs than 16"),
        (profile(*[worker(env=9, idle=1)] * 4, cores=2), "4 workers share 2 cores"),
        (profile(worker(env=4, inference=3, other=3), calls=["rollout"]), "nothing stands out"),
    ],
)
def test_the_first_advice_is_about_what_takes_most(measured, said):
    assert said in advise(measured)[0]


def test_a_report_has_every_share_and_the_advice():
    text = report(profile(worker(env=9, idle=1)))
    assert "100 steps/s" in text
    assert all(f" {name} " in text for name in SHARES)
    assert "\n-> envs take 90 %" in text


def test_the_fastest_layout_is_recommended_where_it_is_worth_it():
    slow = profile(worker(env=2, idle=8))
    rollout = replace(slow, steps=3000, calls=frozenset(["rollout"]))
    assert recommend({"step": slow, "rollout": rollout})[0].startswith("take rollout")
    assert "3.0 times as fast as step" in recommend({"step": slow, "rollout": rollout})[0]
    hardly = replace(rollout, steps=1050)
    assert recommend({"step": slow, "rollout": hardly})[0].startswith("take step")
    assert "versions old" in recommend({"step": slow, "stream": rollout})[0]


def test_a_table_has_a_row_per_layout():
    one = profile(worker(env=9, idle=1))
    table = profile_table("Odd-v0", {"step": one, "stream": one})
    assert [row[0] for row in table.rows] == ["step", "stream"]
    assert dict(zip(table.headings, table.rows[0], strict=True))["env"] == "90 %"
    assert "Odd-v0" in table.title
