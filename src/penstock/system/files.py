"""Every call that touches a file by name or changes one, in one place.

The modules above call these functions and no others, so that a test can make any single call fail.
Each turns an OSError into the typed error that names the path. The compiled core reads and writes
mapped memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time

from penstock import _core
from penstock import layout as L
from penstock.errors import (
    Busy,
    Io,
    NoSuchLog,
    NotFound,
    PenstockError,
    Usage,
    WrongType,
    from_os,
    gone_error,
)
from penstock.system.directory import Anchor, Anywhere, Directory, Held, Name, locate

_PUNCH_HOLE = 0x02
_KEEP_SIZE = 0x01
_NOREPLACE = 0x01
_EXCHANGE = 0x02
_AT_FDCWD = -100
_ZEROS = bytes(L.PAGE)
_EXTENTS_MAX = 64  # written regions that are examined one by one
_NOT_THERE = (errno.ENOENT, errno.EBADF, errno.ENOTDIR)


class _doing:
    """Turns an OSError of its block into a typed error."""

    __slots__ = ("_path", "_what")

    def __init__(self, what: str, path: str | Directory) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, PenstockError):
            return
        path = self._path
        home = path.directory if isinstance(path, Name) else path
        if error.errno in _NOT_THERE and isinstance(home, Directory) and home.is_gone():
            raise gone_error(home.path) from error
        raise from_os(error, self._what, str(path)) from error


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")


def path_text(path: str | os.PathLike[str], what: str = "path") -> str:
    """The absolute path on this host for a user's path, checked before anything is touched.

    ``~`` and ``~user`` are home directories. A ``file:`` URL means its path; any other scheme is
    refused. A relative path is relative to the current directory.

    >>> path_text("file:///data/a%20b"), path_text("/data/../data/x")
    ('/data/a b', '/data/x')
    """
    if isinstance(path, bytes):
        raise WrongType(f"{what} must be str or path-like, got bytes; decode it with os.fsdecode()")
    text = type(path).__fspath__(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise WrongType(f"{what} must be str or path-like, got {type(path).__name__}")
    given = str(text)
    text = _from_url(given, what)
    if text.startswith("~"):
        home = os.path.expanduser(text)
        if home.startswith("~"):
            raise Usage(
                f"{what} {given!r}: there is no such user; for a file of that name write ./{text}"
            )
        text = home
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise Usage(f"{what} {given!r} cannot be the name of a file: {error}") from None
    if "\0" in text or not text:
        raise Usage(f"{what} must be a path, got {given!r}")
    return _absolute(text)


def _from_url(text: str, what: str) -> str:
    """The path of a ``file:`` URL; any other path as it is, unless it is a URL."""
    found = _SCHEME.match(text)
    if found is None:
        if text.lower().startswith("file:"):
            raise Usage(
                f"{what} {text!r}: a file: URL must have an absolute path, such as file:///data/x; "
                f"for a file of that name write ./{text}"
            )
        return text
    if found[1].lower() != "file":
        raise Usage(
            f"{what} {text!r}: must be a path, or a file: URL, of a file system that this host has "
            f"mounted; a log is files and shared memory of one host, and {found[1]}: has neither"
        )
    rest = text[found.end() :]
    if rest.startswith("//"):
        host, slash, below = rest[2:].partition("/")
        if host.lower() not in ("", "localhost") or not slash:
            raise Usage(f"{what} {text!r}: must be on this host, got {host!r}")
        rest = f"/{below}"
    with _doing("reading", text):
        from urllib.parse import unquote_to_bytes
    try:
        return os.fsdecode(unquote_to_bytes(os.fsencode(rest)))
    except UnicodeEncodeError as error:
        raise Usage(f"{what} {text!r} cannot be the name of a file: {error}") from None


def _absolute(path: str) -> str:
    with _doing("looking for the current directory, to find", path):
        plain = os.path.abspath(path)
    if ".." not in path.split("/"):
        return plain
    real = os.path.realpath(path)  # "link/.." need not be where the link is
    return plain if os.path.realpath(plain) == real else real


def hold_dir(path: str) -> Directory:
    """Open and hold the directory that ``path`` names now."""
    with _doing("opening", path):
        name, at = locate(path)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        if isinstance(path, Name):
            flags |= os.O_NOFOLLOW
        return Directory(os.open(name, flags, dir_fd=at.fd), os.path.abspath(path))


def hold_file(path: str) -> Held:
    """Open and hold the file that ``path`` names now; a link as the last part is refused."""
    with _doing("opening", path):
        name, at = locate(path)
        fd = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at.fd)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return Held(fd, path)


def open_dir(path: str | Directory) -> int:
    """Open a directory for locking and syncing."""
    with _doing("opening", path):
        name, at = locate(path)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.fd)


def open_dir_of(path: Name) -> int:
    """Open the directory of a file, to sync the file's name later."""
    with _doing("opening the directory of", path):
        name, at = locate(path.directory)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.fd)


