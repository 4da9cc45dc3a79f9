"""A checkpoint is there completely or not at all: after damage to any file, and after a crash at any operation."""

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.errors import StorageError
from adloco_p2p.storage.checkpoint import Checkpoint, CheckpointStore

RUN = Digest("ab" * 32)
THREE = InstanceId(3)


def opened(tmp_path: Path, *, run: Digest = RUN, kept: int = 2) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "checkpoints", run=run, kept=kept)


def tensors_of(round: int) -> dict[str, torch.Tensor]:
    return {"outer": torch.arange(40, dtype=torch.float32) + round, "momentum": torch.full((3, 2), float(round))}


def save(store: CheckpointStore, round: int, instances: tuple[int, ...] = (3,), *, expected_seconds: float = 0.0) -> None:
    for instance in instances:
        store.save_instance(round, InstanceId(instance), tensors_of(round), {"cursor": round * 10 + instance})
    plan = RoundPlan(
        run=RUN,
        round=round,
        parent=Digest("0" * 64),
        inner_steps=4,
        instances=(),
        roster=(),
        expected_seconds=expected_seconds,
        reason="so",
    )
    held = tuple(InstanceId(instance) for instance in instances)
    store.complete(Durable(round=round, plans=(plan,), reports=(), held=held))


def assert_is(store: CheckpointStore, checkpoint: Checkpoint | None, round: int, instances: tuple[int, ...] = (3,)) -> None:
    """Everything of the round is there, and of that round only."""
    assert checkpoint is not None
    assert checkpoint.round == checkpoint.durable.round == checkpoint.durable.plans[0].round == round
    assert checkpoint.instances == instances
    for instance in instances:
        tensors, meta = store.load_instance(round, InstanceId(instance))
        assert meta == {"cursor": round * 10 + instance}
        assert tensors.keys() == tensors_of(round).keys()
        for name, expected in tensors_of(round).items():
            assert torch.equal(tensors[name], expected) and tensors[name].dtype == expected.dtype


def test_nothing_saved(tmp_path: Path) -> None:
    assert opened(tmp_path).latest() is None


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    save(opened(tmp_path), 5, (1, 3))
    again = opened(tmp_path)
    assert_is(again, again.latest(), 5, (1, 3))


def test_a_peer_that_holds_no_instance_saves_its_decisions(tmp_path: Path) -> None:
    save(opened(tmp_path), 5, ())
    store = opened(tmp_path)
    assert_is(store, store.latest(), 5, ())


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = opened(tmp_path, kept=3)
    for round in range(6):
        save(store, round)
    assert sorted(path.name for path in store.directory.iterdir()) == ["round-000003", "round-000004", "round-000005"]
    assert_is(store, store.latest(), 5)
    assert_is(store, store.latest(), 5)  # reading changes nothing


def test_a_checkpoint_of_an_earlier_round_replaces_those_of_a_history_that_lost(tmp_path: Path) -> None:
    """After a partition the history that wins may have gone less far. Its checkpoints count, and not those before."""
    store = opened(tmp_path)
    for round in (16, 18, 20):
        save(store, round)
    save(store, 12)
    assert_is(store, store.latest(), 12)
    save(store, 14)
    again = opened(tmp_path)
    assert sorted(path.name for path in again.directory.iterdir()) == ["round-000012", "round-000014"]
    assert_is(again, again.latest(), 14)


def test_a_reader_takes_the_newest_when_the_node_removes_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, reader = opened(tmp_path), opened(tmp_path)
    save(node, 1)
    save(node, 2)
    read_manifest = CheckpointStore._read_manifest

    def read_late(store: CheckpointStore, folder: Path) -> object:
        if folder.name == "round-000002":
            save(node, 3)
            save(node, 4)  # now neither of the two that the reader saw is there
        return read_manifest(store, folder)

    monkeypatch.setattr(CheckpointStore, "_read_manifest", read_late)
    assert_is(reader, reader.latest(), 4)


