"""Applicants and vacancies find each other, whoever comes first."""

from clusterenv.head.enrolment import Enrolment
from clusterenv.launchers.base import Order


def order(name):
    return Order(name, b"")


class Office:
    def __init__(self, gone=()):
        self.enrolled, self._gone = [], gone
        self.enrolment = Enrolment(self._enrol)

    def _enrol(self, who, order):
        if who in self._gone:
            return False
        self.enrolled.append((who, order.host))
        return True


def test_a_place_that_is_open_is_given_at_once():
    office = Office()
    office.enrolment.open(order("host-0.0"))
    office.enrolment.apply("a")
    assert office.enrolled == [("a", "host-0.0")]
    assert office.enrolment.spares == []


def test_who_comes_too_early_waits_as_a_spare():
    office = Office()
    office.enrolment.apply("a")
    office.enrolment.apply("b")
    assert office.enrolment.spares == ["a", "b"]
    office.enrolment.open(order("host-0.1"))
    assert office.enrolled == [("a", "host-0.1")]


def test_a_spare_that_is_gone_gets_no_place():
    office = Office()
    office.enrolment.apply("a")
    office.enrolment.leave("a")
    office.enrolment.open(order("host-0.0"))
    assert office.enrolled == []


def test_a_place_is_not_wasted_on_a_spare_whose_end_nobody_has_heard_of():
    office = Office(gone=["a"])
    office.enrolment.apply("a")
    office.enrolment.open(order("host-0.0"))
    assert office.enrolled == []
    office.enrolment.apply("b")
    assert office.enrolled == [("b", "host-0.0")]


def test_applying_twice_gives_one_place():
    office = Office()
    office.enrolment.apply("a")
    office.enrolment.apply("a")
    office.enrolment.open(order("host-0.0"))
    office.enrolment.open(order("host-1.0"))
    assert office.enrolled == [("a", "host-0.0")]


def test_a_withdrawn_place_is_not_given():
    office = Office()
    office.enrolment.open(order("host-0.0"))
    office.enrolment.withdraw("host-0.0")
    office.enrolment.apply("a")
    assert office.enrolled == []
