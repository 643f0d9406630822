"""Who drives: the progress thread, or a thread that waits; with a little machine in the place of a worker."""

import os
import select
import signal
import socket
import threading
import time

import pytest
from tests.patience import eventually

from netreduce.errors import NetReduceError
from netreduce.runtime.progress import IDLE_S, Pending, Progress


class Machine:
    """Completes what `asked` holds once a byte has come over its socket."""

    def __init__(self):
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.asked = []
        self.answering = []
        self.has_looked = False
        self.losses = []
        self.ended = threading.Event()
        self.fault = None
        self.lingers_s = 0
        self.ended_too_early = False
        self.progress = Progress(self)
        self.progress.inbox.register(self.near, select.EPOLLIN)

    def step(self):
        self.has_looked = True
        self.progress.run_commands()
        if self.fault is not None:
            raise self.fault
        return False

    def prepare_to_sleep(self):
        return IDLE_S

    def wake(self, ready):
        if self.near.fileno() in ready:
            self.answering.append(threading.current_thread())
            for _ in self.near.recv(100):
                self.asked.pop(0).set_result(None)

    def lose(self, error):
        self.losses.append(error)
        self.progress.is_over = True
        self.ended_too_early = self.ended.wait(self.lingers_s)
        while self.asked:
            self.asked.pop(0).set_exception(NetReduceError(f"lost: {error!r}"))

    def end(self):
        self.ended.set()

    def close(self):
        self.progress.close()
        self.near.close()
        self.far.close()

    def ask(self):
        """Block until the next byte."""
        pending = Pending()
        self.progress.run(lambda: self.asked.append(pending), pending)


@pytest.fixture
def machine():
    machine = Machine()
    machine.progress.start()
    yield machine
    machine.progress.submit(lambda: setattr(machine.progress, "stopping", True))
    machine.close()
    assert machine.ended.is_set()


def wait_for(condition):
    assert eventually(condition)


def wait_until_asleep(machine):
    """The progress thread has had its first look, and no turn."""
    wait_for(lambda: machine.has_looked and machine.progress._is_asleep and not machine.progress._turn.locked())


def send_when_asked(machine, count=1):
    def answer():
        wait_for(lambda: len(machine.asked) == count)
        machine.far.send(bytes(count))

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_waiting_thread_does_the_work_itself(machine):
    wait_until_asleep(machine)
    answer = send_when_asked(machine)
    machine.ask()
    answer.join()
    assert machine.answering == [threading.current_thread()]


def test_a_second_waiting_thread_is_served_by_the_first_and_by_the_progress_thread(machine):
    threads = [threading.Thread(target=machine.ask) for _ in range(4)]
    answer = send_when_asked(machine, len(threads))
    for thread in threads:
        thread.start()
    for thread in [*threads, answer]:
        thread.join(10)
        assert not thread.is_alive()


def test_submitted_commands_run_while_another_thread_drives_and_after_it_has_left(machine):
    answer = send_when_asked(machine)
    ran = threading.Event()
    waiting = threading.Thread(target=machine.ask)
    waiting.start()
    machine.progress.submit(ran.set)
    assert ran.wait(10)
    waiting.join(10)
    answer.join()
    ran.clear()
    machine.progress.submit(ran.set)
    assert ran.wait(10)


def test_an_interrupt_of_the_sleep_harms_nobody(machine):
    class InterruptedError(Exception):
        pass

    def interrupt(_number, _frame):
        raise InterruptedError

    def interrupt_the_sleep():
        wait_for(lambda: machine.asked)
        time.sleep(0.1)  # for the last steps of the round that has taken the question
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    wait_until_asleep(machine)
    previous = signal.signal(signal.SIGALRM, interrupt)
    interrupting = threading.Thread(target=interrupt_the_sleep)
    interrupting.start()
    try:
        with pytest.raises(InterruptedError):
            machine.ask()
    finally:
        interrupting.join()
        signal.signal(signal.SIGALRM, previous)
    assert not machine.losses
    answer = send_when_asked(machine, 2)
    machine.ask()
    answer.join()


def test_a_fault_in_a_round_is_raised_to_whoever_waits_and_ends_everything(machine):
    def break_down():
        machine.fault = ValueError("broken")

    machine.progress.submit(break_down)
    wait_for(lambda: machine.losses)
    assert str(machine.losses[0]) == "broken"
    assert machine.ended.wait(10)
    ran = []
    machine.progress.submit(lambda: ran.append(True))
    assert ran == [True]


def break_a_round_of_a_waiting_thread(machine):
    pending = Pending()

    def break_down():
        machine.asked.append(pending)
        machine.fault = ValueError("broken")

    with pytest.raises(NetReduceError, match="broken"):
        machine.progress.run(break_down, pending)


def test_a_fault_in_a_round_of_a_waiting_thread_is_its_own(machine):
    wait_until_asleep(machine)
    break_a_round_of_a_waiting_thread(machine)
    assert machine.ended.wait(10)


def test_nothing_is_closed_while_a_waiting_thread_is_still_in_the_round_that_ends_all(machine):
    wait_until_asleep(machine)
    machine.lingers_s = IDLE_S + 0.3  # the progress thread looks in meanwhile
    break_a_round_of_a_waiting_thread(machine)
    assert not machine.ended_too_early
    assert machine.ended.wait(10)


def test_a_turn_is_one_threads_until_it_is_given_back(machine):
    wait_until_asleep(machine)
    assert machine.progress.take_turn()
    assert not machine.progress.take_turn()
    machine.progress.give_back(IDLE_S)
    assert machine.progress.take_turn()
    machine.progress.give_back(IDLE_S)


def test_what_is_asked_during_a_turn_is_done_by_the_progress_thread_after_it(machine):
    wait_until_asleep(machine)
    assert machine.progress.take_turn()
    done_by = []
    machine.progress.submit(lambda: done_by.append(threading.current_thread()))
    assert select.select([machine.progress.inbox], [], [], 10)[0]  # which ends the sleep of whoever has the turn
    assert not done_by
    machine.progress.give_back(IDLE_S)
    wait_for(lambda: done_by)
    assert done_by[0].name == "netreduce-progress"


def test_there_is_no_turn_while_something_is_asked_or_all_is_over(machine):
    wait_until_asleep(machine)
    with machine.progress._turn:
        machine.progress.submit(lambda: None)
        assert not machine.progress.take_turn()
    machine.progress.is_over = True
    assert not machine.progress.take_turn()
    machine.progress.is_over = False


def test_a_turn_can_end_in_driving(machine):
    wait_until_asleep(machine)
    assert machine.progress.take_turn()
    answer, pending = send_when_asked(machine), Pending()
    machine.progress.drive(lambda: machine.asked.append(pending), pending)
    answer.join()
    assert machine.answering == [threading.current_thread()]


def test_a_turn_can_end_in_handing_over_what_is_left_to_do(machine):
    wait_until_asleep(machine)
    assert machine.progress.take_turn()
    with select.epoll.fromfd(os.dup(machine.progress.watch)) as watch:
        watch.modify(machine.progress.inbox, 0)
    answer, pending = send_when_asked(machine), Pending()
    machine.progress.hand_over(lambda: machine.asked.append(pending))
    pending.result()
    answer.join()
    assert [thread.name for thread in machine.answering] == ["netreduce-progress"]


def test_the_progress_thread_is_woken_if_it_would_sleep_for_too_long(machine):
    wait_until_asleep(machine)
    assert machine.progress.take_turn()
    machine.has_looked = False
    machine.progress.give_back(0.0)
    wait_for(lambda: machine.has_looked)
