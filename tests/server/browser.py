"""The browser side of page_test.py: a tab that notes what goes wrong in it, and the screenshots of the documents."""
import io
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parent.parent.parent
MAX_IMAGE_BYTES = 100_000


class Tab:
    """A fresh browser profile with the page open, and what went wrong in it."""

    def __init__(self, browser, url, **options):
        self.url = url
        self.problems = []
        self.expected = ()  # parts of console errors that a test causes on purpose
        self.responses = []
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.problems.append(f"exception: {e}"))
        self.page.on("request", self.see)
        self.page.on("response", lambda response: self.responses.append(response))
        self.page.on("dialog", lambda d: (self.problems.append("dialog: " + d.message), d.dismiss()))
        self.page.add_init_script("addEventListener('securitypolicyviolation', (e) => console.error('CSP: ' + e.violatedDirective + ' ' + e.blockedURI))")
        self.open()

    def see(self, request):
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc and not request.url.startswith(("blob:" + self.url, "data:")):
            self.problems.append("request to another origin: " + request.url)

    def open(self, fragment=""):
        self.page.goto(self.url + fragment)
        self.page.wait_for_selector("html[data-ready]")

    def reload(self):
        self.page.reload()
        self.page.wait_for_selector("html[data-ready]")

    def say(self, text, wait=True):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        if wait:
            self.done()

    def done(self):
        expect(self.page.locator("#send")).to_have_attribute("aria-label", "Send", timeout=60_000)

    def answers(self):
        return self.page.locator(".answer .markdown")

    def last(self):
        return self.page.locator(".answer").last

    def button(self, name):
        return self.page.get_by_role("button", name=name, exact=True)

    def close(self):
        self.context.close()
        found = [p for p in self.problems if not any(e in p for e in self.expected)]
        assert not found, f"the browser complained: {found}"


def mock(url, **values):
    """Sets the mock back, with these values; without values only reads."""
    urllib.request.urlopen(urllib.request.Request(url + "mock", json.dumps(values).encode(), method="POST")).read()


def seen(url):
    return json.load(urllib.request.urlopen(url + "mock"))


def small_png(data):
    from PIL import Image
    for colours in (256, 128, 64):
        out = io.BytesIO()
        Image.open(io.BytesIO(data)).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if len(out.getvalue()) < MAX_IMAGE_BYTES:
            return out.getvalue()
    raise AssertionError(f"a screenshot has {len(out.getvalue())} bytes")


def earlier_chats():
    day = 86_400_000
    now = time.time() * 1000
    titles = [("Names for a small sailing boat", 0.02), ("Translate a letter to my landlord", 1), ("Why bread needs to rest", 1.1),
              ("Regular expression for dates", 3), ("Packing list for the mountains", 4), ("Explain the tides to a child", 5)]
    return json.dumps({"format": "argent-conversations", "version": 1, "conversations": [
        {"id": f"c{i}", "title": title, "created": now - age * day, "updated": now - age * day, "messages": []} for i, (title, age) in enumerate(titles)]})


def screenshots(browser, url):
    if "Inter" not in subprocess.run(["fc-match", "Inter"], capture_output=True, text=True).stdout:
        sys.exit("the pictures are made with the page's own choice of font, Inter: Debian's fonts-inter")
    folder = ROOT / "docs/images"
    folder.mkdir(parents=True, exist_ok=True)
    wide = {"viewport": {"width": 1280, "height": 900}}
    phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}
    for name, options in (("light", wide), ("dark", {**wide, "color_scheme": "dark"}), ("phone", phone)):
        mock(url, models=[{"id": "smollm2-135m-instruct-q4_1", "state": "loaded", "progress": 1, "context_length": 8192}])
        tab = Tab(browser, url, **options)
        if name != "phone":
            tab.page.click("#settings-open")
            tab.page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": earlier_chats().encode()})
            expect(tab.page.get_by_text("Names for a small sailing boat")).to_be_visible()  # the import empties the input
        for text in ("Which data structure finds a phone number by name?", "Explain how it works, with a small example in Python."):
            tab.page.fill("#input", text)
            tab.page.click("#send")
            tab.done()
        tab.page.evaluate("document.querySelector('#toasts').replaceChildren(); document.activeElement.blur()")
        tab.page.mouse.move(1, 400)
        if name == "dark":
            tab.page.evaluate("document.querySelector('#scroll').scrollTop = 0")
        if name == "phone":
            tab.page.evaluate("document.querySelectorAll('.user')[1].scrollIntoView()")
        tab.page.wait_for_timeout(300)
        (folder / f"page-{name}.png").write_bytes(small_png(tab.page.screenshot()))
        tab.close()
