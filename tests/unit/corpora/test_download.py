"""Downloads from a server that fails as those of the world do: whatever happens, a file is complete or absent."""

import hashlib
import json

import pytest
import requests
from rich.progress import Progress
from urllib3 import Retry

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.locked import lock
from fairseq_mtmoe.corpora import download as downloading
from fairseq_mtmoe.corpora import web as requesting
from fairseq_mtmoe.corpora.download import PER_HOST, download
from fairseq_mtmoe.corpora.raw_files import Item
from tests.helpers.raw_corpora import digests
from tests.helpers.refused import refused
from tests.helpers.web import Fault, web_server

CONTENT = bytes(range(256)) * 40  # 10,240 bytes
OTHER = bytes(reversed(CONTENT))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Watch(Progress):
    """Progress that remembers how many bytes of how many came."""

    def __init__(self):
        super().__init__(disable=True)
        self.done = []

    def update(self, task_id, *, completed, total):
        self.done.append((completed, total))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(requesting, "TRIES", 4)
    monkeypatch.setattr(requesting, "BACKOFF", 0.0)
    monkeypatch.setattr(requesting, "TIMEOUT", (5.0, 5.0))


@pytest.fixture
def web():
    with web_server() as server:
        yield server


@pytest.fixture
def get(tmp_path):
    """Fetch an item; return its content, or None if nothing was asked for."""

    def call(item, watch=None):
        watch = watch or Watch()
        failed = download([item], tmp_path, watch)
        if failed:
            raise UserError(failed[item.file])
        return (tmp_path / item.file).read_bytes() if watch.done else None

    return call


def test_a_file_comes_with_a_record_and_no_password_goes_to_its_server(web, get, tmp_path, monkeypatch):
    netrc = tmp_path.with_name("netrc")
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    address = web.put("/a.tgz", CONTENT)
    watch = Watch()
    assert get(Item("corpus/a.tgz", address), watch) == CONTENT
    assert list(digests(tmp_path)) == ["corpus/a.tgz", "corpus/a.tgz.origin.json"]
    assert watch.done[-1] == (len(CONTENT), len(CONTENT)) and "Authorization" not in web.requests[0][1]
    assert get(Item("corpus/a.tgz", address)) is None and len(web.requests) == 1  # it is not asked for again
    with (tmp_path / "b.tgz.part").open("ab") as part:
        lock(part, "another run writes it")
        with refused("b.tgz"):
            get(Item("b.tgz", address))


@pytest.mark.parametrize(("mark", "known", "goes_on"), [
    ({"ETag": '"v1"'}, {}, True),
    ({"Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT"}, {}, True),
    ({}, {"sha256": SHA256}, True),
    ({"ETag": 'W/"v1"'}, {}, False),  # a weak mark is none
])  # fmt: skip
def test_a_broken_connection_goes_on_if_the_file_is_surely_the_same(web, get, tmp_path, mark, known, goes_on):
    faults = [Fault(drop=3000), Fault(drop=2000), Fault(drop=4000)]
    assert get(Item("a.tgz", web.put("/a.tgz", CONTENT, *faults, **mark), **known)) == CONTENT
    assert web.ranges("/a.tgz") == [None, *(["bytes=3000-", "bytes=5000-", "bytes=9000-"] if goes_on else [None] * 3)]
    assert list(digests(tmp_path)) == ["a.tgz", "a.tgz.origin.json"]


def test_whatever_a_server_makes_of_ranges_a_file_is_whole(web, get, tmp_path):
    ignored = web.put("/a.tgz", CONTENT, Fault(drop=3000), Fault(whole=True), ETag='"v1"')
    other = web.put("/b.tgz", CONTENT, ETag='"v1"')
    (tmp_path / "b.tgz.part").write_bytes(CONTENT + b"more")  # longer than the file
    (tmp_path / "b.tgz.part.json").write_text(json.dumps({"address": other, "validator": '"v1"', "size": None}))
    untold = web.put("/c.tgz", CONTENT, told_size=False)
    packed = web.put("/d.tgz", CONTENT, **{"Content-Encoding": "gzip"})  # which stays so
    for name, address in (("a.tgz", ignored), ("b.tgz", other), ("c.tgz", untold), ("d.tgz", packed)):
        assert get(Item(name, address)) == CONTENT