def open_file(path: str, *, write: bool) -> int:
    """Open an existing file; a link as the last part is refused, and a pipe never blocks."""
    with _doing("opening", path):
        mode = os.O_RDWR if write else os.O_RDONLY
        if isinstance(path, Held):
            anchor = path.anchor()
            return os.open(f"/proc/self/fd/{anchor.fd}", mode | os.O_CLOEXEC | os.O_NONBLOCK)
        name, at = locate(path)
        return os.open(name, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at.fd)


def open_if_there(path: str) -> int | None:
    """Open a file to read it; None if there is none, or if a link has its name."""
    try:
        return open_file(path, write=False)
    except NotFound:
        return None
    except Io as error:
        if error.errno != errno.ELOOP:
            raise
        return None


def create_file(path: str, mode: int) -> int:
    """Create a file that must not exist, with exactly these permission bits."""
    with _doing("creating", path):
        name, at = locate(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, mode, dir_fd=at.fd)
        try:
            os.fchmod(fd, mode)
        except OSError:
            os.close(fd)
            os.unlink(name, dir_fd=at.fd)
            raise
        return fd


def private_file(nbytes: int, path: str) -> int:
    """A private file of zeros in memory, for what is read from ``path``."""
    with _doing("making room for", path):
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
        except OSError:
            os.close(fd)
            raise
        return fd


def unnamed_file(directory: Directory) -> int:
    """A file on the disk of ``directory`` without a name there, which is gone when it is closed."""
    with _doing("making room in", directory):
        name, at = locate(directory)
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(name, os.O_TMPFILE | flags, 0o600, dir_fd=at.fd)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
        path = directory.file(f"compact.{0:020d}.tmp")  # a leftover, if this process dies here
        name, at = locate(path)
        fd = os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=at.fd)
        os.unlink(name, dir_fd=at.fd)
        return fd


def make_dir(path: str, mode: int) -> bool:
    """Create a directory and its parents; False if it existed."""
    with _doing("creating", path):
        name, at = locate(path)
        if not isinstance(path, Name):
            _make_parents(path)
        try:
            os.mkdir(name, mode, dir_fd=at.fd)
        except FileExistsError:
            return False
        group = os.stat(name, dir_fd=at.fd).st_mode & stat.S_ISGID  # the parent's
        os.chmod(name, mode | group, dir_fd=at.fd)
        return True


def _make_parents(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    except FileExistsError:  # one of them is a file
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def check_there(directory: Directory) -> None:
    """Raise `Gone` if a held directory was deleted."""
    if directory.is_gone():
        raise gone_error(directory.path)


def is_linked(fd: int, path: str) -> bool:
    """Whether an open file still has a name somewhere."""
    with _doing("looking at", path):
        return os.fstat(fd).st_nlink > 0


def close(fd: int) -> None:
    """Close a descriptor that is not owned by a map."""
    os.close(fd)


def list_dir(path: str | Directory) -> list[str]:
    """Names in a directory."""
    with _doing("listing", path):
        name, at = locate(path)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.fd)
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
    if not names and isinstance(path, Directory):
        check_there(path)
    return names


