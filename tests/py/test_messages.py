"""The Messages API with the `anthropic` client: texts, tools, streams, errors."""
import json

import anthropic
import pytest

from server_quern import Quern, events

MODEL = "tiny-1m-q8_0"
HELLO = [{"role": "user", "content": "Speak to me of the king."}]
WEATHER = {"name": "weather", "description": "The weather of a place",
           "input_schema": {"type": "object", "additionalProperties": False, "required": ["place", "days"],
                            "properties": {"place": {"enum": ["Paris", "Rome"]},
                                           "days": {"type": "integer", "minimum": 1, "maximum": 7}}}}


@pytest.fixture(scope="module")
def quern():
    with Quern() as q:
        yield q


@pytest.fixture(scope="module")
def client(quern):
    return anthropic.Anthropic(base_url=quern.url, api_key="x", max_retries=0)


def ask(client, **more):
    return client.messages.create(**{"model": MODEL, "max_tokens": 12, "messages": HELLO, "extra_body": {"seed": 1},
                                     **more})


SHAPE = {"type": "object", "additionalProperties": False, "required": ["king", "old"], "properties": {
    "king": {"enum": ["Lear", "Arthur"]}, "old": {"type": "boolean"}}}


@pytest.mark.parametrize("body", [
    {"output_format": {"type": "json_schema", "schema": SHAPE}},
    {"output_config": {"format": {"type": "json_schema", "schema": SHAPE}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SHAPE}}},
    {"structured_outputs": {"json": SHAPE}}, {"guided_json": SHAPE}], ids=lambda b: next(iter(b)))
def test_an_answer_can_have_a_format(quern, body):
    for stream in (False, True):
        status, _, text = quern.call("/v1/messages", {"messages": HELLO, "max_tokens": 60, "seed": 1, "stream": stream,
                                                      **body})
        assert status == 200, text
        if stream:
            deltas = [json.loads(line[6:]) for line in text.decode().split("\n") if line.startswith("data: {")]
            said = "".join(d["delta"].get("text", "") for d in deltas if d["type"] == "content_block_delta")
        else:
            said = text["content"][0]["text"]
        answer = json.loads(said)
        assert answer["king"] in ("Lear", "Arthur") and isinstance(answer["old"], bool)


@pytest.mark.parametrize("body,param", [
    ({"output_format": {"type": "text"}}, "output_format"), ({"output_config": {"effort": "high"}}, "output_config"),
    ({"output_format": {"type": "json_schema", "schema": SHAPE}, "response_format": {"type": "text"}},
     "response_format"),
    ({"structured_outputs": {"jsn": 1}}, "structured_outputs")])
def test_a_format_that_is_none_is_refused(quern, body, param):
    status, answer = quern.post("/v1/messages", messages=HELLO, max_tokens=5, **body)
    assert status == 400 and param in json.dumps(answer), answer


def test_text_is_that_of_chat(quern, client):
    got = ask(client, system="You are old.")
    _, chat = quern.post("/v1/chat/completions", max_tokens=12, seed=1,
                         messages=[{"role": "system", "content": "You are old."}, *HELLO])
    assert [b.type for b in got.content] == ["text"]
    assert got.content[0].text == chat["choices"][0]["message"]["content"]
    ends = {"stop": "end_turn", "length": "max_tokens"}
    assert got.stop_reason == ends[chat["choices"][0]["finish_reason"]]
    assert got.role == "assistant" and got.type == "message"
    usage = got.usage
    assert usage.output_tokens == chat["usage"]["completion_tokens"]
    assert usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]


def test_stream_tells_the_same_blocks(client):
    whole = ask(client)
    with client.messages.stream(model=MODEL, max_tokens=12, messages=HELLO, extra_body={"seed": 1}) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_answer_that_is_cut_says_so(client):
    assert ask(client, max_tokens=1).stop_reason == "max_tokens"


def test_tool_is_called_as_its_schema_says_and_streamed_as_fragments(quern, client):
    tool = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 120}
    whole = ask(client, **tool)
    call = whole.content[-1]
    assert call.type == "tool_use" and call.name == "weather" and whole.stop_reason == "tool_use"
    assert call.input["place"] in ("Paris", "Rome") and 1 <= call.input["days"] <= 7
    with client.messages.stream(model=MODEL, messages=HELLO, extra_body={"seed": 1}, **tool) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == call.input and final.content[-1].id == call.id
    body = {"model": MODEL, "messages": HELLO, "stream": True, "seed": 1, **tool}
    told = [json.loads(e) for e in events(quern.call("/v1/messages", body)[2].decode())]
    parts = [e["delta"]["partial_json"] for e in told
             if e["type"] == "content_block_delta" and e["delta"]["type"] == "input_json_delta"]
    assert json.loads("".join(parts)) == call.input
    starts = [e["index"] for e in told if e["type"] == "content_block_start"]
    stops = [e["index"] for e in told if e["type"] == "content_block_stop"]
    assert starts == stops == list(range(len(starts)))


def test_results_of_tools_go_back(client):
    first = ask(client, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=120)
    call = first.content[-1]
    turn = [*HELLO, {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}]}]
    assert ask(client, messages=turn, tools=[WEATHER]).type == "message"


def test_tokens_are_counted(client):
    n = client.messages.count_tokens(model=MODEL, messages=HELLO).input_tokens
    usage = ask(client).usage
    assert n == usage.input_tokens + usage.cache_read_input_tokens


def test_stop_sequences_say_which(client):
    text = ask(client, max_tokens=40).content[0].text
    word = text.split()[2]
    got = ask(client, max_tokens=40, stop_sequences=[word])
    assert got.stop_reason == "stop_sequence" and got.stop_sequence == word
    assert not got.content or word not in got.content[0].text


@pytest.mark.parametrize("change,field", [
    ({"messages": []}, "messages"), ({"messages": [{"role": "system", "content": "x"}]}, "role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "not text"),
    ({"messages": [{"role": "user", "content": 3}]}, "content"), ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"), ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "custom"),
    ({"tools": [{"name": "x"}]}, "input_schema"), ({"tool_choice": {"type": "some"}}, "tool_choice"),
    ({"mcp_servers": []}, "mcp_servers"), ({"thinking": {"type": "perhaps"}}, "thinking"),
    ({"system": 4}, "system"), ({"stop_sequences": "x" * 100000}, "stop")])
def test_bad_fields_are_named_in_anthropics_shape(quern, change, field):
    body = {"max_tokens": 4, "messages": HELLO, **change}
    status, told = quern.post("/v1/messages", **body)
    assert status == 400 and told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert field in told["error"]["message"]


def test_unknown_model_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="nobody")
