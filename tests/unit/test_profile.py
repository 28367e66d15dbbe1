"""Seconds become shares and advice."""

import pathlib
import re
from dataclasses import replace

import pytest

from clusterenv.profile import RARE, SHARES, Profile, advise, report, shares, slowest
from clusterenv.tools.profile_table import profile_table, recommend

DOCS = pathlib.Path(__file__).parents[2] / "docs"


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
        (profile(worker(env=2, idle=8), learner=8.0, calls=["rollout"]), "ahead=1"),
        (profile(worker(env=2, serialise=8, pull=1e-4), calls=["rollout"]), "infos=False"),
        (profile(worker(env=2, serialise=8, pull=1e-4), calls=["step"]), "fewer infos"),
        (profile(worker(env=2, idle=8), head=8.0, calls=["rollout"]), "infos=False"),
        (profile(worker(env=2, idle=8), calls=["rollout"]), "infos=False"),
        (profile(worker(env=6) | {"import": 4.0}), "import what the policy needs 40 %"),
    ],
)
def test_the_first_advice_is_about_what_takes_most(measured, said):
    assert said in advise(measured)[0]


def test_rows_that_are_written_fast_are_not_called_large():
    small = replace(profile(worker(env=6, serialise=4), calls=["rollout"]), steps=1_000_000)
    assert "num_steps=" in advise(small)[0]
    assert "large" not in advise(small)[0]


def test_few_pulls_are_not_blamed_for_large_rows():
    assert "pulls" not in advise(profile(worker(serialise=8, pull=1e-4), calls=["rollout"]))[0]


# Losses.


def test_time_for_which_a_replacement_is_awaited_is_lost():
    crashing = profile(
        worker(env=1, idle=9), calls=["rollout"], num_workers=2, learner=1.0, lost=7.0, wait=2.0
    )
    share = shares(crashing)
    assert (share["lost"], share["network"]) == pytest.approx((0.7, 0.1))
    assert sum(share.values()) == pytest.approx(1)
    told = advise(replace(crashing, lost_workers=5))
    assert told[0].startswith("5 workers were lost, and the run waited for replacements 70 %")
    assert "docs/losses.md" in told[0]
    assert len(told) == 1


def test_losses_that_nobody_waited_for_are_told_too():
    one = replace(profile(worker(env=9, idle=1)), lost_hosts=1, lost_workers=2)
    assert advise(one)[0].startswith("2 workers and 1 host were lost: ")
    assert advise(replace(one, lost_workers=0))[0].startswith("1 host was lost: ")


def test_where_no_worker_stayed_the_heads_time_is_shown():
    nobody = replace(profile(num_workers=2, lost=6.0, learner=2.0, wait=2.0), lost_workers=9)
    share = shares(nobody)
    assert (share["lost"], share["learner"], share["network"]) == pytest.approx((0.6, 0.2, 0))
    assert "none stayed" in advise(nobody)[0]
    assert len(advise(nobody)) == 1


# Workers that differ, and learners that are the limit.


def test_fewer_workers_would_not_do_where_one_of_them_is_busy():
    uneven = profile(
        worker(env=9.8, idle=0.2), worker(env=0.5, idle=9.5), learner=9.5, calls=["stream"]
    )
    uneven = replace(uneven, names=["worker-0.0 (slots 0 to 7)", "worker-1.0 (slots 8 to 15)"])
    text = " ".join(advise(uneven))
    assert "num_workers=" not in text
    assert "worker-0.0 (slots 0 to 7) is busy 98 %" in text


def test_who_learns_and_collects_at_the_same_time_is_not_told_to():
    ahead = profile(
        *[worker(env=3, idle=7)] * 4, learner=9.5, head=0.3, wait=0.2, calls=["rollout"]
    )
    assert "ahead=1" not in " ".join(advise(ahead))
    assert "num_workers=2 would do" in advise(ahead)[0]


