"""Drive a headless Chromium by its own protocol over a pipe: no driver, no download, no port."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE = 60.0


class Browser:
    """A browser process; `open` gives a page of a certain width."""

    def __init__(self):
        self._home = tempfile.mkdtemp(prefix="browser-")
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def wire():
            a, b = os.dup(commands), os.dup(answers)
            os.dup2(a, 3)
            os.dup2(b, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self._home}", "--disable-background-networking"]
        self._process = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"],
            preexec_fn=wire, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._numbers, self._rest, self.events = itertools.count(1), b"", []

    def ask(self, method, session=None, **given):
        """Send a command and return its result; what happens meanwhile is kept in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        for found in self._messages():
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def wait(self, session, method):
        """Wait for an event of a page."""
        known = [event for event in self.events if event.get("sessionId") == session and event["method"] == method]
        if known:
            return
        for found in self._messages():
            self.events.append(found)
            if found.get("sessionId") == session and found.get("method") == method:
                return

    def _messages(self):
        deadline = time.monotonic() + _PATIENCE
        while True:
            while b"\0" in self._rest:
                one, self._rest = self._rest.split(b"\0", 1)
                yield json.loads(one)
            assert time.monotonic() < deadline, "the browser does not answer"
            got = os.read(self._from, 1 << 20)
            assert got, "the browser is gone"
            self._rest += got

    def open(self, path, width, dark=False):
        """Load a file into a new page."""
        return Page(self, Path(path), width, dark)

    def close(self):
        """End the process that was started here."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._home, ignore_errors=True)


class Page:
    """A page that has loaded."""

    def __init__(self, browser, path, width, dark):
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        browser.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        browser.wait(self._session, "Page.loadEventFired")

    def ask(self, method, **given):
        """Send a command to this page."""
        return self._browser.ask(method, self._session, **given)

    def run(self, script):
        """Return what a JavaScript expression gives."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    @property
    def requests(self):
        """The addresses that were asked for."""
        return [e["params"]["request"]["url"] for e in self._events("Network.requestWillBeSent")]

    @property
    def faults(self):
        """Errors and warnings of the console, and exceptions."""
        logged = [e["params"]["entry"]["text"] for e in self._events("Log.entryAdded")]
        said = [str(e["params"]["args"]) for e in self._events("Runtime.consoleAPICalled")]
        return logged + said + [str(e["params"]["exceptionDetails"]) for e in self._events("Runtime.exceptionThrown")]

    def _events(self, method):
        return [e for e in self._browser.events if e.get("sessionId") == self._session and e.get("method") == method]

    def pdf(self):
        """Print to A4."""
        printed = self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
        return base64.b64decode(printed["data"])

    def picture(self):
        """Return a PNG of the whole page."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])
