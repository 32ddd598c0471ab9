"""The page as a person has it: in a real browser, on a real server, while agents report."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from browser import PROGRAM, Browser
from running import Running, event

from holdfast.testing import PATIENCE
from ports import reserved_port

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")

Db = psycopg.Connection[Any]

CARDS = "[...document.querySelectorAll('li')].map(card => [card.className, card.innerText])"
LIVE = "document.getElementById('connection')?.textContent === '● live'"
LOST = "document.getElementById('connection')?.classList.contains('lost')"
HOSTILE = "<script>document.title = 'gone'</script><img src=x onerror=\"document.title='gone'\"><b>bold</b>"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture
def port() -> Iterator[str]:
    """One that nobody else is given, also while no server of ours listens there."""
    with reserved_port() as number:
        yield str(number)


def open_page(browser: Browser, server: Running) -> None:
    """By the address that the server prints."""
    assert server.process.stdout is not None
    printed = re.search(r"(http\S+code=\S+)", server.process.stdout.readline())
    assert printed is not None
    browser.open(printed[1])
    browser.wait_for(LIVE)
    browser.evaluate("window.never_reloaded = true")


def report(server: Running, *events: dict[str, Any]) -> None:
    with server.client() as client:
        for each in events:
            assert client.post("/hook", json=each).is_success


def test_what_agents_report_is_shown_while_it_happens(browser: Browser, start: Callable[..., Running]) -> None:
    # Without its clock: what is shown must have been told, not found by looking now and then.
    browser.call("Page.addScriptToEvaluateOnNewDocument", source="window.setInterval = () => 0")
    server = start()
    open_page(browser, server)
    browser.wait_for("!document.getElementById('none').hidden")

    report(server, event("SessionStart", source="startup"))
    browser.wait_for(f"{CARDS}.some(([state]) => state === 'IDLE')")
    assert browser.evaluate("document.getElementById('none').hidden")

    report(server, event("UserPromptSubmit", prompt="paint it", prompt_id="1"))
    browser.wait_for(f"{CARDS}.some(([state, text]) => state === 'COMMANDED' && text.includes('paint it'))")

    report(server, event("PreToolUse", tool_name="Bash", tool_input={"command": "rm old"}, tool_use_id="b"))
    report(server, event("PermissionRequest", tool_name="Bash", tool_input={"command": "rm old"}))
    browser.wait_for(f"{CARDS}.some(([state, text]) => state === 'AWAITING_INPUT' && text.includes('rm old'))")
    assert "Waiting for you (1)" in browser.text()  # in words, not by a colour only
    assert browser.evaluate("document.title") == "(1) Holdfast"

    report(server, event("PostToolUse", tool_name="Bash", tool_use_id="b"))
    browser.wait_for(f"{CARDS}.some(([state]) => state === 'PROCESSING')")
    report(server, event("Stop", last_assistant_message="A lot was done.\n\n" * 300 + "Which colour?"))
    browser.wait_for(f"{CARDS}.some(([state, text]) => state === 'AWAITING_INPUT' && text.includes('Which colour?'))")

    report(server, event("SessionEnd", reason="logout"))
    browser.wait_for("document.querySelector('details:not([hidden])')?.innerText.includes('Ended (1)')")
    assert browser.evaluate("window.never_reloaded && document.title === 'Holdfast'")
    assert browser.complaints == []


def test_what_agents_say_is_text_and_never_markup(browser: Browser, start: Callable[..., Running]) -> None:
    server = start()
    report(
        server,
        event("UserPromptSubmit", prompt=HOSTILE, cwd=f"/home/{HOSTILE}", prompt_id="1"),
        event("Stop", last_assistant_message=f"{HOSTILE}?", prompt_id="1"),
    )
    open_page(browser, server)
    shown = browser.wait_for(f"{CARDS}[0]?.[1]")
    assert shown.count("<b>bold</b>") >= 3
    assert browser.evaluate("document.querySelectorAll('li b, li img, li script').length") == 0
    assert browser.evaluate("document.title") == "(1) Holdfast"
    assert browser.complaints == []  # the content policy had nothing to stop


def test_after_a_restart_of_the_server_the_page_goes_on(
    browser: Browser, start: Callable[..., Running], port: str
) -> None:
    server = start(HOLDFAST_PORT=port)
    open_page(browser, server)
    server.kill()
    browser.wait_for(LOST)
    again = start(HOLDFAST_PORT=port)
    browser.wait_for(LIVE)
    report(again, event("UserPromptSubmit", prompt="after the restart"))
    browser.wait_for(f"{CARDS}.some(([, text]) => text.includes('after the restart'))")
    assert browser.evaluate("window.never_reloaded")


def test_a_page_that_is_refused_for_now_comes_back_by_itself(
    browser: Browser, start: Callable[..., Running], port: str
) -> None:
    """To a browser an answer other than 200 is the end of a stream: it would not try again."""
    server = start(HOLDFAST_PORT=port)
    open_page(browser, server)
    server.kill()
    browser.wait_for(LOST)
    with socket.create_server(("127.0.0.1", int(port))) as refusing:
        refusing.settimeout(2 * PATIENCE)
        asked = b""
        while b"/api/events" not in asked:
            visitor, _ = refusing.accept()
            with visitor, suppress(OSError):  # a browser may connect and ask for nothing
                visitor.settimeout(1)
                asked = visitor.recv(65536)
                visitor.sendall(b"HTTP/1.1 503 Not now\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    start(HOLDFAST_PORT=port)
    browser.wait_for(LIVE)


def test_a_browser_that_is_not_known_any_more_is_told_how_to_get_in(
    browser: Browser, start: Callable[..., Running], db: Db, port: str
) -> None:
    server = start(HOLDFAST_PORT=port)
    open_page(browser, server)
    server.kill()
    db.execute("delete from holdfast.token where note = 'a browser'")
    start(HOLDFAST_PORT=port)
    browser.wait_for("document.title === 'Holdfast: locked'")
    browser.wait_for("document.body?.innerText.includes('?code=')")  # which is read after the title


def test_cards_keep_their_place_and_focus_while_others_change(browser: Browser, start: Callable[..., Running]) -> None:
    server = start()
    report(server, event("UserPromptSubmit", "one", prompt="x" * 500, prompt_id="1"))
    open_page(browser, server)
    browser.wait_for("document.querySelector('.prompt')?.tabIndex === 0")
    browser.evaluate("document.querySelector('.prompt').focus()")
    report(server, event("UserPromptSubmit", "two", prompt="another", prompt_id="1", cwd="/home/dev/b"))
    browser.wait_for(f"{CARDS}.filter(([state]) => state === 'COMMANDED').length === 2")  # beside it, and above
    report(server, event("Stop", "two", last_assistant_message="Done.", prompt_id="1"))
    browser.wait_for(f"{CARDS}.some(([state]) => state === 'IDLE')")
    assert browser.evaluate("document.activeElement.textContent === 'x'.repeat(500)")


def test_the_locked_page_is_shown_to_whoever_has_no_code(browser: Browser, server: Running) -> None:
    browser.open(f"{server.address}/")
    browser.wait_for("document.title === 'Holdfast: locked'")
