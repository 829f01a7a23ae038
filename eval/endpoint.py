"""Asking a model behind an OpenAI-compatible chat-completions API: bounded, retried, and kept for the next run.

The key is read from the environment variable OPENAI_API_KEY and goes to the endpoint named, nowhere else: redirects are
refused, and it is cut out of whatever the server sends before anything looks at it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from data_prep.rows import read_rows_tolerant, write_rows
from decoding.commandline import UserError
from decoding.console import track

KEY_VARIABLE = "OPENAI_API_KEY"
THINKING_TOKENS = 4096  # more for models whose limit counts their thinking too
_IN_FLIGHT = 4
_LONGEST_WAIT_S = 120.0  # that a server may ask for; whoever must wait longer calls again
_LONGEST_ANSWER = 1 << 24  # bytes
_SHORTEST_SECRET = 7  # characters; local servers take placeholders such as EMPTY, which documents may hold
_TRANSIENT = (408, 409, 425, 429)

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote. ``output_tokens`` is the API's count, thinking included; None where it gives none.

    ``complete`` is False where the limit or a filter cut the text; ``greedy`` is False where the model refuses
    temperature 0.
    """

    text: str
    output_tokens: int | None
    complete: bool
    greedy: bool


class NoAnswer(Exception):
    """A request without an answer. ``kind`` is HTTP and a number, timeout, no connection, or error in the answer."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class _Transient(Exception):
    """What may be gone in a while, and how long the server asks to wait."""

    def __init__(self, failure: NoAnswer, wait_s: float | None = None) -> None:
        super().__init__(str(failure))
        self.failure, self.wait_s = failure, wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse: the key would go along."""


