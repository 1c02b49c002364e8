"""Threads share tasks out, help each other, and hand on the first error."""

import threading

import pytest

from fastpfrec_flwr.parallel import in_parallel, results_in_parallel, side_by_side

WAIT = 20.0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_task_is_done_once(threads):
    done: list[int] = []
    in_parallel(done.append, range(100), threads)
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_ends_the_tasks_and_is_raised(threads):
    done = []

    def run(task):
        if task == 3:
            raise ValueError("the third")
        done.append(task)

    with pytest.raises(ValueError, match="the third"):
        in_parallel(run, range(1000), threads)
    assert len(done) < 1000


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks(threads):
    assert results_in_parallel(lambda task: task * task, range(50, 0, -1), threads) == [n * n for n in range(50, 0, -1)]
    assert results_in_parallel(str, [], threads) == []


def test_tasks_within_tasks_come_to_an_end():
    done = []
    in_parallel(lambda i: in_parallel(lambda j: done.append((i, j)), range(5), 2), range(6), 2)
    assert sorted(done) == [(i, j) for i in range(6) for j in range(5)]


def test_who_is_done_first_helps_with_what_the_other_shares_out():
    ended, helper = threading.Event(), []

    def inner(task):
        # The long caller's first task goes on until somebody else has taken another one.
        if task == 0:
            assert ended.wait(WAIT)
        else:
            helper.append(threading.current_thread().name)
            ended.set()

    workers = {}

    def run(task):
        workers[task] = threading.current_thread().name
        if task == "long":
            in_parallel(inner, range(2), 2)

    side_by_side(run, ["short", "long"], 2)
    assert len(helper) == 1
    assert helper[0] != workers["long"]


def test_a_caller_works_alone_while_the_others_are_busy():
    meeting, names = threading.Barrier(2, timeout=WAIT), {}

    def run(task):
        meeting.wait()
        mine: set[str] = set()
        in_parallel(lambda _: mine.add(threading.current_thread().name), range(50), 2)
        meeting.wait()
        names[task] = mine

    side_by_side(run, "ab", 2)
    assert len(names["a"]) == len(names["b"]) == 1
    assert names["a"] != names["b"]


def test_more_callers_than_threads_are_all_called():
    done = []
    side_by_side(lambda i: in_parallel(lambda j: done.append((i, j)), range(20), 2), range(9), 2)
    assert sorted(done) == [(i, j) for i in range(9) for j in range(20)]


def test_a_helpers_error_reaches_the_caller_whose_task_it_was():
    taken = threading.Event()
    found = []

    def inner(task):
        if task == 0:
            assert taken.wait(WAIT)
            return
        taken.set()
        raise ValueError(f"task {task}")

    def run(task):
        if task == "long":
            with pytest.raises(ValueError, match="task 1"):
                in_parallel(inner, range(2), 2)
            found.append(task)

    side_by_side(run, ["short", "long"], 2)
    assert found == ["long"]


def test_a_caller_that_fails_ends_the_others_waiting():
    def run(task):
        if task == 1:
            raise ValueError("a caller")

    with pytest.raises(ValueError, match="a caller"):
        side_by_side(run, range(50), 3)
    # The threads are free again.
    done: list[int] = []
    in_parallel(done.append, range(10), 3)
    assert len(done) == 10
