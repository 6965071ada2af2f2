"""Requests to web servers: tries, redirects within a site, and sizes of files."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import ReadTimeoutError

from fairseq_mtmoe import __version__
from fairseq_mtmoe.core.errors import UserError, chain_of
from fairseq_mtmoe.corpora.raw_files import Item

TRIES = 7
BACKOFF = 0.5  # seconds, which double with each try
TIMEOUT = (20.0, 60.0)  # seconds for connecting, and without received bytes
_LONGEST_PAUSE = 300  # seconds that a server may ask for
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
# Sites that serve files of other sites
_SITES = {"githubusercontent.com": "github.com", "hf.co": "huggingface.co"}
# Sites that name files of any site; 14% of the addresses of mtdata are of this one
_SHORTENERS = ("tinyurl.com",)


class Session(requests.Session):
    """Session with proxies from the environment, but no passwords from `.netrc`."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.auth = lambda request: request
        self.headers["User-Agent"] = f"fairseq_mtmoe/{__version__}"
        self.headers["Accept-Encoding"] = "identity"
        self.hooks["response"] = [_check_redirect]
        self.unreachable: dict[str, str] = {}  # hosts and reasons: further requests fail at once
        retry = Retry(
            tries - 1,
            backoff_factor=BACKOFF,
            status_forcelist=_TRY_AGAIN,
            raise_on_status=False,
            retry_after_max=_LONGEST_PAUSE,
        )
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(max_retries=retry))
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each try

    def rebuild_auth(self, *_: Any) -> None:
        """Leave a redirected request without a password from `.netrc`."""

    def begin_download(self, address: str, headers: dict[str, str]) -> requests.Response:
        """Return a server's answer, whose body is not read yet.

        Raises `UserError` if the server cannot be reached or has no such file.
        """
        host = urlsplit(address).hostname or ""
        if host in self.unreachable:
            raise refused(address, self.unreachable[host])
        try:
            response = self.get(address, headers=headers, stream=True, timeout=TIMEOUT)
        except UserError:
            raise
        except (requests.RequestException, ValueError) as error:  # redirects may raise the latter
            causes = chain_of(error)
            why = f"the request to {host} fails ({causes[-1]})"
            is_slow = any(isinstance(cause, ReadTimeoutError) for cause in causes)
            if isinstance(error, requests.ConnectionError) and not is_slow:
                self.unreachable[host] = why
            raise refused(address, why) from error
        kind = response.headers.get("Content-Type", "").lower()
        if response.status_code not in (200, 206, 416):
            why = f"the server answers {response.status_code} {response.reason}"
        elif kind.startswith("text/html"):
            why = "the server answers with an HTML page instead of a file"
        else:
            return response
        response.close()
        raise refused(address, why)


def validator_of(response: requests.Response) -> str:
    """Return the strong ETag or the date of an answer's file, or an empty string."""
    tag = response.headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return tag
    return response.headers.get("Last-Modified", "")


def refused(address: str, why: str) -> UserError:
    """Return the error of a file that cannot be downloaded."""
    return UserError(f"`{address}` cannot be downloaded: {why}.")


def sizes(items: Sequence[Item]) -> list[int | None]:
    """Return the sizes in bytes that servers tell for files; None if they do not."""
    with Session(tries=1) as session, ThreadPool(8) as pool:
        return pool.map(partial(_size, session), items)


def _size(session: Session, item: Item) -> int | None:
    with suppress(ValueError, requests.RequestException):
        response = session.head(item.address, allow_redirects=True, timeout=TIMEOUT)
        response.raise_for_status()
        return int(response.headers.get("Content-Length", ""))
    return None


def _check_redirect(response: requests.Response, *_: Any, **__: Any) -> None:
    """Raise a `UserError` for a redirect to another site, or from https to http.

    A shortener may lead to any site's https.
    """
    if not response.is_redirect:
        return
    source = urlsplit(response.url)
    target = urlsplit(urljoin(response.url, response.headers["Location"]))
    is_same = _site(source) == _site(target) and target.scheme in ("https", source.scheme)
    is_short = _site(source) in _SHORTENERS and target.scheme == "https"
    if not is_same and not is_short:
        raise UserError(
            f"`{response.url}` redirects to {target.geturl()}; give that address in the recipe if "
            "you trust it."
        )


def _site(address: SplitResult) -> str:
    """Return the site of an address, such as `example.org`.

    The site of an IP address or of a name without dots includes the port.
    """
    labels = (address.hostname or "").rstrip(".").split(".")
    if len(labels) == 1 or labels[-1].isdecimal():
        return address.netloc
    name = ".".join(labels[-2:])
    return _SITES.get(name, name)
