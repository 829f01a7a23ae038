"""Table 25: models behind an API, here a local server that answers, refuses, breaks and hangs as real ones do."""

from __future__ import annotations

import json
import time

import pytest
from chat_server import Server, completion
from hypothesis import given
from hypothesis import strategies as st
from small_models import save_model

from data_prep.oracle import build_oracle
from decoding.commandline import UserError
from decoding.grammar import render
from eval.endpoint import KEY_VARIABLE, THINKING_TOKENS, Answer, ChatModel, NoAnswer, ask_all, checked_endpoint
from eval.paper import make_table
from eval.paper_tables.inputs import Inputs, Missing, PaperConfig
from eval.paper_tables.prompt_level import (
    PAPER,
    PAPER_CASES,
    PAPER_GOLD,
    PAPER_PROGRAM,
    PAPER_SAVED,
    implied_full,
    messages_of,
    read_answer,
    table_25,
)
from eval.paper_tables.table import as_json, markdown

KEY = "sk-a-key-that-nobody-may-see"
EDITS = [
    {
        "instruction": f"Set b to {number}.",
        "before": f"a = {number}\n" + "b = 1\nc = 2\n" * 4,
        "after": f"a = {number}\nb = {number}\nc = 2\n" + "b = 1\nc = 2\n" * 3,
    }
    for number in range(2, 10)
]
HI = [{"role": "user", "content": "Hi."}]


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    servers = []

    def start(reply) -> Server:
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def failure(status, message="it broke", **headers):
    return status, json.dumps({"error": {"message": message}}), headers


def ask(server, max_tokens=50, **options):
    return ChatModel(server.url, "m", **({"backoff_s": 0.001, "tries": 3} | options)).ask(HI, max_tokens)


def gold(body):
    """The oracle's program, or the gold document, of the edit that a request is about."""
    task, user = (message["content"] for message in body["messages"])
    edit = next(edit for edit in EDITS if user.endswith(f"Instruction: {edit['instruction']}"))
    return render(build_oracle(edit["before"], edit["after"])) if "program" in task else edit["after"]


# The client


def test_a_request_is_bounded_greedy_and_carries_the_key(serve):
    server = serve(lambda body, _: completion("Hello.", 3))
    assert ask(server) == Answer("Hello.", 3, True, True)
    assert server.bodies == [{"model": "m", "messages": HI, "temperature": 0, "max_tokens": 50}]
    assert server.keys == [f"Bearer {KEY}"]


def test_no_key_is_needed(serve, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE)
    server = serve(lambda body, _: completion("Hello."))
    assert ask(server).output_tokens is None
    assert server.keys == [None]


def test_what_may_pass_is_tried_again_and_what_does_not_pass_is_said(serve):
    server = serve(lambda body, number: failure(429) if number == 1 else completion("ok"))
    assert ask(server).text == "ok"
    assert len(server.bodies) == 2
    broken = serve(lambda body, _: failure(500))
    with pytest.raises(NoAnswer, match="HTTP 500: it broke") as error:
        ask(broken)
    assert error.value.kind == "HTTP 500"
    assert len(broken.bodies) == 3
    refusing = serve(lambda body, _: failure(400, "the context is full"))
    with pytest.raises(NoAnswer, match="HTTP 400: the context is full"):
        ask(refusing)
    assert len(refusing.bodies) == 1


