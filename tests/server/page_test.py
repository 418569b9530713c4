#!/usr/bin/env python3
"""The web page in a real browser, against mock_server.py or a server that runs already.

    page_test.py [URL] [PATTERN]
    page_test.py --screenshots

With a URL only what any model can answer is tested; with a pattern only tests whose name contains it. --screenshots tests nothing and
makes docs/images/page-{light,dark,phone}.png anew, which whoever changes the page does.
"""
import json
import shutil
import sys
import tempfile
import time
import traceback
import urllib.request
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

import markdown_cases
import mock_server
from browser import Tab, mock, screenshots, seen

MAX_PAGE_BYTES = 200_000
expect.set_options(timeout=30_000)


# ---- with any server -----------------------------------------------------------------------------------------------------

def test_loads_and_is_small(tab):
    tab.page.wait_for_timeout(200)
    size = sum(len(response.body()) for response in tab.responses if "/v1/" not in response.url)
    assert 0 < size < MAX_PAGE_BYTES, size
    response = urllib.request.urlopen(tab.url)
    policy = response.headers["content-security-policy"]
    assert policy == mock_server.CSP, policy
    assert tab.page.evaluate("document.activeElement.id") == "input"


def test_answer_and_figures(tab):
    tab.say("Say hello.")
    expect(tab.page.locator(".user .text")).to_have_text("Say hello.")
    assert tab.answers().last.inner_text().strip()
    expect(tab.page.locator(".figures")).to_contain_text("tokens")
    expect(tab.page.locator(".chats li.current")).to_contain_text("Say hello.")


def test_kept_over_reload(tab):
    tab.say("Say hello.")
    before = tab.answers().last.inner_html()
    tab.reload()
    assert tab.answers().last.inner_html() == before
    expect(tab.page.locator(".chats li")).to_have_count(1)


# ---- with the scripted server --------------------------------------------------------------------------------------------

def test_request_and_figures(tab):
    tab.say("one")
    tab.say("two")
    requests = seen(tab.url)["requests"]
    assert [m["role"] for m in requests[1]["messages"]] == ["user", "assistant", "user"], requests[1]
    assert requests[0]["stream"] is True and requests[0]["stream_options"] == {"include_usage": True}
    assert requests[0]["model"] == "mock-1b-instruct" and "temperature" not in requests[0]
    figures = tab.page.locator(".figures").last.inner_text()
    for part in ("tokens", "42.4 tok/s", "first after", "prompt tokens reused"):
        assert part in figures, figures


def test_system_prompt_and_sampling(tab):
    page = tab.page
    page.click("#tune")
    page.fill("#system", "Be brief.")
    page.fill("#sampling-temperature", "0,5")
    page.fill("#sampling-top_k", "40")
    page.fill("#sampling-seed", "7")
    page.fill("#sampling-max_tokens", "1.5")
    expect(page.locator("#sampling-max_tokens")).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    tab.say("hi")
    request = seen(tab.url)["requests"][0]
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}, request
    assert (request["temperature"], request["top_k"], request["seed"]) == (0.5, 40, 7) and "max_tokens" not in request, request
    tab.reload()
    page.click("#tune")
    assert page.input_value("#sampling-temperature") == "0.5" and page.input_value("#system") == "Be brief."
    page.click("text=Back to the defaults")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    tab.say("hi")
    request = seen(tab.url)["requests"][1]
    assert "temperature" not in request and len(request["messages"]) == 1, request


def test_hostile_markdown(tab):
    tab.say("hostile")
    tab.page.locator(".thinking summary").click()
    tab.page.wait_for_timeout(150)
    html = tab.last().inner_html()
    assert tab.page.evaluate("window.pwned") is None
    for tag in ("script", "img", "iframe", "style", "form", "object"):
        assert tab.page.locator(f".answer .markdown {tag}").count() == 0, tag
    for href in tab.page.locator(".answer a").evaluate_all("all => all.map(a => a.href)"):
        assert href.startswith(("https://example.org/", "https://evil.example/")), href
    for rel in tab.page.locator(".answer a").evaluate_all("all => all.map(a => a.rel)"):
        assert "noopener" in rel, rel
    attributes = tab.page.locator(".answer .markdown *").evaluate_all("all => all.flatMap(e => e.getAttributeNames())")
    assert not [a for a in attributes if a.startswith("on") or a in ("style", "src", "srcdoc")], attributes
    assert "&lt;script&gt;" in html
    tab.reload()
    tab.page.wait_for_timeout(100)
    assert tab.page.evaluate("window.pwned") is None


