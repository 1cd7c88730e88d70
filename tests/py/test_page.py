"""The page in a real Chromium: against the real server with the tiny model, and against a scripted one for what a real
server does not do on demand (slow, hostile, locked, broken)."""
import json
import os
import pathlib
import re

import pytest
from playwright.sync_api import expect, sync_playwright

from page_server import Server
from server_quern import Quern

REPO = pathlib.Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("QUERN_CHROMIUM", "/usr/bin/chromium")
SMALL_BYTES = 80_000  # of all files of web/: the page is embedded in the program
expect.set_options(timeout=20_000)  # a loaded machine is no failure

HOSTILE = """<img src=x onerror="window.hit=1"> <script>window.hit=2</script>
<svg onload="window.hit=3"> **<b onclick=alert(1)>bold</b>** `<i>code</i>`

[click](javascript:window.hit=4) [tab](java\tscript:window.hit=5) [data](data:text/html,<script>window.hit=6</script>)
![picture](http://127.0.0.1:9/pixel.png) [fine](https://example.org/a_b?c=1&d=2) <https://example.org/auto>
[quoted](https://example.org/"onmouseover="window.hit=7)

| <img src=x onerror=window.hit=8> | b |
|---|---|
| [x](javascript:window.hit=9) | `|` |

```html" onmouseover="window.hit=10
</code></pre><script>window.hit=11</script>
```

> - <iframe srcdoc="<script>parent.hit=12</script>"></iframe>
"""


@pytest.fixture(scope="module")
def browser():
    assert os.path.exists(CHROMIUM), "no Chromium: tools/setup.sh test installs it"
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield b
        b.close()


@pytest.fixture
def scripted():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def real():
    """quern serve, with a model that comes with the source."""
    with Quern() as server:
        yield server.url


