"""Fifty sites send mutated messages one after the other: every run survives and names each."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from harness.flower.mutations import COUNT, STEP, TRAIN, Hostile, honest, lines_about
from harness.flower.small import OPTIONS, Federation, initial
from secede.erasure.documents.plan import Margins
from secede.errors import SecedeError
from secede.flower._flwr import act_as_server
from secede.flower.protocol.messages import read_reply
from secede.unlearning.client_tasks import CountRight, Measure

HONEST = {f"site-{n}" for n in range(4)}
LEAVER = "site-1"
LOOSE = Margins(overall=0.99, per_class=0.99)  # what is tested is the parsing
ALONE = replace(
    OPTIONS, quorum=0.01, measure_at_leaver=True, max_rounds=1, max_server_rounds=1, margins=LOOSE
)
FEW_AND_MANY = [6, pytest.param(200, marks=pytest.mark.slow)]  # of fifty messages each


def check_lines(federation: Federation, hostile: Hostile) -> None:
    """Each sender of a mutated message is named in one clean line for each."""
    for name, count in Counter(name for name, _ in hostile.sent).items():
        lines, kinds = lines_about(federation.told, name), hostile.kinds(name)
        if name == LEAVER:  # counts of its own that do not add up are said in the receipt
            assert len(lines) >= len([kind for kind in kinds if kind != "counts"]), (kinds, lines)
        else:
            assert len(lines) == count, (kinds, lines)
        assert all(line.isprintable() and len(line) < 800 for line in lines), lines


@pytest.mark.parametrize("rounds", FEW_AND_MANY)
def test_trainings_survive_mutated_messages_and_name_each_sender(
    tmp_path: Path, rounds: int
) -> None:
    federation, hostile = Federation(tmp_path), Hostile(seed=rounds)
    federation.sites += hostile.sites
    hostile.mutate(TRAIN)
    federation.train(rounds)
    recorded = federation.store.log.rounds()
    assert len(hostile.sent) == 50 * rounds == 50 * len(recorded)
    assert all({c.client for c in each.clients} == HONEST for each in recorded)
    check_lines(federation, hostile)


@pytest.mark.parametrize("erasures", FEW_AND_MANY)
def test_erasures_survive_mutated_messages_and_name_each_sender(
    tmp_path: Path, erasures: int
) -> None:
    trained, hostile = Federation(tmp_path / "trained"), Hostile(seed=erasures)
    trained.sites += hostile.sites
    trained.train(1)
    for number in range(erasures):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "trained", folder)
        federation = Federation(folder)
        federation.sites += hostile.sites
        # The leaver mutates its step or its counts, retained sites their updates or their counts.
        kinds = [(STEP, TRAIN), (COUNT,), (TRAIN, COUNT), (STEP, COUNT)][number % 4]
        hostile.mutate(*kinds)
        hostile.sent.clear()
        leaver = federation.site(LEAVER)
        leaver.answer = lambda question, reply: hostile.answer(LEAVER, question, reply)
        assert federation.erase(f"name:{LEAVER}", options=ALONE).state == "promoted"
        assert len(hostile.sent) >= 50
        check_lines(federation, hostile)
        last = federation.store.last_round()
        assert last is not None
        assert {c.client for c in last.clients} == HONEST - {LEAVER}
        shutil.rmtree(folder)


@pytest.mark.parametrize("task", [CountRight(), Measure()])
def test_mutated_numbers_are_errors_that_name_their_sender(task: CountRight | Measure) -> None:
    hostile, template = Hostile(seed=1), initial()
    hostile.mutate(COUNT)
    act_as_server(7)
    question = Message(RecordDict(), 5, COUNT)
    whole = {name: [1] for name in task.numbers}
    wrong = [[10**400], [2**63], ["1"], [[1]], {"0": 1}, [], None, [10**400] * 9]
    bodies = [{**whole, name: value} for name in task.numbers for value in wrong]
    replies = [hostile.answer("site-1", question, honest(question)) for _ in range(500)]
    for body in bodies:
        text = json.dumps({"numbers": body, "samples": 60})
        records = RecordDict({"secede.answer": ConfigRecord({"json": text})})
        replies.append(Message(records, reply_to=question))
    errors = list[str]()
    for reply in replies:
        if reply.has_content():
            try:
                read_reply(reply, task, template, "site-1")
            except SecedeError as error:  # any other would end the run
                errors.append(str(error))
    assert len(errors) > 300
    assert all(line.startswith("client 'site-1': ") and line.isprintable() for line in errors)