def test_thinking_is_folded(tab):
    tab.say("think", wait=False)
    expect(tab.page.locator(".thinking summary")).to_have_text("Thinking…")
    tab.done()
    expect(tab.page.locator(".thinking summary")).to_contain_text("Thought for")
    expect(tab.page.locator(".thinking .markdown")).to_be_hidden()
    tab.page.locator(".thinking summary").click()
    expect(tab.page.locator(".thinking em").first).to_have_text("consider")
    expect(tab.page.locator(".answer > .markdown strong")).to_have_text("42")
    tab.say("and")
    assert "consider" not in json.dumps(seen(tab.url)["requests"][1])


def test_stop(tab):
    tab.say("slow", wait=False)
    expect(tab.answers()).to_contain_text("word3")
    tab.page.keyboard.press("Escape")
    tab.done()
    expect(tab.last()).to_contain_text("Stopped.")
    text = tab.answers().inner_text()
    tab.page.wait_for_timeout(200)
    assert tab.answers().inner_text() == text and "word399" not in text
    deadline = time.time() + 5
    while seen(tab.url)["closed"] == 0 and time.time() < deadline:
        time.sleep(0.05)
    assert seen(tab.url)["closed"] == 1, "the connection stayed open"
    tab.say("slow", wait=False)
    tab.button("Stop").click()
    tab.done()
    tab.reload()
    expect(tab.page.locator(".answer").first).to_contain_text("Stopped.")


def test_regenerate_and_branches(tab):
    tab.say("first")
    tab.button("Answer again").click()
    tab.done()
    expect(tab.last().locator(".switcher")).to_contain_text("2/2")
    expect(tab.answers()).to_have_text("Answer 2 to: first")
    tab.button("Previous branch").click()
    expect(tab.answers()).to_have_text("Answer 1 to: first")
    assert tab.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Next branch"
    tab.say("second")  # goes on from the first answer
    assert seen(tab.url)["requests"][2]["messages"][1]["content"] == "Answer 1 to: first"
    tab.button("Next branch").click()
    expect(tab.answers()).to_have_count(1)
    tab.button("Previous branch").click()
    expect(tab.answers()).to_have_count(2)


def test_edit_branches(tab):
    tab.say("alpha")
    tab.say("beta")
    tab.page.locator(".user").first.hover()
    tab.page.locator(".user").first.get_by_role("button", name="Edit message").click()
    area = tab.page.locator(".bubble textarea")
    expect(area).to_be_focused()
    area.fill("gamma")
    area.press("Enter")
    tab.done()
    expect(tab.page.locator(".user .text")).to_have_text(["gamma"])
    expect(tab.page.locator(".user .switcher")).to_contain_text("2/2")
    tab.page.locator(".user .switcher").get_by_role("button", name="Previous branch").click()
    expect(tab.page.locator(".user .text")).to_have_text(["alpha", "beta"])
    tab.reload()
    expect(tab.page.locator(".user .text")).to_have_text(["alpha", "beta"])
    tab.page.locator(".user").first.get_by_role("button", name="Next branch").click()
    expect(tab.page.locator(".user .text")).to_have_text(["gamma"])


def test_errors_and_retry(tab):
    tab.say("broken")
    expect(tab.page.get_by_role("alert")).to_contain_text("The device ran out of memory.")
    expect(tab.answers()).to_have_text("Half of an ans")
    tab.button("Retry").click()
    tab.done()
    expect(tab.last().locator(".switcher")).to_contain_text("2/2")
    tab.say("drop")
    expect(tab.page.get_by_role("alert").last).to_contain_text("before it was complete")
    tab.expected = ("503",)
    mock(tab.url, down=True)
    tab.say("anybody?")
    expect(tab.page.get_by_role("alert").last).to_contain_text("shutting down")
    mock(tab.url)
    tab.button("Retry").last.click()
    tab.done()
    expect(tab.answers().last).to_have_text("Answer 1 to: anybody?")
    assert tab.last().locator(".switcher").count() == 0