def test_saved_but_not_complete_does_not_count(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    store.save_instance(2, THREE, tensors_of(2), {})
    again = opened(tmp_path)
    assert_is(again, again.latest(), 1)
    assert [path.name for path in again.directory.iterdir()] == ["round-000001"]


def test_an_instance_that_was_dropped_after_its_save_is_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save_instance(4, InstanceId(7), tensors_of(4), {})
    save(store, 4)
    store = opened(tmp_path)
    assert_is(store, store.latest(), 4)
    assert not (store.directory / "round-000004" / "instance-7.json").exists()
    with pytest.raises(StorageError, match="instance-7"):
        store.load_instance(4, InstanceId(7))


def test_an_abandoned_round_is_cleared_by_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save_instance(3, THREE, tensors_of(3), {})
    save(store, 4)
    assert [path.name for path in store.directory.iterdir()] == ["round-000004"]


def test_completing_without_saving_is_our_own_bug(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(AssertionError, match=r"instance-3\.json"):
        store.complete(Durable(round=1, plans=(), held=(THREE,)))


# --- damage ----------------------------------------------------------------------------------------------------------

FILES = ("manifest.json", "instance-3.safetensors", "instance-3.json")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 0x04
    path.write_bytes(content)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = (cut, empty, flip, remove)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None]
) -> None:
    store = opened(tmp_path)
    save(store, 1)
    save(store, 2)
    damage(store.directory / "round-000002" / name)
    again = opened(tmp_path)
    assert_is(again, again.latest(), 1)
    assert [record.message for record in caplog.records] == ["a damaged checkpoint is not used"]
    assert name in caplog.records[0].__dict__["reason"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_if_all_are_damaged_nothing_is_touched(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    store = opened(tmp_path)
    save(store, 1)
    save(store, 2)
    for round in (1, 2):
        damage(store.directory / f"round-00000{round}" / name)
    before = {path: path.read_bytes() for path in store.directory.rglob("*.*")}
    with pytest.raises(StorageError, match="no checkpoint can be used") as refusal:
        opened(tmp_path).latest()
    assert "round-000001" in str(refusal.value) and "round-000002" in str(refusal.value)
    assert {path: path.read_bytes() for path in store.directory.rglob("*.*")} == before


def test_every_single_changed_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    """Also the last digits of a number, which may say more than a double holds."""
    store = opened(tmp_path)
    save(store, 1)
    save(store, 2, expected_seconds=0.1 + 0.2)
    path = store.directory / "round-000002" / "manifest.json"
    whole = path.read_bytes()
    assert b"0.30000000000000004" in whole and float("0.30000000000000005") == 0.1 + 0.2
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = opened(tmp_path).latest()
        assert found is not None and found.round == 1, f"bit 0 of byte {place}"


def test_a_manifest_that_says_the_same_in_other_bytes_is_damaged(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    save(store, 2)
    path = store.directory / "round-000002" / "manifest.json"
    path.write_bytes(path.read_bytes() + b" ")
    found = opened(tmp_path).latest()
    assert found is not None and found.round == 1


def test_a_longer_file_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    lengthen(store.directory / "round-000001" / "instance-3.safetensors")
    with pytest.raises(StorageError, match=r"instance-3\.safetensors differs from the manifest"):
        opened(tmp_path).latest()


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    (store.directory / "round-000001").rename(store.directory / "round-000009")
    with pytest.raises(StorageError, match="holds round 1"):
        opened(tmp_path).latest()


def test_an_endless_manifest_is_not_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    os.truncate(store.directory / "round-000001" / "manifest.json", 1 << 40)  # sparse
    with pytest.raises(StorageError, match=r"manifest\.json is too long"):
        opened(tmp_path).latest()


def test_loading_checks_a_round_that_nobody_checked(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    flip(store.directory / "round-000001" / "instance-3.safetensors")
    with pytest.raises(StorageError, match=r"instance 3 cannot be read: .* differs from the manifest"):
        opened(tmp_path).load_instance(1, THREE)
    with pytest.raises(StorageError, match=r"round-000008: instance 3 cannot be read: .*manifest\.json"):
        opened(tmp_path).load_instance(8, THREE)


def test_a_refused_checkpoint_is_replaced_by_the_next_and_does_not_count_as_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for round in (1, 2):
        save(store, round)
    flip(store.directory / "round-000002" / "manifest.json")
    again = opened(tmp_path)
    assert_is(again, again.latest(), 1)
    save(again, 2)  # the round is done again
    assert_is(again, again.latest(), 2)

    flip(again.directory / "round-000002" / "manifest.json")
    again = opened(tmp_path)
    assert_is(again, again.latest(), 1)
    save(again, 3)
    assert sorted(path.name for path in again.directory.iterdir()) == ["round-000001", "round-000003"]


# --- not ours --------------------------------------------------------------------------------------------------------


def rewrite_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads(path.read_bytes())["manifest"] | changes
    path.write_bytes(canonical.encode({"manifest": manifest, "sha256": canonical.digest(manifest)}))


def test_the_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    save(opened(tmp_path), 1)
    other = Digest("cd" * 32)
    with pytest.raises(StorageError, match=f"belongs to run {RUN}, not to run {other}"):
        opened(tmp_path, run=other).latest()


def test_an_unknown_format_is_refused_by_number(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    rewrite_manifest(store.directory / "round-000001" / "manifest.json", format=7)
    with pytest.raises(StorageError, match="checkpoint format 7, but this version reads and writes format 2"):
        opened(tmp_path).latest()


@pytest.mark.parametrize("durable", [None, {"round": "1"}, {"round": 1, "plans": [], "reports": [], "surprise": 1}])
def test_decisions_are_decoded_strictly(tmp_path: Path, durable: object) -> None:
    store = opened(tmp_path)
    save(store, 1)
    rewrite_manifest(store.directory / "round-000001" / "manifest.json", durable=durable)
    with pytest.raises(StorageError, match=r"manifest\.json: Manifest"):
        opened(tmp_path).latest()


# --- a crash at every operation --------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, operation: int) -> Iterator[set[int]]:
    """The `operation`-th call that changes names or syncs raises instead; yields the inodes that were synced before."""
    calls = iter(range(1_000_000))
    synced: set[int] = set()

    def cutting(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if next(calls) >= operation:
                raise Crash
            if real is real_sync:
                assert isinstance(arguments[0], int)
                synced.add(os.fstat(arguments[0]).st_ino)
            return real(*arguments, **named)

        return call

    real_sync = os.fsync
    with monkeypatch.context() as patch:
        for name in ("replace", "fsync", "unlink", "rmdir", "mkdir"):
            patch.setattr(os, name, cutting(getattr(os, name)))
        yield synced


def lose_what_was_not_synced(directory: Path, synced: set[int], before: set[int]) -> None:
    for path in directory.rglob("*.*"):
        if path.is_file() and path.stat().st_ino not in synced | before:
            os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("new_round", [12, 11], ids=["next round", "same round again"])
def test_a_crash_at_any_operation_leaves_the_old_or_the_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_round: int
) -> None:
    outcomes = []
    for operation in range(200):
        place = tmp_path / str(operation)
        place.mkdir()
        store = opened(place)
        for round in (10, 11):
            save(store, round, (3, 4))
        before = {path.stat().st_ino for path in place.rglob("*.*")}
        finished = False
        with dying_at(monkeypatch, operation) as synced:
            try:
                save(store, new_round, (3, 5))
                finished = True
            except Crash:
                pass
        lose_what_was_not_synced(place, synced, before)
        again = opened(place)
        found = again.latest()
        assert found is not None
        is_new = found.instances == (3, 5)
        assert_is(again, found, new_round if is_new else 11, (3, 5) if is_new else (3, 4))
        assert all(path.name.count(".") == 0 for path in again.directory.iterdir()), "leftovers"
        save(again, 13)  # and training goes on
        assert_is(again, again.latest(), 13)
        outcomes.append(is_new)
        if finished:
            break
    assert finished, "more operations than expected"
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes), "once new, always new"
    assert not outcomes[0] and outcomes[-1]


def test_a_crash_while_opening_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for operation in range(30):
        place = tmp_path / str(operation)
        place.mkdir()
        store = opened(place)
        save(store, 10)
        save(store, 11)
        store.save_instance(12, THREE, tensors_of(12), {})
        (store.directory / "round-000011").rename(store.directory / "round-000011.old")
        finished = False
        with dying_at(monkeypatch, operation):
            try:
                opened(place)
                finished = True
            except Crash:
                pass
        again = opened(place)
        assert_is(again, again.latest(), 11)
        if finished:
            return
    raise AssertionError("opening takes more operations than expected")


def test_names_are_safe_before_anything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    for round in (1, 2):
        save(store, round)
    log: list[str] = []
    real_replace, real_sync, real_unlink = os.replace, os.fsync, os.unlink

    def replace(source: Path, target: Path) -> None:
        log.append(f"rename {source.name} {target.name}")
        real_replace(source, target)

    def fsync(descriptor: int) -> None:
        log.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def unlink(*arguments: object, **named: object) -> None:
        log.append("remove")
        real_unlink(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "unlink", unlink)
    save(store, 3)
    assert log == [
        "sync instance-3.safetensors",
        "sync instance-3.json",
        "sync manifest.json",
        "sync round-000003.tmp",
        "rename round-000003.tmp round-000003",
        "sync checkpoints",
        "rename round-000001 round-000001.tmp",
        "remove",
        "remove",
        "remove",
    ]


# --- a disk that does not take it ------------------------------------------------------------------------------------


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_and_the_old_checkpoint_stays(tmp_path: Path) -> None:
    store = opened(tmp_path)
    save(store, 1)
    with (
        files_at_most(4096),
        pytest.raises(StorageError, match=r"larger than a file may be here"),
    ):
        store.save_instance(2, THREE, {"outer": torch.zeros(10_000)}, {})
    with files_at_most(50), pytest.raises(StorageError, match=r"round-000002\.tmp: larger than a file may be"):
        store.complete(Durable(round=2, plans=()))
    again = opened(tmp_path)
    assert_is(again, again.latest(), 1)


@pytest.mark.parametrize(
    ("code", "words"), [("ENOSPC", "the disk is full; free some space"), ("EACCES", "give this user write access")]
)
def test_the_error_of_a_failing_disk_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    store = opened(tmp_path)
    save(store, 1)

    def refuse(_: int) -> None:
        raise OSError(errno.__dict__[code], "refused")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=rf"round-000002\.tmp: .*{words}"):
        save(store, 2)
    assert [path.name for path in store.directory.iterdir()] == ["round-000001"], "what was written takes no room"


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(StorageError, match="choose another directory"):
        opened(tmp_path)
    assert (tmp_path / "checkpoints").read_text() == "mine"


def test_an_unreadable_checkpoint_is_not_taken_for_a_damaged_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    save(store, 1)
    save(store, 2)
    real_open = Path.open

    def refuse(path: Path, *arguments: object, **named: object) -> object:
        if path.name == "instance-3.json":
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"instance-3\.json: permission denied; give this user read access"):
        opened(tmp_path).latest()


@pytest.mark.parametrize("name", ["round-000009", "round-0000009"])
def test_a_name_without_a_checkpoint_behind_it_hides_no_sound_one(name: str, tmp_path: Path) -> None:
    """A link to a disk that is not mounted, and a name that no checkpoint has."""
    store = opened(tmp_path)
    save(store, 4)
    place = tmp_path / "checkpoints" / name
    if name == "round-000009":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.mkdir()
    assert_is(opened(tmp_path), opened(tmp_path).latest(), 4)


def test_an_old_checkpoint_behind_a_link_is_left_where_it_lies(tmp_path: Path) -> None:
    """A user moved it to another disk. Only the link goes."""
    store = opened(tmp_path)
    save(store, 1)
    moved = (tmp_path / "checkpoints" / "round-000001").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints" / "round-000001").symlink_to(moved)
    for round in (2, 3):
        save(store, round)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["round-000002", "round-000003"]
    assert (moved / "manifest.json").exists()
    assert_is(store, opened(tmp_path).latest(), 3)