@pytest.mark.parametrize(("path", "headers"), [("/a.tgz", {"If-Range": '"v1"'}), ("/new.tgz", {})])
def test_a_file_that_changes_meanwhile_or_has_another_address_begins_anew(web, get, path, headers):
    address = web.put("/a.tgz", OTHER, Fault(drop=3000), Fault(status=404), ETag='"v1"')
    with refused(address):
        get(Item("a.tgz", address))
    assert get(Item("a.tgz", web.put(path, CONTENT, ETag='"v2"' if headers else '"v1"'))) == CONTENT
    assert web.requests[-1][1].get("If-Range") == headers.get("If-Range")


@pytest.mark.parametrize("known", [{"sha256": SHA256}, {"md5": hashlib.md5(CONTENT).hexdigest()}])
def test_wrong_bytes_are_fetched_once_more_and_then_leave_nothing(web, get, tmp_path, known):
    address = web.put("/a.tgz", OTHER)
    with refused(address):
        get(Item("a.tgz", address, **known))
    assert len(web.requests) == 2 and list(digests(tmp_path)) == []
    assert get(Item("a.tgz", web.put("/a.tgz", CONTENT, Fault(content=OTHER)), **known)) == CONTENT


def test_a_file_without_a_checksum_must_be_what_it_was_when_it_first_came(web, get, tmp_path):
    item, file = Item("a.tgz", web.put("/a.tgz", CONTENT)), tmp_path / "a.tgz"
    get(item)
    file.write_bytes(OTHER)  # damaged on the disk
    with refused("a.tgz", "a.tgz.origin.json"):
        get(item)
    file.unlink()
    web.put("/a.tgz", OTHER)
    with refused(item.address):
        get(item)
    assert not file.exists()
    (tmp_path / "a.tgz.origin.json").unlink()
    assert get(item) == OTHER


def test_a_server_that_stalls_or_is_busy_is_asked_again(web, get, monkeypatch):
    monkeypatch.setattr(requesting, "TIMEOUT", (0.5, 0.5))
    busy = [Fault(status=503, headers={"Retry-After": "0"}), Fault(status=429)]
    address = web.put("/a.tgz", CONTENT, *busy, Fault(stall=3000), Fault(hold=1.0), ETag='"v1"')
    assert get(Item("a.tgz", address)) == CONTENT
    assert web.ranges("/a.tgz") == [None, None, None, "bytes=3000-", "bytes=3000-"]


def test_tries_that_get_further_do_not_count(web, get):
    faults = [Fault(drop=1000) for _ in range(2 * requesting.TRIES)]
    assert get(Item("a.tgz", web.put("/a.tgz", CONTENT, *faults, ETag='"v1"'))) == CONTENT


def test_tries_end_where_none_gets_further(web, get, tmp_path):
    broken = web.put("/a.tgz", CONTENT, Fault(drop=3000), *(Fault(whole=True, drop=2000) for _ in range(10)))
    busy = web.put("/b.tgz", CONTENT, *(Fault(status=503) for _ in range(10)))
    for address, why in ((broken, "3,000 bytes"), (busy, "503"), ("http://127.0.0.1:1/a.tgz", "Connection refused")):
        with pytest.raises(UserError, match=rf"cannot be downloaded: .*{why}.*\."):
            get(Item("a.tgz", address))
        assert not (tmp_path / "a.tgz").exists()
    assert len(web.ranges("/a.tgz")) == len(web.ranges("/b.tgz")) == 4


def test_what_no_second_try_changes(web, get, tmp_path):
    for item, fault in (
        ({}, Fault(status=404)),
        ({}, Fault(headers={"Content-Type": "text/html; charset=utf-8"})),
        ({}, Fault(status=302, headers={"Location": "file:///etc/passwd"})),
        ({}, Fault(status=302, headers={"Location": "http://[127.0.0.1/"})),
        ({"size": 10_000}, Fault()),
    ):
        address = web.put("/a.tgz", CONTENT, fault)
        with refused(address):
            get(Item("a.tgz", address, **item))
        assert list(digests(tmp_path)) == []
    assert len(web.requests) == 5


