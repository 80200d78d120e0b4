"""A browser for sign-ins: it follows redirects, keeps cookies, and fills in every form that it meets.

    browser.py URL                what a client starts in place of a browser

A form is filled with what a person knows: the name to log in as, any password, and the one-time code.
Of several buttons it presses the one that agrees. The last page is the client's own.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookiejar import CookieJar, DefaultCookiePolicy

STEPS_MAX = 25
SECONDS = 20

AGREES = re.compile(r"\b(allow|approve|accept|agree|authorize|continue|log ?in|sign[ -]?in|yes)\b", re.I)


class Stuck(Exception):
    """A page that leads nowhere."""


@dataclass
class Form:
    action: str
    method: str
    # Name and value of each field; a button is a field that only counts when it is pressed.
    fields: list[tuple[str, str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str, str]] = field(default_factory=list)


class Forms(HTMLParser):
    """The forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self.button: tuple[str, str] | None = None
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if tag == "form":
            self.found.append(Form(given.get("action", ""), given.get("method", "get").lower()))
        if not self.found:
            return
        kind, name = given.get("type", "text").lower(), given.get("name", "")
        if tag == "button":
            self.button, self.text = (name, given.get("value", "")), ""
        elif tag == "input" and kind == "submit":
            value = given.get("value", "")
            self.found[-1].buttons.append((name, value, value))
        elif tag == "input" and (kind not in ("checkbox", "radio") or "checked" in given):
            self.found[-1].fields.append((name, given.get("value", ""), kind))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "button" and self.button is not None and self.found:
            self.found[-1].buttons.append((*self.button, self.text.strip()))
            self.button = None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: object) -> None:
        return None


class Browser:
    def __init__(self, user: str = "ada", code: str | None = None) -> None:
        # Cookies of loopback have no domain that the policy would like; none of them is foreign.
        policy = DefaultCookiePolicy(rfc2965=False, strict_domain=False)
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPCookieProcessor(CookieJar(policy)),
            NoRedirect,
        )
        self.user = user
        self.code = code
        # Every URL that was opened.
        self.visited: list[str] = []

    def sign_in(self, url: str) -> str:
        """Opens `url`, and goes on until a page has no form; gives the text of that page."""
        data: bytes | None = None
        for _ in range(STEPS_MAX):
            status, headers, text = self.open(url, data)
            data = None
            if location := headers.get("location"):
                url = urllib.parse.urljoin(url, location)
                continue
            if status >= 400:
                raise Stuck(f"{without_query(url)}: {status}: {text[:500]}")
            forms = Forms()
            forms.feed(text)
            posts = [form for form in forms.found if form.method == "post"]
            if not posts:
                return text
            url, data = self.fill(url, choose(posts))
        raise Stuck(f"more than {STEPS_MAX} pages, the last {without_query(url)}")

    def open(self, url: str, data: bytes | None) -> tuple[int, dict[str, str], str]:
        self.visited.append(url)
        request = urllib.request.Request(url, data, {"Accept": "text/html"})
        if data is not None:
            # As browsers do; servers hold it against forms of other sites.
            parts = urllib.parse.urlsplit(url)
            request.add_header("Origin", f"{parts.scheme}://{parts.netloc}")
        try:
            response = self.opener.open(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, response.read().decode(errors="replace")

    def fill(self, page: str, form: Form) -> tuple[str, bytes]:
        pairs = []
        for name, value, kind in form.fields:
            if not name:
                continue
            if kind == "password":
                value = value or "any"
            elif kind == "text" and "code" in name.lower():
                if self.code is None:
                    raise Stuck(f"{without_query(page)} asks for a code")
                value = self.code
            elif kind in ("text", "email") and not value:
                value = self.user
            pairs.append((name, value))
        pressed = next((it for it in form.buttons if AGREES.search(f"{it[1]} {it[2]}")), None)
        pressed = pressed or (form.buttons[0] if form.buttons else None)
        if pressed is not None and pressed[0]:
            pairs.append(pressed[:2])
        action = urllib.parse.urljoin(page, form.action or page)
        return action, urllib.parse.urlencode(pairs).encode()


def choose(forms: list[Form]) -> Form:
    """The form to send: one with a button that agrees, or else the first."""
    for form in forms:
        if any(AGREES.search(f"{value} {text}") for _, value, text in form.buttons):
            return form
    return forms[0]


def without_query(url: str) -> str:
    return url.partition("?")[0]


if __name__ == "__main__":
    Browser().sign_in(sys.argv[1])
