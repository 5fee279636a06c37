"""Atomic files, locks that die with their holder, and disk trouble in the user's words."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vtcli.errors import InputError
from vtcli.store import disk


def in_child(work) -> str:
    """Runs ``work`` in a forked process and returns the InputError's message; '' when it went well."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        message = ""
        try:
            work()
        except InputError as error:
            message = str(error)
        except BaseException as error:
            message = f"NOT AN INPUT ERROR {error!r}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def test_write_is_whole_or_absent_on_a_full_disk(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    disk.write_atomic(target, b"old")

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        disk.write_atomic(target, b"x" * 5000)

    message = in_child(work)
    assert str(target) in message
    assert "ulimit" in message
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_enospc_on_a_real_file_system(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        with pytest.raises(InputError, match="disk is full"):
            disk.write_atomic(mount / "a.bin", b"x" * 1_000_000)
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_no_write_permission_is_said(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    for folder in (tmp_path.parent.parent, tmp_path.parent, tmp_path):
        folder.chmod(0o755)  # pytest's own are private to the user
    locked.chmod(0o555)

    def work() -> None:
        if os.geteuid() == 0:  # root may write anywhere
            os.seteuid(65534)
        disk.write_atomic(locked / "a", b"x")

    assert "no permission" in in_child(work)


def test_advice_names_home_unless_another_place_was_given(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "or point `home` at another folder." in str(disk.io_error(full, tmp_path, "write"))
    assert str(disk.io_error(full, tmp_path, "write", "give another folder")).endswith("or give another folder.")


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        disk.write_atomic(tmp_path / "file" / "a", b"x")


def test_a_taken_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    code = (
        "import sys, time; from pathlib import Path; from vtcli.store import disk\n"
        "with disk.locked(Path(sys.argv[1]), 0, 'test'):\n    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert not disk.is_free(path)
    with pytest.raises(InputError, match=rf"(?s){path}.*my work.*{holder.pid}"), disk.locked(path, 0.1, "my work"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with disk.locked(path, 0, "my work"):
        assert not disk.is_free(path)
    assert disk.is_free(path)


def test_a_forked_worker_does_not_keep_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with disk.locked(path, 0, "parent"):
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.1)
    try:
        assert disk.is_free(path)  # though the worker, which inherited everything, is alive
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, 524])
def test_a_file_system_without_locks_is_one_plain_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(number, "Function not implemented")

    monkeypatch.setattr(disk.fcntl, "flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InputError, match="its file system has no locks"), disk.locked(tmp_path / "a.lock", 0, "a test"):
        pass
    with pytest.raises(InputError, match=r"a\.lock"):
        disk.is_free(tmp_path / "a.lock")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_tree_that_cannot_be_copied_is_one_error_with_its_first_file(tmp_path: Path) -> None:
    """``shutil.copytree`` collects what failed in a list, and has no number of an error."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError) as caught, disk.checked(tmp_path / "copy", "copy logs to"):
        shutil.copytree(tmp_path / "tree", tmp_path / "copy")
    told = str(caught.value)
    assert (
        told.startswith(f"Cannot copy logs to {tmp_path}/copy/a.txt: ") and "No such file" in told and "[(" not in told
    )
