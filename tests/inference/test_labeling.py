"""Labels of a person: each is on the disk at once, and the file can be continued after a kill."""

from contextlib import contextmanager

import pytest
from tiny_classifiers import TEXTS, classifier

from attendo.data.labelled import LabelledSource, read_labelled
from attendo.errors import AttendoError
from attendo.files import locked
from attendo.inference import labeling
from attendo.inference.labeling import LabelFile, Labeling, to_label

HARD = 'it is "late",\nagain\r\n=1'


@pytest.mark.parametrize("end", [".csv", ".jsonl"])
def test_a_label_is_on_the_disk_and_training_reads_it(tmp_path, end):
    path = tmp_path / f"a{end}"
    file = LabelFile(path, ("category", "body"))
    file.add("wet", HARD)
    file.add("dry", "sun")
    file.undo("sun")
    source = LabelledSource(path, ("category", "body"))
    assert [(row.label, row.text) for row in read_labelled(source, strict=True)] == [("wet", HARD)]
    (tmp_path / f"link{end}").symlink_to(path)
    for name in (path, tmp_path / f"link{end}"):
        with pytest.raises(AttendoError, match="another process"):
            LabelFile(name, ("category", "body"))
    file.close()
    again = LabelFile(path, ("category", "body"))
    assert again.labels == {HARD: "wet"}
    again.add("dry", "sun")
    again.close()
    assert [row.text for row in read_labelled(source, strict=True)] == [HARD, "sun"]


@pytest.mark.parametrize("end", [".csv", ".jsonl"])
def test_a_file_without_its_end_is_refused_or_continued(tmp_path, end):
    """Every complete record stays as it is, also the last one if only its line break is missing."""
    path, columns = tmp_path / f"a{end}", ("category", "body")
    file, ends = LabelFile(path, columns), []
    for label, text in (("wet", HARD), ("dry", "sun")):
        file.add(label, text)
        ends.append(len(path.read_bytes()) - 1)
    file.close()
    whole = path.read_bytes()
    refused = 0
    for n in range(len(whole) + 1):
        path.write_bytes(whole[:n])
        said = ""
        try:
            again = LabelFile(path, columns)
        except AttendoError as error:
            said = str(error)
        if said:
            assert str(path) in said
            assert path.read_bytes() == whole[:n]
            refused += 1
            continue
        again.add("cold", "snow")
        again.close()
        found = [row[1:] for row in read_labelled(LabelledSource(path, columns), strict=True)]
        complete = [("wet", HARD), ("dry", "sun")][: sum(n >= size for size in ends)]
        assert found[: len(complete)] == complete
        assert found[-1] == ("cold", "snow")
    assert refused > len(whole) / 3


def test_the_labels_of_a_process_that_just_ended_are_read(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"

    @contextmanager
    def late(lock):
        with locked(lock) as free:
            path.write_text("label,text\nwet,rain\n")
            yield free

    monkeypatch.setattr(labeling, "locked", late)
    file = LabelFile(path)
    file.add("dry", "sun")
    file.close()
    assert path.read_text() == "label,text\nwet,rain\ndry,sun\n"


def test_other_files_are_not_changed(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,label,text\n1,wet,rain\n")
    with pytest.raises(AttendoError, match="other columns"):
        LabelFile(path)
    assert path.read_text() == "id,label,text\n1,wet,rain\n"
    for name in ("a.tsv", "a.csv.gz"):
        with pytest.raises(AttendoError, match=r"must end in \.csv or \.jsonl"):
            LabelFile(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_a_full_disk_leaves_whole_records(tmp_path, monkeypatch):
    file = LabelFile(tmp_path / "a.csv")
    file.add("wet", "rain")
    before = (tmp_path / "a.csv").read_bytes()

    def fails(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(labeling, "write_atomic", fails)
    with pytest.raises(OSError):
        file.add("dry", "sun")
    file.close()
    assert (tmp_path / "a.csv").read_bytes() == before
    assert file.labels == {"rain": "wet"}


def test_the_least_sure_text_is_asked_first_and_undo_goes_back(tmp_path):
    user = classifier()
    with_labels = tmp_path / "a.csv"
    with_labels.write_text("label,text\nwet,rain\n")
    file = LabelFile(with_labels)
    queue = to_label(user, [*TEXTS, *TEXTS, " "], file)
    assert sorted(found.text for found in queue) == sorted({*TEXTS} - {"rain"})
    margins = [p[0] - p[1] for p in (list(found.probabilities.values()) for found in queue)]
    assert margins == sorted(margins)
    texts = Labeling(queue, file)
    texts.undo()  # nothing to undo
    first, second, third = (found.text for found in queue[:3])
    texts.label("cold")
    texts.skip()
    texts.label("dry")
    assert file.labels == {"rain": "wet", first: "cold", third: "dry"}
    texts.undo()
    texts.undo()
    assert texts.place == 1 and texts.current is queue[1]
    texts.label("wet")
    assert file.labels == {"rain": "wet", first: "cold", second: "wet"}
    texts.skip()
    texts.skip()
    assert texts.current is None
    file.close()
