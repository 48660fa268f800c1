"""What a store of objects must keep to, so that a sweep can be kept in it. What a store is stands in store/objects.py."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from raysweep.store.objects import Below, ObjectStore
from raysweep.testing.checks import check, check_raises


class StoreContract:
    """Subclass it in a test module as `class TestMyStore(StoreContract)`, with `make`; pytest runs what it inherits."""

    def make(self) -> ObjectStore:
        """A store that holds nothing; each call another one."""
        raise NotImplementedError

    def test_what_is_put_is_got(self) -> None:
        store = self.make()
        for content in (b"", b"a line\n", bytes(range(256)) * 30_000):  # the last one takes several requests of S3
            store.put("folder/name", content)
            check(store.get("folder/name") == content, f"get returns the {len(content)} bytes that were put")

    def test_a_file_is_put_as_its_content(self) -> None:
        store = self.make()
        with tempfile.TemporaryDirectory() as folder:
            for content in (b"", b"weights"):
                path = Path(folder) / "best.pt"
                path.write_bytes(content)
                store.put("a/best.pt", path)
                check(store.get("a/best.pt") == content, f"a path is put as its file's {len(content)} bytes")
            check_raises(FileNotFoundError, lambda: store.put("a/x", Path(folder) / "none"), "a file that is gone is told")
        check(set(store.list()) == {"a/best.pt"}, "a put that fails leaves nothing")

    def test_a_second_put_replaces_the_first(self) -> None:
        store = self.make()
        store.put("name", b"a long content")
        store.put("name", b"short")
        check(store.get("name") == b"short", "nothing of the first content is left")
        check(store.list() == {"name": 5}, "list tells the new size, and of one object")

    def test_what_is_not_there_is_told(self) -> None:
        store = self.make()
        check_raises(FileNotFoundError, lambda: store.get("none"), "get of an unknown name raises FileNotFoundError")
        store.put("a/b", b"1")
        check_raises(FileNotFoundError, lambda: store.get("a/none"), "get of an unknown name raises FileNotFoundError")
        store.delete("none")
        store.delete("a/none")
        check(store.list() == {"a/b": 1}, "deleting what is not there changes nothing")

    def test_list_tells_names_and_sizes_at_any_depth(self) -> None:
        store = self.make()
        check(store.list() == {}, "a new store holds nothing, and its folder need not be there")
        for name in ("a/1", "a/b/2", "ab/3", "4"):
            store.put(name, b"x" * len(name))
        check(store.list() == {"a/1": 3, "a/b/2": 5, "ab/3": 4, "4": 1}, f"all names from the root, got {store.list()}")
        check(store.list("a") == {"a/1": 3, "a/b/2": 5}, f"a prefix is a folder: ab/ is not in a/, got {store.list('a')}")
        check(store.list("a/b") == {"a/b/2": 5}, "a folder in a folder")
        check(store.list("none") == {}, "an unknown folder is empty")

    def test_a_deleted_object_is_gone_and_no_other(self) -> None:
        store = self.make()
        for name in ("a/1", "a/2", "b/1"):
            store.put(name, b"x")
        store.delete("a/1")
        check(set(store.list()) == {"a/2", "b/1"}, "one object is gone")
        check_raises(FileNotFoundError, lambda: store.get("a/1"), "a deleted object cannot be got")
        store.delete("a/2")
        check(set(store.list()) == {"b/1"}, "a folder without objects holds nothing")
        store.put("a/1", b"again")
        check(store.get("a/1") == b"again", "a deleted name can be put again")

    def test_more_objects_than_a_page_of_a_listing(self) -> None:
        store = self.make()
        names = {f"many/{number:04d}" for number in range(1_010)}  # S3 lists 1,000 at a time
        for name in names:
            store.put(name, b"")
        check(set(store.list("many")) == names, "list tells all objects")

    def test_two_folders_of_one_store_are_two_stores(self) -> None:
        store = self.make()
        one, two = Below(store, "one"), Below(store, "two")
        one.put("a/name", b"1")
        two.put("a/name", b"22")
        check((one.get("a/name"), two.get("a/name")) == (b"1", b"22"), "each has its own content")
        check(one.list() == one.list("a") == {"a/name": 1}, "each lists its own, by names from its own root")
        one.delete("a/name")
        check((one.list(), two.list()) == ({}, {"a/name": 2}), "each deletes its own")

    def test_a_new_object_is_there_whole_or_not_at_all(self) -> None:
        store = self.make()
        content = bytes(range(256)) * 2_000

        def write() -> None:
            for number in range(20):
                store.put(f"{number}", content)

        def is_torn() -> bool:
            return any(size != len(content) or store.get(name) != content for name, size in store.list().items())

        torn = self._seen_while(write, is_torn)
        check(torn == 0, f"what a listing tells of is whole; {torn} times it was not")
        check(set(store.list()) == {f"{number}" for number in range(20)}, "nothing else is left")

    def test_an_object_is_replaced_as_a_whole(self) -> None:
        """By one of the same size: over S3, pyarrow asks for the size first and for the content then."""
        store = self.make()
        contents = [bytes([letter]) * 400_000 for letter in (65, 66)]
        store.put("name", contents[0])

        def write() -> None:
            for number in range(1, 20):
                store.put("name", contents[number % 2])

        torn = self._seen_while(write, lambda: store.get("name") not in contents or store.list() != {"name": 400_000})
        check(torn == 0, f"a reader sees the old content or the new one; {torn} times it saw another")

    def _seen_while(self, write: Callable[[], None], is_torn: Callable[[], bool]) -> int:
        failed: list[BaseException] = []

        def writing() -> None:
            try:
                write()
            except BaseException as error:
                failed.append(error)

        writer = threading.Thread(target=writing)
        writer.start()
        torn = 0
        while writer.is_alive():
            torn += is_torn()
        writer.join()
        check(not failed, f"put goes on while others read: {failed}")
        return torn