def test_no_server(tab):
    tab.expected = ("ERR_FAILED", "Failed to load resource")
    tab.page.route("**/v1/**", lambda route: route.abort())
    tab.say("hello?")
    expect(tab.page.get_by_role("alert")).to_contain_text("No answer from 127.0.0.1")
    tab.page.unroute("**/v1/**")
    tab.button("Retry").click()
    tab.done()
    expect(tab.answers()).to_contain_text("Answer 1")


def test_api_key(tab):
    tab.expected = ("401",)
    mock(tab.url, key="s3cret")
    tab.say("hi", wait=False)
    dialog = tab.page.locator("#key")
    expect(dialog).to_be_visible()
    tab.page.fill("#key-input", "wrong")
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("refused")
    tab.page.fill("#key-input", "s3cret")
    tab.page.keyboard.press("Enter")
    tab.done()
    expect(tab.answers()).to_contain_text("to: hi")
    tab.reload()
    tab.say("again")
    expect(tab.answers().last).to_contain_text("to: again")
    assert tab.page.evaluate("localStorage.getItem('argent.key')") is None, "kept although nobody asked for it"


def test_many_conversations(tab):
    page = tab.page
    for text in ("apples", "pears", "plums"):
        tab.say(text + " please")
        page.keyboard.press("Control+k")
        expect(page.locator("#hello")).to_be_visible()
        expect(page.locator("#input")).to_be_focused()
    expect(page.locator(".chats li")).to_have_count(3)
    page.fill("#search", "to: pears")
    expect(page.locator(".chats li")).to_have_count(1)
    page.locator(".chat-open").click()
    expect(tab.answers()).to_contain_text("pears")
    page.fill("#search", "")
    expect(page.locator(".chats li")).to_have_count(3)
    row = page.locator(".chats li.current")
    row.hover()
    row.get_by_role("button", name="Rename").click()
    page.keyboard.type("Fruit")
    page.keyboard.press("Enter")
    expect(page.locator(".chats li.current .chat-title")).to_have_text("Fruit")
    row.hover()
    row.get_by_role("button", name="Delete").click()
    expect(page.locator(".chats li")).to_have_count(2)
    tab.button("Undo").click()
    expect(page.locator(".chats li")).to_have_count(3)
    expect(page).to_have_title("Fruit · Argent")
    page.locator(".chats li", has_text="plums").locator(".chat-open").click()
    page.go_back()
    expect(page).to_have_title("Fruit · Argent")
    tab.reload()
    expect(page).to_have_title("Fruit · Argent")


def test_two_answers_at_once(tab):
    tab.say("slow", wait=False)
    expect(tab.answers()).to_contain_text("word2")
    tab.page.keyboard.press("Control+k")
    tab.say("quick")
    expect(tab.answers()).to_contain_text("to: quick")
    expect(tab.page.locator(".chats li.busy")).to_have_count(1)
    tab.page.locator(".chats li.busy .chat-open").click()
    expect(tab.button("Stop")).to_be_visible()
    tab.page.keyboard.press("Escape")
    tab.done()


