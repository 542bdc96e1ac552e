"""API servers with wrong, late or incomplete responses, from a proxy (`faulty_proxy.Harm`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault, JoinMode
from e2e.faults.faulty_proxy import Harm, Rule

_WRITES = frozenset({"POST", "PUT", "PATCH"})
_ANY_WRITE = _WRITES | {"DELETE"}
#: Seconds within which a rule must apply; otherwise the trial fails.
_MET_SECONDS = 30.0


class NothingMet(Exception):
    """The fault was active, and no request was affected."""


@contextmanager
def _answered(stage: Stage, *, rules: Sequence[Rule], sides: Sequence[str]) -> Iterator[None]:
    proxies = {"home": stage.home_proxy, "remote": stage.remote_proxy}
    struck = [proxies[side] for side in sides]
    before = sum(proxy.hits for proxy in struck)

    def met() -> bool:
        return sum(proxy.hits for proxy in struck) > before

    for proxy in struck:
        proxy.rules = tuple(rules)
    try:
        yield
        stage.work(_MET_SECONDS, until=met)
        if not met():
            raise NothingMet("no request and no watch met the fault")
    finally:
        for proxy in struck:
            proxy.rules = ()


def _fault(
    name: str,
    what: str,
    *rules: Rule,
    sides: Sequence[str] = ("home", "remote"),
    seconds: tuple[float, float] = (5.0, 10.0),
    short: bool = False,
) -> Fault:
    return Fault(
        f"answers: {name}",
        what,
        "the proxies pass everything on as it is",
        partial(_answered, rules=rules, sides=sides),
        seconds=seconds,
        join=JoinMode.PROXY,
        short=short,
    )


FAULTS = (
    _fault(
        "409",
        "of three writes of the bridge, deletions among them, one is answered with a conflict that "
        "is none",
        Rule(Harm.ANSWER, 0.33, _ANY_WRITE, code=409),
        short=True,
    ),
    _fault(
        "429",
        "of three requests, one is answered with 429, and Retry-After: 1",
        Rule(Harm.ANSWER, 0.33, code=429, retry_after=1),
    ),
    _fault("500", "of three requests, one is answered with 500", Rule(Harm.ANSWER, 0.33, code=500)),
    _fault(
        "503",
        "of three requests, one is answered with 503, half of those with Retry-After: 1",
        Rule(Harm.ANSWER, 0.2, code=503),
        Rule(Harm.ANSWER, 0.2, code=503, retry_after=1),
    ),
    _fault(
        "all are 500",
        "every request is answered with 500",
        Rule(Harm.ANSWER, 1.0, code=500),
        seconds=(5.0, 12.0),
    ),
    _fault(
        "late",
        "of two requests, one is answered 1 to 8 s late",
        Rule(Harm.DELAY, 0.5, seconds=(1.0, 8.0)),
        seconds=(8.0, 12.0),
    ),
    _fault(
        "a slow line",
        "every request is answered, and every line of a watch comes, 0.1 to 0.5 s late",
        Rule(Harm.DELAY, 1.0, seconds=(0.1, 0.5)),
        Rule(Harm.STALL, 1.0, seconds=(0.1, 0.5)),
        seconds=(8.0, 12.0),
    ),
    _fault(
        "lost",
        "of three writes, one is done, and its connection dies before the bridge gets the response",
        Rule(Harm.LOSE, 0.33, _ANY_WRITE),
        short=True,
    ),
    _fault(
        "all lost",
        "every write of the bridge in the remote is done, and its connection dies before the "
        "bridge gets the response",
        Rule(Harm.LOSE, 1.0, _ANY_WRITE),
        sides=("remote",),
    ),
    _fault(
        "refused",
        "of three requests, one finds its connection dead before it is done",
        Rule(Harm.REFUSE, 0.33),
    ),
    _fault(
        "cut off",
        "of three answers, one ends in the middle, and its connection dies",
        Rule(Harm.TRUNCATE, 0.33),
    ),
    _fault(
        "watches cut off",
        "of three lines of a watch, one ends in the middle, in order or with its connection",
        Rule(Harm.CUT, 0.17),
        Rule(Harm.END, 0.2),
        short=True,
    ),
    _fault(
        "watches with garbage",
        "of three lines of a watch, one is none",
        Rule(Harm.GARBLE, 0.33),
    ),
    _fault(
        "watches with 410",
        "of three lines of a watch, one is replaced by the error that its version is too old",
        Rule(Harm.GONE, 0.33),
    ),
    _fault(
        "everything at once",
        "all of these, each a little",
        *(Rule(Harm.ANSWER, 0.04, code=code) for code in (429, 500, 503)),
        Rule(Harm.ANSWER, 0.04, _WRITES, code=409),
        *(Rule(harm, 0.05) for harm in (Harm.LOSE, Harm.REFUSE, Harm.TRUNCATE)),
        Rule(Harm.DELAY, 0.1, seconds=(0.5, 3.0)),
        *(Rule(harm, 0.05) for harm in (Harm.CUT, Harm.END, Harm.GARBLE, Harm.GONE)),
        seconds=(10.0, 20.0),
    ),
)