def test_more_cores_do_not_help_where_the_head_hardly_waits():
    one = profile(
        worker(env=6, idle=4), cores=1, learner=9.3, head=0.1, wait=0.6, calls=["rollout"]
    )
    text = " ".join(advise(one))
    assert "the head waits for workers only 6 % of it: the learner is the limit" in text
    assert "more cores than" not in text
    waiting = replace(one, head={"learner": 4.0, "wait": 6.0})
    assert "more cores than" in " ".join(advise(waiting))


def test_the_slowest_worker_is_named_where_workers_differ():
    one = profile(worker(env=1, idle=9), worker(env=9, idle=1), worker(env=2, idle=8))
    one = replace(one, names=["worker-0.0", "worker-1.0 (slots 6 to 10)", "worker-2.0"])
    said = "worker-1.0 (slots 6 to 10): env 90 %, where the others have 15 %"
    assert said in report(one)
    assert f"-> step: the slowest is {said}" in [f"-> {line}" for line in recommend({"step": one})]


def test_the_slowest_of_workers_that_are_all_busy_is_the_one_with_the_slow_env():
    all_busy = profile(worker(env=9.7, inference=0.3), worker(env=5, inference=4, serialise=1))
    assert "env 97 %" in slowest(replace(all_busy, names=["slow", "fast"]))


@pytest.mark.parametrize(
    "workers", [[worker(env=9)], [worker(env=9, idle=1), worker(env=8, idle=2)]]
)
def test_nobody_is_named_where_workers_are_alike(workers):
    assert slowest(profile(*workers)) is None


# Tables.


def test_a_report_has_every_share_and_the_advice():
    text = report(profile(worker(env=9, idle=1)))
    assert "100 steps/s" in text
    assert all((f" {name} " in text) == (name not in RARE) for name in SHARES)
    assert "\n-> envs take 90 %" in text


@pytest.mark.parametrize("name", sorted(RARE))
def test_rare_shares_are_shown_where_they_are_something(name):
    rare = replace(profile(worker(env=5, idle=4) | {"import": 1.0}), head={"lost": 1.0})
    assert f" {name}  10.0 %" in report(rare)
    assert name in profile_table("Odd-v0", {"step": rare}).headings


def test_the_fastest_layout_is_recommended_where_it_is_worth_it():
    slow = profile(worker(env=2, idle=8))
    rollout = replace(slow, steps=3000, calls=frozenset(["rollout"]))
    assert recommend({"step": slow, "rollout": rollout})[0].startswith("take rollout")
    assert "3.0 times as fast as step" in recommend({"step": slow, "rollout": rollout})[0]
    hardly = replace(rollout, steps=1050)
    assert recommend({"step": slow, "rollout": hardly})[0].startswith("take step")
    assert "versions old" in recommend({"step": slow, "stream": rollout})[0]
    assert "ahead=1" in recommend({"step": slow, "stream": rollout})[0]


def test_a_table_has_a_row_per_layout():
    one = profile(worker(env=9, idle=1))
    table = profile_table("Odd-v0", {"step": one, "stream": one})
    assert [row[0] for row in table.rows] == ["step", "stream"]
    assert dict(zip(table.headings, table.rows[0], strict=True))["env"] == "90 %"
    assert "Odd-v0" in table.title


# Documentation.


@pytest.mark.parametrize("page", ["tools.md", "howto/looking-inside.md"])
def test_the_documentation_has_a_row_for_every_share(page):
    rows = [line.split("|")[1] for line in (DOCS / page).read_text().splitlines() if "|" in line]
    assert set(SHARES) <= set(re.findall(r"\*(\w+)\*", " ".join(rows)))


def test_the_api_reference_has_what_a_profile_gives():
    text = (DOCS / "api.md").read_text()
    assert (
        ".. autoclass:: Profile\n" in text.partition(".. currentmodule:: clusterenv.profile\n")[2]
    )