class ChatModel:
    """One model behind an API.

    Args:
        endpoint: the API's base, e.g. https://api.openai.com/v1.
        model: its name there.
        timeout_s: for a whole answer; one that takes longer is not tried again.
        tries: of a request that fails in a way that may pass (HTTP 408, 409, 425, 429, 5xx, no connection).
        backoff_s: before the second try; doubles from try to try. A server's Retry-After takes its place.

    Raises:
        UserError: an endpoint that is not a plain http(s) address, or a key that cannot be one.
    """

    def __init__(
        self, endpoint: str, model: str, *, timeout_s: float = 300.0, tries: int = 5, backoff_s: float = 1.0
    ) -> None:
        self.endpoint, self.model = checked_endpoint(endpoint), model
        self.timeout_s, self.tries, self.backoff_s = timeout_s, tries, backoff_s
        self._key = _read_key()
        self._refused: set[str] = set()  # parameters that the model does not take
        self._opener = urllib.request.build_opener(_NoRedirect)

    def ask(self, messages: Messages, max_tokens: int) -> Answer:
        """Return the answer, of at most ``max_tokens``, at temperature 0 where the model takes it.

        Raises:
            NoAnswer: the server gave none, after all tries where another may help.
            UserError: no request will be answered: key, address, model or API are wrong, or the rate limit is spent.
        """
        tried = 0
        while True:
            try:
                return self._once(messages, max_tokens)
            except _Transient as error:
                tried += 1
                if error.wait_s is not None and error.wait_s > _LONGEST_WAIT_S:
                    raise UserError(
                        f"{self.endpoint} asks to wait {error.wait_s:.0f} s: call again then ({error.failure})"
                    ) from None
                if tried >= self.tries:
                    if error.failure.kind == "HTTP 429":
                        raise UserError(
                            f"{self.endpoint} still limits the rate after {tried} tries: call again later "
                            f"({error.failure})"
                        ) from None
                    raise error.failure from None
                time.sleep(self.backoff_s * 2 ** (tried - 1) if error.wait_s is None else error.wait_s)

    def _once(self, messages: Messages, max_tokens: int) -> Answer:
        while True:
            body: dict[str, Any] = {"model": self.model, "messages": messages}
            refused = set(self._refused)
            if "temperature" not in refused:
                body["temperature"] = 0
            if "max_tokens" in refused:
                body["max_completion_tokens"] = max_tokens + THINKING_TOKENS
            else:
                body["max_tokens"] = max_tokens
            status, headers, text = self._post(body)
            if status == 200:
                return self._read(text, greedy="temperature" not in refused)
            message = _message(text)
            # OpenAI's thinking models name a parameter they do not take: "Unsupported parameter: 'max_tokens' ...".
            named = [name for name in ("max_tokens", "temperature") if f"'{name}'" in message and name not in refused]
            if status != 400 or "unsupported" not in message.lower() or not named:
                break
            self._refused.update(named)
        raise self._failure(status, headers, message)

    def _post(self, body: dict[str, Any]) -> tuple[int, Any, str]:
        """Return status, headers and text, which does not hold the key."""
        headers = {"Content-Type": "application/json", "User-Agent": "cad-train"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(f"{self.endpoint}/chat/completions", json.dumps(body).encode(), headers)
        deadline = time.monotonic() + self.timeout_s
        try:
            try:
                response = self._opener.open(request, timeout=self.timeout_s)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                content = b""
                while chunk := response.read1(1 << 16):
                    content += chunk
                    # Servers that keep a connection alive with blanks never time out by themselves.
                    if time.monotonic() > deadline:
                        raise TimeoutError
                    if len(content) > _LONGEST_ANSWER:
                        raise NoAnswer("answer too long")
                if getattr(response, "length", None):
                    raise ConnectionError("the connection ended within the answer")
                return response.status, response.headers, self._without_key(content.decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, TimeoutError):  # not tried again: it has cost minutes, and perhaps its tokens
                raise NoAnswer("timeout", f"{self.timeout_s:g} s") from None
            raise _Transient(NoAnswer("no connection", self._without_key(str(reason)))) from None

    def _read(self, text: str, greedy: bool) -> Answer:
        try:
            found = json.loads(text)
            if isinstance(found, dict) and "choices" not in found and "error" in found:
                raise NoAnswer("error in the answer", _message(text))
            choice = found["choices"][0]
            content = choice["message"].get("content") or ""
            usage = found.get("usage") or {}
            tokens = usage.get("completion_tokens")
            content = content.encode(errors="replace").decode()  # JSON can spell half a surrogate pair
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UserError(
                f"{self.endpoint} answers {_start(text)!r}, which is no chat completion in JSON: endpoint= is the base "
                "of an OpenAI-compatible API, such as https://api.openai.com/v1"
            ) from None
        complete = choice.get("finish_reason") not in ("length", "content_filter")
        return Answer(content, tokens if isinstance(tokens, int) else None, complete, greedy)

    def _failure(self, status: int, headers: Any, message: str) -> Exception:
        if status in (401, 403):  # their texts may hold parts of the key
            return UserError(
                f"{self.endpoint} refuses the key (HTTP {status}): is {KEY_VARIABLE} one of theirs?"
                if self._key
                else f"{self.endpoint} wants a key (HTTP {status}): set {KEY_VARIABLE}"
            )
        if status == 404:
            return UserError(
                f"{self.endpoint} has no model {self.model!r}, or is not an API's base (HTTP 404): {message}"
            )
        if 300 <= status < 400:
            return UserError(
                f"{self.endpoint} redirects (HTTP {status}), and the key does not follow: name the address it leads to"
            )
        failure = NoAnswer(f"HTTP {status}", message)
        return _Transient(failure, _retry_after(headers)) if status in _TRANSIENT or status >= 500 else failure

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= _SHORTEST_SECRET else text


def ask_all(model: ChatModel, prompts: list[tuple[Messages, int]], kept: Path, label: str) -> list[Answer | NoAnswer]:
    """Return the answer to each (messages, max_tokens), some at once; what ``kept`` holds already is not asked again.

    ``kept`` (JSON Lines) gets a row an answer as it comes, keyed by endpoint, model and a hash of the messages. The
    shortest prompt is asked first and alone: what is wrong for all is said after one request.

    Raises:
        UserError: as ``ChatModel.ask``, or the first request had no answer.
    """
    if not kept.exists():
        write_rows(kept, [])
    rows = [row for _, row, problem in read_rows_tolerant(kept) if not problem]
    write_rows(kept, rows)  # a last row that was cut off is dropped, and not followed by another on its line
    digests = [hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16] for messages, _ in prompts]
    limits = dict(zip(digests, (limit for _, limit in prompts), strict=True))
    found: dict[str, Answer | NoAnswer] = {}
    for row in rows:
        if (row.get("endpoint"), row.get("model")) == (model.endpoint, model.model) and row.get("prompt") in limits:
            answer = Answer(row["text"], row["output_tokens"], row["complete"], row["greedy"])
            if answer.complete or row["max_tokens"] >= limits[row["prompt"]]:
                found[row["prompt"]] = answer
    todo = {digest: prompt for digest, prompt in zip(digests, prompts, strict=True) if digest not in found}
    order = sorted(todo, key=lambda digest: len(json.dumps(todo[digest][0])))
    if not order:
        return [found[digest] for digest in digests]
    with kept.open("a", encoding="utf-8") as file:

        def keep(digest: str, answer: Answer) -> None:
            key = {"endpoint": model.endpoint, "model": model.model, "prompt": digest, "max_tokens": limits[digest]}
            file.write(json.dumps(key | asdict(answer), ensure_ascii=False) + "\n")
            file.flush()
            found[digest] = answer

        try:
            keep(order[0], model.ask(*todo[order[0]]))
        except NoAnswer as error:
            raise UserError(f"{model.endpoint} does not answer for {model.model!r}: {error}") from None
        pool = ThreadPoolExecutor(_IN_FLIGHT)
        asked = {pool.submit(model.ask, *todo[digest]): digest for digest in order[1:]}
        try:
            for future in track(as_completed(asked), label, total=len(asked)):
                try:
                    keep(asked[future], future.result())
                except NoAnswer as error:
                    found[asked[future]] = error
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[digest] for digest in digests]


def checked_endpoint(endpoint: str) -> str:
    """Return an API's base address without a final slash.

    Raises:
        UserError: it is not an http or https address, or holds more than host and path: reports name it, so a key or a
            password has no place in it.
    """
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        raise UserError(
            "endpoint= must be an http(s) address, e.g. https://api.openai.com/v1 or http://localhost:8000/v1"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(f"endpoint= holds more than host and path: give a key in the variable {KEY_VARIABLE} instead")
    return endpoint.rstrip("/")


def _read_key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise UserError(f"{KEY_VARIABLE} holds characters that no key has: copy it again")
    return key


def _retry_after(headers: Any) -> float | None:
    """Return the seconds that Retry-After asks for, written as a number or a date (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _message(text: str) -> str:
    """Return what an error says: its message where it is JSON as OpenAI's, else how its text starts."""
    try:
        error = json.loads(text)["error"]
        return _start(error if isinstance(error, str) else str(error["message"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return _start(text)


def _start(text: str) -> str:
    shown = " ".join(text.split())
    return shown[:200] + ("..." if len(shown) > 200 else "")