def test_export_import(tab):
    page = tab.page
    tab.say("alpha")
    tab.button("Answer again").click()
    tab.done()
    page.keyboard.press("Control+k")
    tab.say("think")

    def export():
        page.click("#settings-open")
        with page.expect_download() as download:
            tab.button("Export all").click()
        page.keyboard.press("Escape")
        value = json.loads(Path(download.value.path()).read_text())
        return value

    def bring(text):
        page.click("#settings-open")
        page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()})
        expect(page.locator("#settings")).to_be_hidden()

    before = export()
    assert len(before["conversations"]) == 2 and len(before["conversations"][1]["messages"]) == 3
    assert "key" not in before
    bring(json.dumps(before))
    expect(page.locator(".toast")).to_contain_text("all here already")
    page.click("#settings-open")
    tab.button("Delete all").click()
    expect(page.locator(".chats li")).to_have_count(0)
    bring(json.dumps(before))
    expect(page.locator(".chats li")).to_have_count(2)
    assert export()["conversations"] == before["conversations"]
    tab.reload()
    assert export()["conversations"] == before["conversations"]

    good = before["conversations"][0]
    loop = [{"id": "a", "parent": "b", "role": "user", "content": "x"}, {"id": "b", "parent": "a", "role": "user", "content": "x"}]
    for bad, problem in (("{", "not JSON"), ("[]", "no exported"), ("null", "no exported"),
                         (json.dumps({**before, "version": 99}), "version 99"),
                         (json.dumps({**before, "conversations": [good, {**good, "messages": loop}]}), "Conversation 2"),
                         (json.dumps({**before, "conversations": [{**good, "id": "<img>"}]}), "damaged"),
                         (json.dumps({**before, "conversations": [{**good, "messages": [None]}]}), "damaged")):
        bring(bad)
        expect(page.locator(".toast")).to_contain_text(problem)
    expect(page.locator(".chats li")).to_have_count(2)
    bring(json.dumps({**before, "conversations": [{**good, "id": "z", "pick": 99, "title": "<b>odd</b>", "messages": [
        {"id": "__a".replace("_", "-"), "parent": None, "role": "user", "content": "x", "pick": -1, "stats": {"__proto__": 1, "tokens": "y"}, "evil": 1}]}]}))
    expect(page.locator(".chats li", has_text="<b>odd</b>")).to_have_count(1)


def test_full_storage(tab):
    tab.page.evaluate("() => { IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') } }")
    tab.say("one")
    expect(tab.page.locator(".toast")).to_contain_text("no room left")
    tab.say("two")
    expect(tab.answers()).to_have_count(2)


def test_no_storage(tab):
    tab.page.add_init_script("for (const n of ['indexedDB', 'localStorage', 'sessionStorage']) Object.defineProperty(window, n, { get() { throw new DOMException('no', 'SecurityError') } })")
    tab.open("?2")
    expect(tab.page.locator(".toast")).to_contain_text("keeps no data")
    tab.say("one")
    tab.button("Theme: as the system").click()
    expect(tab.answers()).to_contain_text("Answer 1")


def test_two_tabs(tab):
    tab.say("one")
    other = tab.context.new_page()
    other.goto(tab.page.url)
    expect(other.locator(".answer .markdown")).to_contain_text("Answer 1")
    tab.say("two")
    expect(other.locator(".answer .markdown")).to_have_count(2)


def test_theme(tab):
    page = tab.page
    background = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    light = background()
    page.emulate_media(color_scheme="dark")
    dark = background()
    assert light != dark
    tab.button("Theme: as the system").click()
    assert background() == light
    tab.reload()
    assert background() == light
    tab.button("Theme: light").click()
    page.emulate_media(color_scheme="light")
    assert background() == dark
    tab.button("Theme: dark").click()
    assert background() == light


def test_phone(tab):
    page = tab.page
    tab.say("explain", wait=False)
    page.locator("#send").click()
    tab.done()
    tab.say("table", wait=False)
    page.locator("#send").click()
    tab.done()
    for width in (320, 390):
        page.set_viewport_size({"width": width, "height": 640})
        page.wait_for_timeout(80)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('#scroll').scrollWidth") <= width
        off = page.locator("button:visible").evaluate_all("(all, w) => all.map(e => e.getBoundingClientRect()).filter(r => r.width && (r.right > w + 1 || r.left < -1)).length", width)
        assert off == 0, f"{off} buttons outside of {width} pixels"
    expect(page.locator("#side")).to_be_hidden()
    page.click("#menu")
    expect(page.locator("#side")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#side")).to_be_hidden()
    page.click("#menu")
    page.click("#settings-open")
    expect(page.locator("#settings")).to_be_visible()
    box = page.locator("#settings").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390, box
    page.keyboard.press("Escape")


def test_keyboard(tab):
    page = tab.page
    page.focus("#input")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#input") == "one\ntwo"
    page.keyboard.press("Enter")
    tab.done()
    assert seen(tab.url)["requests"][0]["messages"][0]["content"] == "one\ntwo"
    expect(page.locator("#input")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator(".bubble textarea")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".bubble textarea")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.locator("#hello")).to_be_visible()
    page.keyboard.press("Tab")
    names = page.locator("button:visible, a[href], input:visible, textarea:visible, select:visible").evaluate_all(
        "all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)")
    assert not names, f"without a name: {names}"


