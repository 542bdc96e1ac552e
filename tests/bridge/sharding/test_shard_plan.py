"""The share of one replica, from the records of all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.fleet.fleet_report import Standing
from bridge.sharding.assignment import assign
from bridge.sharding.membership_record import Member
from bridge.sharding.shard_plan import MAX_MOVES, plan_share

KEYS = [f"remote-{number}" for number in range(12)]


def member(name: str, **standings: Standing) -> Member:
    return Member(name, {key: standings.get(key.replace("-", "_"), "cold") for key in KEYS})


def uniform(name: str, standing: Standing) -> Member:
    return Member(name, dict.fromkeys(KEYS, standing))


def share_of(own: str, *replicas: str) -> set[str]:
    offers = {it: frozenset(KEYS) for it in replicas}
    return {key for key, it in assign(offers).items() if it == own}


def test_a_single_replica_runs_everything() -> None:
    assert plan_share("a", {"a": member("A")}, set()).run == set(KEYS)


def test_two_replicas_that_start_together_divide_the_remotes() -> None:
    members = {"a": member("A"), "b": member("B")}
    first, second = (plan_share(it, members, set()) for it in ("a", "b"))
    assert first.run | second.run == set(KEYS)
    assert len(first.run) == len(second.run) == 6
    assert set(first.elsewhere.values()) == {"B"}


def test_a_new_replica_takes_over_a_few_at_a_time_and_the_old_keeps_them_until_it_is_ready() -> (
    None
):
    members = {"a": uniform("A", "serving"), "b": member("B")}
    new = plan_share("b", members, set())
    assert len(new.run) == MAX_MOVES
    assert plan_share("a", members, set(KEYS)).run == set(KEYS)
    starting: dict[str, Standing] = {key: "starting" if key in new.run else "cold" for key in KEYS}
    members["b"] = Member("B", starting)
    assert plan_share("b", members, new.run).run == new.run
    ready: dict[str, Standing] = {key: "ready" if key in new.run else "cold" for key in KEYS}
    members["b"] = Member("B", ready)
    assert plan_share("a", members, set(KEYS)).run == set(KEYS) - new.run
    assert len(plan_share("b", members, new.run).run) == len(share_of("b", "a", "b"))


def test_a_takeover_that_stalls_does_not_delay_others() -> None:
    members = {"a": uniform("A", "serving"), "b": member("B")}
    running = plan_share("b", members, set()).run
    starting: dict[str, Standing] = {key: "starting" if key in running else "cold" for key in KEYS}
    members["b"] = Member("B", starting)
    assert len(plan_share("b", members, running, stalled=running).run) == 6


def test_all_remotes_of_a_replica_that_is_gone_are_taken_over_at_once() -> None:
    mine = share_of("a", "a", "b")
    held: dict[str, Standing] = {key: "serving" if key in mine else "cold" for key in KEYS}
    share = plan_share("a", {"a": Member("A", held)}, mine)
    assert share.run == set(KEYS)


def test_a_remote_that_its_replica_cannot_serve_goes_to_the_other() -> None:
    key = min(share_of("a", "a", "b"))
    members = {
        "a": Member("A", {**uniform("A", "serving").remotes, key: "lost"}),
        "b": uniform("B", "cold"),
    }
    assert key in plan_share("b", members, set()).run
    assert key in plan_share("a", members, set(KEYS)).run
    members["b"] = Member("B", {**members["b"].remotes, key: "ready"})
    assert key not in plan_share("a", members, set(KEYS)).run


def test_a_node_that_bridge_leave_removed_is_started_by_no_other_replica() -> None:
    key = min(share_of("b", "a", "b"))
    members = {"a": Member("A", {**uniform("A", "cold").remotes, key: "left"}), "b": member("B")}
    assert key not in plan_share("b", members, set()).run
    assert key in plan_share("a", members, {key}).run


STANDINGS = st.sampled_from(["cold", "starting", "ready", "serving", "lost", "unable"])


@settings(max_examples=200)
@given(st.lists(st.lists(STANDINGS, min_size=12, max_size=12), min_size=1, max_size=4))
def test_some_replica_runs_or_already_serves_each_remote(standings: list[list[Standing]]) -> None:
    members = {
        str(number): Member(str(number), dict(zip(KEYS, row, strict=True)))
        for number, row in enumerate(standings)
    }
    shares = {
        own: plan_share(own, members, {k for k, it in mine.remotes.items() if it != "cold"})
        for own, mine in members.items()
    }
    for key in KEYS:
        runs = [own for own, it in shares.items() if key in it.run]
        serves = [own for own, it in members.items() if it.remotes[key] in ("serving", "lost")]
        assert runs, key
        # A replica that serves gives up only for one that stands by with full caches, or serves.
        for own in set(serves) - set(runs):
            assert any(members[it].remotes[key] in ("ready", "serving") for it in runs), key
            assert own not in runs


@given(st.integers(0, 5))
def test_a_plan_that_is_carried_out_plans_nothing_more(count: int) -> None:
    names = [str(it) for it in range(count + 1)]
    assigned = assign({it: frozenset(KEYS) for it in names})
    members = {
        own: Member(own, {key: "serving" if it == own else "cold" for key, it in assigned.items()})
        for own in names
    }
    for own in names:
        served = set(members[own].keys("serving"))
        assert plan_share(own, members, served).run == served