def rename(source: str, target: str, *, replace: bool = True) -> None:
    """Rename; without ``replace`` an existing target is `AlreadyExists`, and left alone."""
    with _doing("renaming to", target):
        old, old_at = locate(source)
        new, new_at = locate(target)
        if replace:
            os.rename(old, new, src_dir_fd=old_at.fd, dst_dir_fd=new_at.fd)
            return
        try:
            _rename_with(_NOREPLACE, (old, old_at), (new, new_at))
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
            os.link(old, new, src_dir_fd=old_at.fd, dst_dir_fd=new_at.fd, follow_symlinks=False)
            os.unlink(old, dir_fd=old_at.fd)


def _rename_with(
    flags: int, source: tuple[str, Anchor | Anywhere], target: tuple[str, Anchor | Anywhere]
) -> None:
    """renameat2(2), which Python does not offer."""
    import ctypes  # few opens rename anything, and this takes as long as the rest of one

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    arguments: list[int | bytes] = []
    for name, at in (source, target):
        arguments += [_AT_FDCWD if at.fd is None else at.fd, os.fsencode(name)]
    if libc.renameat2(*arguments, flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unlink(path: str) -> bool:
    """Delete a file; False if it did not exist."""
    with _doing("deleting", path):
        name, at = locate(path)
        try:
            os.unlink(name, dir_fd=at.fd)
        except FileNotFoundError:
            return False
        return True


def is_dir(path: str) -> bool | None:
    """Whether that name is a directory; None if it does not exist. Lack of permission is an error.

    A broken link is `NoSuchLog`: nothing can be read there, and nothing created.
    """
    with _doing("looking at", path):
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except FileNotFoundError:
            if not os.path.islink(path):
                return None
            raise NoSuchLog(
                f"{path}: is a link to {os.readlink(path)}, which does not exist", filename=path
            ) from None
        except NotADirectoryError:
            return None


def is_file(path: str) -> bool:
    """Whether a path leads to a regular file."""
    with _doing("looking at", path):
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except FileNotFoundError:
            return False


def keep_as(path: str, kept: str) -> None:
    """Keep the file at ``path`` under the name ``kept`` too, so that ``path`` can be replaced.

    A file gets a second name, or is copied if that fails; anything else is moved.
    """
    if not _is_regular(path):
        rename(path, kept)
        return
    with _doing("keeping", path):
        old, old_at = locate(path)
        new, new_at = locate(kept)
        try:
            os.link(old, new, src_dir_fd=old_at.fd, dst_dir_fd=new_at.fd)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            partial = f"{new}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with (
                open(os.open(old, os.O_RDONLY, dir_fd=old_at.fd), "rb") as original,
                open(os.open(partial, flags, 0o600, dir_fd=new_at.fd), "wb") as copy,
            ):
                while part := original.read(1 << 20):
                    copy.write(part)
                copy.flush()
                os.fsync(copy.fileno())
            os.rename(partial, new, src_dir_fd=new_at.fd, dst_dir_fd=new_at.fd)