def test_no_more_is_written_than_the_published_bytes(web, get, tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "_PIECE", 1000)
    watch, address = Watch(), web.put("/a.tgz", CONTENT, told_size=False)  # which could go on without end
    with refused(address):
        get(Item("a.tgz", address, size=3500), watch)
    assert max(done for done, _ in watch.done) == 4000 and list(digests(tmp_path)) == []


def test_a_redirect_within_a_site_keeps_what_was_asked(web, get, tmp_path, monkeypatch):
    netrc = tmp_path.with_name("netrc")
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    web.put("/there.tgz", CONTENT, Fault(drop=3000), ETag='"v1"')
    to_there = Fault(status=302, headers={"Location": "/there.tgz"})
    assert get(Item("a.tgz", web.put("/a.tgz", b"", to_there, to_there))) == CONTENT
    assert web.ranges("/there.tgz") == [None, "bytes=3000-"]
    assert not any("Authorization" in headers for _, headers in web.requests)


def test_a_redirect_to_another_site_is_refused_before_it_is_asked(web, get, tmp_path):
    with web_server() as other:
        target = other.put("/there.tgz", CONTENT)
        address = web.put("/a.tgz", b"", Fault(status=302, headers={"Location": target}))
        with refused(address) as caught:
            get(Item("a.tgz", address))
        assert f"redirects to {target};" in str(caught.value)
        assert not other.requests and list(digests(tmp_path)) == []


@pytest.mark.parametrize(("source", "target", "is_followed"), [
    ("http://example.org/a", "https://data.example.org/a", True),
    ("https://github.com/a", "https://objects.githubusercontent.com/a", True),
    ("https://huggingface.co/a", "https://cdn-lfs.hf.co/a", True),
    ("https://tinyurl.com/a", "https://example.org/a", True),
    ("https://tinyurl.com/a", "http://example.org/a", False),
    ("https://example.org/a", "https://tinyurl.com/a", False),
    ("https://example.org/a", "http://example.org/a", False),
    ("https://example.org/a", "https://example.com/a", False),
    ("https://example.com./a", "https://other.com./a", False),
    ("https://github.com/a", "https://github.io/a", False),
    ("http://127.0.0.1/a", "http://10.0.0.1/a", False),
    ("http://localhost:80/a", "http://localhost:81/a", False),
    ("https://example.org/a", "ftp://example.org/a", False),
])  # fmt: skip
def test_which_redirects_are_followed(source, target, is_followed):
    response = requests.Response()
    response.status_code, response.url, response.headers["Location"] = 302, source, target
    if is_followed:
        requesting._check_redirect(response)
        return
    with refused(source):
        requesting._check_redirect(response)


def test_few_files_of_a_host_come_at_once_and_one_out_of_reach_is_waited_for_with_its_first(web, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    pauses = []
    monkeypatch.setattr(Retry, "sleep", lambda retry, response=None: pauses.append(retry.total))
    here = [Item(f"{number}.tgz", web.put(f"/{number}.tgz", CONTENT, Fault(hold=0.05))) for number in range(6)]
    absent = [Item(f"absent-{number}", f"http://absent.invalid/{number}") for number in range(20)]
    assert download([*absent, *here], tmp_path, Watch()).keys() == {item.file for item in absent}
    assert all((tmp_path / item.file).read_bytes() == CONTENT for item in here) and web.most_at_once == PER_HOST
    assert len(pauses) <= PER_HOST * requesting.TRIES


def test_a_slow_file_leaves_its_host_in_reach(web, tmp_path, monkeypatch):
    monkeypatch.setattr(requesting, "TIMEOUT", (0.2, 0.2))
    slow = [Item(name, web.put(f"/{name}", CONTENT, *[Fault(hold=0.5)] * requesting.TRIES)) for name in "ab"]
    assert download([*slow, Item("c", web.put("/c", CONTENT))], tmp_path, Watch()).keys() == {"a", "b"}


def test_the_sizes_that_servers_tell(web):
    items = [
        Item("a.tgz", web.put("/a.tgz", CONTENT)),
        Item("b.tgz", web.put("/b.tgz", CONTENT, told_size=False)),
        Item("c.tgz", web.address + "/absent.tgz"),
        Item("d.tgz", "http://127.0.0.1:1/d.tgz"),
        Item("e.tgz"),
    ]
    assert requesting.sizes(items) == [len(CONTENT), None, None, None, None]
    assert not any(headers.get("Range") for _, headers in web.requests)