def test_scrolling(tab):
    page = tab.page
    top = lambda: page.evaluate("document.querySelector('#scroll').scrollTop")
    gap = lambda: page.evaluate("(s => s.scrollHeight - s.clientHeight - s.scrollTop)(document.querySelector('#scroll'))")
    tab.say("long", wait=False)
    expect(tab.answers()).to_contain_text("Paragraph 40 ")
    assert gap() < 80
    page.mouse.move(700, 300)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(150)
    held = top()
    expect(page.locator("#latest")).to_be_visible()
    expect(tab.answers()).to_contain_text("Paragraph 100 ")
    assert abs(top() - held) < 2, "moved although the reader had scrolled up"
    page.click("#latest")
    tab.done()
    page.wait_for_timeout(100)
    assert gap() < 80


def test_copy(tab):
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    clipboard = lambda: tab.page.evaluate("navigator.clipboard.readText()")
    tab.say("explain")
    tab.button("Copy code").click()
    tab.page.wait_for_timeout(100)
    assert clipboard().startswith("class HashTable:"), clipboard()
    tab.button("Copy answer").click()
    tab.page.wait_for_timeout(100)
    assert clipboard() == mock_server.SHOWCASE
    assert tab.page.locator(".code .hl-k").count() > 5 and tab.page.locator(".code .hl-c").count() == 1


def test_models(tab):
    mock(tab.url, models=[{"id": "a", "state": "unloaded", "progress": 0, "context_length": 100},
                          {"id": "b", "state": "loading", "progress": 0.4, "context_length": 25}])
    tab.reload()
    select = tab.page.get_by_label("Model", exact=True)
    expect(select.locator("option")).to_have_text(["a (not loaded)", "b (loading 40 %)"])
    select.select_option("b")
    expect(tab.page.locator(".model .dot.loading")).to_be_visible()
    tab.say("hello to the second model")
    assert seen(tab.url)["requests"][0]["model"] == "b"
    expect(tab.page.locator(".figures")).to_contain_text("context")
    tab.reload()
    expect(select).to_have_value("b")


def test_unfinished_and_limit(tab):
    tab.say("fenced")
    expect(tab.last()).to_contain_text("Ended at the length limit.")
    expect(tab.page.locator(".code code")).to_have_text("const a = `x y`; // note\n**not bold**")
    tab.say("table")
    expect(tab.page.locator(".table tbody tr")).to_have_count(2000)


def test_markdown(tab):
    markdown_cases.check(tab.page)


ANY_SERVER = [test_loads_and_is_small, test_answer_and_figures, test_kept_over_reload]


def main():
    given = next((a.rstrip("/") + "/" for a in sys.argv[1:] if a.startswith("http")), None)
    pattern = next((a for a in sys.argv[1:] if not a.startswith(("http", "--"))), "")
    url = given or mock_server.start()
    pictures = "--screenshots" in sys.argv
    tests = [] if pictures else ANY_SERVER if given else [f for n, f in globals().items() if n.startswith("test_")]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("page_test.py: no chromium is installed")
    passed = failed = 0
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"], downloads_path=folder)
        for test in tests:
            if pattern not in test.__name__:
                continue
            if not given:
                mock(url)
            start = time.time()
            phone = {"viewport": {"width": 390, "height": 640}, "has_touch": True, "is_mobile": True} if test is test_phone else {}
            tab = None
            try:
                tab = Tab(browser, url, **phone)
                test(tab)
                tab.close()
                passed += 1
                print(f"ok      {test.__name__}  {time.time() - start:.1f} s", flush=True)
            except Exception:  # noqa: BLE001 - a failed check of any kind is one failed test
                failed += 1
                print(f"FAILED  {test.__name__}\n{traceback.format_exc()}\n{tab and tab.problems}", flush=True)
        if pictures:
            screenshots(browser, url)
        browser.close()
    if pictures:
        return
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