def _is_regular(path: str) -> bool:
    """Whether a path names a regular file, and not a link to one."""
    name, at = locate(path)
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=at.fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove_tree(path: str) -> None:
    """Delete a directory and all in it, or a file; nothing if it does not exist."""
    with _doing("deleting", path):
        name, at = locate(path)
        try:
            found = os.stat(name, dir_fd=at.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISDIR(found.st_mode):
            import shutil

            shutil.rmtree(name, dir_fd=at.fd)
        else:
            os.unlink(name, dir_fd=at.fd)


def exists(path: str) -> bool:
    """Whether something, even a broken link, has that name."""
    name, at = locate(path)
    try:
        os.stat(name, dir_fd=at.fd, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return True


def status(path: str | Directory) -> os.stat_result:
    """The stat result of a file; for a link, of the link itself."""
    with _doing("looking at", path):
        name, at = locate(path)
        return os.stat(name, dir_fd=at.fd, follow_symlinks=False)


def is_directory(found: os.stat_result) -> bool:
    """Whether a stat result is that of a directory."""
    return stat.S_ISDIR(found.st_mode)


def free_bytes(fd: int, path: str) -> int:
    """Bytes that a user without privileges may still write to the file system of ``path``."""
    with _doing("looking at the file system of", path):
        found = os.fstatvfs(fd)
        return found.f_bavail * found.f_frsize


def set_mode(fd: int, mode: int, path: str) -> None:
    """Give an open file other permission bits."""
    with _doing("changing", path):
        os.fchmod(fd, mode)


def size(fd: int, path: str) -> int:
    """The file's size in bytes."""
    with _doing("looking at", path):
        return os.fstat(fd).st_size


def read_at(fd: int, nbytes: int, offset: int, path: str) -> bytes:
    """Read up to ``nbytes`` bytes at ``offset``; fewer only at the end of the file."""
    with _doing("reading", path):
        return os.pread(fd, nbytes, offset)


def write_at(fd: int, data: bytes, offset: int, path: str) -> None:
    """Write all of ``data`` at ``offset``."""
    with _doing("writing", path):
        view = memoryview(data)
        while view:
            n = os.pwrite(fd, view, offset)
            view = view[n:]
            offset += n


def write_sparse(fd: int, data: bytes, offset: int, path: str) -> None:
    """Write to a part of a new file that has no data yet; pages of zeros become holes."""
    start = 0  # of the bytes that are not written yet
    for at in range(-offset % L.PAGE, len(data), L.PAGE):
        if data.startswith(_ZEROS, at):
            write_at(fd, data[start:at], offset + start, path)
            start = at + L.PAGE
    write_at(fd, data[start:], offset + start, path)
    grow(fd, offset + len(data), path)


def grow(fd: int, nbytes: int, path: str) -> None:
    """Make a file at least that long, without blocks for what it did not have."""
    if size(fd, path) < nbytes:
        with _doing("writing", path):
            os.ftruncate(fd, nbytes)


def sync_data(fd: int, path: str) -> None:
    """Sync the file's data to disk."""
    with _doing("syncing", path):
        os.fdatasync(fd)


def sync_dir(fd: int, path: str) -> None:
    """Sync the directory's entries to disk."""
    with _doing("syncing", path):
        os.fsync(fd)


def sync_name_in(parent: Directory, path: str) -> None:
    """Sync the name of ``path``, which is in the directory ``parent``, to disk."""
    with _doing("syncing the name of", path):
        name, at = locate(parent)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.fd)
    try:
        sync_dir(fd, parent.path)
    finally:
        os.close(fd)


def sync_way(path: str) -> None:
    """Sync the names of all directories above ``path`` on its file system to disk."""
    with _doing("syncing the way to", path):
        at = os.path.realpath(path)
        device = os.stat(at).st_dev
        while at != (at := os.path.dirname(at)) and os.stat(at).st_dev == device:
            try:
                fd = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except PermissionError:
                continue  # without permission to open it, this process has created nothing in it
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def allocate(fd: int, start: int, stop: int, path: str) -> None:
    """Allocate blocks for every byte from ``start`` to ``stop``, growing the file if needed.

    Where the file system has no fallocate(2), zeros are written; so this is called only for
    unused bytes, and under the write lock once the segment is shared.
    """
    if stop <= start:
        return
    with _doing("allocating space for", path):
        try:
            _core.fallocate(fd, 0, start, stop - start)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            begin = max(start, os.fstat(fd).st_size)
            zeros = bytes(1 << 16)
            while begin < stop:
                begin += os.pwrite(fd, zeros[: stop - begin], begin)


def punch(fd: int, start: int, stop: int, path: str) -> bool:
    """Free the blocks of a range; False if the file system cannot."""
    if stop <= start:
        return True
    try:
        _core.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, stop - start)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise from_os(error, "releasing space of", path) from error
    return True


