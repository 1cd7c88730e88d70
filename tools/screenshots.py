#!/usr/bin/env python3
"""Make docs/page-chat.png and docs/page-dashboard.png: the page of a real server with the default model.

Usage: .venv/bin/python tools/screenshots.py [MODEL]     needs build/release/quern and what tools/setup.sh test installs
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUERN = os.environ.get("QUERN_BIN", str(ROOT / "build" / "release" / "quern"))
CHROMIUM = os.environ.get("QUERN_CHROMIUM", "/usr/bin/chromium")
BYTES_MAX = 150_000
QUESTIONS = ["Why does bread rise?", "Name three rivers.", "What is a prime number?", "Tell a story about a mill.",
             "How do I boil an egg?", "Explain the tides.", "What is a hash table?", "Describe the colour green."]
SYSTEM = "You are a helpful assistant who answers in a few plain sentences. " * 6


def serve(arguments):
    server = subprocess.Popen([QUERN, "serve", *arguments, "--port", "0"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    for line in server.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return server, found[0]
    sys.exit("screenshots: quern serve ended without an address")


def ask(url, question):
    body = {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "max_tokens": 160, "user": "docs"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=120).read()


def picture(page, name):
    """A PNG of the window. Flat colours pack well; a picture that does not fit is an error, not a surprise."""
    path = ROOT / "docs" / name
    page.screenshot(path=path, animations="disabled", caret="hide")
    print(f"{name}: {path.stat().st_size} bytes")
    if path.stat().st_size > BYTES_MAX:
        sys.exit(f"screenshots: {name} has more than {BYTES_MAX} bytes")


def chat(browser, url):
    page = browser.new_page(viewport={"width": 1200, "height": 760}, color_scheme="light")
    page.goto(url)
    page.evaluate("localStorage.setItem('quern.params', JSON.stringify({temperature: 0.4, seed: 2, max_tokens: 220}))")
    page.reload()
    for question in ("List three reasons to bake bread at home.", "Explain the tides in one sentence.",
                     "Write a Python function that checks whether a number is prime."):
        page.click("#new")
        page.fill("#input", question)
        page.keyboard.press("Enter")
        page.wait_for_selector("[aria-label=Regenerate]", timeout=120_000)
    page.mouse.move(0, 0)
    picture(page, "page-chat.png")
    page.close()


def dashboard(browser, url):
    page = browser.new_page(viewport={"width": 1200, "height": 760}, color_scheme="dark")
    page.goto(f"{url}/#/dashboard")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(ask, url, q) for q in QUESTIONS * 6]
        page.wait_for_timeout(20_000)
        picture(page, "page-dashboard.png")
        for a in answers:
            a.cancel()
    page.close()


def main():
    server, url = serve(sys.argv[1:] + ["--num-gpu-blocks-override", "512"])
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            chat(browser, url)
            dashboard(browser, url)
            browser.close()
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    main()