class Visit:
    """A page in a fresh browser profile, and what it did that it should not."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(viewport=options.pop("viewport", {"width": 1200, "height": 800}), **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.errors, self.foreign = [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.context.on("request", lambda r: None if r.url.startswith(url + "/") else self.foreign.append(r.url))
        self.page.goto(url + "/")
        expect(self.page.locator("#state")).to_have_class("dot ready")

    def say(self, text):
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")

    def answer(self):
        """The text of the last answer, once it is whole."""
        expect(self.page.locator("[aria-label=Regenerate]")).to_be_visible()
        return self.page.locator(".msg.assistant .md").last.inner_text()


@pytest.fixture
def visit(browser):
    made = []

    def make(url, **options):
        v = Visit(browser, url, **options)
        made.append(v)
        return v
    yield make
    for v in made:
        v.context.close()


def test_the_page_is_small_and_names_no_other_host():
    files = sorted((REPO / "web").iterdir())
    assert sum(f.stat().st_size for f in files) < SMALL_BYTES
    for f in files:
        hosts = set(re.findall(r"https?://([\w.]+)", f.read_text())) - {"www.w3.org"}  # the name of a namespace
        assert not hosts, f"{f.name} names {hosts}"
        assert not re.search(r"\son\w+=|innerHTML|insertAdjacentHTML|document\.write|\beval\(", f.read_text()), f.name


# --- the real server ---

def test_it_loads_clean_and_talks_to_its_own_server_only(visit, real):
    v = visit(real)
    v.page.click("#tab-dash")
    expect(v.page.locator(".tile .big").first).to_contain_text("of")
    assert v.errors == [] and v.foreign == []
    policy = v.page.request.get(real + "/").headers.get("content-security-policy", "")
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_a_message_is_answered_and_the_conversation_stays(visit, real):
    v = visit(real)
    v.page.evaluate("localStorage.setItem('quern.params', '{\"max_tokens\":24,\"seed\":1}')")
    v.page.reload()
    v.say("Good morrow")
    first = v.answer()
    assert first.strip()
    expect(v.page.locator(".stats").last).to_contain_text(re.compile(r"24 tokens.* · first after \d+"))
    v.page.reload()
    assert v.answer() == first
    v.page.click("[aria-label=Regenerate]")
    assert v.answer() == first  # the same seed, the same words
    assert v.errors == []


def test_the_dashboard_shows_what_the_server_did(visit, real):
    v = visit(real)
    v.page.click("#tab-dash")
    output = v.page.locator("section[aria-label=Output] .sub")
    expect(output).to_contain_text("in all")
    before = int(re.sub(r"\D", "", output.inner_text()))
    body = json.dumps({"messages": [{"role": "user", "content": "Speak"}], "max_tokens": 12, "ignore_eos": True})
    v.page.request.post(real + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})
    expect(output).to_have_text(re.compile(f"^{before + 12:,} in all"))
    expect(v.page.locator("section[aria-label='Time to first token'] .big").first).to_contain_text("s")
    assert v.page.locator("canvas.map").evaluate("c => c.height") > 4
    expect(v.page.locator("section[aria-label=Tenants] tbody tr")).not_to_have_count(0)


# --- a scripted server ---

def test_hostile_text_runs_nothing_and_asks_nobody(visit, scripted):
    scripted.script.answer = HOSTILE
    v = visit(scripted.url)
    v.say("attack")
    text = v.answer()
    assert "<script>window.hit=2</script>" in text and "onerror" in text  # shown as letters
    v.page.wait_for_timeout(200)
    assert v.page.evaluate("window.hit") is None
    assert v.foreign == []
    assert v.page.evaluate("""[...document.querySelectorAll('.md *')].filter(n =>
        /^(script|img|svg|iframe|object|style|form)$/i.test(n.tagName) ||
        [...n.attributes].some(a => a.name.startsWith('on') || a.name === 'style')).length""") == 0
    links = v.page.locator(".md a").evaluate_all("all => all.map(a => [a.href, a.rel])")
    assert [href for href, _ in links if not re.match("https?://", href)] == []
    assert "https://example.org/a_b?c=1&d=2" in [href for href, _ in links]
    assert all("noopener" in rel and "noreferrer" in rel for _, rel in links)
    # the twin: the same text as HTML does run, so this test can fail
    v.page.evaluate("text => { document.body.append(Object.assign(document.createElement('div'), {innerHTML: text})) }",
                    HOSTILE)
    v.page.wait_for_function("window.hit")


def test_reasoning_is_folded_before_the_answer(visit, scripted):
    scripted.script.reasoning, scripted.script.answer = ["First <b>", " then."], "So."
    try:
        v = visit(scripted.url)
        v.say("think")
        assert v.answer() == "So."
        box = v.page.locator("details.thought").last
        expect(box).to_be_visible()
        assert box.get_attribute("open") is None
        box.locator("summary").click()
        assert box.locator("div").inner_text() == "First <b> then."  # letters
    finally:
        scripted.script.reasoning = []


def test_markdown_while_it_streams_is_markdown_at_the_end(visit, scripted):
    scripted.script.answer = ("# Title\n\nA *b* **c** `d`\n\n1. one\n2. two\n   - deep\n\n"
                              "| a | b |\n|--|--:|\n| 1 | 2 |\n\n"
                              "```c\nint x;\n\nint y;\n```\n\n> said\n\nend")
    v = visit(scripted.url)
    v.say("go")
    v.answer()
    shape = "root => root.innerHTML"
    streamed = v.page.locator(".md").last.evaluate(shape)
    for tag in ("<h3>", "<em>", "<strong>", "<code>", "<ol>", "<ul>", '<td class="to-right">', "<pre", "<blockquote>"):
        assert tag in streamed, tag
    pieces = v.page.evaluate("""async text => {
        const { Stream } = await import('/markdown.js');
        const root = document.createElement('div'), stream = new Stream(root);
        for (let i = 1; i <= text.length; i++) stream.set(text.slice(0, i));
        return root.innerHTML; }""", scripted.script.answer)
    assert pieces == streamed


def test_text_of_any_shape_takes_linear_time(visit, scripted):
    v = visit(scripted.url)
    took = v.page.evaluate("""async () => {
        const { render } = await import('/markdown.js');
        const took = {};
        for (const piece of ['[', '[]', '*a ', 'a* ', '**a _b ', '`',
            '<', '> ', '- ', '|', '# #', '_a', '![](', '1. ', '    ', '~~', '\\\\']) {
          const began = performance.now();
          render(document.createElement('div'), piece.repeat(60000 / piece.length));
          took[piece] = performance.now() - began;
        }
        return took; }""")
    assert max(took.values()) < 5000, took


def test_stop_closes_the_connection_and_keeps_what_came(visit, scripted):
    scripted.script.answer = "word " * 2000
    scripted.script.delay_s = 0.01
    v = visit(scripted.url)
    v.say("go on")
    expect(v.page.locator(".md").last).to_contain_text("word word")
    expect(v.page.locator("#send")).to_have_attribute("aria-label", "Stop")
    v.page.keyboard.press("Escape")
    assert "word" in v.answer()
    expect(v.page.locator(".stats").last).to_contain_text(re.compile(r"\d+ tokens · \d+\.\d tokens/s · .* stopped"))
    assert scripted.script.left_early.wait(5), "the server still sees a reader"
    expect(v.page.locator("#send")).to_have_attribute("aria-label", "Send")


def test_edit_and_regenerate_send_the_right_history(visit, scripted):
    v = visit(scripted.url)
    v.say("first")
    v.answer()
    v.say("second")
    v.answer()
    v.page.click("[aria-label=Regenerate]")
    v.answer()
    v.page.locator("[aria-label=Edit]").first.click()
    v.page.fill(".editor textarea", "changed")
    v.page.keyboard.press("Enter")
    v.answer()
    said = [[m["content"] for m in r["messages"] if m["role"] == "user"] for r in scripted.script.requests]
    assert said == [["first"], ["first", "second"], ["first", "second"], ["changed"]]
    assert v.page.locator(".msg").count() == 2


def test_parameters_are_sent_and_empty_ones_are_not(visit, scripted):
    v = visit(scripted.url)
    v.page.click("#params-toggle")
    v.page.fill("[data-param=system]", "Be brief.")
    v.page.fill("[data-param=temperature]", "0.55")
    v.page.fill("[data-param=top_k]", "40")
    v.page.fill("[data-param=max_tokens]", "-3")  # not allowed: left out
    v.page.locator("[data-param=seed]").click()
    v.say("hi")
    v.answer()
    body = scripted.script.requests[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["temperature"] == 0.55 and body["top_k"] == 40 and body["stream"] is True
    assert not {"max_tokens", "seed", "top_p"} & set(body)


def test_a_locked_server_asks_for_its_key(browser, scripted):
    scripted.script.key = "s3cret"
    context = browser.new_context()
    page = context.new_page()
    page.goto(scripted.url + "/")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-error")).to_be_visible()
    page.fill("#key", "s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_class("dot ready")
    assert page.evaluate("localStorage.getItem('quern.key')") is None  # kept only when asked
    page.fill("#input", "hi")
    page.click("#send")
    expect(page.locator(".md").last).to_contain_text("Hello")
    context.close()


def test_a_refusal_is_a_sentence_and_can_be_tried_again(visit, scripted):
    scripted.script.refusal = (429, "too many requests", [("Retry-After", "7")])
    v = visit(scripted.url)
    v.say("hi")
    expect(v.page.locator(".problem")).to_contain_text("too many requests (try again in 7 s)")
    v.page.click(".problem button")
    assert "Hello" in v.answer()
    assert v.page.locator(".problem").count() == 0


def test_several_conversations_are_kept_renamed_and_deleted(visit, scripted):
    v = visit(scripted.url)
    for title in ("alpha", "beta"):
        v.page.click("#new")
        v.say(title)
        v.answer()
    picks = v.page.locator("#chats .pick")
    assert picks.all_inner_texts() == ["beta", "alpha"]
    picks.last.hover()  # the buttons of a conversation show where the pointer or the focus is
    v.page.locator("#chats [aria-label=Rename]").last.click()
    v.page.fill("#chats input", "gamma")
    v.page.keyboard.press("Enter")
    v.page.reload()
    assert picks.all_inner_texts() == ["beta", "gamma"]
    picks.last.click()
    expect(v.page.locator(".msg.user .text")).to_have_text("alpha")
    v.page.locator("#chats .current [aria-label=Delete]").click()
    assert picks.all_inner_texts() == ["beta"]
    v.page.click("#toast button")  # undo
    assert sorted(picks.all_inner_texts()) == ["beta", "gamma"]


def test_a_conversation_deleted_while_its_answer_grows_stays_deleted(visit, scripted):
    scripted.script.answer = "word " * 2000
    scripted.script.delay_s = 0.01
    v = visit(scripted.url)
    v.say("doomed")
    expect(v.page.locator(".md").last).to_contain_text("word")
    v.page.locator("#chats [aria-label=Delete]").click()
    assert scripted.script.left_early.wait(5)
    expect(v.page.locator("#empty")).to_be_visible()
    v.page.reload()
    expect(v.page.locator("#chats .pick")).to_have_count(0)


def test_a_server_that_is_starting_is_waited_for(browser, scripted):
    scripted.script.stats_body = b'{"state":"starting","phase":"weights","percent":40,"version":"0.0"}'
    context = browser.new_context()
    page = context.new_page()
    page.goto(scripted.url + "/#/dashboard")
    expect(page.locator("#model-name")).to_have_text("starting 40%")
    expect(page.locator("#dash")).to_contain_text("The server is starting: weights, 40%")
    scripted.script.stats_body = None
    expect(page.locator("#model-name")).to_have_text("scripted")
    expect(page.locator("section[aria-label=Output]")).to_contain_text("in all")
    context.close()


def test_a_server_that_comes_back_is_found_again(visit, scripted):
    v = visit(scripted.url)
    v.page.route("**/stats", lambda r: r.abort())
    v.page.route("**/completions", lambda r: r.abort())
    v.say("anybody?")
    expect(v.page.locator(".problem")).to_contain_text("cannot be reached")
    expect(v.page.locator("#model-name")).to_have_text("no server")
    v.page.unroute_all()
    expect(v.page.locator("#state")).to_have_class("dot ready")
    v.page.click(".problem button")
    assert "Hello" in v.answer()


def test_the_dashboard_moves_and_rests_when_unseen(visit, scripted):
    v = visit(scripted.url)
    v.page.click("#tab-dash")
    output = v.page.locator("section[aria-label=Output] .big")
    expect(output).to_contain_text(re.compile(r"^(1[5-9]\d|2[0-4]\d)(\.\d)? tokens/s"))  # 200 a turn, a turn a second
    ttft = v.page.locator("section[aria-label='Time to first token'] .big")
    assert ttft.all_inner_texts() == ["63 ms", "73 ms", "75 ms"]  # the bucket 50..75 ms: 50 + 25 * q
    expect(v.page.locator("section[aria-label='Prefix hits'] .big")).to_contain_text("75%")
    expect(v.page.locator("section[aria-label=Tenants] tr").nth(1)).to_contain_text("75%")
    colours = v.page.locator("canvas.map").evaluate("""c => new Set(Array.from({length: 96}, (_, i) =>
        c.getContext('2d').getImageData(4 + i * 14 % (c.width - 14), 4 + Math.floor(i * 14 / c.width) * 14, 1, 1)
        .data.join())).size""")
    assert colours >= 5
    before = scripted.script.turn
    v.page.wait_for_timeout(1300)
    assert scripted.script.turn > before
    v.page.click("#tab-chat")
    v.page.wait_for_timeout(300)
    before = scripted.script.turn
    v.page.wait_for_timeout(1300)
    assert scripted.script.turn == before


def test_dark_and_light_follow_the_system_and_the_toggle(visit, scripted):
    def paper(v):
        rgb = v.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return "dark" if sum(map(int, re.findall(r"\d+", rgb)[:3])) < 380 else "light"
    v = visit(scripted.url, color_scheme="dark")
    assert paper(v) == "dark"
    v.page.click("#theme")
    assert paper(v) == "light"
    v.page.reload()
    assert paper(v) == "light"
    v.page.click("#theme")
    assert paper(v) == "dark"
    v.page.click("#theme")  # as the system again
    v.page.emulate_media(color_scheme="light")
    assert paper(v) == "light"


def test_letters_stand_out_from_the_paper(visit, scripted):
    """WCAG AA: 4.5 to 1 for every colour that text has."""
    v = visit(scripted.url)
    measure = """() => {
        const light = (c) => { const [r, g, b] = c.match(/\\d+/g).map((x) => {
            x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const colour = (name) => { const i = document.createElement('i'); i.style.color = `var(--${name})`;
            document.body.append(i); const c = getComputedStyle(i).color; i.remove(); return light(c); };
        const out = {};
        for (const [a, b] of [['ink', 'bg'], ['ink', 'tint'], ['ink', 'sunken'], ['soft', 'bg'], ['soft', 'raised'],
            ['soft', 'sunken'], ['accent', 'bg'], ['accent-ink', 'accent'], ['bad', 'bg']]) {
          const [x, y] = [colour(a), colour(b)].sort((p, q) => q - p);
          out[`${a} on ${b}`] = (x + 0.05) / (y + 0.05);
        }
        return out; }"""
    for scheme in ("light", "dark"):
        v.page.emulate_media(color_scheme=scheme)
        ratios = v.page.evaluate(measure)
        assert min(ratios.values()) >= 4.5, (scheme, ratios)


def test_a_phone_scrolls_in_one_direction(visit, scripted):
    scripted.script.answer = "\n\n".join(["A" * 400, "```\n" + "b" * 300 + "\n```", "| columncolumn " * 9 + "|\n" +
                                          "|---" * 9 + "|\n"])
    v = visit(scripted.url, viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    width = "Math.max(document.documentElement.scrollWidth, document.querySelector('#log').scrollWidth)"
    assert v.page.evaluate(width) <= 375
    v.page.fill("#input", "wide " + "x" * 200)
    v.page.tap("#send")
    v.answer()
    assert v.page.evaluate(width) <= 375
    v.page.tap("#chats-toggle")
    expect(v.page.locator("#chats .pick")).to_be_visible()
    v.page.locator("#chats .pick").tap()
    expect(v.page.locator("#chats .pick")).to_be_hidden()
    expect(v.page.locator("#chats-toggle")).to_have_attribute("aria-expanded", "false")
    v.page.tap("#tab-dash")
    expect(v.page.locator("canvas.map")).to_be_visible()
    v.page.wait_for_timeout(1200)
    assert v.page.evaluate("document.querySelector('#dash').scrollWidth") <= 375


def test_everything_can_be_done_with_the_keyboard(visit, scripted):
    v = visit(scripted.url)
    key = v.page.keyboard.press
    v.page.keyboard.type("hello")  # the field has the focus from the start
    key("Enter")
    v.answer()
    key("Escape")
    key("d")
    expect(v.page.locator("#dash")).to_be_visible()
    key("p")
    expect(v.page.locator("#params")).to_be_visible()
    key("Escape")
    expect(v.page.locator("#params")).to_be_hidden()
    key("?")
    expect(v.page.locator("#help-dialog")).to_be_visible()
    key("Escape")
    key("r")
    v.answer()
    key("/")
    expect(v.page.locator("#input")).to_be_focused()
    key("ArrowUp")
    expect(v.page.locator(".editor textarea")).to_be_focused()
    key("End")
    v.page.keyboard.type(" again")
    key("Enter")
    v.answer()
    assert [r["messages"][-1]["content"] for r in scripted.script.requests] == ["hello", "hello", "hello again"]
    key("Escape")
    key("n")
    expect(v.page.locator("#empty")).to_be_visible()
    seen = set()
    key("Escape")
    for _ in range(30):  # every control can be reached, with a ring around it
        key("Tab")
        tag, name, ring = v.page.evaluate("""(() => { const n = document.activeElement; return [n.tagName,
            n.id || n.getAttribute('aria-label') || n.textContent, getComputedStyle(n).outlineStyle]; })()""")
        seen.add(name)
        assert ring != "none" or name == "input" or tag == "BODY", name  # around the message field it is the form's
    assert {"tab-chat", "params-toggle", "theme", "help", "new", "input", "hello", "Rename", "Delete"} <= seen


def test_names_and_roles_are_there_for_those_who_listen(visit, scripted):
    v = visit(scripted.url)
    v.say("hi")
    v.answer()
    expect(v.page.locator("#announce")).to_contain_text("Answer finished")
    assert v.page.get_by_role("log").count() == 1 and v.page.get_by_role("tab").count() == 2
    nameless = v.page.evaluate("""[...document.querySelectorAll('button, input, textarea, select')].filter(n =>
        !n.getAttribute('aria-label') && !n.textContent.trim() && !n.labels?.length).map(n => n.outerHTML)""")
    assert nameless == []


def test_a_browser_without_storage_still_talks(browser, scripted):
    context = browser.new_context()
    context.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied') }})")
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(scripted.url + "/")
    page.fill("#input", "hi")
    page.keyboard.press("Enter")
    expect(page.locator(".md").last).to_contain_text("Hello")
    assert errors == []
    context.close()