def next_data(fd: int, offset: int, path: str) -> int | None:
    """Where the next written byte at or after ``offset`` may be; None if there is none."""
    with _doing("looking at", path):
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:
                return offset
            raise


def data_end(fd: int, start: int, stop: int, path: str) -> int:
    """Where the last written byte between ``start`` and ``stop`` may end; or ``start``."""
    end = start
    for _ in range(_EXTENTS_MAX):
        at = next_data(fd, end, path) if end < stop else None
        if at is None or at >= stop:
            return end
        with _doing("looking at", path):
            try:
                end = min(os.lseek(fd, at, os.SEEK_HOLE), stop)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENXIO):
                    raise
                return stop
    return stop


def lock_shared(fd: int, path: str, deadline: float | None, held_fd: int = -1) -> None:
    """flock(LOCK_SH), waiting until ``deadline`` on the monotonic clock.

    ``held_fd``: the descriptor that the thread's `FlockBlock` block is about, if not ``fd``.
    """
    nap = 0.0005
    while not try_lock_shared(fd, path):
        _core.check_not_opening(fd if held_fd < 0 else held_fd, path)
        if deadline is not None and time.monotonic() >= deadline:
            raise Busy(
                f"{path}: another process is opening the log, or has it locked; try again. If this "
                "persists, find that process by the inode of the log in /proc/locks"
            )
        time.sleep(nap)
        nap = min(0.02, nap * 2)


def try_lock_shared(fd: int, path: str) -> bool:
    """flock(LOCK_SH) without waiting; False if it is taken."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise from_os(error, "locking", path) from error
    return True


def lock_exclusive(fd: int, path: str) -> bool:
    """flock(LOCK_EX) if no other handle has the log open; False if one has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise from_os(error, "locking", path) from error
    return True


def unlock(fd: int, path: str) -> None:
    """Release the flock without closing."""
    with _doing("unlocking", path):
        fcntl.flock(fd, fcntl.LOCK_UN)


def inode(path: str) -> int:
    """The inode number of the file of that name; 0 if there is none."""
    name, at = locate(path)
    with _doing("looking at", path):
        try:
            return os.stat(name, dir_fd=at.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return 0


def same_file(fd: int, path: str) -> bool:
    """Whether ``path`` still names the file of ``fd``; not if another thread has closed that."""
    try:
        if isinstance(path, Held):
            there = os.fstat(path.anchor().fd)
        else:
            name, at = locate(path)
            there = os.stat(name, dir_fd=at.fd, follow_symlinks=False)
        here = os.fstat(fd)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise from_os(error, "looking at", path) from error
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def link(path: str, other: str) -> None:
    """Give a file a second name."""
    with _doing("linking to", other):
        os.link(path, other)


def exchange(path: str, other: str) -> None:
    """Exchange two names atomically: at no moment is one of them missing."""
    with _doing("exchanging with", other):
        _rename_with(_EXCHANGE, locate(path), locate(other))


def replace_text(path: str, text: str) -> None:
    """Write ``text`` to a small file and sync it: it has the old text or the new, never a mix."""
    with _doing("writing", path):
        partial = f"{path}.tmp"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
    sync_name(os.path.dirname(path))


def read_text(path: str) -> str | None:
    """The text of a small file; None if there is none."""
    with _doing("reading", path):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None


def sync_parent(path: str) -> None:
    """Sync the name of a file: the entries of its directory."""
    with _doing("syncing the directory of", path):
        fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_name(path: str) -> None:
    """Sync a file's data, or a directory's entries, to disk."""
    with _doing("syncing", path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_dirs(path: str) -> bool:
    """Create a directory and its parents with the umask's permissions; False if it existed."""
    with _doing("creating", path):
        if os.path.isdir(path):
            return False
        os.makedirs(path, exist_ok=True)
        return True


def open_lock(path: str) -> int:
    """Open a file that exists only to be locked, creating it if needed."""
    with _doing("opening", path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
