from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from secede.audit.ensembles.margins import ENSEMBLES, SampleSet
from secede.errors import RecordError
from secede.experiments.ensembles import members
from secede.experiments.ensembles.examine import Answers
from secede.experiments.ensembles.members import PLAIN, QUANTISED, Member

SIZES: tuple[tuple[SampleSet, int], ...] = (("pool", 6), ("retained", 4), ("test", 3))


def member(number: int) -> Member:
    draw = np.random.default_rng(number)
    answers = {
        kind: Answers(
            {name: draw.normal(size=count).astype(np.float16) for name, count in SIZES},
            {"clean_accuracy": number + place / 10},
        )
        for place, kind in enumerate(ENSEMBLES)
    }
    return Member(
        number=number,
        member=draw.random(6) < 0.5,
        answers={PLAIN: answers, QUANTISED: answers},
        further={"relearning_steps": dict.fromkeys(ENSEMBLES, float(number))},
        notes={"erasure": {"rounds": 2}, "models": {}, "seconds": 1.5},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        members.write(tmp_path, "digest", member(number))
    return tmp_path


def test_what_is_written_is_read_back_in_order(folder: Path) -> None:
    found = members.load(folder, "digest", 3)
    assert list(found) == [PLAIN, QUANTISED]
    plain = found[PLAIN]
    for number in range(3):
        expected = member(number).answers[PLAIN]["erased"].margins["test"]
        assert np.array_equal(plain.margins["erased"]["test"][number], expected)
    assert plain.margins["erased"]["pool"].dtype == np.float64
    assert plain.scalars["clean_accuracy"]["retrained"].tolist() == [0.2, 1.2, 2.2]
    assert plain.scalars["relearning_steps"]["erased"].tolist() == [0, 1, 2]
    assert "relearning_steps" not in found[QUANTISED].scalars
    assert members.notes(folder, "digest", 2)[1]["federation"] == 1


def test_margins_take_two_bytes_each(folder: Path) -> None:
    arrays = safetensors.numpy.load_file(folder / "members" / "000.safetensors")
    kinds = {str(values.dtype) for name, values in arrays.items() if name != "member"}
    assert kinds == {"float16"}
    assert arrays["member"].dtype == np.bool_


def test_a_federation_is_finished_once_its_json_is_there(tmp_path: Path) -> None:
    assert not members.is_finished(tmp_path, 0)
    members.write(tmp_path, "digest", member(0))
    assert members.is_finished(tmp_path, 0)
    (tmp_path / "members" / "000.json").unlink()
    assert not members.is_finished(tmp_path, 0)


def test_records_of_another_audit_are_refused(folder: Path) -> None:
    with pytest.raises(RecordError, match="is of another audit"):
        members.load(folder, "other", 3)


def test_damaged_margins_are_refused_with_what_to_do(folder: Path) -> None:
    path = folder / "members" / "001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match=r"not what was written; delete 001\.json beside it"):
        members.load(folder, "digest", 3)
    path.unlink()
    with pytest.raises(RecordError, match=r"delete 001\.json beside it to redo it"):
        members.load(folder, "digest", 3)


def test_a_record_without_a_key_is_refused(folder: Path) -> None:
    path = folder / "members" / "002.json"
    path.write_text('{"audit": "digest", "federation": 2}')
    with pytest.raises(RecordError, match="is missing; delete the file to redo it"):
        members.load(folder, "digest", 3)
