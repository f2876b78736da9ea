"""The page at / in headless Chromium: chat, stop, tool calls, settings, live figures, keyboard, phone, dark. Leaves screenshots in build/page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from playwright.sync_api import Browser, Page, expect, sync_playwright
from test_serve import NEVER_S, WEATHER, Server

expect.set_options(timeout=NEVER_S * 1000)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    server = Server(tiny).wait()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or the one in PATH: none is downloaded."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium: run this through scripts/test interop"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def visit(browser: Browser, server: Server, settings: dict | None = None, **options: object) -> Page:
    context = browser.new_context(**options)
    context.route("**/*", lambda route: route.continue_() if "127.0.0.1" in route.request.url else route.abort())
    page = context.new_page()
    page.set_default_timeout(NEVER_S * 1000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.problems = problems
    page.add_init_script(f"localStorage.setItem('nibble', {json.dumps(json.dumps({'temperature': '0'} | (settings or {})))})")
    page.goto(f"http://127.0.0.1:{server.port}/")
    expect(page.locator("#model")).to_contain_text("tiny")
    return page


def shoot(page: Page, name: str) -> None:
    folder = ROOT / "build/page"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")


def ask(page: Page, text: str) -> None:
    page.keyboard.type(text)  # the field has the focus from the start
    page.keyboard.press("Enter")


def test_chat(browser: Browser, server: Server) -> None:
    page = visit(browser, server)
    ask(page, "What is the capital of Turkey?")
    expect(page.locator(".turn.assistant .content")).to_have_text("Ankara")
    expect(page.locator(".facts")).to_contain_text("tok/s")
    expect(page.locator("#weights")).to_contain_text("BF16")
    expect(page.locator("#live")).to_contain_text("Tokens/s")
    expect(page.locator("#live dd").nth(7)).not_to_have_text("0")
    shoot(page, "chat")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    assert page.problems == []


def test_stop_by_key(browser: Browser, server: Server) -> None:
    # Seed and limit make it long; the words mean nothing.
    page = visit(browser, server, {"temperature": "2", "max_tokens": "2000"})
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | {"ignore_eos": True})))
    ask(page, "Who are you?")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".facts")).to_have_text("stopped")
    assert page.problems == []


def test_tool_call_is_folded_and_its_result_goes_back(browser: Browser, server: Server) -> None:
    page = visit(browser, server, {"tools": json.dumps([WEATHER])})
    ask(page, "What is the weather in Bern?")
    call = page.locator("details.fold")
    expect(call.locator("summary")).to_have_text("Calls get_weather")
    expect(call.locator("pre")).to_be_hidden()
    call.locator("summary").click()
    expect(call.locator("pre")).to_contain_text('"city": "Bern"')
    shoot(page, "tool")
    page.get_by_label("Result of get_weather").fill("21 degrees")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant")).to_have_count(2)
    assert page.problems == []


def test_thoughts_are_folded(browser: Browser, server: Server) -> None:
    page = visit(browser, server)
    events = [{"choices": [{"delta": delta}]} for delta in ({"reasoning_content": "Let me "}, {"reasoning_content": "see."}, {"content": "Yes.\n```py\nx = 1\n```"})]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ": still working\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, "Think")
    expect(page.locator("details.fold div")).to_have_text("Let me see.")
    expect(page.locator("details.fold div")).to_be_hidden()
    expect(page.locator(".turn.assistant .content pre")).to_have_text("x = 1\n")
    assert page.problems == []


def test_settings_and_errors(browser: Browser, server: Server) -> None:
    page = visit(browser, server)
    page.get_by_role("button", name="Settings").click()
    shoot(page, "settings")
    page.get_by_label("Most tokens").fill("2")
    page.get_by_role("button", name="Close").click()
    page.locator("#prompt").focus()
    ask(page, "What is the capital of Turkey?")
    expect(page.locator(".facts")).to_contain_text("2 tokens")
    page = visit(browser, server, {"temperature": "9"})
    ask(page, "Hello")
    expect(page.locator(".turn.error .facts")).to_contain_text("temperature: expected a number from 0 to 2")


def test_what_a_model_writes_is_text(browser: Browser, server: Server) -> None:
    page = visit(browser, server)
    event = {"choices": [{"delta": {"content": "<img src=x onerror=alert(1)><script>alert(1)</script>"}}]}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(event)}\n\n"))
    ask(page, "x")
    expect(page.locator(".turn.assistant .content")).to_contain_text("<img src=x")
    assert page.locator(".turn img, .turn script").count() == 0 and page.problems == []


def test_the_header_of_a_phone(browser: Browser, server: Server) -> None:
    """The buttons stand in one row, on small phones too, and what is asked is typed at the bottom."""
    for width in (390, 320):
        page = visit(browser, server, viewport={"width": width, "height": 700}, color_scheme="light", has_touch=True)
        buttons = page.locator("header h1, header button").all()
        boxes = [button.bounding_box() for button in buttons]
        assert len(boxes) == 4 and max(box["y"] for box in boxes) < min(box["y"] + box["height"] for box in boxes)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        prompt = page.locator("#ask").bounding_box()
        assert prompt["y"] + prompt["height"] == 700
        shoot(page, f"phone-{width}")


def test_phone_and_dark(browser: Browser, server: Server) -> None:
    page = visit(browser, server, viewport={"width": 390, "height": 780}, color_scheme="dark", has_touch=True)
    ask(page, "What is the capital of Turkey?")
    expect(page.locator(".turn.assistant .content")).to_have_text("Ankara")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shoot(page, "phone-dark")
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#weights")).to_be_visible()
    shoot(page, "phone-dark-live")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 20)"