def test_retry_after_is_waited_for_or_reported_where_it_is_long(serve):
    server = serve(lambda body, number: failure(429, **{"Retry-After": "0.2"}) if number == 1 else completion("ok"))
    started = time.monotonic()
    assert ask(server).text == "ok"
    assert time.monotonic() - started >= 0.2
    far = serve(lambda body, _: failure(503, **{"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}))
    with pytest.raises(UserError, match="asks to wait"):
        ask(far)
    assert len(far.bodies) == 1
    spent = serve(lambda body, _: failure(429, **{"Retry-After": "0"}))
    with pytest.raises(UserError, match="still limits the rate after 3 tries"):
        ask(spent)


def test_a_server_that_hangs_or_trickles_times_out(serve):
    hanging = serve(lambda body, _: (time.sleep(0.5), completion("late"))[1])
    with pytest.raises(NoAnswer) as error:
        ask(hanging, timeout_s=0.1)
    assert error.value.kind == "timeout"
    assert len(hanging.bodies) == 1
    trickling = serve(lambda body, _: (200, [" "] * 20 + [completion("late")[1]], {}))
    with pytest.raises(NoAnswer) as error:
        ask(trickling, timeout_s=0.2)
    assert error.value.kind == "timeout"


def test_an_answer_that_breaks_off_is_no_answer(serve):
    cut = serve(lambda body, _: (200, completion("whole")[1], {"Content-Length": "9000"}))
    with pytest.raises(NoAnswer) as error:
        ask(cut, timeout_s=2.0, tries=1)
    assert error.value.kind == "no connection"


def test_no_server_is_no_connection(serve):
    server = serve(lambda body, _: completion("ok"))
    server.close()
    with pytest.raises(NoAnswer) as error:
        ask(server, tries=2)
    assert error.value.kind == "no connection"


@pytest.mark.parametrize(
    ("reply", "match"),
    [
        (failure(401, f"Incorrect API key provided: {KEY}"), "refuses the key"),
        (failure(404, "no such model"), "has no model 'm'.*no such model"),
        ((200, "<html>Welcome</html>", {}), "no chat completion in JSON"),
        ((200, '{"data": []}', {}), "no chat completion in JSON"),
        ((200, "[" * 100_000, {}), "no chat completion in JSON"),
        ((302, "", {"Location": "/elsewhere"}), "redirects"),
    ],
)
def test_what_is_wrong_for_every_request_is_said_once(serve, reply, match):
    server = serve(lambda body, _: reply)
    with pytest.raises(UserError, match=match) as error:
        ask(server)
    assert KEY not in str(error.value)
    assert len(server.bodies) == 1  # a redirect is not followed


def test_an_error_in_an_answer_is_no_answer(serve):
    with pytest.raises(NoAnswer, match="error in the answer: overloaded"):
        ask(serve(lambda body, _: (200, '{"error": {"message": "overloaded"}}', {})))


def test_a_model_that_thinks_gets_its_own_parameters(serve):
    def reply(body, _):
        if "max_tokens" in body:
            message = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
            )
            return failure(400, message)
        if "temperature" in body:
            return failure(400, "Unsupported value: 'temperature' does not support 0 with this model.")
        return completion("ok", 700)

    server = serve(reply)
    assert ask(server) == Answer("ok", 700, True, False)
    assert server.bodies[-1] == {"model": "m", "messages": HI, "max_completion_tokens": 50 + THINKING_TOKENS}


def test_a_limit_that_is_too_large_changes_no_parameter(serve):
    server = serve(lambda body, _: failure(400, "'max_tokens' is too large: 50"))
    with pytest.raises(NoAnswer, match="HTTP 400"):
        ask(server)
    assert len(server.bodies) == 1


def test_the_key_is_in_nothing_that_comes_back(serve, tmp_path):
    echo = serve(lambda body, _: completion(f"Your key is {KEY}"))
    kept = tmp_path / "answers.jsonl"
    (answer,) = ask_all(ChatModel(echo.url, "m"), [(HI, 5)], kept, "asking")
    assert answer.text == "Your key is [key]"
    assert KEY not in kept.read_text()
    with pytest.raises(NoAnswer) as error:
        ask(serve(lambda body, _: failure(500, f"headers: {KEY}")))
    assert KEY not in str(error.value)
    assert KEY not in repr(error.value)


@pytest.mark.parametrize("key", ["two\nlines", "na\u00efve"])
def test_a_key_that_cannot_be_one_is_refused_unseen(monkeypatch, key):
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(UserError, match=KEY_VARIABLE) as error:
        ChatModel("http://localhost/v1", "m")
    assert key not in str(error.value)


@pytest.mark.parametrize(
    "endpoint",
    ["file:///etc/passwd", "ftp://host/v1", "localhost:8000", "http://", "http://host:none/v1", "http://a b/v1", ""],
)
def test_only_http_addresses_are_endpoints(endpoint):
    with pytest.raises(UserError, match="must be an http"):
        checked_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", ["https://me:secret@host/v1", "https://host/v1?key=secret", "http://host/#secret"])
def test_an_endpoint_with_a_secret_in_it_is_refused_unseen(endpoint):
    with pytest.raises(UserError, match="more than host and path") as error:
        checked_endpoint(endpoint)
    assert "secret" not in str(error.value)


def test_answers_are_kept_and_not_asked_for_again(serve, tmp_path):
    kept = tmp_path / "out" / "answers.jsonl"
    prompts = [([{"role": "user", "content": "x" * size}], 10) for size in (3, 1, 2, 3)]

    def reply(body, number):
        text = body["messages"][0]["content"]
        return failure(500) if text == "xxx" and number < 6 else completion(text, len(text), "stop")

    server = serve(reply)
    model = ChatModel(server.url, "m", tries=2, backoff_s=0.001)
    first = ask_all(model, prompts, kept, "asking")
    assert [getattr(answer, "text", None) for answer in first] == [None, "x", "xx", None]
    assert server.bodies[0]["messages"][0]["content"] == "x"  # the shortest prompt speaks for the rest
    with kept.open("a") as file:
        file.write('{"endpoint": "cut')  # killed in the middle of a row
    asked = len(server.bodies)
    again = ask_all(model, prompts, kept, "asking")
    assert [answer.text for answer in again] == ["xxx", "x", "xx", "xxx"]
    assert {body["messages"][0]["content"] for body in server.bodies[asked:]} == {"xxx"}
    asked = len(server.bodies)
    assert ask_all(model, prompts, kept, "asking") == again
    assert len(server.bodies) == asked
    assert ask_all(ChatModel(server.url, "other"), prompts[:1], kept, "asking")[0].text == "xxx"
    assert len(server.bodies) == asked + 1  # another model has answers of its own


def test_an_answer_that_was_cut_is_asked_for_again_under_a_higher_limit(serve, tmp_path):
    server = serve(lambda body, _: completion("x", 1, "length" if body["max_tokens"] < 20 else "stop"))
    model, kept = ChatModel(server.url, "m"), tmp_path / "answers.jsonl"
    for limit, asked in ((10, 1), (10, 1), (20, 2), (10, 2)):
        (answer,) = ask_all(model, [(HI, limit)], kept, "asking")
        assert len(server.bodies) == asked
    assert answer.complete


def test_a_server_that_answers_nothing_ends_the_run_after_one_request(serve, tmp_path):
    server = serve(lambda body, _: failure(500))
    model = ChatModel(server.url, "m", tries=2, backoff_s=0.001)
    prompts = [([{"role": "user", "content": str(number)}], 10) for number in range(9)]
    with pytest.raises(UserError, match="does not answer for 'm': HTTP 500: it broke"):
        ask_all(model, prompts, tmp_path / "answers.jsonl", "asking")
    assert len(server.bodies) == 2


# The table


@pytest.fixture
def inputs_of(tmp_path):
    (tmp_path / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in EDITS))
    tokenizer = str(save_model(tmp_path / "model", "qwen2"))

    def make(url, models=("m",)) -> Inputs:
        return Inputs(
            PaperConfig(
                corpora=["jsonl"],
                jsonl=[str(tmp_path / "edits.jsonl")],
                tokenizer=tokenizer,
                endpoint=url,
                endpoint_model=list(models),
                out=str(tmp_path / "out"),
            )
        )

    return make


def row_of(table, model, output):
    names = [column.name for column in table.columns]
    (row,) = [row for row in table.rows if row.labels[0] == model and row.labels[2] == output]
    return dict(zip(names, row.figures, strict=True))


def test_a_model_that_knows_every_oracle_is_exact(serve, inputs_of, tmp_path, capfd):
    server = serve(lambda body, _: completion(gold(body), 40 if "program" in body["messages"][0]["content"] else 100))
    inputs = inputs_of(server.url)
    table = make_table("25", inputs)
    for output in ("program", "full"):
        figures = row_of(table, "m", output)
        assert (figures["answered"].ours, figures["EM"].ours, figures["parsed"].ours) == (8, 1.0, 1.0)
        assert figures["EM"].interval == pytest.approx((0.6756, 1.0), abs=1e-3)
        assert figures["errors"].ours == "none"
        assert figures["counted by"].ours == "API"
        rows = inputs.corpora[0].rows
        written = [row.program if output == "program" else row.after for row in rows]
        own = sum(len(inputs.text.encode(text)) for text in written) / len(rows)
        assert figures["tok of the text"].ours == pytest.approx(own)
    assert row_of(table, "m", "program")["fewer than full"].ours == pytest.approx(0.6)
    limits = {row.instruction: 2 * len(inputs.text.encode(row.before)) + 256 for row in rows}
    for body in server.bodies:
        assert body["max_tokens"] == limits[body["messages"][1]["content"].rpartition("Instruction: ")[2]]
    shown = markdown(table) + json.dumps(as_json(table)) + "".join(capfd.readouterr())
    written = [file.read_text() for file in (tmp_path / "out").iterdir()]
    assert KEY not in shown + "".join(written)
    asked = len(server.bodies)
    assert as_json(make_table("25", inputs_of(server.url))) == as_json(table)
    assert len(server.bodies) == asked


def test_errors_are_counted_by_kind(serve, inputs_of):
    programs = [
        '<program>\n<copy lines="1-99"/>\n</program>',
        "Sure! <program></program>",
        '```\n<program>\n<copy lines="1-2"/>\n</program>\n```',
        "<program>\n<gen>\nb = 1",
        "<program>\n</program>",
        None,
    ]

    def reply(body, _):
        number = int(body["messages"][1]["content"].rpartition("Set b to ")[2].rstrip(".")) - 2
        if "program" not in body["messages"][0]["content"] or number == 6:
            return completion(gold(body))
        if number == 7:
            return completion('<copy lines="1-1"/>', None, "length")
        return completion(programs[number])

    table = table_25(inputs_of(serve(reply).url))
    figures = row_of(table, "m", "program")
    assert figures["errors"].ours == "1 cut, 2 empty_program, 1 out_of_range, 2 stray_text, 1 unclosed_gen"
    assert (figures["EM"].ours, figures["parsed"].ours) == (1 / 8, 2 / 8)  # out of range is a program
    assert figures["counted by"].ours == "tokenizer"
    assert figures["out tok"].ours == figures["tok of the text"].ours


def test_requests_without_an_answer_are_counted_and_not_scored(serve, inputs_of):
    def reply(body, _):
        return failure(400) if "Set b to 5." in body["messages"][1]["content"] else completion(gold(body), 9)

    table = table_25(inputs_of(serve(reply).url, ["m", "n"]))
    for model in ("m", "n"):
        figures = row_of(table, model, "full")
        assert (figures["answered"].ours, figures["EM"].ours) == (7, 1.0)
        assert figures["errors"].ours == "1 no answer (HTTP 400)"


def test_the_table_needs_an_endpoint_and_a_model(inputs_of):
    for inputs in (inputs_of(None), inputs_of("http://localhost/v1", ())):
        with pytest.raises(Missing, match="endpoint="):
            table_25(inputs)
    with pytest.raises(UserError, match="http"):
        table_25(inputs_of("file:///etc"))


def test_prompts_are_those_that_the_decoders_have(inputs_of):
    from small_decoders import text_decoder_of

    from decoding.decoder import EditRequest

    row = inputs_of(None).corpora[0].rows[0]
    for output, format in (("program", "prompt"), ("full", "full")):
        decoder = text_decoder_of(format)
        own = decoder.open(EditRequest(row.instruction, row.before)).prompt
        assert decoder.encoder.prompt(messages_of(row, output)) == own


lines = st.lists(st.sampled_from(["", "a", "b", "</gen>", "x = 1"]), max_size=6).map("\n".join)


@given(lines, lines)
def test_every_oracle_is_read_as_its_gold(before, after):
    program = render(build_oracle(before, after))
    for text in (program, f"\n{program}\n", program.removeprefix("<program>").removesuffix("</program>")):
        reading = read_answer(Answer(text, None, True, True), before, "program")
        assert (reading.text, reading.parsed, reading.error) == (after, True, None)
    assert read_answer(Answer(program, None, False, True), before, "program").error == "cut"
    assert read_answer(Answer(after, None, True, True), before, "full").text == after


def test_the_papers_own_figures_say_what_the_findings_say(serve, inputs_of):
    most, least = PAPER["GPT-5-mini"][2], PAPER["DeepSeek-v3.2"][2]
    assert (most, least, PAPER_CASES) == (465, 62, 131)
    assert [round(implied_full(n, s)) for n, s in zip((most, least), PAPER_SAVED, strict=True)] == [894, 775]
    assert round(PAPER_GOLD) == 657
    assert 1 - most / PAPER_GOLD == pytest.approx(0.29, abs=0.005)
    assert most / PAPER_PROGRAM == pytest.approx(10, abs=0.5)
    assert most / least == pytest.approx(7.5)
    table = table_25(inputs_of(serve(lambda body, _: completion(gold(body))).url))
    text = " ".join(table.findings)
    assert "894 of a regeneration" in text
    assert "imply 775" in text
    assert "42% to 59%" in text or "42% to 58%" in text
    assert [row.labels[0] for row in table.rows if row.figures[0].ours is None] == list(PAPER)
