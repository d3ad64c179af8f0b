"""URLs of stores, and the files of a source by URL and pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast
from urllib.parse import unquote

from tidelog.core.arguments import check_kind, quoted
from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.cloud.profile import SECRETS
from tidelog.store.keys import GLOB, escape
from tidelog.store.local.store import LocalStore
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store

CLOUD_SCHEMES = ("s3", "gs", "az")
SCHEMES = ("memory", "file", *CLOUD_SCHEMES)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_QUERY = re.compile(r"\?(\w+=[^&]*(?:&\w+=[^&]*)*)$")


def url_text(url: str | os.PathLike[str]) -> str:
    """Return a URL or a path as text.

    Raises:
        UsageError: it is neither, or cannot be encoded.
    """
    given: object = url
    text: object = os.fspath(url) if isinstance(given, str | os.PathLike) else given
    check_kind(text, str, "a location must be a URL or a path (str or pathlib.Path)")
    try:
        # Arguments from a shell may be bytes that are not text; these can be encoded.
        os.fsencode(str(text))
    except UnicodeEncodeError as error:
        raise UsageError(
            "a location's URL or path has a lone surrogate (half of a UTF-16 pair), which no "
            "store can hold: remove it",
            url=quoted(str(text)),
        ) from error
    return str(text)


def keeps_versions(url: str) -> bool:
    """Return True if objects at a URL are replaced as a whole, so that an e_tag names their bytes.

    Files on a disk may grow in place, and a read may see half of a change.
    """
    return url.partition(":")[0].lower() in CLOUD_SCHEMES


def store_at(place: Store | str | os.PathLike[str], *, clock: Clock, create: bool = False) -> Store:
    """Return ``place`` if it is a store, or open the store at this URL or path; see `open_store`.

    Raises:
        UsageError: see `open_store`.
    """
    if hasattr(place, "refresh"):  # No path has this method, and every store does.
        return cast("Store", place)
    return open_store(place, clock=clock, create=create)


def open_store(url: str | os.PathLike[str], *, clock: Clock, create: bool = False) -> Store:
    """Open the store at a URL or a path. This reads and creates nothing.

    With ``create``, the first put creates the directory of a store on disk. ``memory://`` is a new
    store at each call, so keep the store to share it.

    Raises:
        UsageError: the URL has an unknown form, or names a file, or a symbolic link without a
        target.
    """
    url = url_text(url)
    scheme = _scheme_of(url)
    if scheme == "memory":
        return MemoryStore(name=url)
    if scheme in CLOUD_SCHEMES:
        # Imported late: importing obstore is slow, and a first command on a laptop need not wait
        # for it.
        from tidelog.store.cloud.open import open_cloud

        return open_cloud(url, clock=clock)
    path = _path_of(url)
    if os.path.isfile(path):
        raise UsageError(f"{path} is a file: pass a directory")
    _refuse_dangling(path)
    return LocalStore(Path(path), clock=clock, create=create)


def _refuse_dangling(path: str) -> None:
    """Refuse a path with a dangling symbolic link: nothing could be created below it."""
    if os.path.exists(path):
        return
    for link in (Path(path), *Path(path).parents):
        if os.path.islink(link) and not os.path.exists(link):
            raise UsageError(
                f"{link} is a broken symbolic link: create its target, or remove the link"
            )


def split_query(url: str) -> tuple[str, str]:
    """Split a cloud URL at its query; the ``?`` of a glob does not begin one."""
    match = _QUERY.search(url)
    return (url, "") if match is None else (url[: match.start()], match.group(1))


def local_path(url: str, key: str) -> str:
    """Return the path of a file in a local store, or "" if the store is not local."""
    return os.path.join(_path_of(url), key) if _scheme_of(url) in (None, "file") else ""


def real_root(url: str) -> str:
    """Return the path of a local store without symbolic links, or "" if the store is not local."""
    if url.startswith("memory:") or _scheme_of(url) not in (None, "file"):
        return ""
    return os.path.realpath(_path_of(url))


def names_of(url: str) -> set[str]:
    """Return a URL; for a local one, also its forms with leading symbolic links resolved.

    All these URLs name one place.
    """
    if _scheme_of(url) not in (None, "file"):
        return {url}
    path = Path(_path_of(url))
    ways = (path, *path.parents)
    return {_file_url(str(Path(os.path.realpath(p)) / path.relative_to(p))) for p in ways}


def secrets_in(url: str) -> list[str]:
    """Return the names of the secret parameters in a cloud URL."""
    if url.partition(":")[0].lower() not in CLOUD_SCHEMES:
        return []
    return [name for name in SECRETS if re.search(rf"[?&]{name}=", url, re.IGNORECASE)]


def without_secrets(url: str) -> str:
    """Return a cloud URL without its query, which may hold keys; return a path unchanged."""
    scheme = url.partition(":")[0].lower()
    return url.partition("?")[0] if scheme in CLOUD_SCHEMES else url


def split_glob(url_or_path: str) -> tuple[str, str]:
    """Split the files of a source into the URL of a store and the pattern of keys in it.

    The store is the longest prefix without ``*``, ``?`` or ``[``. Without any of these, the place
    is a directory or prefix, and the pattern is ``**``. Two exceptions are patterns of their own: a
    local path that is a file, and a cloud object with a suffix and no trailing ``/``.

    Raises:
        UsageError: the URL has an unknown form.
    """
    scheme = _scheme_of(url_or_path)
    if scheme == "memory":
        raise UsageError("memory:// has no files: pass a path, or an s3://, gs:// or az:// URL")
    if scheme in CLOUD_SCHEMES:
        return _split_cloud(url_or_path)
    return _split_local(_path_of(url_or_path))


def _scheme_of(url: str) -> str | None:
    """Return the scheme, or None for a path."""
    if not url:
        raise UsageError(f"the URL is empty: use a path or {_known()}")
    match = _SCHEME.match(url)
    if match is None:
        scheme = url.partition(":")[0].lower()
        if scheme != url and scheme in SCHEMES:
            raise UsageError(
                f"a URL needs two slashes: write {scheme}://, or ./{scheme}: for a path that "
                f"begins with {scheme}:",
                url=without_secrets(url),
            )
        return None
    scheme = match.group(1).lower()
    if scheme not in SCHEMES:
        raise UsageError(f"{scheme}:// is not a known scheme: use a path or {_known()}")
    # Hadoop and Spark write file:/path.
    if scheme != "file" and not url[match.end() :].startswith("/"):
        raise UsageError(f"write {scheme}:// with two slashes", url=url.partition("?")[0])
    return scheme


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)


def _path_of(url: str) -> str:
    """Return the absolute path of a ``file`` URL or a path, with a trailing slash preserved."""
    path = url
    if _SCHEME.match(url):
        path = url[len("file:") :]
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                raise UsageError(
                    "file:// needs an absolute path: write file:///some/where, "
                    "or a relative path without file://",
                    url=url,
                )
            path = "/" + rest
        path = unquote(path)
    if "\0" in path:
        raise UsageError("a path must not have a NUL character", url=quoted(url))
    path = os.path.expanduser(path)
    # Python preserves two leading slashes, which have no meaning here.
    absolute = "/" + os.path.abspath(path).lstrip("/")
    return absolute + ("/" if path.endswith("/") and absolute != "/" else "")


def _split_local(path: str) -> tuple[str, str]:
    # An existing file is meant literally, even with a bracket in its name.
    if os.path.isfile(path):
        directory, _, name = path.rpartition("/")
        return _file_url(directory), escape(name)
    if os.path.isdir(path) or not GLOB.search(path):
        return _file_url(path), "**"
    base, pattern = _cut(path)
    return _file_url(base), pattern


def _file_url(path: str) -> str:
    return "file://" + (path.rstrip("/") or "/").replace("%", "%25")


def _split_cloud(url: str) -> tuple[str, str]:
    place, query = split_query(url)
    scheme, _, rest = place.partition("://")
    bucket, _, path = rest.partition("/")
    if GLOB.search(bucket):
        raise UsageError("a bucket's name must not be a pattern: name one bucket", url=place)
    base, pattern = path.rstrip("/"), "**"
    if GLOB.search(path):
        base, pattern = _cut(path)
    elif "." in path.rpartition("/")[2]:
        # An object, or a directory as Spark writes it; only the store knows.
        base, _, name = path.rpartition("/")
        pattern = f"{name}/**"
    store = f"{scheme}://{bucket}/{base}" if base else f"{scheme}://{bucket}"
    return (f"{store}?{query}" if query else store), pattern


def _cut(path: str) -> tuple[str, str]:
    """Cut before the first part that is a pattern."""
    glob = GLOB.search(path)
    cut = path.rfind("/", 0, glob.start() if glob else len(path))
    pattern = path[cut + 1 :]
    return path[: max(cut, 0)], pattern + "**" if pattern.endswith("/") else pattern


def split_globs(places: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Split the files of a source into the URL of a store and the patterns of keys in it.

    For a single place see `split_glob`. Several places become patterns below their common
    directory.

    Raises:
        UsageError: they are in different stores, two are the same, or one has an unknown form.
    """
    splits = [split_glob(given) for given in places]
    for at, split in enumerate(splits):
        if split in splits[:at]:
            raise UsageError(
                f"{without_secrets(places[at])} occurs twice: pass each location of a source once"
            )
    if len(splits) == 1:
        return splits[0][0], (splits[0][1],)
    roots = [_split_root(url) for url, _ in splits]
    (root, query), first = roots[0][:2], roots[0][2]
    for place, own in zip(places, roots, strict=True):
        if own[:2] != (root, query):
            raise UsageError(
                f"{without_secrets(places[0])} and {without_secrets(place)} are in different "
                "stores: create a source for each, or copy the files to one store"
            )
    depth = _common([folders for *_, folders in roots])
    base = root + "/".join(first[:depth])
    if base != "file:///":
        base = base.rstrip("/")
    patterns = (
        "/".join([*(escape(_name(root, part)) for part in folders[depth:]), pattern])
        for (*_, folders), (_, pattern) in zip(roots, splits, strict=True)
    )
    return (f"{base}?{query}" if query else base), tuple(patterns)


def _split_root(url: str) -> tuple[str, str, list[str]]:
    """Split a store's URL into its disk or bucket, its settings, and the folders below."""
    place, query = (url, "") if url.startswith("file:") else split_query(url)
    scheme, _, rest = place.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}/", query, [part for part in path.split("/") if part]


def _name(root: str, part: str) -> str:
    """Return the name of a URL's part in the store."""
    return unquote(part) if root.startswith("file:") else part


def _common(paths: Sequence[Sequence[str]]) -> int:
    """Return the number of folders that all paths begin with."""
    depth = 0
    for same in zip(*paths, strict=False):
        if len(set(same)) > 1:
            break
        depth += 1
    return depth
