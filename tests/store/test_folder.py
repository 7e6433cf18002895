"""One open directory of the store, used by many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvsync.store.folder import Folder


def test_threads_that_list_a_folder_at_once_each_see_all_of_it(tmp_path: Path) -> None:
    names = [f"{number:04}" for number in range(300)]
    with Folder.at(tmp_path / "folder") as folder:
        for name in names:
            (folder.path / name).touch()
        with ThreadPoolExecutor(6) as threads:
            listings = list(threads.map(lambda _: folder.names(), range(1200)))
    assert all(listing == names for listing in listings)
